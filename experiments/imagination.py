"""How accurate are the imagined trajectories of Dreamer (Hafner et al. 2023, arXiv:2301.04104)?

The command with its defaults, on the swing-up of a cart-pole:

    operant train dreamer operant/CartPoleSwingUp-v0

Then the world model of each seed predicts episodes that it has not learned from. After `CONTEXT` observed steps:

- open loop: the model gets only the actions that were taken; the decoded observations are compared with the real ones,
  and with the prediction that nothing changes;
- dream return: the model follows the policy in many imagined rollouts; the mean of the imagined rewards is compared
  with those of the real episode.

    python experiments/imagination.py            # resumes where it stopped
    python experiments/imagination.py --draw
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arms import band, gather
from checks import COLORS, conclude, panels, save
from numpy.typing import NDArray
from torch import Tensor

import operant
from operant import envs, ops, streams
from operant.runtime.metrics import read_records
from operant.worlds.dreamer import Dreamer
from operant.worlds.rssm import State

TASK = "operant/CartPoleSwingUp-v0"
SEEDS = range(3)
EPISODES, DREAMS = 32, 16
CONTEXT, AHEAD = 50, 100


def learn(seed: int) -> dict[str, Any]:
    """Train a seed, and return its scores and the errors of its imagined trajectories."""
    with tempfile.TemporaryDirectory() as folder:
        trained = operant.train("dreamer", TASK, seeds=[seed], run=Path(folder) / "run")
        scores = list(trained.evaluate(20).scores)
        seconds = read_records(trained.run.metrics_path)[-1]["time/seconds"]
        found = compare(trained.experiment.learner, seed)
    return {"score": float(np.mean(scores)), "seconds": seconds, **found}


@torch.no_grad()
def compare(learner: Dreamer, seed: int) -> dict[str, Any]:
    """Return errors of open-loop predictions, returns imagined and real, and one episode next to its prediction."""
    draw = torch.Generator().manual_seed(seed)
    env = envs.make(TASK, EPISODES, [seed], purpose="imagination")
    obs, hidden_state = env.reset(), None
    seen, hidden_states, actions, rewards = [], [], [], []
    for _ in range(CONTEXT + AHEAD):
        taken, hidden_state = learner.act(obs.unsqueeze(0), hidden_state, learner.noise(EPISODES, draw).unsqueeze(0))
        step = env.step(taken[0])
        seen.append(obs)
        hidden_states.append(hidden_state)
        actions.append(hidden_state[..., -learner.actions.width :])
        rewards.append(step.reward)
        obs = step.obs
    env.close()
    begin, truth = hidden_states[CONTEXT - 1], torch.stack(seen[CONTEXT:])
    predicted = open_loop(learner, begin, torch.stack(actions[CONTEXT - 1 : -1]), draw)
    scale = torch.stack(seen).flatten(0, 1).std(0)
    still = seen[CONTEXT - 1].expand_as(truth)
    errors = {
        name: ((guess - truth) / scale).square().mean((1, 2)).sqrt().tolist()
        for name, guess in (("model", predicted), ("still", still))
    }
    real = torch.stack(rewards[CONTEXT - 1 : -1]).sum(0)
    dreamed = dream(learner, begin, draw).sum(0)
    return {
        "errors": errors,
        "real": real.tolist(),
        "dreamed": dreamed.tolist(),
        "truth": truth[:, 0].tolist(),
        "prediction": predicted[:, 0].tolist(),
    }


def state_of(learner: Dreamer, hidden_state: Tensor) -> State:
    """Return the states in hidden_states `[1, N, ...]`, without the last actions."""
    rssm = learner.networks.shape.world.rssm
    deter, stoch, _ = hidden_state.split([rssm.deter, rssm.stoch * rssm.classes, learner.actions.width], -1)
    return State(deter, stoch)


def chance(learner: Dreamer, rows: int, draw: torch.Generator) -> Tensor:
    """Draw the noise of one imagined step."""
    rssm = learner.networks.shape.world.rssm
    return streams.gumbel((1, rows, rssm.stoch, rssm.classes), draw)


def open_loop(learner: Dreamer, hidden_state: Tensor, actions: Tensor, draw: torch.Generator) -> Tensor:
    """Return decoded observations `[AHEAD, N, D]`, the mean over `DREAMS` draws, after actions `[AHEAD, 1, N, A]`."""
    world = learner.agent.world
    state = State(*(part.repeat(1, DREAMS, 1) for part in state_of(learner, hidden_state)))
    decoded = []
    for action in actions:
        state = world.rssm.imagine(state, action.repeat(1, DREAMS, 1), chance(learner, state.deter.shape[1], draw))
        seen = ops.symexp(world.model.decoder(world.decoder, state.features))
        decoded.append(seen.view(DREAMS, EPISODES, -1).mean(0))
    return torch.stack(decoded)


def dream(learner: Dreamer, hidden_state: Tensor, draw: torch.Generator) -> Tensor:
    """Return imagined rewards `[AHEAD, N]`, the mean over `DREAMS` draws; the first is that of the last real action."""
    agent, width = learner.agent, learner.actions.width
    state = State(*(part.repeat(1, DREAMS, 1) for part in state_of(learner, hidden_state)))
    action = hidden_state[..., -width:].repeat(1, DREAMS, 1)
    rewards = []
    for _ in range(AHEAD):
        rows = state.deter.shape[1]
        state = agent.world.rssm.imagine(state, action, chance(learner, rows, draw))
        rewards.append(agent.world.rewards(state.features).view(DREAMS, EPISODES).mean(0))
        noise = learner.actions.noise((1, rows), draw)
        action = learner.actions.encode(learner.actions.sample(agent.policy(state.features), noise))
    return torch.stack(rewards)


def mean_gap(cell: dict[str, Any]) -> float:
    """Return the dream return less the real one after `AHEAD` steps, a step, the mean over episodes."""
    return float((np.array(cell["dreamed"]) - np.array(cell["real"])).mean() / AHEAD)


def main() -> None:
    """Train, draw; fail if a claim does not hold."""
    cells = gather(__file__, __doc__, {str(seed): (seed,) for seed in SEEDS}, tuple, learn)
    every = list(cells.values())
    figure, axes = panels(3)
    ahead = np.arange(1, AHEAD + 1)
    for color, name, label in zip(COLORS, ("model", "still"), ("open loop", "nothing changes"), strict=False):
        band(axes[0], ahead, table(every, name), color=color, label=label)
    axes[0].set(title="error of predictions", xlabel="steps ahead", ylabel="standard deviations")
    for color, (seed, cell) in zip(COLORS, cells.items(), strict=False):
        axes[1].plot(cell["real"], cell["dreamed"], "o", color=color, markersize=3, label=f"seed {seed}")
    returns = np.concatenate([cell[name] for cell in every for name in ("real", "dreamed")])
    limits = [returns.min(), returns.max()]
    axes[1].plot(limits, limits, color="gray", linewidth=0.8)
    axes[1].set(title=f"returns of {AHEAD} steps", xlabel="real", ylabel="imagined")
    for color, column, label in zip(COLORS, (2, 0), ("cos θ", "position"), strict=False):
        for name, style in (("truth", "-"), ("prediction", "--")):
            axes[2].plot(ahead, np.array(every[0][name])[:, column], style, color=color, label=f"{label}, {name}")
    axes[2].set(title="an episode, open loop", xlabel="steps ahead")
    save(figure, __file__, axes)
    results = {
        seed: {
            "score": cell["score"],
            "seconds": cell["seconds"],
            "gap a step": mean_gap(cell),
            "error after 15 steps": cell["errors"]["model"][14],
            "error of no change after 15 steps": cell["errors"]["still"][14],
        }
        for seed, cell in cells.items()
    }
    for seed, row in results.items():
        print(seed, {name: round(value, 3) for name, value in row.items()})
    claims = {
        "open loop errs less than half as much as no change, 15 steps ahead, every seed": all(
            cell["errors"]["model"][14] < 0.5 * cell["errors"]["still"][14] for cell in every
        ),
        "imagined and real returns differ by less than 0.1 a step, every seed": all(
            abs(mean_gap(cell)) < 0.1 for cell in every
        ),
    }
    conclude(__file__, results, [], claims)


def table(cells: list[dict[str, Any]], name: str) -> NDArray[np.float64]:
    """Return the errors `[S, AHEAD]` of a kind of prediction."""
    return np.array([cell["errors"][name] for cell in cells])


if __name__ == "__main__":
    main()
