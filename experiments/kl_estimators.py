"""Claim: as values k1 and k3 are unbiased and k3 varies less near the reference; as losses they need the ratio.

Schulman's three one-sample estimates of KL(policy‖ref) (2020, "Approximating KL divergence"; k3 is equation 4 of
DeepSeekMath, Shao et al. 2024, arXiv:2402.03300), without sampling: all means and variances are sums over the
vocabulary.

Values: mean and variance for π = (.6, .3, .1) and ref = (.2, .3, .5), then for policies over 99 tokens that go away
from random references, five of each. Gradients with respect to the logits, of the mean over samples of the policy: how
far they are from that of KL(policy‖ref), and how much they vary, with and without the ratio that `kl_estimate` takes
by `old_log_probs`. Last the samples of another policy, which the ratio corrects.

    python experiments/kl_estimators.py
"""

from typing import Any

import numpy as np
import torch
from checks import COLORS, Check, conclude, panels, save
from torch import Tensor

from operant import ops, streams
from operant.ops.kl import KLEstimator

KINDS: tuple[KLEstimator, ...] = ("k1", "k2", "k3")
POLICY, REFERENCE = torch.tensor([0.6, 0.3, 0.1]).double(), torch.tensor([0.2, 0.3, 0.5]).double()
SEEDS, VOCABULARY, TEMPERATURE = range(5), 99, 2.0
STEPS = np.geomspace(0.03, 4.0, 25)
"""Standard deviations of the normal noise on the logits of the reference that make the policies."""
ALIKE = 1e-9
RIGHT, WRONG = ("k1 with ratio", "k2", "k3 with ratio"), ("k1", "k2 with ratio", "k3")
"""Whose gradient is that of KL(policy‖ref), and whose is not."""


def moments(values: Tensor, weights: Tensor) -> tuple[float, float]:
    """Return mean and variance of `values` `[V]` or `[V, D]` (summed over D) under probabilities `[V]`."""
    table = values.view(len(weights), -1)
    mean = weights @ table
    return float(mean.norm() if table.shape[1] > 1 else mean), float(weights @ (table - mean).square().sum(1))


def gradients(logits: Tensor, ref: Tensor, kind: KLEstimator, *, ratio: bool) -> Tensor:
    """Return the gradient `[V, V]` with respect to the logits of the estimate at each token."""
    log_probs = logits.log_softmax(-1).requires_grad_()
    old = log_probs.detach() if ratio else None
    estimates = ops.kl_estimate(log_probs, ref.log_softmax(-1), kind, old_log_probs=old)
    (slopes,) = torch.autograd.grad(estimates.sum(), log_probs)
    return slopes.unsqueeze(1) * (torch.eye(len(logits), dtype=logits.dtype) - logits.softmax(-1))


def exact(logits: Tensor, ref: Tensor, *, forward: bool = False) -> Tensor:
    """Return the gradient `[V]` of KL(policy‖ref), or of KL(ref‖policy), with respect to the logits."""
    leaf = logits.clone().requires_grad_()
    divergence = ops.categorical_kl(ref, leaf) if forward else ops.categorical_kl(leaf, ref)
    return torch.autograd.grad(divergence, leaf)[0]


def compare(logits: Tensor, ref: Tensor) -> dict[str, Any]:
    """Return the estimates for a policy and a reference, as values and as gradients."""
    policy, divergence = logits.softmax(-1), float(ops.categorical_kl(logits, ref))
    found: dict[str, Any] = {"KL": divergence, "values": {}, "gradients": {}}
    right, forward = exact(logits, ref), exact(logits, ref, forward=True)
    for kind in KINDS:
        estimates = ops.kl_estimate(logits.log_softmax(-1), ref.log_softmax(-1), kind)
        mean, variance = moments(estimates, policy)
        found["values"][kind] = {"mean": mean, "variance": variance}
        for ratio in (False, True):
            each = gradients(logits, ref, kind, ratio=ratio)
            mean = policy @ each
            found["gradients"][f"{kind} with ratio" if ratio else kind] = {
                "error": float((mean - right).norm() / right.norm()),
                "error to KL(ref‖policy)": float((mean - forward).norm() / forward.norm()),
                "noise": float(np.sqrt(moments(each, policy)[1]) / right.norm()),
            }
    return found


def paths() -> list[list[dict[str, Any]]]:
    """Compare policies further and further away from the reference of each seed."""
    found = []
    for seed in SEEDS:
        generator = streams.torch_generator(seed, "distributions")
        ref, direction = torch.randn(2, VOCABULARY, generator=generator, dtype=torch.float64) * TEMPERATURE
        found.append([compare(ref + float(step) / TEMPERATURE * direction, ref) for step in STEPS])
    return found


def stale(seed: int) -> dict[str, float]:
    """Return the KL of a policy, and the mean of k3 over samples of an older policy without and with the ratio."""
    generator = streams.torch_generator(seed, "older policies")
    ref, first, second = torch.randn(3, VOCABULARY, generator=generator, dtype=torch.float64)
    old, new = ref + 0.5 * first, ref + 0.5 * first + 0.5 * second
    log_old, log_new, log_ref = (x.log_softmax(-1) for x in (old, new, ref))
    found = {"KL": float(ops.categorical_kl(new, ref))}
    for name, given in (("without", None), ("with", log_old)):
        found[f"k3 {name} ratio"] = float(log_old.exp() @ ops.kl_estimate(log_new, log_ref, "k3", old_log_probs=given))
    return found


def draw(along: list[list[dict[str, Any]]]) -> None:
    """Draw relative errors and noises against the divergence: the median of the seeds."""
    figure, axes = panels(3)
    middle = lambda pick: np.median([[pick(point) for point in path] for path in along], axis=0)  # noqa: E731
    divergence = middle(lambda point: point["KL"])
    for color, kind in zip(COLORS, KINDS, strict=False):
        noise = middle(lambda p, k=kind: np.sqrt(p["values"][k]["variance"]) / p["KL"])
        axes[0].loglog(divergence, noise, color=color, label=f"{kind}, noise")
        bias = middle(lambda p, k=kind: abs(p["values"][k]["mean"] / p["KL"] - 1))
        if kind == "k2":
            axes[0].loglog(divergence, bias, color=color, linestyle=":", label="k2, bias (k1 and k3: 0)")
    for color, name, label in zip(COLORS, WRONG, ("k1 (its mean is 0)", "k2 with ratio", "k3"), strict=False):
        error = middle(lambda p, n=name: p["gradients"][n]["error"])
        axes[1].loglog(divergence, error, "--", color=color, label=label)
    named = (("k1 with ratio", "-", 0), ("k2", "-", 1), ("k3", "--", 2))
    for name, style, color in named:
        noise = middle(lambda p, n=name: p["gradients"][n]["noise"])
        label = "k2, and k3 with ratio" if name == "k2" else name
        axes[2].loglog(divergence, noise, style, color=COLORS[color], label=label)
    axes[0].set(title="value: standard deviation / KL")
    axes[1].set(title="gradient: distance from that of KL(policy‖ref)", ylim=(1e-3, 10))
    axes[2].set(title="gradient: standard deviation / length")
    for axis in axes:
        axis.set_xlabel("KL(policy‖ref), nats per token")
    save(figure, __file__, axes)


def main() -> None:
    """Compute, draw; fail if a claim does not hold."""
    three = compare(POLICY.log(), REFERENCE.log())
    along, old = paths(), [stale(seed) for seed in SEEDS]
    points = [point for path in along for point in path]
    near = [point for point in points if point["KL"] < 0.1]
    checks = [
        Check.of("KL of the three tokens", [three["KL"]], ".498224", exact=True),
        *(Check.of(f"mean of {k}", [three["values"][k]["mean"]], ".498224", exact=True) for k in ("k1", "k3")),
        Check.of("variance of k1", [three["values"]["k1"]["variance"]], ".735", exact=True),
        Check.of("variance of k3", [three["values"]["k3"]["variance"]], ".435", exact=True),
    ]
    claims = {
        "k1 and k3 have no bias": all(
            abs(p["values"][k]["mean"] / p["KL"] - 1) < ALIKE for p in points for k in ("k1", "k3")
        ),
        "k3 varies less than k1 below 0.1 nats": all(
            p["values"]["k3"]["variance"] < p["values"]["k1"]["variance"] for p in near
        ),
        "the gradients of k1 and k3 with the ratio, and of k2 without, are that of KL(policy‖ref)": all(
            p["gradients"][name]["error"] < ALIKE for p in points for name in RIGHT
        ),
        "the gradient of k3 without the ratio is that of KL(ref‖policy)": all(
            p["gradients"]["k3"]["error to KL(ref‖policy)"] < ALIKE for p in points
        ),
        "k3 with the ratio has the noise of k2 without": all(
            abs(p["gradients"]["k3 with ratio"]["noise"] / p["gradients"]["k2"]["noise"] - 1) < ALIKE for p in points
        ),
        "the gradient of k1 without the ratio is 0": all(
            abs(p["gradients"]["k1"]["error"] - 1) < ALIKE for p in points
        ),
        "under samples of an older policy the ratio makes k3 right": all(
            abs(o["k3 with ratio"] / o["KL"] - 1) < ALIKE < abs(o["k3 without ratio"] / o["KL"] - 1) for o in old
        ),
    }
    draw(along)
    conclude(__file__, {"three tokens": three, "paths": along, "older policy": old}, checks, claims)


if __name__ == "__main__":
    main()
