"""Exploration bonuses by name: their wrappers and reward channels."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from operant import doors
from operant.catalog.bonuses import BONUSES, ENTRY_POINTS, WEIGHT
from operant.runtime.settings import Settings

C = TypeVar("C")

GAMMA = 0.99
"""Default discount of the return of a bonus."""


@dataclass(frozen=True)
class Named:
    """A bonus with its options, such as `rnd(weight=0.1, width=128)`.

    Attributes:
        place: module and name of its class.
        weight: relative to the reward of the environment.
        channel: name of its reward.
        gamma: discount of its return.
        is_episodic: whether its return ends with the episode.
        parameters: parameters of the class.
    """

    place: str
    weight: float
    channel: str
    gamma: float
    is_episodic: bool
    parameters: Mapping[str, Any]

    @classmethod
    def of(cls, text: str) -> "Named":
        """Parse a name of `operant.catalog.bonuses`, of an entry point, or `file.py:Name`, with or without parameters.

        Raises:
            ValueError: if there is no such bonus.
        """
        call = doors.Call.of(text)
        allowed = doors.choices(BONUSES, call.name, ENTRY_POINTS, "a class of yours, path/to/file.py:Name")
        if call.name not in allowed:
            raise ValueError(f"bonus must be {', '.join(allowed[:-1])} or {allowed[-1]}, got {call.name!r}")
        known = BONUSES.get(call.name)
        place = known.place if known else call.name
        if not doors.is_name(place):
            place = doors.name_of(doors.load(place, expected="a subclass of operant.explore.Bonus", group=ENTRY_POINTS))
        parameters: dict[str, Any] = {**({"gamma": GAMMA} if known else {}), **call.parameters}
        return cls(
            place=place,
            weight=parameters.pop("weight", known.weight if known else WEIGHT),
            channel=parameters.get("channel", "intrinsic"),
            gamma=parameters.get("gamma") or GAMMA,
            is_episodic=bool(known and known.is_episodic),
            parameters=parameters,
        )

    def wrapper(self, **more: Any) -> str:
        """Return the wrapper as in `Settings.wrappers`."""
        values = ", ".join(f"{name}={value!r}" for name, value in {**self.parameters, **more}.items())
        return f"{self.place}({values})"


def with_bonuses(settings: Settings, config: C, texts: Iterable[str]) -> tuple[Settings, C]:
    """Return settings with the wrappers of bonuses, and a configuration that learns from them.

    A method with `reward_channels` gets one for each bonus, with its own value head and discount (fields of that
    channel in the configuration take precedence); other methods get the bonus added to the reward.

    Args:
        settings: settings of the run.
        config: configuration of the algorithm.
        texts: the bonuses (see `Named.of`).

    Raises:
        ValueError: if there is no such bonus, or two have the same channel.
    """
    has_channels = "reward_channels" in {field.name for field in fields(config)}  # pyright: ignore[reportArgumentType]
    taken: set[str] = set()
    for bonus in map(Named.of, texts):
        if bonus.channel in taken:
            raise ValueError(f"two bonuses pay into {bonus.channel!r}: rename one, such as channel='second'")
        taken.add(bonus.channel)
        if has_channels:
            config = _with_channel(config, bonus)
        wrapper = bonus.wrapper() if has_channels else bonus.wrapper(mixed=bonus.weight)
        settings = replace(settings, wrappers=(*settings.wrappers, wrapper))
    return settings, config


def _with_channel(config: Any, bonus: Named) -> Any:
    """Return a configuration with a reward channel for a bonus."""
    channel = {"gamma": bonus.gamma, "weight": bonus.weight, "episodic": bonus.is_episodic}
    given = dict(config.reward_channels)
    return replace(config, reward_channels={**given, bonus.channel: {**channel, **given.get(bonus.channel, {})}})
