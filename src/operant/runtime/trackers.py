"""Experiment trackers: TensorBoard, Weights & Biases, Trackio (extra: `track`).

Each is a callback in its own thread. Nothing listens on a port. Uploads depend on the tracker's own settings:
TensorBoard and Trackio write local files, and so does Weights & Biases unless logged in.
"""

import contextlib
import hashlib
import importlib
import math
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from operant.runtime.callbacks import Callback
from operant.runtime.generations import latest_samples
from operant.runtime.outcome import Outcome
from operant.runtime.run import Run

PROJECT = "operant"
"""Default project in trackers with projects; the trackers' environment variables override it."""
MOST_SAMPLES = 50
"""Rows of a table of completions."""
PICTURES, FILMS = (".png", ".gif"), (".mp4",)

Curves = Mapping[str, Sequence[float]]
"""Metrics by name, with one number per seed or one for all seeds."""


class Tracker(Callback):
    """Sends a run to a tracker."""

    patience = 180.0
    package: ClassVar[str] = ""

    def on_start(self, run: Run | None) -> None:
        """Start or continue the run in the tracker, with its configuration."""
        assert run is not None  # noqa: S101 - only runs are tracked
        self._run, self.seeds = run, run.settings.seeds
        self.begin(run)

    def on_metrics(self, record: Mapping[str, Any]) -> None:
        """Log a point of every metric."""
        self.add(of_metrics(record), int(record["consumed"]))

    def on_evaluation(self, record: Mapping[str, Any]) -> None:
        """Log the scores and answers."""
        consumed = int(record["consumed"])
        self.add(of_evaluation(record), consumed)
        samples = [one for one in latest_samples(self._run) if one.get("consumed") == consumed][:MOST_SAMPLES]
        if samples:
            columns = list(dict.fromkeys(name for sample in samples for name in sample if name != "consumed"))
            self.add_table(columns, [[_cell(sample.get(name)) for name in columns] for sample in samples], consumed)

    def on_end(self, outcome: Outcome | None) -> None:
        """Log the images and videos of the run, and finish."""
        consumed = 0 if outcome is None else outcome.consumed
        for path in sorted(self._run.media_path.glob("*")):  # none if the folder was lost, as in copies by git
            if path.suffix in PICTURES + FILMS:
                self.add_media(path, consumed)
        self.end()

    def begin(self, run: Run) -> None:
        """Open the outputs."""

    def add(self, curves: Curves, consumed: int) -> None:
        """Log a point of each curve."""

    def add_table(self, columns: list[str], rows: list[list[Any]], consumed: int) -> None:
        """Log the completions of an evaluation."""

    def add_media(self, path: Path, consumed: int) -> None:
        """Log an image or a video."""

    def end(self) -> None:
        """Flush the outputs."""


class TensorBoard(Tracker):
    """Event files in `tensorboard/` of the run: a folder for each seed and one for their mean, so that curves overlay.

    TensorBoard plays GIFs; videos in other formats are skipped.
    """

    package = "tensorboard"

    def begin(self, run: Run) -> None:
        """Store the budget after which a resumed session replaces points; a first session has none to replace."""
        self._writers: dict[str, Any] = {}
        self._resumed_from: int | None = run.facts()["sessions"][-1].get("from")

    def add(self, curves: Curves, consumed: int) -> None:
        """Write a point of each curve for each seed, and their mean."""
        for name, values in curves.items():
            self._writer("mean", consumed).add_scalar(name, mean(values), consumed)
            for seed, value in zip(self.seeds, values, strict=False):
                if len(self.seeds) == len(values) > 1:
                    self._writer(f"seed_{seed}", consumed).add_scalar(name, value, consumed)

    def add_table(self, columns: list[str], rows: list[list[Any]], consumed: int) -> None:
        """Write a table in Markdown."""
        self._writer("mean", consumed).add_text("completions", _markdown(columns, rows), consumed)

    def add_media(self, path: Path, consumed: int) -> None:
        """Write an image or a GIF unchanged."""
        if path.suffix not in PICTURES:
            return
        messages: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        image = messages.Summary.Image(encoded_image_string=path.read_bytes())
        summary = messages.Summary(value=[messages.Summary.Value(tag=f"media/{path.stem}", image=image)])
        self._writer("mean", consumed)._get_file_writer().add_summary(summary, consumed)

    def end(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()

    def _writer(self, name: str, consumed: int) -> Any:
        if name not in self._writers:
            module: Any = importlib.import_module("torch.utils.tensorboard")
            folder = str(self._run.path / "tensorboard" / name)
            purged = consumed if self._resumed_from is None else self._resumed_from + 1
            writer = self._writers[name] = module.SummaryWriter(folder, purge_step=purged)
            if name == "mean":
                asked = [[key, _cell(value)] for key, value in self._run.asked().items()]
                writer.add_text("configuration", _markdown(["name", "value"], asked), consumed)
        return self._writers[name]


class WandB(Tracker):
    """A run of Weights & Biases; offline unless logged in or set by `WANDB_MODE`."""

    package = "wandb"

    def begin(self, run: Run) -> None:
        """Start a run, or continue that of earlier sessions."""
        self._wandb: Any = importlib.import_module("wandb")
        logged_in = bool(os.environ.get("WANDB_MODE")) or self._wandb.login(prompt=False, verify=False)
        self._shown = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=os.environ.get("WANDB_NAME", run.path.name),
            id=os.environ.get("WANDB_RUN_ID", identity(run)[0]),
            dir=os.environ.get("WANDB_DIR", str(run.path)),
            resume="allow",
            config=run.asked(),
            settings=self._wandb.Settings(console="off"),
            **({} if logged_in else {"mode": "offline"}),
        )
        self._shown.define_metric("*", step_metric="consumed")

    def add(self, curves: Curves, consumed: int) -> None:
        """Log a point of each curve for each seed, and their mean."""
        self._shown.log({**named(curves, self.seeds), "consumed": consumed})

    def add_table(self, columns: list[str], rows: list[list[Any]], consumed: int) -> None:
        """Log a table."""
        self._shown.log({"completions": self._wandb.Table(columns=columns, data=rows), "consumed": consumed})

    def add_media(self, path: Path, consumed: int) -> None:
        """Log an image or a video."""
        kind = self._wandb.Video if path.suffix != ".png" else self._wandb.Image
        self._shown.log({f"media/{path.stem}": kind(str(path)), "consumed": consumed})

    def end(self) -> None:
        """Finish the run."""
        self._shown.finish()


class Trackio(Tracker):
    """A run of Trackio, in its folder on this machine unless `TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL` is set."""

    package = "trackio"

    def begin(self, run: Run) -> None:
        """Start a run, or continue that of earlier sessions."""
        resumed = len(run.facts()["sessions"]) > 1
        with contextlib.redirect_stdout(sys.stderr):  # not for results
            self._trackio: Any = importlib.import_module("trackio")
            self._shown = self._trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", PROJECT),
                name=identity(run)[1],
                config=run.asked(),
                resume="allow" if resumed else "never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def add(self, curves: Curves, consumed: int) -> None:
        """Log a point of each curve for each seed, and their mean."""
        self._shown.log(named(curves, self.seeds), step=consumed)

    def add_table(self, columns: list[str], rows: list[list[Any]], consumed: int) -> None:
        """Log a table."""
        self._shown.log({"completions": self._trackio.Table(columns=columns, data=rows)}, step=consumed)

    def add_media(self, path: Path, consumed: int) -> None:
        """Log an image or a video."""
        kind = self._trackio.Video if path.suffix != ".png" else self._trackio.Image
        self._shown.log({f"media/{path.stem}": kind(str(path))}, step=consumed)

    def end(self) -> None:
        """Finish the run."""
        with contextlib.redirect_stdout(sys.stderr):
            self._shown.finish()


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}
"""Trackers by name, as in `--track`."""


def trackers_of(names: Any) -> list[Callback]:
    """Return trackers by name.

    Raises:
        ValueError: unknown tracker.
        ModuleNotFoundError: its package is not installed.
    """
    listed: list[Any] = [*cast(Sequence[Any], names)] if isinstance(names, list | tuple) else [None]
    if any(name not in TRACKERS for name in listed):
        raise ValueError(f"track must be a list of names among {', '.join(TRACKERS)}, got {names!r}")
    kinds = [TRACKERS[name] for name in dict.fromkeys(listed)]
    absent = [kind.package for kind in kinds if find_spec(kind.package) is None]
    if absent:
        raise ModuleNotFoundError(f"--track needs {', '.join(absent)}: pip install {' '.join(absent)}")
    return [kind() for kind in kinds]


def of_metrics(record: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the curves of a record of metrics."""
    return {name: _floats(value) for name, value in record.items() if name != "consumed"}


def of_evaluation(record: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the curves of an evaluation: `eval/score`, `eval/iqm`, and further metrics.

    Numbers of environments with these names are under `eval/info/`.
    """
    told = {"score": record["scores"], "iqm": record["iqm"], "length": record["lengths"]}
    told |= {name: record[name] for name in ("success_rate", "cut")}
    told |= {f"info/{name}" if name in told else name: value for name, value in record["infos"].items()}
    told |= record.get("metrics", {})
    return {f"eval/{name.removeprefix('eval/')}": _floats(value) for name, value in told.items() if value != ()}


def named(curves: Curves, seeds: Sequence[int]) -> dict[str, float]:
    """Return the mean of each curve by its name, and the numbers of single seeds as `NAME/seed_<seed>`."""
    found = {name: mean(values) for name, values in curves.items()}
    several = {name: values for name, values in curves.items() if len(values) == len(seeds) > 1}
    return found | {
        f"{name}/seed_{seed}": value
        for name, values in several.items()
        for seed, value in zip(seeds, values, strict=True)
    }


def mean(values: Sequence[float]) -> float:
    """Return the mean without NaN; NaN if all are."""
    there = [value for value in values if not math.isnan(value)]
    return sum(there) / len(there) if there else math.nan


def identity(run: Run) -> tuple[str, str]:
    """Return an id and a name of a run and all its sessions, which it keeps when its folder is moved or renamed.

    Runs of earlier versions keep them only when they are moved.
    """
    facts, name = run.facts(), run.path.name
    if "id" in facts:
        return facts["id"], facts["name"]
    first = facts["sessions"][0]
    text = f"{first['started']} {first['host']} {first['process']} {name}"
    return hashlib.sha256(text.encode()).hexdigest()[:16], name


def _floats(value: Any) -> list[float]:
    return [float(number) for number in np.atleast_1d(np.asarray(value, np.float64))]


def _cell(value: Any) -> str | int | float | bool | None:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table; TensorBoard reads Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_escaped(cell) for cell in line)} |" for line in lines)


def _escaped(cell: Any) -> str:
    return str(cell).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ↵ ")
