"""Claim: one critic overestimates the value of its policy, and the minimum of two does not.

DDPG with one critic and with two, all else equal, on Pendulum-v1. Every 1000 steps the first critic's value of the
policy's action, in 100 states from the replay buffer of each of 5 seeds, is compared with the true value: the
discounted return of the policy from that state on, followed for 1000 steps, where the discount leaves 4e-5 of a reward
(Fujimoto et al. 2018, figure 1). Pendulum-v1 is deterministic and so are the policies, so one rollout is exact.
At first both overestimate: critics begin near 0 and returns are negative. The difference shows in the second half.

The experiment fails unless, on average over seeds and the second half of the training, one critic overestimates, and
more than two do.
"""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from learning import BLUE, ORANGE, write
from numpy.typing import NDArray
from torch import Tensor

import operant
from operant.control.td3 import TD3
from operant.envs import make
from operant.envs.tensor import TENSOR_ENVS

TASK = "Pendulum-v1"
SEEDS = tuple(range(5))
BUDGET, EVERY = 12_000, 1_000
STATES, HORIZON = 100, 1_000


def true_returns(learner: TD3, obs: Tensor) -> Tensor:
    """Return the discounted returns `[S, M]` of the greedy policies from the states that `obs [S, M, 3]` show."""
    seeds, samples, _ = obs.shape
    env = TENSOR_ENVS[TASK](range(seeds * samples), max_episode_steps=HORIZON + 1)
    state = env.state_dict()
    cosine, sine, speed = obs.flatten(0, 1).unbind(-1)
    state["state"] = torch.stack((torch.atan2(sine, cosine), speed))
    obs = env.load_state_dict(state).view(seeds, samples, -1)
    total = torch.zeros(seeds, samples, dtype=torch.float64)
    discount = 1.0
    for _ in range(HORIZON):
        actions, _ = learner.act(obs, None, None)
        step = env.step(actions.flatten(0, 1))
        total += discount * step.reward.view(seeds, samples)
        discount *= learner.config.gamma
        obs = step.obs.view(seeds, samples, -1)
    return total


@torch.no_grad()
def measure(learner: TD3, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the mean estimate and the mean truth `[S]` over states from the memory."""
    replay = learner.experience.replay
    index = torch.randint(replay.size, (len(SEEDS), STATES), generator=generator)
    obs = replay.take(index, gamma=learner.config.gamma).obs
    estimates = learner.critics(torch.cat((obs, learner.policy(obs)), dim=-1))[0].squeeze(-1)
    return estimates.mean(1), true_returns(learner, obs).mean(1)


def run(critics: int) -> dict[str, Any]:
    """Train with a number of critics and measure along the way."""
    config = operant.configure("ddpg", TASK, n_critics=critics)
    learner = TD3(config, make(TASK, config.num_envs, SEEDS), seeds=SEEDS, budget=BUDGET)
    generator = torch.Generator().manual_seed(0)
    points: list[dict[str, Any]] = []
    while learner.consumed < BUDGET:
        learner.iterate()
        if learner.consumed >= EVERY * (len(points) + 1):
            estimate, truth = measure(learner, generator)
            points.append({"steps": learner.consumed, "estimate": estimate.tolist(), "truth": truth.tolist()})
    learner.close()
    return {"critics": critics, "points": points}


def columns(block: dict[str, Any]) -> tuple[list[int], NDArray[np.float64], NDArray[np.float64]]:
    """Return steps, estimates and truths, the latter `[points, S]`."""
    points = block["points"]
    estimates, truths = (np.array([point[name] for point in points]) for name in ("estimate", "truth"))
    return [point["steps"] for point in points], estimates, truths


def picture(blocks: list[dict[str, Any]]) -> None:
    """Draw estimates, true values and their difference."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    for block, color in zip(blocks, (ORANGE, BLUE), strict=True):
        steps, estimates, truths = columns(block)
        name = "one critic" if block["critics"] == 1 else "smaller of two"
        left.plot(steps, estimates.mean(1), color=color, linewidth=2, label=f"{name}: estimate")
        left.plot(steps, truths.mean(1), color=color, linewidth=1.4, linestyle="--", label=f"{name}: truth")
        right.plot(steps, estimates - truths, color=color, alpha=0.3, linewidth=0.8)
        right.plot(steps, (estimates - truths).mean(1), color=color, linewidth=2.2, label=name)
    right.axhline(0.0, color="black", linewidth=0.8)
    left.set(xlabel="environment steps of each seed", ylabel="value of the policy's actions", title="mean of 5 seeds")
    right.set(xlabel="environment steps of each seed", ylabel="estimate minus truth", title="each seed, and the mean")
    right.set(xlim=(BUDGET / 2, BUDGET), ylim=(-25.0, 25.0))
    for axis in (left, right):
        axis.legend(frameon=False, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(__file__.replace(".py", ".png"), dpi=130)
    plt.close(figure)


def main() -> None:
    """Train both, write down, draw; fail if the claim is wrong."""
    torch.set_num_threads(1)
    blocks = [run(critics) for critics in (1, 2)]
    write(blocks, __file__)
    picture(blocks)
    bias = []
    for block in blocks:
        steps, estimates, truths = columns(block)
        late = np.array(steps) > BUDGET / 2
        per_seed = (estimates - truths)[late].mean(0)
        bias.append(float(per_seed.mean()))
        print(
            f"{block['critics']} critics: estimate - truth {bias[-1]:+.2f}, each seed", np.round(per_seed, 2).tolist()
        )
    raise SystemExit(not (bias[0] > 0.0 and bias[0] > bias[1]))


if __name__ == "__main__":
    main()
