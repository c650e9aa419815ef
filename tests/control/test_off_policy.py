import math

import pytest
import torch

from control.learners import assert_a_refused_state_changes_nothing, build, poison
from control.off_policy import QUICK
from operant.control.off_policy import alternate, explore, merge
from operant.control.td3 import TD3, TD3Config
from operant.runtime.metrics_window import DROPPED, EPISODES, LENGTH, RETURN


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
    assert td3.experience.replay.size == td3.consumed == rounds * steps * 4
    assert metrics["losses/critic"] == len(log), "the last update is reported"
    assert metrics[EPISODES].tolist() == [0, 0]


def test_random_actions_come_first_and_fill_whole_steps_of_all_environments():
    td3 = build(TD3, TD3Config(**{**QUICK, "learning_starts": 6}), "Pendulum-v1")
    explore(td3)
    assert td3.consumed == td3.experience.replay.size == 8


@pytest.mark.parametrize(("budget", "expected"), [(65, 4), (64 + 16, 4), (64 + 17, 8)])
def test_gradient_steps_of_a_run_are_those_of_whole_iterations(budget, expected):
    assert TD3Config(**QUICK).updates(budget) == expected


def test_a_refused_state_leaves_the_learner_as_it_was():
    assert_a_refused_state_changes_nothing(lambda: build(TD3, TD3Config(**QUICK), "Pendulum-v1"))
