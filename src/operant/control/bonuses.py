"""Exploration bonuses by name: their wrappers and reward channels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from inspect import signature
from typing import Any, TypeVar

from operant import doors
from operant.catalog.bonuses import BONUSES, ENTRY_POINTS
from operant.catalog.names import suggest
from operant.control.reward_channels import REWARD
from operant.runtime.settings import Settings

C = TypeVar("C")

EXPECTED = "a subclass of operant.explore.Bonus"

GAMMA = 0.99
"""Discount of the return of a bonus that is not divided by the deviation of its return."""

BASE = "operant.explore:Bonus"
"""Base class of bonuses; by name, because its package imports this one."""


@dataclass(frozen=True)
class Named:
    """A bonus with its options, such as `rnd(weight=0.1, width=128)`.

    Attributes:
        place: module and name of its class.
        weight: weight relative to the environment's reward.
        channel: name of its reward.
        gamma: discount of its return.
        is_episodic: whether its return ends with the episode.
        parameters: parameters of the class.
        can_mix: whether the class takes `mixed`.
    """

    place: str
    weight: float
    channel: str
    gamma: float
    is_episodic: bool
    parameters: Mapping[str, Any]
    can_mix: bool

    @classmethod
    def of(cls, text: str) -> "Named":
        """Parse a name of `operant.catalog.bonuses`, of an entry point, or `file.py:Name`, with or without parameters.

        Raises:
            ValueError: if there is no such bonus, or a parameter is wrong.
        """
        call = doors.Call.of(text)
        allowed = doors.choices(BONUSES, call.name, ENTRY_POINTS, "a custom class, path/to/file.py:Name")
        if call.name not in allowed:
            raise ValueError(f"bonus must be {', '.join(allowed[:-1])} or {allowed[-1]}, got {call.name!r}")
        built_in = BONUSES.get(call.name)
        place = built_in.place if built_in else call.name
        kind: type[Any] = doors.load(place, expected=EXPECTED, group=ENTRY_POINTS)
        if not doors.is_name(place):
            place = doors.name_of(kind)
        if not (isinstance(kind, type) and issubclass(kind, doors.load(BASE, expected=EXPECTED))):  # pyright: ignore[reportUnnecessaryIsInstance] - from anywhere
            raise ValueError(f"the bonus {call.name} must be {EXPECTED}, which it is not; --wrapper takes wrappers")
        known = signature(kind).parameters
        takes_all = any(one.kind is one.VAR_KEYWORD for one in known.values())
        default = {"gamma": kind.gamma} if takes_all or "gamma" in known else {}
        parameters: dict[str, Any] = {**default, **call.parameters}
        weight, is_episodic = parameters.pop("weight", kind.weight), parameters.pop("episodic", kind.episodic)
        if not isinstance(weight, int | float) or not weight >= 0:
            raise ValueError(f"the weight of the bonus {call.name} must be a number of at least 0, got {weight!r}")
        if not isinstance(is_episodic, bool):
            raise ValueError(f"episodic of the bonus {call.name} must be True or False, got {is_episodic!r}")
        if not takes_all:
            _check(call.name, list(parameters_of(kind)), parameters)
        gamma = parameters.get("gamma", kind.gamma)
        return cls(
            place=place,
            weight=weight,
            channel=parameters.get("channel", "intrinsic"),
            gamma=GAMMA if gamma is None else gamma,
            is_episodic=is_episodic,
            parameters=parameters,
            can_mix=takes_all or "mixed" in known,
        )

    def wrapper(self, **more: Any) -> str:
        """Return the wrapper as in `Settings.wrappers`."""
        values = ", ".join(f"{name}={value!r}" for name, value in {**self.parameters, **more}.items())
        return f"{self.place}({values})"


def parameters_of(kind: type[Any]) -> dict[str, Any]:
    """Return the parameters of a bonus in `--bonus`, by name with their defaults.

    Args:
        kind: class of the bonus.
    """
    known = {name: one.default for name, one in signature(kind).parameters.items() if name not in ("env", "mixed")}
    if "gamma" in known:
        known["gamma"] = kind.gamma
    return {"weight": kind.weight, "episodic": kind.episodic, **known}


def _check(name: str, known: Sequence[str], parameters: Mapping[str, Any]) -> None:
    """Check that the class of a bonus has these parameters."""
    for wrong in sorted(parameters.keys() - known):
        near = suggest(wrong, known)
        meant = f"; did you mean {near.name}?" if near else f": it takes {', '.join(known)}"
        raise ValueError(f"the bonus {name} has no parameter {wrong!r}{meant}")


def with_bonuses(settings: Settings, config: C, texts: Iterable[str]) -> tuple[Settings, C]:
    """Return settings with the wrappers of bonuses, and a configuration that learns from them.

    For a method with `reward_channels`, each bonus becomes a channel with its own value head and discount (fields of
    that channel in the configuration take precedence); for other methods, bonuses are added to the reward.

    Args:
        settings: settings of the run.
        config: hyperparameters of the algorithm.
        texts: the bonuses (see `Named.of`).

    Raises:
        ValueError: if there is no such bonus, two have the same channel, one has that of the task's reward, or a
            bonus cannot be added to the reward.
    """
    has_channels = "reward_channels" in {field.name for field in fields(config)}  # pyright: ignore[reportArgumentType]
    channels: set[str] = set()
    for text in texts:
        bonus = Named.of(text)
        if bonus.channel == REWARD:
            raise ValueError(
                f"channel={REWARD!r} of a bonus is the channel of the task's reward: leave it out, or choose another "
                "name, such as channel='second'"
            )
        if bonus.channel in channels:
            raise ValueError(f"two bonuses have the channel {bonus.channel!r}: rename one, such as channel='second'")
        channels.add(bonus.channel)
        if has_channels:
            config = _with_channel(config, bonus)
        elif "episodic" in doors.Call.of(text).parameters:
            raise ValueError(f"{settings.algorithm} adds bonuses to the reward: leave episodic of {bonus.place} out")
        elif not bonus.can_mix:
            raise ValueError(
                f"{settings.algorithm} adds bonuses to the reward, so __init__ of {bonus.place} must take mixed: let "
                "it take **options, and pass them on by super().__init__(env, **options)"
            )
        wrapper = bonus.wrapper() if has_channels else bonus.wrapper(mixed=bonus.weight)
        settings = replace(settings, wrappers=(*settings.wrappers, wrapper))
    return settings, config


def _with_channel(config: Any, bonus: Named) -> Any:
    """Return a configuration with a reward channel for a bonus."""
    channel = {"gamma": bonus.gamma, "weight": bonus.weight, "episodic": bonus.is_episodic}
    channels = dict(config.reward_channels)
    return replace(config, reward_channels={**channels, bonus.channel: {**channel, **channels.get(bonus.channel, {})}})
