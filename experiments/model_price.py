"""What does planning in a learned model cost? The exact loss V* - V^π of the planned policy by environment steps.

Three finite worlds, γ = 0.95, one-hot observations for networks. Each learner explores by itself:

- Dyna-Q stores the last outcome of every action; prioritized sweeping counts all outcomes.
- An ensemble of probabilistic networks (as in PETS and MBPO) learns from steps that are half random and half greedy in
  the model; planning is exact: the model is sampled into a table, which is solved.
- MuZero plans by search in a model of latent states.
- Dreamer learns its policy in what a recurrent model imagines. A table of its policy needs one action per state, so it
  acts in each as in the first state of an episode, without memory; the sequences that it learns from begin anywhere,
  without memory, too.

The policy of each seed is evaluated exactly in the true model (`mdp.value_lost`). Losses are shares of V* from the
start. Hyperparameters are the defaults except those below, which were chosen on seeds from 1000 up.

    python experiments/model_price.py            # half an hour; resumes where it stopped
    python experiments/model_price.py --draw
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from arms import band, gather
from checks import COLORS, conclude, panels, save

from operant import mdp, streams
from operant.envs import make
from operant.runtime.replay import Replay
from operant.runtime.rollouts import Collector
from operant.tabular import learner_for
from operant.worlds.dreamer import Dreamer
from operant.worlds.dreamer_config import DreamerConfig
from operant.worlds.ensemble import LearnedModel, ModelConfig
from operant.worlds.muzero import MuZero, MuZeroConfig
from operant.worlds.tabulated import tabulated

WORLDS = ("operant/Maze2x3-v0", "FrozenLake-v1", "operant/DynaMaze-v0")
SEEDS = tuple(range(5))
GAMMA, AT = 0.95, (128, 256, 512, 1024, 2048)
ROWS = 8
Policies = list[Any]
"""What each seed does: actions `[S]`, or probabilities `[S, A]`."""


def tables(world: str, algorithm: str) -> Iterator[tuple[int, Policies]]:
    """Learn a table; yield steps and policies now and then."""
    model = mdp.MDP.from_gymnasium(world)
    values: dict[str, Any] = {"gamma": GAMMA, "planning_steps": 50, "steps_per_iteration": AT[0]}
    learner = learner_for(algorithm, model, seeds=SEEDS, budget=AT[-1], **values)
    while learner.consumed < AT[-1]:
        learner.iterate()
        yield learner.consumed, list(learner.policy())


def muzero(world: str) -> Iterator[tuple[int, Policies]]:
    """Learn MuZero's networks; the policy is what its search chooses, without noise."""
    sizes: dict[str, Any] = {"latent_size": 32, "hidden_sizes": (64,), "batch_size": 64, "gradient_steps": 48}
    config = MuZeroConfig(gamma=GAMMA, num_envs=ROWS, num_steps=AT[0] // ROWS, learning_rate=5e-3, **sizes)
    learner = MuZero(config, make(world, ROWS, SEEDS), seeds=SEEDS, budget=AT[-1])
    every = torch.arange(learner.shape.inputs).expand(len(SEEDS), -1)
    while learner.consumed < AT[-1]:
        learner.iterate()
        if learner.consumed in AT:
            yield learner.consumed, list(learner.act(every, None, None)[0].numpy())
    learner.close()


def dreamer(world: str) -> Iterator[tuple[int, Policies]]:
    """Learn Dreamer's networks; the policy is its most likely action without memory."""
    sizes: dict[str, Any] = {"deter": 64, "stoch": 4, "units": 32, "batch_size": 8, "imagination_horizon": 10}
    rates: dict[str, Any] = {"train_ratio": 32.0, "learning_starts": 0, "learning_rate": 3e-3, "ent_coef": 3e-3}
    config = DreamerConfig(gamma=GAMMA, num_envs=ROWS, num_steps=AT[0] // ROWS, **sizes, **rates)
    learner = Dreamer(config, make(world, ROWS, SEEDS), seeds=SEEDS, budget=AT[-1])
    every = torch.arange(*learner.features.shape).expand(len(SEEDS), -1)
    while learner.consumed < AT[-1]:
        learner.iterate()
        if learner.consumed in AT:
            yield learner.consumed, list(learner.act(every, None, None)[0].numpy())
    learner.close()


def ensemble(world: str) -> Iterator[tuple[int, Policies]]:
    """Learn an ensemble and plan in it exactly, whenever a policy is asked for."""
    env = make(world, ROWS, SEEDS)
    states, actions = int(env.observation_space.n), int(env.action_space.n)
    collector = Collector(env, seeds=len(SEEDS))
    replay = Replay(seeds=len(SEEDS), rows=ROWS, capacity=AT[-1])
    config = ModelConfig(model_gradient_steps=400, model_batch_size=64, model_learning_rate=5e-3)
    model = LearnedModel(config, seeds=SEEDS, width=states, dimensions=actions, device=torch.device("cpu"))
    generators = [streams.torch_generator(seed, "exploring") for seed in SEEDS]
    start = mdp.MDP.from_gymnasium(world).start
    best: torch.Tensor | None = None

    def act(obs: torch.Tensor, t: int) -> tuple[tuple[torch.Tensor], torch.Tensor]:
        drawn = torch.stack([torch.randint(2 * actions, (ROWS,), generator=g) for g in generators])
        chosen = drawn % actions
        if best is not None:
            chosen = chosen.where(drawn < actions, best.gather(1, obs.argmax(-1)))
        return (torch.nn.functional.one_hot(chosen, actions).float(),), chosen

    before = 0
    for at in AT:
        rollout = collector.collect((at - before) // ROWS, act)
        replay.add(rollout, rollout.kept[0])
        before = at
        model.fit(replay)
        found = tabulated(model, states=states, actions=actions, start=start, generators=generators)
        best = torch.from_numpy(np.array([np.maximum(mdp.solve(one, gamma=GAMMA).policy, 0) for one in found]))
        yield at, list(best.numpy())
    env.close()


ARMS: dict[str, Callable[[str], Iterator[tuple[int, Policies]]]] = {
    "Dyna-Q, last outcomes": lambda world: tables(world, "dyna-q"),
    "prioritized sweeping, counts": lambda world: tables(world, "prioritized-sweeping"),
    "ensemble of networks": ensemble,
    "MuZero": muzero,
    "Dreamer": dreamer,
}


def price(world: str, arm: str) -> dict[str, Any]:
    """Return the losses of the policies of an arm in a world, from the start and at most, `[steps, S]`."""
    model = mdp.MDP.from_gymnasium(world)
    solution = mdp.solve(model, gamma=GAMMA, tolerance=1e-9)
    found: dict[str, Any] = {"steps": [], "start": [], "largest": [], "optimal": float(model.start @ solution.values)}
    for steps, policies in ARMS[arm](world):
        if steps in AT:
            lost = [mdp.value_lost(model, policy, gamma=GAMMA, solution=solution) for policy in policies]
            found["steps"].append(steps)
            found["start"].append([one.start for one in lost])
            found["largest"].append([one.largest for one in lost])
            print(world, arm, steps, np.round(found["start"][-1], 3), np.round(found["largest"][-1], 3), flush=True)
    return found


def main() -> None:
    """Train, draw; fail if a claim does not hold."""
    cases = {f"{world}: {arm}": (world, arm) for world in WORLDS for arm in ARMS}
    found = gather(__file__, __doc__, cases, tuple, price)
    figure, axes = panels(len(WORLDS))
    results: dict[str, Any] = {}
    for axis, world in zip(axes, WORLDS, strict=True):
        for color, arm in zip(COLORS, ARMS, strict=False):
            cell = found[f"{world}: {arm}"]
            shares = np.array(cell["start"]).T / cell["optimal"]
            band(axis, cell["steps"], shares, color=color, label=arm)
            results[f"{world}: {arm}"] = {
                "optimal": cell["optimal"],
                "steps": cell["steps"],
                "lost from the start": cell["start"],
                "lost at most": cell["largest"],
            }
            print(
                f"{world:20s} {arm:30s}", np.round(shares[:, -1], 3).tolist(), np.round(cell["largest"][-1], 3).tolist()
            )
        axis.set(title=world, xlabel="environment steps", xscale="log", ylim=(-0.03, 1.03))
        axis.set_xticks(AT, labels=[f"{steps:,}".replace(",", " ") for steps in AT])
        axis.minorticks_off()
    axes[0].set_ylabel("(V* - V^π) / V* from the start, 5 seeds")
    save(figure, __file__, axes[:1])
    last = {name: np.mean(cell["start"][-1]) / cell["optimal"] for name, cell in found.items()}
    maze, lake, _ = (f"{world}: " for world in WORLDS)
    claims = {
        "where chance rules, counting outcomes is cheaper than remembering the last": (
            last[lake + "prioritized sweeping, counts"] < last[lake + "Dyna-Q, last outcomes"]
        ),
        "in a maze of six cells every model is good enough for at most a tenth of V* after 2 048 steps": all(
            last[maze + arm] <= 0.1 for arm in ARMS
        ),
    }
    conclude(__file__, results, [], claims)


if __name__ == "__main__":
    main()
