"""Interactive plots of equations: every curve is computed by the library for the parameters chosen on the page."""

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
"""Number of points of a curve."""
REWARDS = (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0)
VALUES = (1.6, 1.9, 2.0, 2.6, 1.1, 1.0, 1.4, 1.2, 1.7, 1.5, 1.8, 2.1)
"""Rewards of an episode of 12 steps, and a critic's values of its states."""
NATS_PER_BIT = 0.6931471805599453
"""Nats in a bit."""
GAMBLERS = 30
"""Number of seeds of a bandit strategy, over which regret is averaged."""

Batch = Mapping[str, Tensor]
"""Samples of an update of a run, or steps of its rollout, by column name (`operant.web.batches`)."""
SAMPLES = ("log_probs", "old_log_probs", "advantages")
ROLLOUT = ("rewards", "values", "next_values", "terminated", "truncated")
MOST_NUMBERS = 10_000
"""Maximum number of samples of a batch."""


@dataclass(frozen=True)
class Knob:
    """Adjustable parameter.

    Attributes:
        name: name of the argument.
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
    """Data of a plot.

    Attributes:
        x: x coordinates of all curves.
        curves: y coordinates by name.
        facts: numbers shown below the curves, by name.
        code: equivalent Python code.
        dots: x and y coordinates of samples by name.
    """

    x: Sequence[float]
    curves: Mapping[str, Tensor]
    facts: Mapping[str, float]
    code: str
    dots: Mapping[str, tuple[Tensor, Tensor]] = {}


@dataclass(frozen=True)
class Explorable:
    """Interactive plot of an equation.

    Attributes:
        title: heading.
        idea: explanation.
        x_label: label of the horizontal axis.
        knobs: adjustable parameters.
        draw: function from parameter values by name to the data of the plot.
        page: page of the documentation.
        batch: columns of a run's batch that the plot can show. Default: none.
        kind: `lines`, or `bars` for probabilities that are adjusted by dragging.
        log_x: whether the horizontal axis can be logarithmic.
    """

    title: str
    idea: str
    x_label: str
    knobs: Sequence[Knob]
    draw: Callable[..., Drawing]
    page: str
    batch: Sequence[str] = ()
    kind: str = "lines"
    log_x: bool = False


def index(_: Path) -> dict[str, Any]:
    """Return the explorables with their parameters."""
    return {
        "explorables": [
            {
                "name": name,
                "title": one.title,
                "idea": one.idea,
                "xLabel": one.x_label,
                "page": one.page,
                "batch": list(one.batch),
                "kind": one.kind,
                "logX": one.log_x,
                "knobs": list(map(asdict, one.knobs)),
            }
            for name, one in EXPLORABLES.items()
        ]
    }


def draw(
    _: Path, explorable: str, values: dict[str, float], batch: dict[str, list[float]] | None = None
) -> dict[str, Any]:
    """Return curves, samples, facts and code of an explorable.

    Args:
        explorable: name of the explorable.
        values: parameter values by name; others keep their initial values.
        batch: columns of a run's batch, for explorables that show them. Default: none.

    Raises:
        NotFoundError: the explorable does not exist.
        ValueError: a value is out of range, a parameter is unknown, or the batch has other columns.
    """
    if explorable not in EXPLORABLES:
        raise NotFoundError(f"unknown explorable {explorable!r}")
    entry = EXPLORABLES[explorable]
    given = {"batch": None if batch is None else _columns(entry.batch, batch)} if entry.batch else {}
    found = entry.draw(**_checked(entry.knobs, values), **given)
    curves = [{"name": title, "x": found.x, "y": floats(curve.double())} for title, curve in found.curves.items()]
    dots = [{"name": title, "x": floats(x), "y": floats(y)} for title, (x, y) in found.dots.items()]
    return {"curves": curves, "dots": dots, "facts": dict(found.facts), "code": found.code}


def _columns(names: Sequence[str], batch: Mapping[str, Any]) -> Batch:
    """Return the columns of a batch in double precision."""
    try:
        columns = {name: torch.tensor(batch[name], dtype=torch.float64) for name in names}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a batch must have numbers, not NaN or Inf, in the columns {', '.join(names)}") from error
    sizes = {tuple(column.shape) for column in columns.values()}
    (size,) = sizes if len(sizes) == 1 else [()]
    if len(size) != 1 or not 1 <= size[0] <= MOST_NUMBERS:
        raise ValueError(f"the columns of a batch must have the same length, from 1 to {MOST_NUMBERS}")
    if not all(bool(column.isfinite().all()) for column in columns.values()):
        raise ValueError("a batch has NaN or Inf")
    return columns


def _checked(knobs: Sequence[Knob], values: Mapping[str, Any]) -> dict[str, float]:
    known = {knob.name: knob for knob in knobs}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"unknown parameter {name!r}: use {', '.join(known)}")
        knob = known[name]
        if not (isinstance(value, int | float) and knob.least <= value <= knob.most):
            raise ValueError(f"{name} must be from {knob.least:g} to {knob.most:g}, got {value!r}")
    return {name: float(values.get(name, knob.value)) for name, knob in known.items()}


def _clip(epsilon: float, epsilon_high: float, dual_clip: float, batch: Batch | None) -> Drawing:
    dual = dual_clip if dual_clip > 1 else None
    clip: dict[str, Any] = {"clip_low": epsilon, "clip_high": epsilon_high}

    def objective(log_probs: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
        return -ops.clipped_surrogate(log_probs, old, advantages, **clip, dual_clip=dual)

    facts: dict[str, float] = {}
    dots: dict[str, tuple[Tensor, Tensor]] = {}
    most = 4.0
    if batch is not None:
        new, old, advantages = (batch[name] for name in SAMPLES)
        ratios, heights = (new - old).exp(), objective(new, old, advantages.sign())
        most = min(most, max(2.0, float(ratios.max())))
        for name, chosen in (("raised", advantages > 0), ("lowered", advantages < 0)):
            dots[f"samples to be {name}"] = (ratios[chosen & (ratios <= most)], heights[chosen & (ratios <= most)])
        facts["ratios beyond the range"] = float(ops.clip_fraction(new, old, **clip))
        facts["KL of the update, nats"] = float(ops.approximate_kl(new, old))
    ratios = torch.linspace(0.01, most, POINTS, dtype=torch.float64)
    signs = {"advantage 1": torch.ones_like(ratios), "advantage −1": -torch.ones_like(ratios)}
    curves = {name: objective(ratios.log(), torch.zeros_like(ratios), sign) for name, sign in signs.items()}
    ranges = f"clip_low={epsilon:g}, clip_high={epsilon_high:g}, dual_clip={dual}"
    code = f"-ops.clipped_surrogate(log_ratios, zeros, advantages, {ranges})"
    return Drawing(floats(ratios), curves, facts, code, dots)


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


def _lambda(gamma: float, lam: float, batch: Batch | None) -> Drawing:
    if batch is None:
        rewards, values = (torch.tensor(row, dtype=torch.float64) for row in (REWARDS, VALUES))
        following = torch.cat([values[1:], values.new_zeros(1)])
        terminated = torch.arange(len(rewards)) == len(rewards) - 1
        truncated = torch.zeros_like(terminated)
    else:
        rewards, values, following, terminated, truncated = (batch[name] for name in ROLLOUT)
    ends = {"terminated": terminated.bool(), "truncated": truncated.bool()}
    curves = {
        f"λ = {lam:g}": ops.gae(rewards, values, following, gamma=gamma, lam=lam, **ends),
        "λ = 0": ops.gae(rewards, values, following, gamma=gamma, lam=0.0, **ends),
        "λ = 1": ops.gae(rewards, values, following, gamma=gamma, lam=1.0, **ends),
        "reward": rewards,
    }
    code = f"ops.gae(rewards, values, next_values, terminated=..., truncated=..., gamma={gamma:g}, lam={lam:g})"
    return Drawing(list(map(float, range(len(rewards)))), curves, {}, code)


def _bandits(best: float, gap: float, arms: float, epsilon: float, pulls: float) -> Drawing:
    from operant.tabular import strategies, thompson  # noqa: PLC0415 - importing numba takes a second, and only bandits need it
    from operant.tabular.bandits import Arms  # noqa: PLC0415 - as above

    every, seeds = int(pulls) // 50, range(GAMBLERS)
    pays = [best, *[max(0.01, best - gap)] * (int(arms) - 1)]
    problems = Arms.paying_one(pays, GAMBLERS)
    greedy = strategies.EpsilonGreedyConfig(exploration_rate=epsilon, steps_per_iteration=every)
    ucb, kl_ucb = strategies.UCBConfig(steps_per_iteration=every), strategies.KLUCBConfig(steps_per_iteration=every)
    sampling = thompson.ThompsonConfig(steps_per_iteration=every)
    learners = {
        f"ε-greedy, ε = {epsilon:g}": strategies.EpsilonGreedy(greedy, problems, seeds=seeds),
        "UCB1": strategies.UCB1(ucb, problems, seeds=seeds),
        "KL-UCB": strategies.KLUCB(kl_ucb, problems, seeds=seeds),
        "Thompson sampling": thompson.Thompson(sampling, problems, seeds=seeds),
    }
    reports = {name: [learner.iterate() for _ in range(50)] for name, learner in learners.items()}
    regret = {name: _means(metrics, "bandit/regret") for name, metrics in reports.items()}
    bound = _means(next(iter(reports.values())), "bandit/lai_robbins")
    facts = {f"regret of {name}": float(curve[-1]) for name, curve in regret.items()} | {"C ln T": float(bound[-1])}
    code = f"KLUCB(KLUCBConfig(), Arms.paying_one({pays}, {GAMBLERS}), seeds=range({GAMBLERS})).iterate()"
    times = [float(every * (i + 1)) for i in range(50)]
    return Drawing(times, {"C ln T (Lai and Robbins)": bound, **regret}, facts, code)


def _means(reports: Sequence[Mapping[str, Any]], name: str) -> Tensor:
    """Return the mean over seeds of a metric of each iteration."""
    return torch.stack([report[name].mean() for report in reports])


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
    return Drawing(
        [1.0, 2.0, 3.0, 4.0], curves, {f"{n}, bits": float(v) / NATS_PER_BIT for n, v in facts.items()}, code
    )


EXPLORABLES: Mapping[str, Explorable] = {
    "clip": Explorable(
        "The clipped surrogate",
        "The objective of PPO as a function of the probability ratio. It is constant where the ratio has moved too far "
        "in the direction of the advantage. DAPO uses 0.28 above. Dots are samples of a run's batch after its update.",
        "ratio of the new to the old probability",
        [
            Knob("epsilon", "ε below", 0.01, 1, 0.01, 0.2),
            Knob("epsilon_high", "ε above", 0.01, 2, 0.01, 0.2),
            Knob("dual_clip", "dual clip (1: none)", 1, 4, 0.1, 1),
        ],
        _clip,
        "ops/policy",
        SAMPLES,
    ),
    "kl": Explorable(
        "Estimators of the KL divergence",
        "For two outcomes; the probability of the first one is a parameter for p, and on the axis for q. In "
        "expectation over samples of p, k1 and k3 equal the divergence; k2 is biased if q is far from p.",
        "probability of the first outcome under q",
        [Knob("p", "probability under p", 0.02, 0.98, 0.01, 0.7)],
        _estimators,
        "ops/kl",
    ),
    "group": Explorable(
        "Group advantage and pass rate",
        "Advantages of a correct and a wrong answer as a function of the group's pass rate. GRPO divides by the "
        "standard deviation, so rare answers have the largest advantages.",
        "pass rate of the group",
        [Knob("size", "answers, G", 2, 64, 1, 16), Knob("eps", "ε of the standard deviation", 0, 0.5, 0.0001, 0.0001)],
        _group,
        "ops/group",
    ),
    "overlong": Explorable(
        "The penalty of overlong answers",
        "DAPO's soft penalty: 0 before the buffer, then increasing linearly to 1 at the maximum length, here 1,000 "
        "tokens.",
        "tokens of the answer",
        [Knob("buffer", "buffer, tokens", 1, 1000, 1, 200)],
        _overlong,
        "ops/group",
    ),
    "lambda": Explorable(
        "λ on a rollout",
        "Advantages of an episode of 12 steps with two rewards and an inaccurate critic, or of a run's rollout. At λ = "
        "0 they look one step ahead, at λ = 1 to the end.",
        "step",
        [Knob("gamma", "γ", 0, 1, 0.01, 0.99), Knob("lam", "λ", 0, 1, 0.01, 0.95)],
        _lambda,
        "ops/returns",
        ROLLOUT,
    ),
    "bits": Explorable(
        "Entropy and divergence in bits",
        "Two distributions over four outcomes: drag a bar to change a probability. The cross-entropy is the entropy of "
        "p plus the divergence, and the divergence is not symmetric.",
        "outcome",
        [
            Knob(f"{name}{i}", f"weight {i} of {name}", 0.01, 1, 0.01, value)
            for name, row in (("p", (0.5, 0.25, 0.13, 0.12)), ("q", (0.25, 0.25, 0.25, 0.25)))
            for i, value in enumerate(row, 1)
        ],
        _bits,
        "ops/distributions",
        kind="bars",
    ),
    "bandits": Explorable(
        "Regret of bandits",
        f"Regret of strategies on arms with rewards 0 or 1, mean of {GAMBLERS} seeds. Asymptotically, the regret of a "
        "strategy that is good on every problem grows at least as fast as the bound of Lai and Robbins, which is a "
        "straight line on a logarithmic axis.",
        "pulls",
        [
            Knob("best", "mean reward of the best arm", 0.05, 0.95, 0.01, 0.6),
            Knob("gap", "gap to the other arms", 0.01, 0.9, 0.01, 0.1),
            Knob("arms", "arms", 2, 5, 1, 4),
            Knob("epsilon", "ε of ε-greedy", 0, 1, 0.01, 0.1),
            Knob("pulls", "pulls", 500, 5000, 50, 2000),
        ],
        _bandits,
        "algorithms/kl-ucb",
        log_x=True,
    ),
}
"""Explorables by name."""
