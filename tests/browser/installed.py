"""Build the wheel, install it into a separate folder and serve it, all without a network."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"


def build(folder):
    """Build the wheel into a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


def install(wheel, target):
    """Install a wheel into a folder, and return the environment variables of processes that import it from there."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run(
        [*command, "--target", str(target), str(wheel)],
        check=True,
        env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    _take_machine_code(target)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(target), *_others()])}
    where = [sys.executable, "-P", "-c", "import operant; print(operant.__file__)"]
    found = subprocess.run(where, env=environment, cwd=target, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).is_relative_to(target)
    return environment


def _others():
    """Return the folders in PYTHONPATH of this process, except the sources."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [path for path in given if path and Path(path).resolve() != SOURCES]


def _take_machine_code(target):
    """Copy the cached machine code of the kernels, since compiling them takes half a minute.

    numba uses it only for files with the same time and size, and operant only for sources with the same digest.
    """
    for marker in SOURCES.rglob("__pycache__/kernels.sha256"):
        cached = marker.parent
        package = target / cached.parent.relative_to(SOURCES)
        (package / "__pycache__").mkdir(exist_ok=True)
        for source in cached.parent.glob("*.py"):
            times = source.stat()
            os.utime(package / source.name, ns=(times.st_atime_ns, times.st_mtime_ns))
        for path in (*cached.glob("*.nbi"), *cached.glob("*.nbc"), marker):
            shutil.copy2(path, package / "__pycache__")


class Server:
    """A process of `operant serve` from the installed wheel, which can be killed and restarted at the same address.

    Args:
        runs: the folder of runs, with the default name.
        environment: variables of the process.
        flags: of the command.
    """

    def __init__(self, runs, environment, flags=()):
        self.runs, self.port, self.process = runs, 0, None
        self.environment, self.flags = environment, flags
        self.start()

    def start(self):
        command = [sys.executable, "-P", "-m", "operant", "serve", "--no-browser", "--port", str(self.port)]
        where = {"env": self.environment, "cwd": self.runs.parent}
        self.process = subprocess.Popen([*command, *self.flags], stdout=subprocess.PIPE, text=True, **where)
        self.address = self.process.stdout.readline().strip().rstrip("/")
        self.port = int(self.address.rpartition(":")[2])

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
