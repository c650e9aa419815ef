"""Curves of the library's own equations, computed when the site is built."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from drawing import Drawing
from torch import Tensor

from operant import ops
from operant.tabular.formulas import count_bonus
from operant.tabular.strategies import kl_ucb_index, ucb_index
from operant.tabular.thompson import beta_posterior
from operant.tabular.traces import ACCUMULATING, REPLACING, TRUE_ONLINE, grown

LEFT, RIGHT, TOP, BOTTOM = 62, 150, 26, 52
"""Space around the axes: for numbers, names of curves, nothing, and numbers with the name of the axis."""
WIDTH, HEIGHT = 640, 300
DASHES = ("", "7 4", "2 4", "9 3 2 3")


class Curve(NamedTuple):
    """A curve.

    Attributes:
        name: written at its end.
        x: places.
        y: values.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]


class Axis(NamedTuple):
    """An axis.

    Attributes:
        name: what it counts.
        low: its least value.
        high: its greatest value.
        ticks: which of its values are written.
    """

    name: str
    low: float
    high: float
    ticks: Sequence[float]


def plot(title: str, words: str, across: Axis, up: Axis, *curves: Curve, at: Sequence[float] | None = None) -> Drawing:
    """Draw curves with their names.

    Args:
        title: of the picture.
        words: what it shows.
        across: horizontal axis.
        up: vertical axis.
        *curves: what is drawn; it is cut off at the ends of the vertical axis.
        at: heights of the names in units of the vertical axis; None: of the last values.
    """
    drawing = Drawing(WIDTH, HEIGHT, title, words)

    def place(x: float, y: float) -> tuple[float, float]:
        share = (x - across.low) / (across.high - across.low), (y - up.low) / (up.high - up.low)
        return LEFT + share[0] * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - share[1] * (HEIGHT - TOP - BOTTOM)

    drawing.line([place(across.low, up.high), place(across.low, up.low), place(across.high, up.low)], opacity=0.6)
    for tick in across.ticks:
        x, y = place(tick, up.low)
        drawing.line([(x, y), (x, y + 5)], opacity=0.6)
        drawing.text(x, y + 15, f"{tick:g}", small=True)
    for tick in up.ticks:
        x, y = place(across.low, tick)
        drawing.line([(x - 5, y), (x, y)], opacity=0.6)
        drawing.text(x - 9, y, f"{tick:g}", anchor="end", small=True)
    drawing.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, across.name, small=True)
    drawing.text(LEFT + 8, TOP - 14, up.name, anchor="start", small=True)
    heights = at or [curve.y[-1] for curve in curves]
    for curve, height, dash in zip(curves, heights, DASHES, strict=False):
        inside = [place(x, y) for x, y in zip(curve.x, curve.y, strict=True) if up.low <= y <= up.high]
        drawing.line(inside, dash=dash, width=2)
        y = place(across.high, height)[1]
        drawing.line([(WIDTH - RIGHT + 8, y), (WIDTH - RIGHT + 34, y)], dash=dash, width=2)
        drawing.text(WIDTH - RIGHT + 40, y, curve.name, anchor="start", small=True)
    return drawing


def _grid(low: float, high: float, number: int = 121) -> Tensor:
    return torch.linspace(low, high, number, dtype=torch.float64)


def _objective(ratio: Tensor, advantage: float) -> list[float]:
    zero = torch.zeros_like(ratio)
    losses = ops.clipped_surrogate(ratio.log(), zero, zero + advantage, clip_low=0.2, clip_high=0.2)
    return (-losses).tolist()


def ppo() -> Drawing:
    """Draw PPO's clipped objective against the ratio (Schulman et al. 2017, figure 1)."""
    ratio = _grid(0.4, 1.6)
    return plot(
        "PPO's clipped objective",
        "For a positive advantage the objective rises with the ratio up to 1 + ε and is flat beyond it. For a negative "
        "one it is flat below 1 - ε and falls from there.",
        Axis("ratio ρ = π(a|s) / π_old(a|s), ε = 0.2", 0.4, 1.6, (0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6)),
        Axis("objective of one sample", -1.6, 1.4, (-1.5, -1, -0.5, 0, 0.5, 1)),
        Curve("advantage 1", ratio.tolist(), _objective(ratio, 1.0)),
        Curve("advantage -1", ratio.tolist(), _objective(ratio, -1.0)),
    )


def dpo() -> Drawing:
    """Draw the losses of DPO against the difference of log-ratios."""
    h = _grid(-2.0, 3.0)
    zero = torch.zeros_like(h)
    kinds = ("sigmoid", "hinge", "ipo")
    return plot(
        "Three losses on pairs of answers",
        "All fall while the preferred answer gains probability relative to the reference; the sigmoid never stops, the "
        "hinge stops at 1, and ipo rises again beyond 1/2.",
        Axis("h: log-ratio of the preferred answer minus that of the other, β = 1", -2, 3, (-2, -1, 0, 1, 2, 3)),
        Axis("loss", 0, 4, (0, 1, 2, 3, 4)),
        *(Curve(kind, h.tolist(), ops.dpo(h, zero, zero, zero, beta=1.0, kind=kind).tolist()) for kind in kinds),
        at=(1.0, 0.5, 3.8),
    )


def reward_model() -> Drawing:
    """Draw the loss of Bradley and Terry, and the probability of the preference."""
    difference = _grid(-4.0, 4.0)
    loss = ops.bradley_terry(difference, torch.zeros_like(difference))
    return plot(
        "The loss of a comparison",
        "The probability that the preferred answer wins rises with the difference of the scores, and the loss, its "
        "negative logarithm, falls.",
        Axis("score of the preferred answer minus score of the other", -4, 4, (-4, -2, 0, 2, 4)),
        Axis("loss, probability", 0, 4, (0, 1, 2, 3, 4)),
        Curve("loss", difference.tolist(), loss.tolist()),
        Curve("probability", difference.tolist(), (-loss).exp().tolist()),
        at=(0.3, 1.0),
    )


def ucb() -> Drawing:
    """Draw the bounds of UCB1 and KL-UCB against the number of pulls."""
    pulls = list(range(2, 101))
    clock = 1000.0
    return plot(
        "Upper confidence bounds",
        "With a mean reward of 0.5 after t = 1000 pulls of all arms, the bound of UCB1 falls from above 3 towards the "
        "mean with the pulls of an arm; that of KL-UCB starts at 1 and is lower throughout.",
        Axis("pulls of the arm, of 1000 pulls of all arms; mean reward 0.5", 0, 100, (0, 20, 40, 60, 80, 100)),
        Axis("bound", 0, 2, (0, 0.5, 1, 1.5, 2)),
        Curve("UCB1, c = √2", pulls, [float(ucb_index(0.5, n, clock, 2.0**0.5)) for n in pulls]),
        Curve("KL-UCB", pulls, [float(kl_ucb_index(0.5, n, clock)) for n in pulls]),
        Curve("mean", pulls, [0.5] * len(pulls)),
    )


def thompson() -> Drawing:
    """Draw beliefs about two arms, early and late."""
    mean = _grid(0.005, 0.995, 199)
    beliefs = {"0.6 of 5": (0.6, 5.0), "0.4 of 5": (0.4, 5.0), "0.6 of 50": (0.6, 50.0), "0.4 of 50": (0.4, 50.0)}

    def density(estimate: float, count: float) -> list[float]:
        first, second = beta_posterior(estimate, count, 1.0, 1.0)
        return torch.distributions.Beta(float(first), float(second)).log_prob(mean).exp().tolist()

    return plot(
        "Beliefs about two arms",
        "After 5 pulls each, the beliefs about an arm that paid in 60 % of them and one that paid in 40 % overlap, so "
        "both are pulled; after 50 they hardly do, and the worse arm is rarely pulled.",
        Axis("mean reward of the arm; Beta(1, 1) prior", 0, 1, (0, 0.2, 0.4, 0.6, 0.8, 1)),
        Axis("density", 0, 6.5, (0, 2, 4, 6)),
        *(Curve(f"paid {name}", mean.tolist(), density(*belief)) for name, belief in beliefs.items()),
        at=(4.5, 3.8, 3.1, 2.4),
    )


def traces() -> Drawing:
    """Draw three kinds of traces of a state that is visited five times."""
    visits, fading, step_size, last = (2, 4, 5, 6, 14), 0.8, 0.5, 24

    def course(kind: int) -> tuple[list[float], list[float]]:
        trace, x, y = 0.0, [0.0], [0.0]
        for step in range(1, last + 1):
            trace *= fading
            x.append(step)
            y.append(trace)
            if step in visits:
                trace = float(grown(trace, kind, step_size))
                x.append(step)
                y.append(trace)
        return x, y

    return plot(
        "Three kinds of traces",
        "Each visit raises the trace of a state, which fades in between. Accumulating traces add 1, replacing ones are "
        "set to 1, and true-online (dutch) ones lie between.",
        Axis("step; visits at 2, 4, 5, 6 and 14; γλ = 0.8, α = 0.5", 0, last, (0, 4, 8, 12, 16, 20, 24)),
        Axis("trace z", 0, 3, (0, 1, 2, 3)),
        Curve("accumulating", *course(ACCUMULATING)),
        Curve("replacing", *course(REPLACING)),
        Curve("true_online", *course(TRUE_ONLINE)),
        at=(2.0, 1.6, 1.2),
    )


def vpg() -> Drawing:
    """Draw the weights of later TD errors in generalized advantage estimation."""
    last = 60
    rewards = torch.eye(last + 1, dtype=torch.float64)
    zero, never = torch.zeros_like(rewards), torch.zeros_like(rewards, dtype=torch.bool)

    def weights(lam: float) -> list[float]:
        return ops.gae(rewards, zero, zero, terminated=never, truncated=never, gamma=0.99, lam=lam)[0].tolist()

    return plot(
        "Weights of later TD errors",
        "The weight of a TD error falls with its distance: at λ = 0.9 it is near 0 after 40 steps, at λ = 1 only the "
        "discount counts.",
        Axis("steps after the action; γ = 0.99", 0, last, (0, 10, 20, 30, 40, 50, 60)),
        Axis("weight (γλ)^l of the TD error", 0, 1, (0, 0.25, 0.5, 0.75, 1)),
        *(Curve(f"λ = {lam:g}", list(range(last + 1)), weights(lam)) for lam in (1.0, 0.97, 0.9, 0.5)),
        at=(0.56, 0.4, 0.24, 0.08),
    )


def mbie_eb() -> Drawing:
    """Draw the bonus against the number of tries."""
    tries = list(range(1, 51))
    return plot(
        "The bonus of MBIE-EB",
        "The bonus of an action falls with the root of the number of tries: after 25 tries it is a fifth of the first.",
        Axis("tries N(s, a) of the action", 0, 50, (0, 10, 20, 30, 40, 50)),
        Axis("bonus", 0, 1, (0, 0.25, 0.5, 0.75, 1)),
        *(Curve(f"β = {scale:g}", tries, [float(count_bonus(scale, n)) for n in tries]) for scale in (1.0, 0.5, 0.1)),
        at=(0.3, 0.18, 0.06),
    )


def prioritized_dqn() -> Drawing:
    """Draw importance weights against the probability of a transition."""
    probability = _grid(0.05, 1.0)
    return plot(
        "Importance weights of prioritized replay",
        "The more likely a transition is to be drawn, the less it counts: fully corrected at β = 1, not at all at β = "
        "0.",
        Axis("probability of the transition, relative to the most likely one", 0, 1, (0, 0.25, 0.5, 0.75, 1)),
        Axis("weight, relative to that of the least likely", 0, 1, (0, 0.25, 0.5, 0.75, 1)),
        *(
            Curve(f"β = {beta:g}", probability.tolist(), ops.importance_weights(probability, beta=beta).tolist())
            for beta in (0.0, 0.4, 1.0)
        ),
    )


def npg() -> Drawing:
    """Draw the divergence of plain and natural steps from policies more and more certain of an action."""
    share = _grid(0.5, 0.995, 100)
    logits = torch.stack([share.log(), (1 - share).log()], -1)
    gradient = torch.stack([share * (1 - share), -share * (1 - share)], -1)  # of the probability of the first action
    delta = 0.01
    natural = ops.natural_step(
        lambda v: ops.categorical_fisher(logits, v), gradient, delta=delta, iterations=2, damping=1e-9
    )
    plain = gradient / gradient[0].norm() * natural[0].norm()  # as long as the natural step at p = 1/2
    moved = {"natural step": natural, "plain gradient": plain}
    return plot(
        "The divergence of a step",
        "A natural step moves the policy by nearly the same divergence wherever it is; a step along the plain gradient "
        "with a fixed rate moves it ever less as it gets certain of an action.",
        Axis("probability of the better of two actions", 0.5, 1, (0.5, 0.6, 0.7, 0.8, 0.9, 1)),
        Axis("KL(old‖new) of one step; δ = 0.01", 0, 0.016, (0, 0.005, 0.01, 0.015)),
        *(
            Curve(name, share.tolist(), ops.categorical_kl(logits, logits + step).tolist())
            for name, step in moved.items()
        ),
        at=(0.01, 0.002),
    )


CURVES: Mapping[str, Callable[[], Drawing]] = {
    "ppo": ppo,
    "dpo": dpo,
    "reward-model": reward_model,
    "ucb": ucb,
    "thompson": thompson,
    "td-lambda": traces,
    "vpg": vpg,
    "mbie-eb": mbie_eb,
    "prioritized-dqn": prioritized_dqn,
    "npg": npg,
}
"""The curves, by the algorithm whose page shows them."""
