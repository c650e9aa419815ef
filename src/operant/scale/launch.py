"""Launch of a run's processes on this machine, by torchrun's own launcher: `launch`."""

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from operant.runtime.signals import EXIT_REQUEUE, handlers_kept
from operant.scale.loopback import BACKEND, loopback_only
from operant.scale.processes import LAUNCHED, LostError

GRACE = 300
"""Seconds for the processes to save their state after a request to stop."""

_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1")


def launch(arguments: Sequence[str], processes: int, *, module: str = "operant") -> int:
    """Run a command in several processes that train together, and return the status of the first, or of a failed one.

    Like `torchrun --standalone --nproc-per-node=N -m operant ...`, with the exit status of operant, and on the loopback
    interface alone: other machines cannot reach the processes.

    Args:
        arguments: those after `operant`.
        processes: N.
        module: the module, as in `python -m`.

    Raises:
        LostError: a process has died by a signal. One that fails with an exit status has reported why.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the error below says it
    # torchrun would leave a folder and its signal handlers behind
    folder_of_logs = tempfile.TemporaryDirectory(prefix="operant-launch-")
    with folder_of_logs as folder, handlers_kept(*_SIGNALS), loopback_only():
        return _launch(arguments, processes, module=module, folder=folder)


def _launch(arguments: Sequence[str], processes: int, *, module: str, folder: str) -> int:
    signals = [name for name in _SIGNALS if signal.getsignal(signal.Signals[name]) is not signal.SIG_IGN]  # nohup
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=f"{LAUNCHED}-{os.getpid()}-{uuid.uuid4().hex}",
        rdzv_backend=BACKEND,
        max_restarts=0,
        monitor_interval=0.2,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
        shutdown_timeout=GRACE,
        signals_to_handle=",".join(signals),
    )
    try:
        elastic_launch(config, sys.executable)("-m", module, *arguments)
    except SignalException:
        return EXIT_REQUEUE
    except ChildFailedError as error:
        failures = {rank: failure.exitcode for rank, failure in error.failures.items()}
        ended = [code for code in failures.values() if code != -signal.SIGTERM]  # by the launcher, after the first one
        if ended and min(ended) > 0:  # they have reported their errors, which resuming would only repeat
            return failures[0] if failures.get(0, -1) > 0 else ended[0]
        raise LostError(
            f"of {processes} processes these have died, with their status: {failures}; `operant resume RUN` continues "
            "from the latest checkpoint, on any number of processes"
        ) from error
    return 0
