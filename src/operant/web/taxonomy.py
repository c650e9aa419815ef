"""Map of all algorithms of the catalog by family, with their commands."""

from collections.abc import Sequence
from typing import Any

from operant import catalog
from operant.catalog import Algorithm
from operant.web.documentation import page_of
from operant.web.lineage import BUILDS_ON

KNOWN: tuple[tuple[str, str, str], ...] = (
    ("policy-iteration", "Policy iteration", "Evaluate the policy exactly, make it greedy, repeat."),
    ("value-iteration", "Value iteration", "Back up every state by the best action until nothing changes."),
    ("gauss-seidel", "Gauss-Seidel value iteration", "Value iteration that uses new values immediately."),
    ("prioritized-sweeping", "Prioritized sweeping", "Back up first where the value would change most."),
    ("asynchronous-value-iteration", "Real-time value iteration", "Back up the states where greedy trajectories go."),
    ("modified-policy-iteration", "Modified policy iteration", "Improve, then evaluate by a few cheap sweeps."),
    (
        "inexact-policy-iteration",
        "Inexact policy iteration",
        "Alternate sweeps and Krylov evaluations, for large models.",
    ),
    ("q-value-iteration", "Q-value iteration", "Value iteration on the table of action values."),
    ("linear-programming", "Linear programming", "Minimize the values subject to the Bellman inequalities."),
)
"""Methods of `operant solve`: names on the command line, titles, ideas."""

BRANCHES: tuple[tuple[str, str, str], ...] = (
    ("bandit", "Bandits", "one state, many arms"),
    ("prediction", "Prediction", "values of a given policy"),
    ("value", "Value based", "learn Q, act greedily"),
    ("policy", "Policy gradient", "gradient ascent on the return"),
    ("actor-critic", "Actor-critic", "a policy, and a critic that evaluates it"),
    ("imitation", "Imitation", "maximum likelihood of demonstrations"),
    ("reward", "Reward models", "scores learned from preferences"),
    ("none", "Baseline", "learns nothing"),
)
"""Families with titles, and the learned quantity."""
TASKS = {"none": "operant/BernoulliBandit-v0", "finite": "FrozenLake-v1", "text": "preference"}
"""Example tasks by kind of observation."""
OWN_TASKS = {
    "alphazero": "operant/TicTacToe-v0",
    "world-models": "operant/PixelCatch-v0",
    "sft": "arithmetic",
    "process-reward-model": "steps",
    "grpo": "arithmetic",
    "iterative-grpo": "preference --reward-model runs/reward-model-preference-1",
}
"""Example tasks, with necessary options, of algorithms that need or are meant for another one."""


def taxonomy() -> dict[str, Any]:
    """Return the tree of nodes with `title`, `note` and `children`, and leaves with `name`, `idea`, `command` etc."""
    known = [
        {
            "name": name,
            "title": title,
            "idea": idea,
            "page": "mdp",
            "builds_on": BUILDS_ON.get(f"solve:{name}", []),
            "command": f"operant solve FrozenLake-v1 --method {name}",
        }
        for name, title, idea in KNOWN
    ]
    packages = {name: [a for a in catalog.ALGORITHMS if a.package == name] for name in ("tabular", "control")}
    children = [
        {
            "title": "The model is known",
            "note": "solve it exactly",
            "children": [_node("Dynamic programming", "", known)],
        },
        {"title": "Tables from samples", "note": "states can be counted", "children": _families(packages["tabular"])},
        {"title": "Networks from samples", "note": "states cannot", "children": _families(packages["control"])},
        {"title": "Language models", "note": "prompts and completions", "children": _families(catalog.LANGUAGE)},
    ]
    return {"title": "Reinforcement learning", "children": children}


def _families(algorithms: Sequence[Algorithm]) -> list[dict[str, Any]]:
    """Return a node per family, with model-based ones separately."""
    found: dict[str, tuple[str, str]] = {name: (title, note) for name, title, note in BRANCHES}
    groups: dict[tuple[str, str], list[Algorithm]] = {}
    for entry in algorithms:
        title, note = found.get(entry.family, (entry.family.capitalize(), ""))
        if entry.model == "learned":
            title, note = "Model based", "learn the world, then plan in it"
        groups.setdefault((title, note), []).append(entry)
    return [_node(title, note, [_leaf(entry) for entry in entries]) for (title, note), entries in groups.items()]


def _node(title: str, note: str, children: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"title": title, "note": note, "children": list(children)}


def _leaf(entry: Algorithm) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": entry.title,
        "idea": entry.idea,
        "paper": entry.paper,
        "on_policy": entry.on_policy,
        "actions": list(entry.actions),
        "module": entry.module,
        "builds_on": BUILDS_ON.get(f"train:{entry.name}", []),
        "page": page_of(entry.name),
        "command": f"operant train {entry.name} {_task(entry)}",
    }


def _task(entry: Algorithm) -> str:
    usual = "CartPole-v1" if "discrete" in entry.actions else "Pendulum-v1"
    return OWN_TASKS.get(entry.name, TASKS.get(entry.observations, usual))
