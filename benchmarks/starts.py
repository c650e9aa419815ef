"""What is left behind by runs with several processes: started and stopped many times.

    python benchmarks/starts.py --starts 50               # a minute or more for ten starts of each kind
    python benchmarks/starts.py --starts 50 --kinds actors

Each start is a short run of the command line: PPO in two processes of torchrun, or IMPALA with actors in two worker
processes that do not wait. Every third is stopped by SIGTERM and every third by SIGKILL, wherever it is; the others end
by themselves. Looked for are processes with the mark of a start in their environment, ports, shared memory, and files
in its temporary folder, where nothing was killed. `ray_churn.py --starts` does the same for Ray.
Needs /proc.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from leftovers import MARK, marked, ports, shared

COMMON = ["--seeds", "1", "--evaluate-episodes", "1", "--progress", "silent", "--hidden-sizes", "8"]
KINDS = {
    "torchrun": ["ppo", "CartPole-v1", *COMMON, "--shards", "2", "--processes", "2", "--budget", "4096"],
    "actors": ["impala", "CartPole-v1", *COMMON, "--workers", "2", "--max-staleness", "2", "--budget", "8192"],
}

SECONDS = 60.0
"""After which something counts as left behind; a process that is importing torch on a busy machine takes a while."""


def start(kind, how, mark, folder, chance):
    """Start a run, stop it in some way, and return what it leaves behind for longer than some seconds."""
    before, temporary = shared(mark), Path(folder) / "tmp"
    temporary.mkdir()
    environment = {**os.environ, MARK: mark, "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "operant", "train", *KINDS[kind], "--run", str(Path(folder) / "run")]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
    if how is not None:
        time.sleep(1.0 + 6.0 * chance.random())
        process.send_signal(how)
    process.wait(timeout=300)
    end = time.monotonic() + SECONDS
    while True:
        names = [path.name for path in temporary.iterdir()] if how != signal.SIGKILL else []
        processes, memory = marked(mark), sorted(shared(mark) - before)
        found = {"processes": processes, "ports": sorted(ports(processes)), "memory": memory, "files": names}
        if not any(found.values()) or time.monotonic() > end:
            return {name: items for name, items in found.items() if items}
        time.sleep(0.2)


def main():
    """Start and stop as often as the arguments say, and report what is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=50, help="of each kind")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    chance, well = random.Random(options.seed), True
    for kind in options.kinds:
        left, seconds = {}, []
        for number in range(options.starts):
            begin, how = time.monotonic(), (None, signal.SIGTERM, signal.SIGKILL)[number % 3]
            with tempfile.TemporaryDirectory(prefix="operant-starts-") as folder:
                found = start(kind, how, f"{os.getpid()}-{kind}-{number}", folder, chance)
            seconds.append(time.monotonic() - begin)
            if found:
                left[number] = found
        middle = sorted(seconds)[len(seconds) // 2]
        print(f"{kind}: {len(seconds)} starts, median {middle:.1f} s; left behind: {left or 'nothing'}", flush=True)
        well = well and not left
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
