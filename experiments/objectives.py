"""Claim: the clipped objective is a lower bound of the surrogate with a maximum near the old policy.

Left, one sample: L^CLIP against the probability ratio (Schulman et al. 2017, figure 1). Its gradient vanishes only
where the ratio has moved too far in the direction that pays. Right, the objectives of one update on the straight line
from the old policy (0) through the new one (1) and beyond (figure 2): the surrogate L^CPI, E[clip(ρ) A], L^CLIP and the
divergence KL(old‖new), on the rollout that the update was made from.
"""

import numpy as np
import torch
from checks import COLORS, conclude, panels, save
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

from operant import ops
from operant.control import PPO, PPOConfig
from operant.control.agent import Samples
from operant.envs import make

CLIP = 0.2
CONFIG = PPOConfig(
    num_envs=16, num_steps=128, num_minibatches=8, learning_rate=1e-3, clip_range=CLIP, normalize_advantage="batch"
)
TASKS, SEEDS, BEFORE = ("CartPole-v1", "Pendulum-v1"), range(5), 4
LINE = torch.linspace(0.0, 5.0, 101)
NAMES = {"surrogate": "L$^{CPI}$ = E[ρA]", "clipped ratio": "E[clip(ρ)A]", "clipped": "L$^{CLIP}$", "kl": "KL(old‖new)"}

Lines = dict[str, NDArray[np.float64]]


def one_sample(advantage: float, ratios: Tensor) -> tuple[Tensor, Tensor]:
    """Return L^CLIP of one sample and its derivative with respect to the ratio."""
    ratios = ratios.clone().requires_grad_()
    advantages = torch.full_like(ratios, advantage)
    losses = ops.clipped_surrogate(ratios.log(), torch.zeros_like(ratios), advantages, clip_low=CLIP, clip_high=CLIP)
    (slope,) = torch.autograd.grad(-losses.sum(), ratios)
    return -losses.detach(), slope


def objectives(ppo: PPO, batch: Samples, old_free: Tensor) -> list[Tensor]:
    """Return the four numbers of `NAMES` `[S]` for the present policy."""
    networks, head = ppo.agent.networks, ppo.agent.head
    outputs = networks.policy(batch.obs)
    log_probs = head.log_prob(outputs, networks.free, batch.actions)
    old, advantages = batch.old_log_probs, batch.advantages
    ratios = (log_probs - old).exp().clamp(1.0 - CLIP, 1.0 + CLIP)
    return [
        -ops.surrogate(log_probs, old, advantages).mean(-1),
        -ops.surrogate(ratios.log(), torch.zeros_like(ratios), advantages).mean(-1),
        -ops.clipped_surrogate(log_probs, old, advantages, clip_low=CLIP, clip_high=CLIP).mean(-1),
        head.kl(batch.outputs, old_free, outputs, networks.free).mean(-1),
    ]


@torch.no_grad()
def line(task: str) -> Lines:
    """Return the objectives along the line of one update, `[points, seeds]`."""
    ppo = PPO(CONFIG, make(task, CONFIG.num_envs, SEEDS), seeds=SEEDS, budget=10**6)
    for _ in range(BEFORE):
        with torch.enable_grad():
            ppo.iterate()
    batch = ppo.estimate_advantages(ppo.agent.collect(CONFIG.num_steps))
    old, old_free = ppo.agent.parameters.clone(), ppo.agent.networks.free.clone()
    with torch.enable_grad():
        ppo.update(batch, 1.0)
    new = ppo.agent.parameters.clone()
    points = []
    for share in LINE:
        ppo.agent.parameters.copy_(torch.lerp(old, new, share.item()))
        points.append(torch.stack(objectives(ppo, batch, old_free)))
    found = torch.stack(points).double().numpy()
    return {name: found[:, index] for index, name in enumerate(NAMES)}


def draw(ratios: Tensor, samples: dict[float, tuple[Tensor, Tensor]], lines: dict[str, Lines]) -> None:
    """Draw one sample, and the line of the first seed of each task."""
    figure, axes = panels(4)
    for axis, (advantage, (objective, _)) in zip(axes, samples.items(), strict=False):
        axis.plot(ratios, advantage * ratios, color=COLORS[0], linestyle="--", linewidth=1, label="ρA")
        axis.plot(ratios, objective, color=COLORS[2], linewidth=2, label=NAMES["clipped"])
        axis.axvline(1.0, color=COLORS[6], linewidth=0.8)
        axis.axvline(1.0 + CLIP * np.sign(advantage), color=COLORS[6], linestyle=":", linewidth=1)
        axis.set(title=f"A {'>' if advantage > 0 else '<'} 0", xlabel="ratio ρ")
    for axis, (task, found) in zip(axes[2:], lines.items(), strict=True):
        along(axis, found)
        axis.set(title=f"{task}, one update", xlabel="from the old policy (0) to the new (1) and beyond")
    save(figure, __file__, axes)


def along(axis: Axes, found: Lines) -> None:
    """Draw the objectives of the first seed, and mark the maximum of the clipped one."""
    for color, (name, label) in zip(COLORS, NAMES.items(), strict=False):
        axis.plot(LINE, found[name][:, 0], color=color, label=label, linewidth=2 if name == "clipped" else 1.2)
    best = int(found["clipped"][:, 0].argmax())
    axis.plot(LINE[best], found["clipped"][best, 0], "o", color=COLORS[2])
    axis.axhline(0.0, color=COLORS[6], linewidth=0.8)
    top = float(found["surrogate"][:, 0].max())
    axis.set_ylim(min(-0.5 * top, float(found["clipped"][:, 0].min())), 1.1 * top)


def main() -> None:
    """Compute, update, draw; fail if a claim does not hold."""
    torch.set_num_threads(1)
    ratios = torch.linspace(0.01, 2.0, 400)
    samples = {advantage: one_sample(advantage, ratios) for advantage in (1.0, -1.0)}
    flat = {1.0: ratios > 1.0 + CLIP, -1.0: ratios < 1.0 - CLIP}
    lines = {task: line(task) for task in TASKS}
    claims = {
        "one sample: the gradient vanishes exactly where the ratio has moved too far in the direction that pays": all(
            torch.equal(slope == 0.0, flat[advantage]) for advantage, (_, slope) in samples.items()
        ),
        "one sample: never above ρA": all(bool((o <= a * ratios + 1e-6).all()) for a, (o, _) in samples.items()),
    }
    results = {}
    for task, found in lines.items():
        best, at = found["clipped"].argmax(axis=0), np.arange(len(SEEDS))
        claims |= {
            f"{task}: L^CLIP is nowhere above L^CPI": bool((found["clipped"] <= found["surrogate"] + 1e-6).all()),
            f"{task}: L^CLIP has its maximum inside": bool(((best > 0) & (best < len(LINE) - 1)).all()),
            f"{task}: L^CPI rises beyond it": bool(
                (found["surrogate"].max(axis=0) > found["surrogate"][best, at]).all()
            ),
        }
        results[task] = {
            "place of the maximum of L^CLIP": LINE.numpy()[best],
            "KL there": found["kl"][best, at],
            "KL at the new policy": found["kl"][int((LINE - 1.0).abs().argmin())],
            "lines": {name: values.T for name, values in found.items()},
        }
    draw(ratios, samples, lines)
    conclude(__file__, results | {"line": LINE.numpy()}, [], claims)


if __name__ == "__main__":
    main()
