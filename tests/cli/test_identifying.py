"""`operant identify`, and `--randomize` of train and evaluate."""

import json

import pytest
import torch

from operant.envs import Randomize, make, randomizer, start, wrapped
from operant.explore import Trajectories

TRUE = {"m": 1.4, "l": 0.8}


@pytest.fixture
def recorded():
    """Return twenty episodes of a pendulum with other parameters, observed through noisy sensors."""
    env, draw = make("Pendulum-v1", 20, [7]), torch.Generator().manual_seed(7)
    env.set_parameters(**TRUE)
    seen, done = [env.reset()], []
    for _ in range(60):
        done.append(torch.rand(20, 1, generator=draw) * 4 - 2)
        seen.append(env.step(done[-1]).obs)
    noise = 0.01 * torch.randn(20, 61, 3, generator=draw, dtype=torch.float64)
    return Trajectories(torch.stack(seen, 1).double() + noise, torch.stack(done, 1), torch.full((20,), 60))


def test_the_command_writes_what_training_draws_from(cli, recorded, tmp_path):
    recorded.save(tmp_path / "recorded.npz")
    again = Trajectories.load(tmp_path / "recorded.npz")
    assert torch.equal(again.observations, recorded.observations)
    path = tmp_path / "new" / "identified.toml"
    words = ["identify", "Pendulum-v1", tmp_path / "recorded.npz", "--parameters", "m,l"]
    status, out, _ = cli(*words, "--output", path)
    assert status == 0
    assert "m                1" in out
    status, out, _ = cli(*words, "--json")
    estimate = json.loads(out)["estimate"]
    assert estimate["m"] == pytest.approx(1.4, rel=0.05)
    env = wrapped(make("Pendulum-v1", 500, [0]), [randomizer(path)])
    assert isinstance(env, Randomize)
    start(env, [0])
    assert env.physics.env.parameters["m"].log().mean().exp().item() == pytest.approx(estimate["m"], rel=1e-3)
    status, _, err = cli(*words, "--output", path)
    assert status == 2
    assert "already exists" in err
    status, out, err = cli(*words, "--output", path / "inside.toml")
    assert (status, out) == (2, "")
    assert "inside.toml cannot be written: " in err
    assert "choose another file with --output" in err


def test_training_and_evaluating_with_another_physics(cli, tmp_path):
    file, shifted = tmp_path / "randomize.toml", tmp_path / "shifted.toml"
    file.write_text("delay = { uniform = [0, 1] }\n[parameters]\nlength = { uniform = [0.4, 0.6] }\n", encoding="utf-8")
    shifted.write_text("[parameters]\ntheta_threshold_radians = 0.05\n", encoding="utf-8")
    words = ["--budget", 4000, "--seeds", 2, "--randomize", file, "--run", tmp_path / "run", "--progress", "silent"]
    assert cli("train", "ppo", "CartPole-v1", *words)[0] == 0
    assert "Randomize" in (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    plain, weak = (
        json.loads(cli("evaluate", tmp_path / "run", "--episodes", 20, "--json", *more)[1])
        for more in (["--env-backend", "tensor"], ["--randomize", shifted])
    )
    assert weak["wrappers"] == [randomizer(shifted)]
    assert "wrappers" not in plain
    assert weak["mean"] < plain["mean"] / 2
    status, _, err = cli("evaluate", tmp_path / "run", "--randomize", shifted, "--env-backend", "gymnasium")
    assert status != 0
    assert "use --env-backend tensor" in err
    shifted.write_text("force = 1.0\n", encoding="utf-8")
    status, _, err = cli("train", "ppo", "CartPole-v1", "--randomize", shifted)
    assert status != 0
    assert "has 'force'; allowed keys" in err
