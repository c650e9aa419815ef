"""Compatibility of algorithms and environments: `suitable` lists algorithms, `require_suitable` checks one."""

from typing import Any, NamedTuple

from gymnasium import Space, spaces

from operant import catalog
from operant.catalog import ActionKind, Algorithm
from operant.envs import BatchEnv, Features, GymnasiumEnv, is_image
from operant.envs.features import MASK
from operant.envs.spaces import is_box, is_dict, is_multi_discrete, members
from operant.envs.worlds.games import BOARD_GAMES, changing_wrappers, rules_of
from operant.envs.wrapper import unwrapped, wrappers
from operant.nets import is_bounded, is_continuous

LARGEST_TABLE = 10**6
"""Maximum number of distinct observations for which a table is suggested."""

_ACTIONS: dict[ActionKind, str] = {
    "discrete": "Discrete",
    "multi-discrete": "MultiDiscrete",
    "continuous": "a Box of float",
}
_CHANGE_ACTIONS = f"turn them into {', '.join(_ACTIONS.values())} with gymnasium.wrappers.TransformAction"


class Obstacle(NamedTuple):
    """Reason why an algorithm does not support an environment.

    Attributes:
        what: description, which follows the name of the algorithm in the message.
        remedy: fix that keeps the algorithm; empty if there is none.
    """

    what: str
    remedy: str


def require_suitable(env: BatchEnv, algorithm: str) -> None:
    """Check that an algorithm with networks supports the spaces of an environment.

    Args:
        env: the environment.
        algorithm: its name in the catalog.

    Raises:
        ValueError: if it does not; the message names a fix, and the algorithms that support both spaces.
    """
    reason = obstacle(catalog.find(algorithm), env)
    if reason is None:
        return
    others = suitable(env)
    ways = [reason.remedy] if reason.remedy else []
    if others:
        ways.append(f"these support its actions and observations: {', '.join(others)}")
    advice = "; ".join(ways or ["no algorithm supports its actions and observations"])
    raise ValueError(f"{algorithm} {reason.what}; {advice}")


def require_same_spaces(env: BatchEnv, trained_in: BatchEnv) -> None:
    """Check that policies can act in other environments than those of training.

    The bounds of observations may differ, those of actions not.

    Args:
        env: the other environments.
        trained_in: environments of training.

    Raises:
        ValueError: if observations or actions differ.
    """
    seen, known = env.observation_space, trained_in.observation_space
    boxes = is_box(seen) and is_box(known) and seen.shape == known.shape
    equal = env.action_space == trained_in.action_space
    for name, other, own, same in (
        ("observations", seen, known, boxes or seen == known),
        ("actions", actions_of(env), actions_of(trained_in), equal),
    ):
        if not same:
            raise ValueError(
                f"the policies cannot act there: with these keyword arguments, the {name} of {env.task} are {other} "
                f"instead of {own}; change other arguments"
            )


def suitable(env: BatchEnv) -> list[str]:
    """Return the names of the algorithms that support both spaces of an environment, without bandit algorithms."""
    finite = _fits_a_table(env)
    return [
        entry.name
        for entry in catalog.ALGORITHMS
        if (entry.observations == "finite" and finite)
        or (entry.observations == "continuous" and obstacle(entry, env) is None)
    ]


def actions_of(env: BatchEnv) -> Space[Any]:
    """Return the action space of an environment as its author wrote it, for messages: MultiBinary, not MultiDiscrete.

    Args:
        env: the environment; actions that a wrapper changes are those of the wrapper.
    """
    own = unwrapped(env)
    changed = own.action_space != env.action_space
    return env.action_space if changed or not isinstance(own, GymnasiumEnv) else own.gymnasium_action_space


def obstacle(algorithm: Algorithm, env: BatchEnv) -> Obstacle | None:
    """Return the reason why an algorithm with networks does not support an environment, or None."""
    return _planning(algorithm, env) or _acting(algorithm, env) or _looking(algorithm, env)


def _acting(algorithm: Algorithm, env: BatchEnv) -> Obstacle | None:
    actions = env.action_space
    found, named = _kind(actions), actions_of(env)
    if found not in algorithm.actions:
        needed = " or ".join(_ACTIONS[kind] for kind in algorithm.actions)
        return Obstacle(
            f"needs actions of {needed}, but those of {env.task} are {named}", "" if found else _CHANGE_ACTIONS
        )
    if algorithm.bounded and is_continuous(actions) and not is_bounded(actions):
        return Obstacle(
            f"needs actions with finite bounds, but those of {env.task} are {named}",
            "give them bounds with gymnasium.wrappers.TransformAction",
        )
    return None


def _kind(actions: Space[Any]) -> ActionKind | None:
    """Return the kind of actions, or None if no algorithm supports them."""
    if isinstance(actions, spaces.Discrete):
        return "discrete"
    if isinstance(actions, spaces.MultiDiscrete):
        return "multi-discrete"
    return "continuous" if is_continuous(actions) else None


def _looking(algorithm: Algorithm, env: BatchEnv) -> Obstacle | None:
    space = env.observation_space
    if is_image(space):
        if "images" in algorithm.sees:
            return None
        return Obstacle(
            f"needs vectors, but the observations of {env.task} are images, {space}",
            "flatten them with gymnasium.wrappers.FlattenObservation",
        )
    try:
        features = Features.of(space, env.action_space)
    except (TypeError, ValueError) as error:
        return Obstacle(f"does not support the observations of {env.task}: {error}", "")
    return _looking_at(algorithm, env, features)


def _looking_at(algorithm: Algorithm, env: BatchEnv, features: Features) -> Obstacle | None:
    """Return the obstacles of vectors, and of their parts other than plain numbers."""
    space = env.observation_space
    if not algorithm.vectors:
        return Obstacle(f"needs images, but the observations of {env.task} are {space}", "")
    if features.image is not None and "mixtures" not in algorithm.sees:
        return Obstacle(
            f"does not support an image in a dictionary, but the observations of {env.task} are {space}",
            "remove it, or the other entries, with gymnasium.wrappers.FilterObservation",
        )
    if features.masked and "masks" not in algorithm.sees:
        return Obstacle(
            f"does not support action masks, but the observations of {env.task} have one",
            "remove it with gymnasium.wrappers.FilterObservation",
        )
    return None


def _planning(algorithm: Algorithm, env: BatchEnv) -> Obstacle | None:
    if algorithm.model != "known":
        return None
    inner = unwrapped(env)
    if rules_of(inner) is None:
        games = ", ".join(BOARD_GAMES)
        return Obstacle(
            f"needs the rules of a board game, got {env.task}: choose one of {games}, or a file with a BoardGameEnv of "
            "your own rules",
            "",
        )
    own, gymnasiums = [type(wrapper).__name__ for wrapper in wrappers(env)], changing_wrappers(inner)
    if own or gymnasiums:
        return Obstacle(
            f"plans with the rules of {env.task}, which do not contain the changes by wrappers, but its environments "
            f"have {', '.join(own + gymnasiums)}",
            "leave out --bonus and --wrapper" if own else "change the rules instead, in a subclass of BoardGame",
        )
    return None


def _fits_a_table(env: BatchEnv) -> bool:
    """Return whether a table can index every observation and action; tables do not support action masks."""
    actions, space = env.action_space, env.observation_space
    if is_dict(space) and MASK in space.spaces:
        return False
    numbered = actions.start == 0 if isinstance(actions, spaces.Discrete) else is_multi_discrete(actions)
    count = members(space)
    return numbered and count is not None and count <= LARGEST_TABLE
