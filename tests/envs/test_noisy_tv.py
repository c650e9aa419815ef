"""The television shows noise, and changes nothing else."""

import pytest
import torch
from scipy import stats

from operant.envs import NoisyTV, check_batch_env, make, start, wrapped

SEEDS = (3, 5)


def television(task="operant/KeyDoor-v0", rows=2, seeds=SEEDS, **given):
    env = NoisyTV(make(task, rows, seeds), **given)
    start(env, seeds)
    return env


@pytest.mark.parametrize(
    ("task", "given"),
    [
        ("operant/KeyDoor-v0", {"action": 4}),
        ("CartPole-v1", {}),
        ("operant/BitFlip-v0", {"action": 2, "pixels": 1}),
        ("Pendulum-v1", {"pixels": 3}),
    ],
)
@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
def test_the_contract_holds(task, given, backend):
    check_batch_env(lambda: NoisyTV(make(task, 2, SEEDS, backend=backend), **given), seeds=SEEDS, steps=40)


def test_the_environment_stays_the_same():
    env, plain = television(action=4), make("operant/KeyDoor-v0", 2, SEEDS)
    assert torch.equal(env.reset()["observation"], plain.reset())
    for actions in torch.randint(5, (2000, 4), generator=torch.Generator().manual_seed(0)):
        seen, step = env.step(actions), plain.step(actions)
        assert torch.equal(seen.obs["observation"], step.obs)
        assert torch.equal(seen.final_obs["observation"], step.final_obs)
        for name in ("reward", "terminated", "truncated", "score"):
            assert torch.equal(getattr(seen, name), getattr(step, name))


def test_the_action_alone_changes_the_screen_of_its_row():
    env = television(action=4)
    before = env.reset()["screen"]
    for actions in ([0, 1, 2, 3], [4, 0, 0, 4], [4, 4, 1, 1]):
        after = env.step(torch.tensor(actions)).obs["screen"]
        changed = (after != before).any(1)
        assert changed.tolist() == [action == 4 for action in actions]
        before = after


def test_screens_are_uniform_and_never_the_same():
    env = television("CartPole-v1", rows=50, pixels=4)
    env.reset()
    shown = torch.stack([env.step(torch.zeros(100, dtype=torch.int64)).final_obs["screen"] for _ in range(50)])
    assert len(shown.flatten(0, 1).unique(dim=0)) == 5000
    assert stats.kstest(shown.flatten().numpy(), "uniform").pvalue > 1e-3
    correlation = torch.corrcoef(shown.reshape(-1, 4).T).fill_diagonal_(0.0)
    assert correlation.abs().max() < 0.06
    assert torch.corrcoef(torch.stack([shown[:-1].flatten(), shown[1:].flatten()]))[0, 1].abs() < 0.03


def test_no_row_depends_on_others_and_another_seed_shows_other_things():
    few, many = television(rows=2).reset()["screen"], television(rows=4).reset()["screen"]
    assert torch.equal(few[:2], many[:2])
    assert not torch.equal(few[:2], few[2:])


def test_a_single_observation_has_a_screen_that_is_off():
    shown = television().observation(torch.tensor([7, 8]))
    assert shown["observation"].tolist() == [7, 8]
    assert shown["screen"].tolist() == [[0.0] * 8] * 2


def test_invalid_values_are_named():
    env = make("operant/KeyDoor-v0", 1, [0])
    with pytest.raises(ValueError, match=r"one of Discrete\(5\), or None to change at every step, got 5"):
        NoisyTV(env, action=5)
    with pytest.raises(ValueError, match="got 0"):
        NoisyTV(make("Pendulum-v1", 1, [0]), action=0)
    with pytest.raises(ValueError, match="pixels must be at least 1, got 0"):
        NoisyTV(env, pixels=0)
    with pytest.raises(ValueError, match="already have a part 'screen'"):
        NoisyTV(NoisyTV(env))
    assert isinstance(wrapped(env, ["operant.envs:NoisyTV(action=4)"]), NoisyTV)
