"""Is a controller trained only in a learned world model as good as one trained in the game (World Models)?

Ha & Schmidhuber 2018, arXiv:1803.10122: V and M learn from 20 000 random steps of a game in pixels, with ball and
paddle three cells wide; then CMA-ES trains a linear controller in simulated rollouts of M, at several temperatures, or
in the game itself with the same V and M. Settings are those of
`operant train world-models operant/PixelCatch-v0 --env-kwargs width=3`, except those that define the arms;
hyperparameters were chosen on seeds from 1000 up. A score is the mean return over 100 episodes in the game, of the mean
of the search distribution and not of the best candidate.

    python experiments/dream_controller.py            # twenty minutes; resumes where it stopped
    python experiments/dream_controller.py --draw
"""

from dataclasses import replace
from typing import Any

import numpy as np
from arms import band, gather
from checks import COLORS, conclude, panels, save

import operant
from operant.envs import make
from operant.runtime.evaluation import evaluate_policy
from operant.state import State, clone
from operant.worlds.world_models import WorldModels, WorldModelsConfig

TASK, OPTIONS, SEEDS = "operant/PixelCatch-v0", {"width": 3}, range(5)
EVERY, EPISODES = 20, 100
DREAM: dict[str, Any] = {"train_in": "dream", "num_envs": 32}
TEMPERATURES = (0.5, 1.0, 1.5)
REAL: dict[str, Any] = {**DREAM, "train_in": "environment", "rollouts": 8, "max_dream_steps": 9}
ARMS: dict[str, tuple[dict[str, Any], int]] = {
    "dream, τ = 1": ({**DREAM, "dream_temperature": 1.0}, 200),
    "environment": (REAL, 60),
    "dream, τ = 0.5": ({**DREAM, "dream_temperature": 0.5}, 200),
    "dream, τ = 1.5": ({**DREAM, "dream_temperature": 1.5}, 200),
}
"""Settings of each arm, and its number of generations."""


def learner(values: dict[str, Any]) -> WorldModels:
    """Return a learner of all seeds with some values other than those of the preset."""
    config: Any = replace(operant.configure("world-models", TASK), **values)
    assert isinstance(config, WorldModelsConfig)
    env = make(TASK, config.num_envs, SEEDS, env_kwargs=OPTIONS)
    return WorldModels(config, env, seeds=SEEDS, budget=10**9)


def score(found: WorldModels) -> list[float]:
    """Return the mean return of each seed in the game."""
    env = make(TASK, 20, SEEDS, purpose="evaluation", env_kwargs=OPTIONS)
    return list(evaluate_policy(found, env, seeds=len(SEEDS), episodes=EPISODES).scores)


def begin() -> tuple[State]:
    """Collect, and train V and M, which all arms share."""
    found = learner(DREAM)
    while found.stage != "controller":
        metrics = found.iterate()
        print(found.stage, found.calls, {k: np.round(v.tolist(), 2) for k, v in metrics.items() if "loss" in k})
    return (clone(found.state_dict()),)


def learn(state: State, values: dict[str, Any], generations: int) -> dict[str, Any]:
    """Train the controller, and return its curve in the game, its return in the model, and the number of steps."""
    found = learner(values)
    found.load_state_dict(clone(state))
    curve, fitness = [score(found)], []
    before = found.consumed
    for generation in range(1, generations + 1):
        fitness.append(found.train_controller()["control/fitness"].tolist())
        if generation % EVERY == 0:
            curve.append(score(found))
            print(values, generation, np.round(curve[-1], 2), np.round(np.mean(fitness[-EVERY:], 0), 2), flush=True)
    assert found.consumed == before
    config = found.config
    each = config.rollouts * config.max_dream_steps * config.population_size
    steps = generations * each if config.train_in == "environment" else 0
    return {"curve": curve, "fitness": np.mean(fitness[-EVERY:], 0).tolist(), "steps": steps}


def main() -> None:
    """Train, draw; fail if a claim does not hold."""
    found = gather(__file__, __doc__, ARMS, begin, learn)
    figure, axes = panels(2)
    for color, (arm, cell) in zip(COLORS, found.items(), strict=False):
        at = EVERY * np.arange(len(cell["curve"]))
        band(axes[0], at, np.array(cell["curve"]).T, color=color, label=arm)
    axes[0].set(title="a game in pixels", xlabel="generations of CMA-ES", ylabel="return in the game, 5 seeds")
    dreams = [found[f"dream, τ = {tau:g}"] for tau in TEMPERATURES]
    real = np.array([cell["curve"][-1] for cell in dreams])
    dreamed = np.array([cell["fitness"] for cell in dreams])
    band(axes[1], TEMPERATURES, real.T, color=COLORS[0], label="in the game")
    band(axes[1], TEMPERATURES, dreamed.T, color=COLORS[1], label="in the dream, whole population")
    axes[1].axhline(np.mean(found["environment"]["curve"][-1]), color="gray", linewidth=0.8)
    axes[1].set(title="trained in the dream", xlabel="temperature τ", ylabel="return, 5 seeds")
    save(figure, __file__, axes)
    scores = {arm: cell["curve"][-1] for arm, cell in found.items()}
    for arm, values in scores.items():
        print(f"{arm:15s} {np.mean(values):6.3f}", np.round(values, 2).tolist())
    claims = {
        "a controller that dreamed at τ = 1 gets 80 % of what one gets that was trained in the game": (
            np.mean(scores["dream, τ = 1"]) >= 0.8 * np.mean(scores["environment"])
        ),
    }
    results = {
        arm: {
            "scores": scores[arm],
            "dreamed" if "dream" in arm else "fitness": cell["fitness"],
            "steps": cell["steps"],
        }
        for arm, cell in found.items()
    }
    conclude(__file__, results, [], claims)


if __name__ == "__main__":
    main()
