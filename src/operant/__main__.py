"""`python -m operant` is the command line `operant`."""

import sys

from operant.cli import main

if __name__ == "__main__":
    status = main()
    if "operant.language.sharded" in sys.modules:  # a process that shares a model, whatever its end
        from operant.scale import leave

        leave(status)
    sys.exit(status)
