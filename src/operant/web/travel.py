"""Time travel on the page of a run: any update of the run, with episodes of its policy and its table.

One run is open at a time: its experiment stays in this process, so that nearby updates are fast. A call computes for a
short time and reports its progress; the page cancels by not calling again.
"""

import base64
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from operant import streams
from operant.build import reassemble
from operant.runtime.acting import draw_noise
from operant.runtime.experiment import Numbering
from operant.runtime.learner import Describing
from operant.runtime.run import Run, RunError
from operant.runtime.run_paths import location
from operant.runtime.time_travel import TimeTravel
from operant.runtime.trained import Trained
from operant.runtime.watching import Scene, Stage
from operant.web.folders import folder_of
from operant.web.images import png
from operant.web.runs import stamp, tables_of
from operant.web.states import foreign
from operant.web.workers import NotFoundError

MOMENT = 0.2
"""Maximum duration of a call in seconds."""
MOST_SCENES = 60
"""Maximum number of scenes of a response."""
MOST_STEPS = 2000
"""Maximum number of steps of an episode, as in `operant watch`."""
MOST_NUMBERS = 64
"""Maximum number of values of an observation."""

Way = Literal["to", "back", "confirm"]


class _Open:
    """The open run."""

    def __init__(self, path: Path) -> None:
        self.path, self.stamp = path, stamp(path / "config.toml")
        tables = tables_of(path)
        if problem := foreign(path, tables["settings"], tables["config"]):
            raise RunError(problem)
        run = Run.open(path, {})
        with ExitStack() as stack:
            self.trained = Trained(run, reassemble(run, remote_code=False))
            stack.callback(self.trained.close)
            self.travel = TimeTravel(run, self.trained.experiment.learner)
            stack.pop_all()
        self._is_table = run.entry.package == "tabular"
        self.confirmed: int | None = None
        self._walk: tuple[tuple[Way, int], Iterator[int]] | None = None
        self._play: _Play | None = None

    @property
    def here(self) -> int | None:
        return self.travel.here

    def walk(self, way: Way, at: int) -> bool:
        """Compute for a short time, and return whether the move is done; `back` and `confirm` first go to `at`."""
        if self._walk is None or self._walk[0] != (way, at):
            self.stop()
            self._walk = (way, at), self._steps(way, at)
        until = time.monotonic() + MOMENT
        try:
            for _ in self._walk[1]:
                if time.monotonic() >= until:
                    return False
        except BaseException:
            self._walk = None
            raise
        self._walk = None
        return True

    def _steps(self, way: Way, at: int) -> Iterator[int]:
        if way == "to" or self.here != at:
            yield from self.travel.toward(at)
        if way == "back":
            yield from self.travel.back()
        if way == "confirm":
            later = self.travel.next_recorded()
            yield from self.travel.confirm()
            self.confirmed = later

    def scenes(self, seed_index: int, start: int, *, sample: bool) -> tuple[list[Scene], dict[str, Any]]:
        """Return some scenes of the first episode of a seed, and the frames per second and whether it has ended."""
        key = seed_index, sample
        if self._play is None or self._play.key != key or self._play.position > start:
            self.stop()
            stage = self._stage(seed_index, sample=sample)
            self._play = _Play(key, stage, stage.scenes())
        found = self._play.more(start)
        return found, {"rate": self._play.stage.frames_per_second, "ended": self._play.ended}

    def _stage(self, seed_index: int, *, sample: bool) -> Stage:
        """Return the environment of a seed's policy as in `operant watch`, rendered if possible."""
        learner, settings = self.trained.experiment.learner, self.trained.run.settings
        generators = streams.of_seeds(settings.seeds, "watching", device=self.trained.device)
        policy = learner
        if self._is_table:
            from operant.tabular.player import Player  # noqa: PLC0415 - only tables need numba and scipy

            policy = Player(learner)  # without memory of earlier episodes
        options: dict[str, Any] = {
            "seeds": settings.seeds,
            "index": seed_index,
            "noise": (lambda: draw_noise(policy, 1, generators[seed_index : seed_index + 1])[0]) if sample else None,
            "max_steps": MOST_STEPS,
            "env_kwargs": self.trained.evaluation_kwargs,
            "device": self.trained.device,
            "wrappers": self.trained.wrappers,
            "describe": learner.describe if isinstance(learner, Describing) else None,
        }
        if isinstance(self.trained.experiment, Numbering):
            options["wrap"] = self.trained.experiment.wrap
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        with suppress(ValueError, ModuleNotFoundError), ExitStack() as stack:
            stage = stack.enter_context(Stage(policy, settings.task, **options))
            stage.check()
            stack.pop_all()
            return stage
        return Stage(policy, settings.task, blind=True, **options)

    @cached_property
    def tables(self) -> Any:
        """Table of the learner; None for networks."""
        if not self._is_table:
            return None
        from operant.web.tables import Tables  # noqa: PLC0415 - as above

        return Tables(self.trained)

    def stop(self) -> None:
        """Close the current episode."""
        self.confirmed = None
        if self._play is not None:
            self._play.stage.close()
            self._play = None

    def close(self) -> None:
        self.stop()
        self.trained.close()


@dataclass
class _Play:
    """Episode, scene by scene."""

    key: tuple[int, bool]
    stage: Stage
    scenes: Iterator[Scene]
    position: int = 0
    ended: bool = False

    def more(self, start: int) -> list[Scene]:
        """Return scenes from an index on; there are none if the time limit or the end is before it."""
        until, found = time.monotonic() + MOMENT, list[Scene]()
        while not self.ended and len(found) < MOST_SCENES:
            scene = next(self.scenes)
            self.ended = scene.ended
            self.position += 1
            if self.position > start:
                found.append(scene)
            if time.monotonic() >= until:
                break
        return found


_open: _Open | None = None


def load(runs: Path, run: str) -> dict[str, str]:
    """Open a run in advance of time travel; `problem` contains the error if it cannot be opened."""
    path = folder_of(runs, run)
    try:
        opened(path)
    except Exception as error:  # the next request reports the error
        return {"problem": f"{type(error).__name__}: {error}"}
    return {"problem": ""}


def go(runs: Path, run: str, at: int, way: Way = "to") -> dict[str, Any]:
    """Go to an update of a run; each call computes for a short time.

    Args:
        runs: the folder of runs.
        run: its name.
        at: budget used at the target; at the current update for `back` and `confirm`.
        way: `to` the first update with this budget used; `back` to the previous one; or `confirm` by the next state
            with a recorded hash.

    Returns:
        `done`, and the progress, `consumed`; once done, also the hash and the origin of the state.

    Raises:
        ValueError: the run has not reached the update.
        RunError: the update cannot be recomputed, or differs from that of the training.
    """
    place = opened(folder_of(runs, run))
    if not place.walk(way, at):
        return {"done": False, "consumed": place.here}
    return {"done": True, **_arrived(place)}


def scenes(  # noqa: PLR0917 - by name, from JSON
    runs: Path, run: str, at: int, seed_index: int = 0, start: int = 0, sample: bool = False
) -> dict[str, Any]:
    """Return some scenes of the first episode of the policy at an update.

    Args:
        runs: the folder of runs.
        run: its name.
        at: budget used at the current update, after `go`.
        seed_index: index of the seed.
        start: index of the first scene.
        sample: whether to sample actions instead of using the most probable ones.

    Returns:
        `scenes`, with frames as base64 of PNG, or None if the task cannot be rendered; the frames per second, `rate`;
        and `ended`, whether these are the last scenes of the episode: if not, call again. There may be none yet if the
        steps up to `start` have to be repeated. `away` is true if the run is at another update: call `go` first.
    """
    place = opened(folder_of(runs, run))
    if place.here != at:
        return {"away": True}
    if not 0 <= start <= MOST_STEPS:
        raise ValueError(f"start must be from 0 to {MOST_STEPS}, got {start}")
    found, facts = place.scenes(seed_index, start, sample=sample)
    return {"away": False, **facts, "scenes": [_scene(scene) for scene in found]}


def table(runs: Path, run: str, at: int, seed_index: int = 0) -> dict[str, Any]:
    """Return the table of an update, with the exact solution if the model is known; empty for networks."""
    place = opened(folder_of(runs, run))
    if place.here != at:
        return {"away": True}
    return {"away": False, **({"table": False} if place.tables is None else place.tables.show(seed_index))}


def opened(path: Path) -> _Open:
    """Open a run and close the previous one, which may be one with the same name or another budget."""
    global _open  # noqa: PLW0603 - one process, one open run
    if _open is None or (_open.path, _open.stamp) != (path, stamp(path / "config.toml")):
        if _open is not None:
            _open.close()
            _open = None
        _open = _Open(path)
    if not _open.path.is_dir():
        raise NotFoundError(f"{path.name} no longer exists")
    return _open


def _arrived(place: _Open) -> dict[str, Any]:
    arrival = place.travel.arrival()
    return {
        **vars(arrival),
        "verified": arrival.verified,
        "confirmed": place.confirmed,
        "next_recorded": place.travel.next_recorded(),
        "commands": {
            "evaluate": _command(place.path, "evaluate", arrival.consumed),
            "watch": _command(place.path, "watch", arrival.consumed),
        },
    }


def _scene(scene: Scene) -> dict[str, Any]:
    frame = None if scene.frame is None else base64.b64encode(png(scene.frame)).decode()
    obs = scene.obs if len(scene.obs) <= MOST_NUMBERS else []
    return {**scene._asdict(), "frame": frame, "obs": obs, "value": scene.value, "told": dict(scene.told)}


def _command(path: Path, command: str, at: int) -> str:
    return f"operant {command} {location(path)} --at {at}"
