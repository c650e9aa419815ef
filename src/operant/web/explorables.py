"""Plots of the equations: every curve is the result of `operant.ops` for the numbers chosen on a page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from operant import ops
from operant.tensors import floats, integers
from operant.web.workers import NotFoundError

POINTS = 241
"""Points of a curve."""
REWARDS = (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0)
VALUES = (1.6, 1.9, 2.0, 2.6, 1.1, 1.0, 1.4, 1.2, 1.7, 1.5, 1.8, 2.1)
"""An episode of 12 steps, and a critic's values of its states."""
BITS = 0.6931471805599453
"""Nats in a bit."""


@dataclass(frozen=True)
class Knob:
    """A number to choose.

    Attributes:
        name: of the argument.
        title: label.
        least: minimum.
        most: maximum.
        step: increment.
        value: initial value.
    """

    name: str
    title: str
    least: float
    most: float
    step: float
    value: float


class Drawing(NamedTuple):
    """Result of an explorable.

    Attributes:
        x: of all curves.
        curves: by name.
        facts: numbers below the curves, by name.
        code: the same in Python.
    """

    x: Sequence[float]
    curves: Mapping[str, Tensor]
    facts: Mapping[str, float]
    code: str


@dataclass(frozen=True)
class Explorable:
    """An equation to explore.

    Attributes:
        title: heading.
        idea: explanation.
        x_label: of the horizontal axis.
        knobs: the numbers to choose.
        draw: from the knobs' values, by name, to the drawing.
        page: of the documentation.
    """

    title: str
    idea: str
    x_label: str
    knobs: Sequence[Knob]
    draw: Callable[..., Drawing]
    page: str


def index(_: Path) -> dict[str, Any]:
    """Return the explorables with their knobs."""
    return {
        "explorables": [
            {
                "name": name,
                "title": one.title,
                "idea": one.idea,
                "xLabel": one.x_label,
                "page": one.page,
                "knobs": list(map(asdict, one.knobs)),
            }
            for name, one in EXPLORABLES.items()
        ]
    }


def draw(_: Path, explorable: str, values: dict[str, float]) -> dict[str, Any]:
    """Return curves, facts and code of an explorable.

    Args:
        explorable: its name.
        values: of its knobs; others keep their initial values.

    Raises:
        NotFoundError: there is no such explorable.
        ValueError: a value is out of range, or there is no such knob.
    """
    if explorable not in EXPLORABLES:
        raise NotFoundError(f"there is no explorable {explorable!r}")
    entry = EXPLORABLES[explorable]
    found = entry.draw(**_checked(entry.knobs, values))
    curves = [{"name": title, "x": found.x, "y": floats(curve.double())} for title, curve in found.curves.items()]
    return {"curves": curves, "facts": dict(found.facts), "code": found.code}


def _checked(knobs: Sequence[Knob], values: Mapping[str, Any]) -> dict[str, float]:
    known = {knob.name: knob for knob in knobs}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"there is no {name!r}; there are {', '.join(known)}")
        knob = known[name]
        if not (isinstance(value, int | float) and knob.least <= value <= knob.most):
            raise ValueError(f"{name} must be from {knob.least:g} to {knob.most:g}, got {value!r}")
    return {name: float(values.get(name, knob.value)) for name, knob in known.items()}


def _clip(epsilon: float, epsilon_high: float, dual_clip: float) -> Drawing:
    ratios = torch.linspace(0.01, 4, POINTS, dtype=torch.float64)
    old, log_ratios = torch.zeros_like(ratios), ratios.log()
    dual = dual_clip if dual_clip > 1 else None

    def objective(advantage: float) -> Tensor:
        advantages = torch.full_like(ratios, advantage)
        return -ops.clipped_surrogate(
            log_ratios, old, advantages, clip_low=epsilon, clip_high=epsilon_high, dual_clip=dual
        )

    curves = {"advantage 1": objective(1.0), "advantage −1": objective(-1.0)}
    ranges = f"clip_low={epsilon:g}, clip_high={epsilon_high:g}, dual_clip={dual}"
    code = f"-ops.clipped_surrogate(log_ratios, zeros, advantages, {ranges})"
    return Drawing(floats(ratios), curves, {}, code)


def _estimators(p: float) -> Drawing:
    others = torch.linspace(0.01, 0.99, POINTS, dtype=torch.float64)
    own = torch.tensor([p, 1 - p], dtype=torch.float64).log().expand(POINTS, 2)
    ref = torch.stack([others, 1 - others], -1).log()
    curves = {"KL(p‖q)": ops.categorical_kl(own, ref)}
    for kind in ("k1", "k2", "k3"):
        samples = ops.kl_estimate(own.flatten(), ref.flatten(), kind).view(POINTS, 2)
        curves[f"mean of {kind}"] = (own.exp() * samples).sum(-1)
    return Drawing(
        floats(others), curves, {}, "ops.kl_estimate(log_probs, ref_log_probs, kind), ops.categorical_kl(p, q)"
    )


def _overlong(buffer: float) -> Drawing:
    lengths = torch.arange(0, 1201, 10)
    penalty = ops.overlong_penalty(lengths, max_length=1000, buffer=int(buffer))
    code = f"ops.overlong_penalty(lengths, max_length=1000, buffer={int(buffer)})"
    return Drawing(integers(lengths), {"penalty": penalty}, {}, code)


def _group(size: float, eps: float) -> Drawing:
    count = int(size)
    rewards = torch.tril(torch.ones(count - 1, count, dtype=torch.float64))
    found = {
        "GRPO": ops.group_advantages(rewards, eps=eps),
        "Dr. GRPO": ops.group_advantages(rewards, scale="none"),
        "leave one out": ops.leave_one_out(rewards),
    }
    curves = {f"{name}, right": rows[:, 0] for name, rows in found.items()}
    curves |= {f"{name}, wrong": rows[:, -1] for name, rows in found.items()}
    code = f"ops.group_advantages(rewards, eps={eps:g}), ops.leave_one_out(rewards)"
    return Drawing(floats(rewards.mean(1)), curves, {}, code)


def _lambda(gamma: float, lam: float) -> Drawing:
    rewards, values = (torch.tensor(row, dtype=torch.float64) for row in (REWARDS, VALUES))
    following = torch.cat([values[1:], values.new_zeros(1)])
    terminated = torch.arange(len(rewards)) == len(rewards) - 1
    ends = {"terminated": terminated, "truncated": torch.zeros_like(terminated)}
    curves = {
        f"λ = {lam:g}": ops.gae(rewards, values, following, gamma=gamma, lam=lam, **ends),
        "λ = 0": ops.gae(rewards, values, following, gamma=gamma, lam=0.0, **ends),
        "λ = 1": ops.gae(rewards, values, following, gamma=gamma, lam=1.0, **ends),
        "reward": rewards,
    }
    code = f"ops.gae(rewards, values, next_values, terminated=..., truncated=..., gamma={gamma:g}, lam={lam:g})"
    return Drawing(list(map(float, range(len(REWARDS)))), curves, {}, code)


def _bits(**weights: float) -> Drawing:
    p, q = (torch.tensor([weights[f"{name}{i}"] for i in range(1, 5)], dtype=torch.float64).log() for name in "pq")
    facts = {
        "entropy of p": ops.categorical_entropy(p),
        "entropy of q": ops.categorical_entropy(q),
        "cross-entropy of p and q": ops.cross_entropy(p, q),
        "KL(p‖q)": ops.categorical_kl(p, q),
        "KL(q‖p)": ops.categorical_kl(q, p),
    }
    curves = {"p": torch.softmax(p, -1), "q": torch.softmax(q, -1)}
    code = "ops.categorical_entropy(p), ops.cross_entropy(p, q), ops.categorical_kl(p, q)"
    return Drawing([1.0, 2.0, 3.0, 4.0], curves, {f"{n}, bits": float(v) / BITS for n, v in facts.items()}, code)


EXPLORABLES: Mapping[str, Explorable] = {
    "clip": Explorable(
        "The clipped surrogate",
        "What PPO maximizes, against the probability ratio. It is flat where the ratio has moved too far in the "
        "direction of the advantage. DAPO uses 0.28 above.",
        "ratio of the new to the old probability",
        [
            Knob("epsilon", "ε below", 0.01, 1, 0.01, 0.2),
            Knob("epsilon_high", "ε above", 0.01, 2, 0.01, 0.2),
            Knob("dual_clip", "dual clip (1: none)", 1, 4, 0.1, 1),
        ],
        _clip,
        "ops/policy",
    ),
    "kl": Explorable(
        "Estimators of the KL divergence",
        "For two outcomes, p gives the first the chosen probability, and q that of the axis. On average over "
        "samples of p, k1 and k3 are the divergence itself; k2 is biased where q is far away.",
        "probability of the first outcome under q",
        [Knob("p", "probability under p", 0.02, 0.98, 0.01, 0.7)],
        _estimators,
        "ops/kl",
    ),
    "group": Explorable(
        "Group advantage and pass rate",
        "Advantages of a correct and a wrong answer by the pass rate of the group. GRPO divides by the standard "
        "deviation, so rare ones have the largest.",
        "pass rate of the group",
        [Knob("size", "answers, G", 2, 64, 1, 16), Knob("eps", "ε of the standard deviation", 0, 0.5, 0.0001, 0.0001)],
        _group,
        "ops/group",
    ),
    "overlong": Explorable(
        "The penalty of overlong answers",
        "DAPO's soft penalty: 0 up to the buffer, then rising with every token, up to 1 at the longest length, "
        "here 1,000 tokens.",
        "tokens of the answer",
        [Knob("buffer", "buffer, tokens", 1, 1000, 1, 200)],
        _overlong,
        "ops/group",
    ),
    "lambda": Explorable(
        "λ on a rollout",
        "Advantages of an episode of 12 steps with two rewards and an inaccurate critic. At λ = 0 they look one step "
        "ahead, at λ = 1 to the end.",
        "step",
        [Knob("gamma", "γ", 0, 1, 0.01, 0.99), Knob("lam", "λ", 0, 1, 0.01, 0.95)],
        _lambda,
        "ops/returns",
    ),
    "bits": Explorable(
        "Entropy and divergence in bits",
        "Two distributions of four outcomes, from normalized weights. The cross-entropy is the "
        "entropy of p plus the divergence, and the divergence is not symmetric.",
        "outcome",
        [
            Knob(f"{name}{i}", f"weight {i} of {name}", 0.01, 1, 0.01, value)
            for name, row in (("p", (0.5, 0.25, 0.13, 0.12)), ("q", (0.25, 0.25, 0.25, 0.25)))
            for i, value in enumerate(row, 1)
        ],
        _bits,
        "ops/distributions",
    ),
}
"""By name."""
