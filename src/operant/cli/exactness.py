"""`operant evaluate --exact`: mistakes in a board game, or suboptimality V* - V^π in a finite MDP."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from operant.cli.output import number, table

if TYPE_CHECKING:
    from operant.api import Trained
    from operant.mdp import MDP, ValueLost


class Certificates:
    """Mistakes of each seed's policy in a board game.

    Args:
        trained: run of a learner that computes certificates (`operant.runtime.experiment.Certifiable`).
        faced_only: whether to count only the positions that each policy can reach.
    """

    def __init__(self, trained: "Trained", *, faced_only: bool = False) -> None:
        self.seeds = trained.run.settings.seeds
        self.titles = {"faced": "reachable", "faced_mistakes": "mistakes in reachable"}
        if not faced_only:
            self.titles = {"positions": "positions", "mistakes": "mistakes", **self.titles}
        self.found: Sequence[Any] = list(trained.experiment.learner.certificates(faced_only=faced_only))

    def fields(self) -> dict[str, Any]:
        """Return the fields for `--json`, with one entry per seed."""
        return {name: [getattr(one, name) for one in self.found] for name in self.titles}

    def text(self) -> str:
        """Return a table with one row per seed."""
        rows = [["seed", *self.titles.values()]]
        rows += [
            [str(seed), *(str(getattr(one, name)) for name in self.titles)]
            for seed, one in zip(self.seeds, self.found, strict=True)
        ]
        return f"Against the exact solution of the game, with greedy actions:\n\n{table(rows, '>' * len(rows[0]))}"


class Losses:
    """Suboptimality of each seed's greedy policy in a finite MDP.

    Args:
        trained: run on a finite MDP.
        gamma: discount factor per step. Default: the run's.

    Raises:
        ValueError: the model of the task is unknown, its observations are not its states, the policies are recurrent,
            the run has no discount factor, or it is 1 and a policy never ends an episode.
    """

    def __init__(self, trained: "Trained", gamma: float | None) -> None:
        from operant import mdp

        self.seeds = trained.run.settings.seeds
        model = known_model(trained)
        if gamma is None:
            gamma = getattr(trained.experiment.learner.config, "gamma", None)
        if gamma is None:
            raise ValueError(f"{trained.run.entry.name} has no discount factor: give one with --gamma")
        solution = mdp.solve(model, gamma=gamma, tolerance=1e-9)
        self.found: list[ValueLost] = []
        for seed, policy in zip(self.seeds, greedy_policies(trained, model.states), strict=True):
            try:
                self.found.append(mdp.value_lost(model, policy, gamma=gamma, solution=solution))
            except ValueError as error:
                raise ValueError(f"the policy of seed {seed} has no value with --gamma {gamma:g}: {error}") from error

    def fields(self) -> dict[str, Any]:
        """Return the fields for `--json`, with one entry per seed."""
        first = self.found[0]
        return {
            "gamma": first.gamma,
            "optimal_value": first.optimal,
            "states": first.states,
            "value_lost": [loss.start for loss in self.found],
            "largest_value_lost": [loss.largest for loss in self.found],
            "suboptimal_states": [loss.suboptimal for loss in self.found],
            "states_left_out": [loss.left_out for loss in self.found],
        }

    def text(self) -> str:
        """Return a table with one row per seed."""
        first = self.found[0]
        rows = [["seed", "value lost", "largest", "in state", "suboptimal states"]]
        rows += [
            [str(seed), number(loss.start), number(loss.largest), str(loss.state), str(loss.suboptimal)]
            for seed, loss in zip(self.seeds, self.found, strict=True)
        ]
        left_out = max(loss.left_out for loss in self.found)
        without = (
            f" Up to {left_out} states are left out, which a policy does not reach and from which it may never end."
            if left_out
            else ""
        )
        return (
            f"Greedy policies against the exact solution of the MDP with discount factor {first.gamma:g}: V* at the "
            f"start is {number(first.optimal)}, and {first.states} states can be entered.{without}"
            f"\n\n{table(rows, '>>>>>')}"
        )


def exact(trained: "Trained", gamma: float | None, *, faced_only: bool = False) -> Certificates | Losses:
    """Compare the greedy policies of a run with the exact solution of its task.

    Args:
        trained: the run.
        gamma: discount factor in a finite MDP. Default: the run's.
        faced_only: whether to count mistakes only in positions that each policy can reach.

    Raises:
        ValueError: the task has no exact solution, the policies cannot be compared with it, or a board is too large.
    """
    from operant.runtime.experiment import Certifiable

    learner: Any = trained.experiment.learner
    if not isinstance(learner, Certifiable) or getattr(learner, "game", None) is None:
        if faced_only:
            raise ValueError(f"--faced is for board games, got a run on {trained.run.settings.task}: leave it out")
        return Losses(trained, gamma)
    if gamma is not None:
        raise ValueError(f"--gamma is for finite MDPs, and board games are not discounted, got {gamma:g}: leave it out")
    return Certificates(trained, faced_only=faced_only)


def known_model(trained: "Trained") -> "MDP":
    """Return the MDP of a run's task, whose observations are its states.

    Raises:
        ValueError: the task is not such an MDP.
    """
    from gymnasium import spaces

    from operant import mdp
    from operant.envs.finite import FiniteEnv
    from operant.envs.registry import make_single, specified
    from operant.envs.worlds.games import BoardGameEnv
    from operant.mdp import tables

    settings = trained.run.settings
    fault = (
        f"--exact is for board games and finite MDPs, whose states can be enumerated, but "
        f"{trained.run.path} is a run of {trained.run.entry.name} on {settings.task}"
    )
    if trained.run.entry.package == "language":
        raise ValueError(f"{fault}: leave it out")
    env = make_single(specified(settings.task, trained.evaluation_kwargs))
    try:
        bare: Any = env.unwrapped
        if isinstance(bare, BoardGameEnv):
            raise ValueError(f"{fault}: mistakes in a board game are counted for alphazero and muzero only")
        if not isinstance(bare, FiniteEnv) and not tables.has_table(env):
            raise ValueError(f"{fault}: leave it out")
        model = mdp.MDP.from_gymnasium(env)
        hidden = isinstance(bare, FiniteEnv) and not bare.shows_states
        if hidden or env.observation_space != spaces.Discrete(model.states):
            raise ValueError(f"{fault}, where observations are not the states: leave it out")
        return model
    finally:
        env.close()


def greedy_policies(trained: "Trained", states: int) -> list[Any]:
    """Return the greedy policy of each seed: actions `[S]`, or probabilities `[S, A]` for tables with ties.

    Raises:
        ValueError: the policies are recurrent.
    """
    import numpy as np

    if trained.run.entry.package == "tabular":
        return list(trained.policy)
    found: list[Any] = []
    for place in range(len(trained.run.settings.seeds)):
        actions, memory = trained.predict(np.arange(states), seed_index=place)
        if memory is not None:
            raise ValueError(
                f"--exact is for policies that depend only on the state, but those of {trained.run.entry.name} are "
                "recurrent: leave it out"
            )
        found.append(actions)
    return found
