import os
import subprocess
import sys

import pytest

from operant.cores import allowed_cores


def test_there_are_cores():
    assert 1 <= allowed_cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no such limit")
def test_a_limit_of_the_process_counts():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from operant.cores import allowed_cores; print(allowed_cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"
