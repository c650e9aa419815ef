"""Measures of tabular runs next to the score: errors of predicted values, and the regret of bandits."""

from typing import TYPE_CHECKING, Any

from operant.cli.output import by_seed, number

if TYPE_CHECKING:
    from operant.api import Trained
    from operant.mdp import MDP
    from operant.runtime.evaluation import Evaluation


class PredictionErrors:
    """Errors of each seed's values of the evaluated policy in a finite MDP, |V - V^π|.

    Args:
        trained: run of a prediction algorithm.
        model: model of its task.

    Raises:
        ValueError: the discount factor is 1, and the policy never ends an episode.
    """

    def __init__(self, trained: "Trained", model: "MDP") -> None:
        from operant.tabular import value_errors

        learner: Any = trained.experiment.learner
        self.seeds = trained.run.settings.seeds
        self.found = value_errors(model, learner.values, learner.followed, gamma=learner.config.gamma)

    def fields(self) -> dict[str, Any]:
        """Return the fields for `--json`, with one entry per seed."""
        return {
            "gamma": self.found.gamma,
            "states": self.found.states,
            "value_rmse": self.found.rmse.tolist(),
            "largest_value_error": self.found.largest.tolist(),
        }

    def text(self) -> str:
        """Return a table with one row per seed."""
        found, rows = self.found, [["seed", "RMSE", "largest error", "in state"]]
        for seed, rmse, largest, state in zip(self.seeds, found.rmse, found.largest, found.state, strict=True):
            rows.append([str(seed), number(rmse), number(largest), str(state)])
        return (
            f"Values against the exact ones of the evaluated policy, V^π with discount factor {found.gamma:g}, in the "
            f"{found.states} states that it enters:\n\n{by_seed(rows)}\n\n"
            f"mean RMSE {number(float(found.rmse.mean()))}"
        )


class Regrets:
    """Regret of each seed of a bandit: the expected reward lost by not pulling the best arm.

    Args:
        trained: run of a bandit strategy.
    """

    def __init__(self, trained: "Trained") -> None:
        from operant.runtime.statistics import stratified_bootstrap

        learner: Any = trained.experiment.learner
        self.regret, self.pulls = learner.pulls.regret.copy(), learner.consumed
        self.mean = float(self.regret.mean())
        self.interval = stratified_bootstrap(self.regret, lambda drawn: drawn.mean(axis=-1))

    def fields(self) -> dict[str, Any]:
        """Return the fields for `--json`: the regret per seed, its mean, and the 95 % interval of the mean."""
        return {"regret": self.regret.tolist(), "regret_mean": self.mean, "regret_interval": self.interval}

    def text(self) -> str:
        """Return the mean regret and its interval."""
        low, high = map(number, self.interval)
        interval = f", 95 % interval [{low}, {high}]" if len(self.regret) > 1 else " with one seed"
        return f"Regret after {self.pulls:,} pulls: mean {number(self.mean)}{interval}"


def predicts(trained: "Trained") -> bool:
    """Return whether a run is one of an algorithm that learns the values of a given policy."""
    if trained.run.entry.package != "tabular":
        return False
    from operant.tabular import Prediction

    return isinstance(trained.experiment.learner, Prediction)


def measured(trained: "Trained", evaluation: "Evaluation") -> PredictionErrors | Regrets | None:
    """Return the regret of a bandit, or the errors of the values of a prediction run.

    Args:
        trained: the run.
        evaluation: its evaluation, which is exact if the model is known and small.

    Returns:
        None for other runs, for the best weights of a bandit, and if errors are unknown or expensive to compute.
    """
    if trained.run.entry.family == "bandit":
        return Regrets(trained) if trained.consumed is None and hasattr(trained.experiment.learner, "pulls") else None
    model = getattr(trained.experiment, "mdp", None)
    if model is None or not evaluation.exact or not predicts(trained):
        return None
    try:
        return PredictionErrors(trained, model)
    except ValueError:  # the policy never ends an episode, and there is no discount
        return None
