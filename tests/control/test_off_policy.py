import math

import pytest
import torch

from control.learners import assert_a_refused_state_changes_nothing, build, poison
from control.off_policy import QUICK, assert_random_actions_are_divided
from operant import catalog
from operant.control import assemble
from operant.control.off_policy import alternate, explore, merge
from operant.control.td3 import TD3, TD3Config
from operant.runtime.encoding import digest
from operant.runtime.metrics_window import DROPPED, EPISODES, LENGTH, RETURN
from operant.runtime.settings import Settings
from operant.runtime.shards import Alone, within
from operant.state import clone
from runtime.teams import team


def report(returns, lengths, counts, dropped=0):
    return {
        RETURN: torch.tensor(returns),
        LENGTH: torch.tensor(lengths),
        EPISODES: torch.tensor(counts),
        DROPPED: torch.full((len(counts),), dropped),
    }


def test_episodes_are_averaged_over_episodes_and_not_over_rollouts():
    nothing = math.nan
    merged = merge(
        [
            report([10.0, nothing, nothing], [4.0, nothing, nothing], [3, 0, 0]),
            report([2.0, 5.0, nothing], [8.0, 6.0, nothing], [1, 2, 0]),
        ]
    )
    assert merged[EPISODES].tolist() == [4, 2, 0]
    assert merged[RETURN][:2].tolist() == [8.0, 5.0]
    assert merged[LENGTH][:2].tolist() == [5.0, 6.0]
    assert merged[RETURN][2].isnan()


def test_a_return_that_is_not_a_number_is_not_hidden():
    merged = merge([report([math.nan], [4.0], [1]), report([2.0], [4.0], [1])])
    assert merged[RETURN].isnan().all()


def test_dropped_transitions_are_counted_over_all_rollouts():
    merged = merge([report([1.0], [1.0], [1], dropped=2), report([1.0], [1.0], [1], dropped=3)])
    assert merged[DROPPED].tolist() == [5]


def test_a_transition_that_is_dropped_is_reported():
    td3 = build(TD3, TD3Config(**QUICK), "Pendulum-v1", wrap=poison(row=5, when=18))
    assert [td3.iterate()[DROPPED].tolist() for _ in range(2)] == [[0, 1], [0, 0]]


@pytest.mark.parametrize(("rounds", "steps", "updates"), [(1, 1, 1), (3, 2, 4)])
def test_steps_and_updates_take_turns(rounds, steps, updates, monkeypatch):
    td3 = build(TD3, TD3Config(**{**QUICK, "train_freq": steps, "gradient_steps": updates}), "Pendulum-v1")
    log, collect = [], td3.collect

    def logged_collect():
        log.append("collect")
        return collect()

    def logged_update(batch):
        log.append("update")
        return {"losses/critic": float(len(log))}

    monkeypatch.setattr(td3, "collect", logged_collect)
    monkeypatch.setattr(td3, "update", logged_update)
    metrics = alternate(td3, rounds)
    assert log == (["collect"] + ["update"] * updates) * rounds
    assert metrics["losses/critic"] == len(log), "the last update is reported"
    started = QUICK["learning_starts"]  # only the first call takes random actions
    assert td3.experience.replay.size == td3.consumed == started + rounds * steps * 4
    alternate(td3, rounds)
    assert td3.consumed == started + 2 * rounds * steps * 4
    assert metrics[EPISODES].tolist() == [0, 0]


def test_random_actions_come_first_and_fill_whole_steps_of_all_environments():
    td3 = build(TD3, TD3Config(**{**QUICK, "learning_starts": 6}), "Pendulum-v1")
    explore(td3)
    assert td3.consumed == td3.experience.replay.size == 8


@pytest.mark.parametrize("name", ["td3", "sac", "sac-discrete"])
def test_training_can_stop_amid_random_actions(name, monkeypatch):
    def build():
        return divided(name, 1, task="CartPole-v1" if name == "sac-discrete" else "Pendulum-v1")

    assert_random_actions_are_divided(build, monkeypatch, 15, [16, 32, 40 + 20, 80])


@pytest.mark.parametrize(("budget", "expected"), [(65, 4), (64 + 16, 4), (64 + 17, 8)])
def test_gradient_steps_of_a_run_are_those_of_whole_iterations(budget, expected):
    assert TD3Config(**QUICK).updates(budget) == expected


def test_a_rejected_state_leaves_the_learner_unchanged():
    assert_a_refused_state_changes_nothing(lambda: build(TD3, TD3Config(**QUICK), "Pendulum-v1"))


# Shards

SMALL = {
    "num_envs": 4,
    "learning_starts": 40,
    "batch_size": 32,
    "hidden_sizes": (16, 16),
    "rounds_per_iteration": 5,
    "buffer_size": 400,
}


@pytest.mark.parametrize(
    ("name", "task"), [("td3", "Pendulum-v1"), ("sac", "Pendulum-v1"), ("sac-discrete", "CartPole-v1")]
)
def test_a_share_of_the_actions_is_random(name, task):
    """Compare with the policy, which always takes the same action here."""

    def actions(share):
        learner = divided(name, 1, task=task, random_exploration=share, train_freq=200, learning_starts=0)
        learner.parameters["actor"].zero_()
        learner.parameters["actor"][:, -1] = 20.0 if name == "sac-discrete" else 0.0
        if name == "sac":
            learner.parameters["actor"][:, -1] = -20.0  # the logarithm of the standard deviation
        elif name == "td3":
            object.__setattr__(learner.config, "exploration_noise", 0.0)
        learner.collect()
        return learner.experience.replay.fields["actions"][:200].flatten(2).float()

    usual, mixed, other = actions(0.0), actions(0.3), actions(1.0)
    own = usual[0, 0, 0]
    assert (usual - own).abs().max() < 1e-6
    spread = 0.5 if name == "sac-discrete" else 1.0
    random = (mixed - own).abs() > 1e-6
    assert abs(random.float().mean() - 0.3 * spread) < 0.05
    assert abs((other - own).abs().gt(1e-6).float().mean() - spread) < 0.05
    for seed in range(2):
        assert abs(random[:, seed].float().mean() - 0.3 * spread) < 0.08


def test_random_actions_of_a_seed_do_not_depend_on_others():
    def actions(seeds):
        config = TD3Config(**QUICK, random_exploration=0.5, train_freq=20)
        learner = build(TD3, config, "Pendulum-v1", seeds)
        learner.collect()
        return learner.experience.replay.fields["actions"][:20]

    assert torch.equal(actions((3, 5))[:, 1:], actions((5,)))


def divided(name, count, rank=None, task="Pendulum-v1", **config):
    """Return the learner of shard `rank` of `count` in a run of several processes."""
    entry = catalog.find(name)
    settings = Settings(name, task, seeds=(3, 5), budget=1000, shards=count)
    with within(rank or Alone()):
        return assemble(entry, settings, entry.config_class(**SMALL | config), device="cpu").learner


def iterated(learner, count=3):
    reports = [clone(learner.iterate()) for _ in range(count)]
    return digest(learner.state_dict()), digest({"reports": reports})


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])
def test_shards_learn_what_the_whole_batch_does(name):
    whole, parts = divided(name, 1), divided(name, 4)
    first, same_first = whole.iterate(), parts.iterate()
    assert first.keys() == same_first.keys()
    for key, value in first.items():
        torch.testing.assert_close(same_first[key], value, rtol=1e-4, atol=1e-4, equal_nan=True)
    for key, value in whole.parameters.items():
        torch.testing.assert_close(parts.parameters[key], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("sac", {}),
        ("sac", {"ent_coef": 0.1, "learning_starts": 0, "train_freq": 2, "max_grad_norm": 1.0}),
        ("td3", {"n_critics": 3, "random_exploration": 0.5}),
        ("sac", {"hidden_sizes": (256, 256), "batch_size": 256}),
        ("td3", {"hidden_sizes": (256, 256), "batch_size": 64, "activation": "tanh"}),
    ],
)
def test_the_number_of_processes_changes_no_bit_of_what_is_learned(name, config):
    alone = iterated(divided(name, 4, **config))
    for size in (2, 3):
        assert {*team(size, lambda rank: iterated(divided(name, 4, rank, **config)))} == {alone}


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_a_run_continues_exactly_on_another_number_of_processes(name):
    def begun(rank):
        learner = divided(name, 4, rank)
        learner.iterate()
        return clone(learner.state_dict())

    saved = team(4, begun)[0]

    def resumed(rank):
        learner = divided(name, 4, rank)
        learner.load_state_dict(saved)
        learner.iterate()
        return digest(learner.state_dict())

    whole, _ = iterated(divided(name, 4), 2)
    assert {*team(2, resumed), resumed(None)} == {whole}


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("sac", {"num_envs": 2}, "num_envs must be divisible by the number of shards, got 2 and 4"),
        ("td3", {"batch_size": 30}, "batch_size must be divisible by the number of shards, got 30 and 4"),
        ("sac", {"use_sde": True}, "use_sde does not support shards: leave out --shards 4"),
        ("sac", {"hindsight": "future", "task": "operant/Reach-v0"}, "hindsight does not support shards"),
        ("td3", {"normalize_obs": True}, "normalize_obs on Pendulum-v1 needs all environments of each seed"),
        ("mbpo", {}, "mbpo does not support shards: leave out --shards 4"),
    ],
)
def test_options_without_support_for_shards_raise_errors(name, values, message):
    with pytest.raises(ValueError, match=message):
        divided(name, 4, **values)
