"""`operant evaluate --exact`: mistakes in a board game; in a finite MDP suboptimality V* - V^π, or errors |V - V^π|."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from operant.cli.measures import PredictionErrors, predicts
from operant.cli.output import by_seed, number

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
        return f"Against the exact solution of the game, with greedy actions:\n\n{by_seed(rows)}"


class Losses:
    """Suboptimality of each seed's greedy policy in a finite MDP.

    Args:
        trained: run on a finite MDP.
        gamma: discount factor per step. Default: the run's.

    Raises:
        ValueError: the model of the task is unknown, its observations are not its states, the policies are recurrent,
            or the run has no discount factor.
    """

    def __init__(self, trained: "Trained", gamma: float | None) -> None:
        from operant import mdp
        from operant.mdp.policies import reachable_states

        self.seeds = trained.run.settings.seeds
        model = known_model(trained)
        if gamma is None:
            gamma = getattr(trained.experiment.learner.config, "gamma", None)
        if gamma is None:
            raise ValueError(f"{trained.run.entry.name} has no discount factor: give one with --gamma")
        solution = mdp.solve(model, gamma=gamma, tolerance=1e-9)
        self.gamma, self.optimal = gamma, float(model.start @ solution.values)
        self.states = int((reachable_states(model) & ~model.terminal).sum())
        self.found: list[ValueLost | None] = []
        for policy in greedy_policies(trained, model.states):
            endless = gamma == 1 and _never_ends(model, policy)
            lost = None if endless else mdp.value_lost(model, policy, gamma=gamma, solution=solution)
            self.found.append(lost)

    def fields(self) -> dict[str, Any]:
        """Return the fields for `--json`, with one entry per seed: null for a policy that never ends an episode."""
        return {
            "gamma": self.gamma,
            "optimal_value": self.optimal,
            "states": self.states,
            "value_lost": [loss and loss.start for loss in self.found],
            "largest_value_lost": [loss and loss.largest for loss in self.found],
            "suboptimal_states": [loss and loss.suboptimal for loss in self.found],
            "states_left_out": [loss and loss.left_out for loss in self.found],
            "never_ends": [loss is None for loss in self.found],
        }

    def text(self) -> str:
        """Return a table with one row per seed."""
        rows = [["seed", "value lost", "largest", "in state", "suboptimal states"]]
        for seed, loss in zip(self.seeds, self.found, strict=True):
            if loss is None:
                rows.append([str(seed), "never ends", "-", "-", "-"])
            else:
                numbers = [number(loss.start), number(loss.largest), str(loss.state), str(loss.suboptimal)]
                rows.append([str(seed), *numbers])
        left_out = max((loss.left_out for loss in self.found if loss), default=0)
        notes = ""
        if left_out:
            notes = f" Up to {left_out} are left out, which a policy does not reach and from which it may never end."
        if endless := self.found.count(None):
            notes += (
                f" The policies of {endless} of {len(self.found)} seeds never end an episode, so that they have no "
                "value; with --gamma 0.99 they have one."
            )
        return (
            f"Greedy policies against the exact solution of the MDP with discount factor {self.gamma:g}: V* at the "
            f"start is {number(self.optimal)}, and {self.states} states can be entered.{notes}"
            f"\n\n{by_seed(rows)}"
        )


def _never_ends(model: "MDP", policy: Any) -> bool:
    """Return whether a policy, of actions or probabilities, may never end an episode from the start."""
    from operant.mdp import check_policy
    from operant.tabular.exact import circling_states

    return bool(circling_states(model, check_policy(model, policy)).size)


def exact(
    trained: "Trained", gamma: float | None, *, faced_only: bool = False
) -> Certificates | Losses | PredictionErrors:
    """Compare the greedy policies of a run, or the values of the policy that it evaluates, with the exact ones.

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
        if not predicts(trained):
            return Losses(trained, gamma)
        own = trained.experiment.learner.config.gamma
        if gamma not in (None, own):
            raise ValueError(f"the values of this run have the discount factor {own:g}, got --gamma {gamma:g}")
        return PredictionErrors(trained, known_model(trained))
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
            raise ValueError(
                f"{fault}: mistakes in a board game are counted for alphazero and muzero only, "
                "trained by self-play, without --bonus and --wrapper"
            )
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
        ValueError: the policies are recurrent, or observe more than the state.
    """
    import numpy as np

    if trained.run.entry.package == "tabular":
        return list(trained.policy)
    for wrapper in trained.wrappers:
        if wrapper.in_evaluation and wrapper.observation_space != wrapper.env.observation_space:
            raise ValueError(
                f"--exact is for policies that depend only on the state, but {type(wrapper).__name__} changes what "
                "they observe: leave it out"
            )
    found: list[Any] = []
    for place in range(len(trained.run.settings.seeds)):
        actions, hidden_state = trained.predict(np.arange(states), seed_index=place)
        if hidden_state is not None:
            raise ValueError(
                f"--exact is for policies that depend only on the state, but those of {trained.run.entry.name} are "
                "recurrent: leave it out"
            )
        found.append(actions)
    return found
