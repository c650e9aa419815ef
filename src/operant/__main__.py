"""`python -m operant` is the command line `operant`."""

import sys

from operant.cli import main

if __name__ == "__main__":
    sys.exit(main())
