"""`operant watch` (extra: `render`)."""

import errno
import math
import os
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import tyro

from operant import doors
from operant.cli.arguments import parse
from operant.cli.captions import captioned
from operant.cli.evaluating import arrived
from operant.cli.output import number, require_extra, require_writable
from operant.runtime.files import beside
from operant.runtime.run_paths import as_name, location

if TYPE_CHECKING:
    from operant.api import Trained
    from operant.runtime.watching import Frame, Played, Stage

FORMATS: dict[str, tuple[float, dict[str, Any]]] = {
    ".gif": (
        33.0,
        {
            "codec": "gif",
            "pix_fmt_out": "pal8",
            "macro_block_size": 1,
            # A palette per frame gives accurate colors in a single pass.
            "output_params": [
                "-vf",
                "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1:dither=none",
                *("-gifflags", "-transdiff", "-loop", "0", "-f", "gif"),
            ],
        },
    ),
    ".mp4": (60.0, {"codec": "libx264", "macro_block_size": 2, "output_params": ["-f", "mp4"]}),
}
"""Maximum frame rate and parameters of ffmpeg, by file suffix."""


@dataclass(frozen=True)
class WatchOptions:
    """Run a trained policy in Gymnasium's environment, and record a video."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""

    seed_index: int | Literal["best"] = 0
    """Seed that acts: its index in the run, from 0, or the seed with the best final score."""

    out: Path | None = None
    """Output file, .gif or .mp4. Default: media/<task>-seed<seed>.gif in the folder of the run; with --at,
    media/<task>-seed<seed>-at<STEP>.gif."""

    episodes: int = 1
    """Number of episodes."""

    max_steps: int = 2000
    """Maximum number of steps per episode; longer episodes are truncated, and scored on these steps."""

    live: tyro.conf.FlagCreatePairsOff[bool] = False
    """Show the policy in a window instead of recording a video."""

    best: tyro.conf.FlagCreatePairsOff[bool] = False
    """Use the policy with the best evaluation during training instead of the latest one."""

    at: int | None = None
    """Use the policy at this point of the budget (0: before training), recomputed bit for bit from the nearest earlier
    checkpoint. Default: the latest policy."""

    sample: tyro.conf.FlagCreatePairsOff[bool] = False
    """Sample actions from the policy instead of selecting the most probable ones (greedy)."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {self.episodes}")
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps}")
        if self.out is not None and self.out.suffix not in FORMATS:
            raise ValueError(f"out must end in {' or '.join(FORMATS)}, got {self.out}")
        if self.out is not None and self.live:
            raise ValueError("--live makes no video: leave out either --out or --live")


def watch(arguments: list[str]) -> int:
    """Record a video of a trained policy, or show it in a window."""
    options = parse(WatchOptions, arguments, "watch")
    from operant.runtime.run import Run

    entry = Run.open(options.run).entry
    if entry.package == "language":
        place = location(options.run)
        raise ValueError(f"{entry.name} trained a language model, which cannot be watched; try `operant chat {place}`")
    require_extra("render", "watching", ["pygame"] if options.live else ["pygame", "imageio_ffmpeg"])
    if options.out is not None:
        require_writable(options.out)  # before the state is recomputed
    from operant import api

    trained = api.load(options.run, best=options.best, at=options.at, accept_changes=True)  # changes cause a warning
    with closing(trained.experiment):
        index = trained.best_seed if options.seed_index == "best" else options.seed_index
        episodes, sample, longest = options.episodes, options.sample, options.max_steps
        if options.live:
            played = _show(trained, index, episodes=episodes, sample=sample, max_steps=longest)
        else:
            path, played = film(trained, index, path=options.out, episodes=episodes, sample=sample, max_steps=longest)
            print(f"filmed: {location(path)}")
    if trained.arrival is not None:
        print(arrived(trained.arrival))
    if played.cut:
        episodes = f"{played.cut} of {options.episodes} episodes were" if options.episodes > 1 else "the episode was"
        print(f"{episodes} truncated after {options.max_steps} steps; raise --max-steps for longer ones")
    print(f"seed {trained.run.settings.seeds[index]} scored {', '.join(map(number, played.scores))}")
    return 0


def film(
    trained: "Trained",
    index: int,
    *,
    path: Path | None = None,
    episodes: int = 1,
    sample: bool = False,
    max_steps: int = WatchOptions.max_steps,
) -> tuple[Path, "Played"]:
    """Record a video of one seed of a run.

    Args:
        trained: loaded run.
        index: index of the seed in the run.
        path: output file, .gif or .mp4. Default: in the folder of the run.
        episodes: number of episodes.
        sample: whether to sample actions instead of selecting the most probable ones.
        max_steps: maximum number of steps per episode.

    Returns:
        The path of the video, and the episodes.
    """
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # videos need no display
    with _stage(trained, index, sample, max_steps) as stage:
        seed = trained.run.settings.seeds[index]
        task = doors.label(trained.run.settings.task)[:100]
        place = "" if trained.arrival is None else f"-at{trained.arrival.consumed}"
        path = path or trained.run.media_path / f"{as_name(f'{task}-seed{seed}{place}')}.gif"
        require_writable(path)
        with _Film(path, stage.frames_per_second) as writer:
            played = stage.play(episodes, lambda frame: writer.add(captioned(frame, stage.moment)))
        return path, played


_Sink = Generator[None, "Frame | None", None]
"""Generator that receives frames by `send`; the first value sent is None."""
_Begin = Callable[..., _Sink]
_Count = Callable[[Path], tuple[int, float]]


class _Film:
    """Writer of frames to a file, which has all of them or stays as before.

    Formats with a lower frame rate get every second, third, ... frame.
    """

    def __init__(self, path: Path, frames_per_second: float):
        limit, parameters = FORMATS[path.suffix]
        self._path, self._part = path, beside(path)
        self._stride = math.ceil(frames_per_second / limit)
        self._parameters = parameters | {"fps": frames_per_second / self._stride, "ffmpeg_log_level": "error"}
        self._seen = self._sent = 0
        self._sink: _Sink | None = None

    def __enter__(self) -> "_Film":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Move the complete file to its path, or delete it after an error."""
        try:
            if self._sink is not None:
                self._sink.close()
                if kind is None:
                    self._require_complete()
                    self._part.replace(self._path)
        finally:
            self._part.unlink(missing_ok=True)

    def add(self, frame: "Frame") -> None:
        import imageio_ffmpeg  # pyright: ignore[reportMissingTypeStubs] - it has none

        if self._sink is None:
            size = (frame.shape[1], frame.shape[0])
            begin = cast(_Begin, imageio_ffmpeg.write_frames)  # pyright: ignore[reportUnknownMemberType]
            self._sink = begin(str(self._part), size, **self._parameters)
            self._sink.send(None)
        if self._seen % self._stride == 0:
            try:
                self._sink.send(frame)
            except OSError as error:  # ffmpeg has ended
                raise self._failure() from error
            self._sent += 1
        self._seen += 1

    def _require_complete(self) -> None:
        """Check that the file has all frames: ffmpeg does not return its errors, such as a full disk."""
        import imageio_ffmpeg  # pyright: ignore[reportMissingTypeStubs] - it has none

        count = cast(_Count, imageio_ffmpeg.count_frames_and_secs)  # pyright: ignore[reportUnknownMemberType]
        try:
            frames, _ = count(self._part)
        except RuntimeError as error:
            raise self._failure() from error
        if frames < self._sent:
            raise self._failure()

    def _failure(self) -> OSError:
        reason = (
            "ffmpeg could not write all frames, as on a full disk; free some space, or choose another file by --out"
        )
        return OSError(errno.EIO, reason, str(self._path))


def _show(trained: "Trained", index: int, *, episodes: int, sample: bool, max_steps: int) -> "Played":
    import pygame

    from operant.envs import EnvError

    try:
        with _stage(trained, index, sample, max_steps, live=True) as stage:
            return stage.play(episodes)
    except (pygame.error, EnvError) as error:
        cause = error.__cause__ if isinstance(error, EnvError) else error
        if not isinstance(cause, pygame.error):
            raise
        raise ValueError(f"no window can be opened here ({cause}); leave out --live for a video") from error


def _stage(trained: "Trained", index: int, sample: bool, max_steps: int, *, live: bool = False) -> "Stage":
    from operant import streams
    from operant.runtime.acting import draw_noise
    from operant.runtime.experiment import Numbering
    from operant.runtime.learner import Describing
    from operant.runtime.watching import Stage

    learner, settings = trained.experiment.learner, trained.run.settings
    generators = streams.of_seeds(settings.seeds[index : index + 1], "watching", device=trained.device)
    return Stage(
        learner,
        settings.task,
        seeds=settings.seeds,
        index=index,
        noise=(lambda: draw_noise(learner, 1, generators)[0]) if sample else None,
        wrap=trained.experiment.wrap if isinstance(trained.experiment, Numbering) else lambda bare: bare,
        max_steps=max_steps,
        live=live,
        env_kwargs=trained.evaluation_kwargs_of(index),
        device=trained.device,
        wrappers=trained.wrappers,
        describe=learner.describe if isinstance(learner, Describing) else None,
    )
