"""`operant evaluate --exact`: mistakes in a board game, or the value that a policy loses in a finite world."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from operant.cli.output import number, table

if TYPE_CHECKING:
    from operant.api import Trained
    from operant.mdp import MDP, ValueLost


class Certificates:
    """The mistakes of each seed in a board game.

    Args:
        trained: a run of a learner that has certificates (`operant.runtime.experiment.Certifiable`).
    """

    def __init__(self, trained: "Trained") -> None:
        self.seeds = trained.run.settings.seeds
        self.found: Sequence[Any] = list(trained.experiment.learner.certificates())

    def fields(self) -> dict[str, Any]:
        """Return the JSON of them, by seed."""
        names = ("positions", "mistakes", "faced", "faced_mistakes")
        return {name: [getattr(one, name) for one in self.found] for name in names}

    def text(self) -> str:
        """Return a table of the seeds."""
        rows = [["seed", "positions", "mistakes", "can be faced", "mistakes there"]]
        rows += [[str(seed), *map(str, one)] for seed, one in zip(self.seeds, self.found, strict=True)]
        return f"Against the exact solution of the game, with greedy actions:\n\n{table(rows, '>>>>>')}"


class Losses:
    """What the greedy policy of each seed loses against the optimum of a finite world.

    Args:
        trained: a run on a finite world.
        gamma: discount a step. Default: that of the run.

    Raises:
        ValueError: the model of the task is not known, its observations are not its states, the policies have a memory,
            the run has no discount, or with a discount of 1 a policy never ends an episode.
    """

    def __init__(self, trained: "Trained", gamma: float | None) -> None:
        from operant import mdp

        self.seeds = trained.run.settings.seeds
        model = known_model(trained)
        if gamma is None:
            gamma = getattr(trained.experiment.learner.config, "gamma", None)
        if gamma is None:
            raise ValueError(f"{trained.run.entry.name} has no discount: give one with --gamma")
        solution = mdp.solve(model, gamma=gamma, tolerance=1e-9)
        self.found: list[ValueLost] = []
        for seed, policy in zip(self.seeds, greedy_policies(trained, model.states), strict=True):
            try:
                self.found.append(mdp.value_lost(model, policy, gamma=gamma, solution=solution))
            except ValueError as error:
                raise ValueError(f"the policy of seed {seed} has no value with --gamma {gamma:g}: {error}") from error

    def fields(self) -> dict[str, Any]:
        """Return the JSON of them, by seed."""
        first = self.found[0]
        return {
            "gamma": first.gamma,
            "optimal_value": first.optimal,
            "states": first.states,
            "value_lost": [one.start for one in self.found],
            "largest_value_lost": [one.largest for one in self.found],
            "suboptimal_states": [one.suboptimal for one in self.found],
        }

    def text(self) -> str:
        """Return a table of the seeds."""
        first = self.found[0]
        rows = [["seed", "value lost", "largest", "in state", "suboptimal states"]]
        rows += [
            [str(seed), number(one.start), number(one.largest), str(one.state), str(one.suboptimal)]
            for seed, one in zip(self.seeds, self.found, strict=True)
        ]
        return (
            f"Against the exact solution of the world, with greedy actions and a discount of {first.gamma:g}: V* from "
            f"the start is {number(first.optimal)}, and there are {first.states} states.\n\n{table(rows, '>>>>>')}"
        )


def exact(trained: "Trained", gamma: float | None) -> Certificates | Losses:
    """Return how far the greedy policies of a run are from the best.

    Raises:
        ValueError: nothing is known exactly of its task, or not of policies like these; or a board is too large.
    """
    from operant.runtime.experiment import Certifiable

    learner: Any = trained.experiment.learner
    if not isinstance(learner, Certifiable) or getattr(learner, "game", None) is None:
        return Losses(trained, gamma)
    if gamma is not None:
        raise ValueError(f"--gamma is for finite worlds, and games are not discounted, got {gamma:g}: leave it out")
    return Certificates(trained)


def known_model(trained: "Trained") -> "MDP":
    """Return the model of the task of a run, whose observations are its states.

    Raises:
        ValueError: there is none.
    """
    import gymnasium
    from gymnasium import spaces

    from operant import mdp
    from operant.envs.finite import FiniteEnv

    settings = trained.run.settings
    fault = (
        f"--exact is for board games and for finite worlds, of which every state can be looked at, and "
        f"{trained.run.path} is a run of {trained.run.entry.name} on {settings.task}"
    )
    if trained.run.entry.package == "language":
        raise ValueError(f"{fault}: leave it out")
    env = gymnasium.make(settings.task, **settings.env_kwargs)
    try:
        bare: Any = env.unwrapped
        if not isinstance(bare, FiniteEnv) and getattr(bare, "P", None) is None:
            raise ValueError(f"{fault}: leave it out")
        model = mdp.MDP.from_gymnasium(env)
        hidden = isinstance(bare, FiniteEnv) and not bare.shows_states
        if hidden or env.observation_space != spaces.Discrete(model.states):
            raise ValueError(f"{fault}, where observations are not the states: leave it out")
        return model
    finally:
        env.close()


def greedy_policies(trained: "Trained", states: int) -> list[Any]:
    """Return the actions of each seed in every state: an action `[S]`, or probabilities `[S, A]` of a table with ties.

    Raises:
        ValueError: the policies have a memory.
    """
    import numpy as np

    if trained.run.entry.package == "tabular":
        return list(trained.policy)
    found: list[Any] = []
    for place in range(len(trained.run.settings.seeds)):
        actions, memory = trained.predict(np.arange(states), seed_index=place)
        if memory is not None:
            raise ValueError(
                f"--exact is for policies that see the state alone, and those of {trained.run.entry.name} have a "
                "memory: leave it out"
            )
        found.append(actions)
    return found
