"""Notes on evaluations of tabular methods: how scores are computed, and which policies never terminate."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from operant.api import Trained
    from operant.mdp import MDP
    from operant.runtime.evaluation import Evaluation

MOST_SEEDS, MOST_STATES = 3, 12
"""Maximum numbers of seeds and of states in a list."""


def score_notes(trained: "Trained", evaluation: "Evaluation") -> str:
    """Return notes on the scores of a tabular method; empty for other runs.

    They state whether scores are exact, how many episodes were truncated by a step limit, and in which states policies
    loop forever.
    """
    if trained.run.entry.package != "tabular":
        return ""
    from operant.tabular.factory import Experiment

    mdp = trained.experiment.evaluation_model() if isinstance(trained.experiment, Experiment) else None
    lines: list[str] = []
    if mdp is not None and evaluation.exact:
        lines.append(f"Scores are exact: the expected return within {_limit(trained, mdp)}, computed from the model.")
    elif evaluation.exact:
        lines.append("Scores are exact: the expected reward of the greedy arm.")
    cut = [(seed, share) for seed, share in zip(trained.run.settings.seeds, evaluation.cut, strict=False) if share > 0]
    if cut:
        total = sum(share for _, share in cut) / len(evaluation.cut)
        each = _listed([f"seed {seed} {100 * share:.3g} %" for seed, share in cut], "seeds")
        lines.append(f"Truncated by the step limit: {100 * total:.3g} % of the episodes ({each}).")
        lines += _endless_policies(trained, mdp, [seed for seed, _ in cut]) if mdp is not None else []
    return "\n".join(lines)


def _endless_policies(trained: "Trained", mdp: "MDP", seeds: list[int]) -> list[str]:
    """Return a note on the policies of the given seeds that never terminate; empty if there are none."""
    from operant.tabular.exact import circling_states

    if not mdp.terminates.any():
        return ["No episode of this task terminates: no transition of its model does."]
    policies, every = trained.experiment.learner.policy(), trained.run.settings.seeds
    found = {seed: circling_states(mdp, policies[every.index(seed)]) for seed in seeds}
    circles = {seed: states.tolist() for seed, states in found.items() if states.size}
    if not circles:
        return []
    each = [f"seed {seed} loops in states {_listed_states(states)}" for seed, states in circles.items()]
    return [
        f"The policy never terminates: {_listed(each, 'seeds')}. Its score is that of an episode truncated after "
        f"{_limit(trained, mdp)}; a smaller step size, or a step limit, may fix it."
    ]


def _limit(trained: "Trained", mdp: "MDP") -> str:
    from operant.tabular.evaluation import step_limit

    chosen = trained.run.settings.evaluate_max_steps
    limit = step_limit(mdp.max_steps, chosen)
    if limit != mdp.max_steps:
        return f"{limit:,} steps ({'evaluate_max_steps' if chosen else 'the task has no limit'})"
    return f"{limit:,} steps"


def _listed(parts: list[str], what: str) -> str:
    more = len(parts) - MOST_SEEDS
    return ", ".join(parts[:MOST_SEEDS]) + (f" and {more} more {what}" if more > 0 else "")


def _listed_states(states: list[int]) -> str:
    more = len(states) - MOST_STATES
    return ", ".join(map(str, states[:MOST_STATES])) + (f" and {more} more" if more > 0 else "")
