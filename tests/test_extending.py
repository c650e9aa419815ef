"""The scripts of docs/extending.md are short, run, and resume bit for bit."""

import re
from pathlib import Path

import pytest

import operant
from outside import SMALL, same

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"
SCRIPTS = {
    match[1]: match[0].removeprefix("```python\n").removesuffix("```")
    for match in re.finditer(
        r"^```python\n# (\w+\.py)\n.*?^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
}
PPO = {"task": "CartPole-v1", "budget": 256, "seeds": 2, **SMALL}
GRPO = {"task": "arithmetic", "budget": 24, "prompts_per_batch": 8, "num_generations": 4, "train_examples": 32}
SAC = {"task": "Pendulum-v1", "budget": 60, "seeds": 2, "hidden_sizes": (8,), "learning_starts": 20, "batch_size": 8}
SAC |= {"rounds_per_iteration": 10, "buffer_size": 100, "evaluate_episodes": 1}
GAME = {"task": "{}:misere", "budget": 96, "seeds": 2, "num_envs": 4, "num_steps": 8, "simulations": 8}
GAME |= {"gradient_steps": 2, "batch_size": 16, "hidden_sizes": (16,), "evaluate_episodes": 2}
RUNS = {
    "my_ppo.py": ("{}:MyPPO", PPO | {"bound": 0.5}),
    "my_advantage.py": ("grpo", GRPO | {"advantage": "{}:median", "held_out": 4, "max_completion_length": 6}),
    "my_game.py": ("alphazero", GAME),
    "my_objects.py": ("a2c", {"task": "{}:MyEnv", "env_kwargs": {"steps": 5}, "budget": 256, "num_envs": 4}),
    "my_net.py": ("sac", SAC | {"encoder": "{}:Net"}),
    "my_actor_critic.py": ("ppo", PPO | {"network": "{}:MyActorCritic"}),
    "my_bonus.py": ("ppo", PPO | {"wrappers": ["{}:Novelty(scale=0.5)"]}),
}


def test_there_is_a_run_of_every_script_and_each_is_short():
    assert SCRIPTS.keys() == RUNS.keys()
    assert {name: len(text.splitlines()) for name, text in SCRIPTS.items() if len(text.splitlines()) > 40} == {}


@pytest.mark.parametrize("name", RUNS)
def test_a_script_runs_and_resumes_bit_for_bit(name, tmp_path):
    (tmp_path / name).write_text(SCRIPTS[name], encoding="utf-8")

    def filled(value):
        if isinstance(value, list):
            return [filled(item) for item in value]
        return value.format(tmp_path / name) if isinstance(value, str) else value

    algorithm, options = RUNS[name]
    options = {key: filled(value) for key, value in options.items()} | {"progress": "silent"}
    whole = operant.train(filled(algorithm), run=tmp_path / "whole", **options)
    stops = iter([False])
    part = operant.train(filled(algorithm), run=tmp_path / "part", interrupted=lambda: next(stops, True), **options)
    assert part.outcome.consumed < whole.outcome.consumed
    assert same(operant.resume(tmp_path / "part", progress="silent"), whole)
