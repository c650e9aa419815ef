"""Parsing of arguments into dataclasses by tyro: fields become flags, and their docstrings the help texts."""

import argparse
import contextlib
import io
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from inspect import cleandoc
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_type_hints

import tyro

from operant import catalog, doors
from operant.catalog import old_names
from operant.cli.flags import flags_of, in_a_line, read_path, unknown
from operant.cli.output import wrapped
from operant.cli.seeds import require_number_of_seeds
from operant.cli.values import REGISTRY, whole
from operant.runtime.progress import ProgressMode
from operant.runtime.settings import Settings, counted_seeds
from operant.runtime.tables import from_table

T = TypeVar("T")

_ALGORITHM, _TASK = "ALGORITHM", "TASK"
_NAMES, _SIZES = ("model", "init", "reward_model"), ("prompts_per_batch", "num_generations", "num_minibatches")
"""Fields of language models on which the defaults of the learning rate and the KL penalty depend."""
_NOT_A_FLAG = (tyro.conf.Fixed, tyro.conf.Suppress)


@dataclass(frozen=True, kw_only=True)
class Answering:
    """Options of commands with numeric results."""

    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the result as one line of JSON on standard output, and everything else on standard error."""


@dataclass(frozen=True, kw_only=True)
class Opening(Answering):
    """Options of commands that load a trained model."""

    remote_code: tyro.conf.FlagCreatePairsOff[bool] = False
    """Allow Python code that comes with the run's language model, if the run needs it. The code is not restricted:
    only for authors you trust."""

    accept_changes: tyro.conf.FlagCreatePairsOff[bool] = False
    """Continue even if the run's data, models, files with rewards or environments, or (`resume`) its config.toml have
    changed."""


@dataclass(frozen=True, kw_only=True)
class Training(Answering):
    """Options of commands that train."""

    progress: ProgressMode = "auto"
    """Display of progress: a live line on a terminal, otherwise a line every 10 seconds (auto); a line every 10 seconds
    (plain); none (silent)."""

    processes: int = 1
    """Number of processes on this machine that train together, at most the number of shards (see --shards). It may
    change on resume."""

    fsdp: tyro.conf.FlagCreatePairsOff[bool] = False
    """Shard a language model among the processes (FSDP2), for models larger than a device: each process holds a part of
    the parameters, gradients and optimizer states. For sft, reward models, dpo, rlhf, grpo and iterative-grpo. Results
    equal those of one process up to rounding; the choice may change on resume."""

    ray: tyro.conf.FlagCreatePairsOff[bool] = False
    """Run the worker processes of environments and of custom reward functions on Ray, started for this command only
    (extra: scale). Results are the same, bit for bit."""

    ray_address: str = ""
    """Run workers on an existing Ray cluster of which this machine is a node: HOST:PORT, or auto."""

    ray_unauthenticated: tyro.conf.FlagCreatePairsOff[bool] = False
    """Allow a Ray cluster that accepts connections from other machines without a token."""


@dataclass(frozen=True)
class TrainOptions(Training, Settings):
    """Options of all algorithms."""

    algorithm: Annotated[str, *_NOT_A_FLAG] = _ALGORITHM
    task: Annotated[str, *_NOT_A_FLAG] = _TASK
    seeds: Annotated[tuple[int, ...], *_NOT_A_FLAG] = tuple(range(catalog.Algorithm.seeds))

    wrappers: Annotated[tuple[str, ...], tyro.conf.arg(name="wrapper"), tyro.conf.UseAppendAction] = ()
    """Wrapper of the environments: a subclass of operant.envs.Wrapper as path/to/file.py:Name or
    'path/to/file.py:Name(scale=0.1)'. May be repeated, from the innermost wrapper to the outermost."""

    bonus: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Exploration bonus: counts, hashed, episodic, rnd, forward or icm, or a custom class as path/to/file.py:Name, each
    with optional parameters, as in 'rnd(weight=0.1)'. May be repeated. For deep control."""

    randomize: Path | None = None
    """TOML file of domain randomization: physics parameters, action delays, and noise and bias of observations, which
    vary between training episodes (operant.envs.Randomize). Not used in evaluations."""

    count: Annotated[int, tyro.conf.arg(name="seeds")] = catalog.Algorithm.seeds
    """Number of seeds, trained in parallel. A single seed is not a reliable result: use 5 or more."""

    first: Annotated[int, tyro.conf.arg(name="seed")] = 0
    """First seed; the others are consecutive."""

    preset: str | None = None
    """Name of a preset (`operant list ALGORITHM` lists them). Default: the preset for the task, if there is one."""

    config: Path | None = None
    """TOML file with a table [config], [settings] or both, such as a run's config.toml. It overrides presets, and flags
    override it."""

    run: Path | None = None
    """Folder of the run, new or empty. Default: runs/<algorithm>-<task>-<n>, with the first free number."""

    callbacks: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(name="callback")] = ()
    """Callback, used again by operant resume: file.py:Name or "file.py:Name(patience=3)", where Name is a subclass of
    operant.Callback or a function that returns an instance. May be repeated."""

    init: Path | None = None
    """Run to initialize the networks from (RUN/best: its best policies): each seed starts from the networks of the same
    seed, or of the only seed, with new optimizers. For deep control."""

    def chosen_seeds(self) -> tuple[int, ...]:
        """Return the seeds of the configuration file, which need not be consecutive, or those of the flags."""
        if (self.count, self.first) == (len(self.seeds), self.seeds[0]):
            return self.seeds
        if self.count < 1 or self.first < 0:
            raise ValueError(f"--seeds must be at least 1 and --seed at least 0, got {self.count} and {self.first}")
        return counted_seeds(self.first, self.count)

    def settings(self) -> dict[str, Any]:
        """Return the fields of `Settings`, with the chosen seeds and the randomization as the innermost wrapper."""
        values = {field.name: getattr(self, field.name) for field in fields(Settings)} | {"seeds": self.chosen_seeds()}
        if self.randomize is not None:
            from operant.envs import randomizer

            values["wrappers"] = (randomizer(self.randomize), *self.wrappers)
        return values


@dataclass(frozen=True)
class LanguageTrainOptions(TrainOptions):
    """Options of all algorithms for language models."""

    env_kwargs: Annotated[Mapping[str, Any], *_NOT_A_FLAG] = field(default_factory=dict[str, Any])
    wrappers: Annotated[tuple[str, ...], *_NOT_A_FLAG] = ()
    bonus: Annotated[tuple[str, ...], *_NOT_A_FLAG] = ()
    randomize: Annotated[Path | None, *_NOT_A_FLAG] = None
    env_backend: Annotated[Literal["auto", "tensor", "gymnasium"], *_NOT_A_FLAG] = "auto"
    vectorization: Annotated[Literal["sync", "async"], *_NOT_A_FLAG] = "sync"
    num_workers: Annotated[int, *_NOT_A_FLAG] = 0
    lost_workers: Annotated[Literal["end", "restart", "replay"], *_NOT_A_FLAG] = "end"
    worker_seconds: Annotated[float, *_NOT_A_FLAG] = 120.0
    clip_rewards: Annotated[bool, *_NOT_A_FLAG] = True
    episodic_life: Annotated[bool, *_NOT_A_FLAG] = False
    init: Annotated[Path | None, *_NOT_A_FLAG] = None
    evaluate_episodes: Annotated[int, *_NOT_A_FLAG] = 20
    evaluate_max_steps: Annotated[int, *_NOT_A_FLAG] = 0

    count: Annotated[int, tyro.conf.arg(name="seeds")] = 1
    """Number of seeds, trained one after another. A single seed is not a reliable result: report 3 or more."""


def parse(
    kind: type[T], arguments: Sequence[str], command: str, *, entry: catalog.Algorithm | None = None, **options: Any
) -> T:
    """Parse the arguments of a command.

    Args:
        kind: dataclass of the options.
        arguments: arguments after the command.
        command: name of the command, for the help text.
        entry: algorithm whose configuration is among the flags.
        **options: keyword arguments of `tyro.cli`.

    Raises:
        ValueError: a flag is unknown (the message suggests a similar one), or a value is invalid or missing.
        SystemExit: the help text was requested and printed.
    """
    text = options.pop("description", None) or cleandoc(kind.__doc__ or "")
    # tyro joins lines unless they start with a space.
    options["description"] = "\n\n".join(wrapped(part, indent="  ", first="") for part in text.split("\n\n"))
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            parsed, unparsed = tyro.cli(
                kind,
                args=list(arguments),
                prog=f"operant {command}",
                config=(tyro.conf.OmitArgPrefixes,),
                registry=REGISTRY,
                return_unknown_args=True,
                **options,
            )
    except SystemExit as exit_:
        if not exit_.code:
            raise
        raise ValueError(in_a_line(stderr.getvalue(), command, flags_of(kind))) from None
    if unparsed:
        raise ValueError(unknown(unparsed, flags_of(kind), command, entry))
    return parsed


def parse_training(
    arguments: Sequence[str], verb: str = "train", kind: type[TrainOptions] | None = None
) -> tuple[Any, Any]:
    """Parse the arguments of `operant train`: defaults, then the preset, then the --config file, then flags.

    Args:
        arguments: arguments after the command.
        verb: name of the command; other commands take the same arguments.
        kind: dataclass of the options. Default: `TrainOptions`, or `LanguageTrainOptions` for language models.

    Returns:
        The options, and the configuration of the algorithm.

    Raises:
        ValueError: the algorithm, preset or file is invalid.
        SystemExit: as for `parse`.
    """
    positional = list(takewhile(lambda word: not word.startswith("-"), arguments[:2]))
    flags = list(arguments[len(positional) :])
    asks_for_help = "-h" in flags or "--help" in flags
    require_number_of_seeds(flags)
    dataset = _first_look(flags).dataset
    if len(positional) == 1 and dataset and catalog.find(positional[0]).package == "language":
        positional.append(Path(dataset).stem)
    if len(positional) < 2 and not asks_for_help:
        raise ValueError(_missing_words(positional, verb))
    known = {entry.name for entry in catalog.ALGORITHMS}
    if len(positional) == 2 and positional[0] not in known and positional[1] in known:
        raise ValueError(f"the algorithm comes first: operant {verb} {positional[1]} {positional[0]}")
    algorithm, task = [*positional, _ALGORITHM, _TASK][0], [*positional[1:], _TASK][0]
    command = f"{verb} {algorithm} {task}"
    if not positional:
        note = (
            f"{verb.capitalize()} an algorithm on a task. `operant {verb} ALGORITHM --help` lists its options, number "
            f"of seeds and budget."
        )
        parse(kind or TrainOptions, flags, command, description=note)
    entry = catalog.find(algorithm)
    flags = old_names.current_flags(entry.config_class, flags)
    options, config = _defaults(algorithm, task, _first_look(flags), kind)
    config_class = cast(type[Any], type(config))
    flags = _with_values(config_class, flags)
    if entry.unit == "environment steps":
        flags = [re.sub(r"^--total[-_]timesteps(?==|$)", "--budget", flag) for flag in flags]
    field_name = re.sub(r"\W", "_", entry.label)
    options_class: type[Any] = make_dataclass("Both", [("run", type(options)), (field_name, config_class)])
    note = (
        f"{verb.capitalize()} {entry.title} ({entry.paper}){', several seeds in parallel' if entry.seeds > 1 else ''}."
    )
    parsed = parse(options_class, flags, command, entry=entry, default=options_class(options, config), description=note)
    return parsed.run, getattr(parsed, field_name)


def _with_values(kind: type, flags: Sequence[str]) -> list[str]:
    """Return flags in which `--name` and `--no-name` of a field of true, false or None have their values."""
    optional = {name for name, hint in get_type_hints(kind).items() if hint == bool | None}
    found: list[str] = []
    for word, following in zip_longest(flags, flags[1:], fillvalue=""):
        name = word.removeprefix("--").replace("-", "_")
        off, name = name.startswith("no_"), name.removeprefix("no_")
        switch = word.startswith("--") and name in optional and (off or following not in ("True", "False", "None"))
        found.append(f"--{name}={not off}" if switch else word)
    return found


def _missing_words(words: Sequence[str], verb: str) -> str:
    if words and catalog.find(words[0]).package == "language":
        name = words[0]
        return (
            f"name a task or data after {name}: operant train {name} arithmetic, or operant train {name} --dataset FILE"
        )
    return f"name an algorithm and a task first: operant {verb} ppo CartPole-v1 (see operant {verb} --help)"


def _first_look(flags: Sequence[str]) -> argparse.Namespace:
    """Parse the flags on which the defaults of other flags depend."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("preset", "config", "dataset", "seeds", "seed", *_NAMES, *_SIZES):
        # Flags without a value, or with an invalid one, are left to the full parser.
        names, kind = {f"--{name}", f"--{name.replace('_', '-')}"}, _whole if name in _SIZES else str
        parser.add_argument(*sorted(names), dest=name, nargs="?", type=kind)
    return parser.parse_known_args(flags)[0]


def _whole(text: str) -> int | None:
    try:
        return whole(text)
    except ValueError:
        return None


def _defaults(
    algorithm: str, task: str, named: argparse.Namespace, kind: type[TrainOptions] | None
) -> tuple[TrainOptions, Any]:
    """Return the defaults of the flags, from the preset and the configuration file."""
    from operant import api

    entry = catalog.find(algorithm)
    tables = _read(read_path(named.config)) if named.config is not None else {}
    config = api.configure(algorithm, task, preset=named.preset, **_deciding(entry, named, tables.get("config", {})))
    seeds = tuple(range(entry.seeds))
    common: dict[str, Any] = {"algorithm": entry.name, "task": task, "budget": entry.budget_for(task)}
    if kind is None:
        kind = LanguageTrainOptions if entry.package == "language" else TrainOptions
        common |= {"seeds": seeds, "count": entry.seeds}
    options = kind(**common)
    if not tables:
        return options, config
    given = tables.get("settings", {}).get("algorithm", entry.name)
    if given != entry.name and doors.absolute(str(given)) != entry.name:
        raise ValueError(f"{named.config} configures {given}, not {entry.name}: train {given}")
    where = f"{named.config}: config"
    config_class = cast(type[Any], type(config))
    config = from_table(config_class, tables["config"], base=config, where=where, algorithm=entry)
    if "settings" not in tables:
        return options, config
    base = Settings(**{field.name: getattr(options, field.name) for field in fields(Settings)})
    settings = from_table(Settings, tables["settings"], base=base, where=f"{named.config}: settings", algorithm=entry)
    values = {field.name: getattr(settings, field.name) for field in fields(Settings)}
    values |= {"algorithm": entry.name, "task": task}
    count, first = len(settings.seeds), settings.seeds[0]
    if named.seeds is not None or named.seed is not None:
        values["seeds"] = counted_seeds(first, count)
    return replace(options, **values, count=count, first=first), config


def _deciding(entry: catalog.Algorithm, named: argparse.Namespace, table: dict[str, Any]) -> dict[str, Any]:
    """Return the given fields on which the defaults of other fields depend."""
    if entry.package != "language":
        return {}
    known = {field.name for field in fields(entry.config_class)}
    values = {name: getattr(named, name) or table.get(name) for name in (*_NAMES, *_SIZES) if name in known}
    return {name: value for name, value in values.items() if value}


def _read(path: Path) -> dict[str, Any]:
    from operant.runtime.run import SCHEMA

    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # Windows editors write a BOM
    except OSError as error:
        raise ValueError(f"--config {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        yaml = path.suffix in (".yml", ".yaml")
        hint = ". YAML, as of RL Zoo, is not supported: write the values below [config] of a TOML file" if yaml else ""
        raise ValueError(f"--config {path} is not TOML: {error}{hint}") from error
    unknown = sorted(tables.keys() - {"schema_version", "settings", "config"})
    if "settings" in tables:
        tables.setdefault("config", {})
    if unknown or not isinstance(tables.get("config"), dict) or not isinstance(tables.get("settings", {}), dict):
        problem = f"also {', '.join(unknown)}: put hyperparameters below [config]" if unknown else "no such table"
        raise ValueError(f"--config {path} must have a table [config], [settings] or both; it has {problem}")
    version = tables.get("schema_version", SCHEMA)
    if type(version) is not int or version > SCHEMA:
        raise ValueError(f"--config {path} has schema_version {version}; this operant reads versions up to {SCHEMA}")
    return {**tables, "config": old_names.upgraded(tables["config"], version)}
