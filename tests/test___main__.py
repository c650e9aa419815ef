import subprocess
import sys

from operant import __version__


def test_the_module_is_the_command():
    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "operant", *arguments], capture_output=True, text=True, check=False
        )

    assert call("--version").stdout == f"operant {__version__}\n"
    assert call("nothing").returncode == 2
