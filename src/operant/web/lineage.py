"""Lineage of methods: for each method, the methods whose ideas it extends (not class inheritance)."""

from collections.abc import Mapping

_TRAIN: Mapping[str, tuple[str, ...]] = {
    "kl-ucb": ("ucb1",),
    "gradient-bandit": ("reinforce-baseline",),
    "n-step-td": ("monte-carlo-prediction",),
    "lambda-return": ("n-step-td",),
    "td-lambda": ("lambda-return",),
    "monte-carlo": ("monte-carlo-prediction",),
    "q-learning": ("solve:q-value-iteration",),
    "sarsa": ("n-step-td",),
    "expected-sarsa": ("sarsa",),
    "double-q-learning": ("q-learning",),
    "n-step-sarsa": ("sarsa", "n-step-td"),
    "sarsa-lambda": ("sarsa", "td-lambda"),
    "dyna-q": ("q-learning",),
    "dyna-q-plus": ("dyna-q",),
    "prioritized-sweeping": ("dyna-q", "solve:prioritized-sweeping"),
    "r-max": ("solve:value-iteration",),
    "mbie-eb": ("r-max",),
    "dqn": ("q-learning",),
    "double-dqn": ("dqn", "double-q-learning"),
    "dueling-dqn": ("dqn",),
    "prioritized-dqn": ("dqn", "prioritized-sweeping"),
    "bootstrapped-dqn": ("dqn",),
    "muzero": ("alphazero",),
    "mbpo": ("sac", "dyna-q"),
    "mrq": ("td3",),
    "dreamer": ("world-models", "actor-critic"),
    "reinforce-to-go": ("reinforce",),
    "reinforce-baseline": ("reinforce-to-go",),
    "vpg": ("reinforce-baseline",),
    "actor-critic": ("vpg", "n-step-td"),
    "a2c": ("actor-critic",),
    "a3c": ("actor-critic",),
    "impala": ("a3c",),
    "npg": ("vpg",),
    "trpo": ("npg",),
    "ppo": ("trpo", "a2c"),
    "ppo-penalty": ("trpo", "ppo"),
    "recurrent-ppo": ("ppo",),
    "ddpg": ("dqn", "actor-critic"),
    "td3": ("ddpg", "double-q-learning"),
    "sac": ("td3",),
    "sac-discrete": ("sac",),
    "process-reward-model": ("reward-model",),
    "dpo": ("reward-model", "rlhf"),
    "rlhf": ("ppo", "sft", "reward-model"),
    "grpo": ("rlhf", "reinforce-baseline"),
    "iterative-grpo": ("grpo", "reward-model"),
}
_SOLVE: Mapping[str, tuple[str, ...]] = {
    "gauss-seidel": ("value-iteration",),
    "asynchronous-value-iteration": ("gauss-seidel",),
    "prioritized-sweeping": ("gauss-seidel",),
    "modified-policy-iteration": ("policy-iteration", "value-iteration"),
    "inexact-policy-iteration": ("modified-policy-iteration",),
    "q-value-iteration": ("value-iteration",),
}


def _ids(table: Mapping[str, tuple[str, ...]], kind: str) -> dict[str, list[str]]:
    return {f"{kind}:{name}": [b if ":" in b else f"{kind}:{b}" for b in bases] for name, bases in table.items()}


BUILDS_ON: Mapping[str, list[str]] = _ids(_TRAIN, "train") | _ids(_SOLVE, "solve")
"""Predecessors by id: `train:` or `solve:`, followed by the name on the command line."""
