import math

import numpy as np
import pytest
import torch

from operant.runtime.checkpoints import NonFiniteError
from operant.runtime.metrics_window import DROPPED, DropWatch, Guard, RejectionWatch, SkipWatch, Window, summarize

NAN = math.nan


def reports(*metrics):
    window = Window()
    for one in metrics:
        window.add(one)
    return window.take()


def test_metrics_are_stacked_and_forgotten():
    window = Window()
    window.add({"a": torch.tensor([1.0, 2.0]), "b": 3.0})
    window.add({"a": torch.tensor([3.0, 4.0]), "c": torch.tensor(5, dtype=torch.int64)})
    taken = window.take()
    assert {name: values.tolist() for name, values in taken.items()} == {"a": [[1, 2], [3, 4]], "b": [3], "c": [5]}
    assert window.take() == {}


def test_numbers_and_tensors_may_alternate():
    taken = reports({"a": 1.0}, {"a": torch.tensor(2.0)})
    assert taken["a"].tolist() == [1, 2]


def test_a_metric_that_changes_its_shape_is_named():
    with pytest.raises(ValueError, match="metric 'a' must be a number, or one per seed"):
        reports({"a": torch.zeros(2)}, {"a": torch.zeros(3)})


def dropped(*counts):
    return reports(*({DROPPED: torch.tensor(one)} for one in counts))


def test_dropped_transitions_of_one_seed_are_warned_of_once(caplog):
    watch = DropWatch()
    watch.check(reports({"a": 1.0}), 1000)
    watch.check(dropped([0, 50]), 99)
    assert not caplog.records, "too few for a warning"
    watch.check(dropped([0, 10], [0, 10]), 21)
    assert "58 % of the latest transitions of seed 1 (counted from 0)" in caplog.text
    watch.check(dropped([0, 900]), 1000)
    assert len(caplog.records) == 1


def test_a_seed_with_nothing_to_learn_from_ends_training():
    watch = DropWatch()
    watch.check(dropped([0, 600]), 600)
    watch.check(dropped([0, 360]), 400)
    watch.check(dropped([0, 541]), 600)
    with pytest.raises(
        NonFiniteError, match=r"almost all of the last 1000 transitions of seed 1 .*fix the environment"
    ):
        watch.check(dropped([0, 200], [0, 200]), 400)


def test_few_dropped_transitions_are_not_warned_of_but_late_ones_are(caplog):
    watch = DropWatch()
    for _ in range(10):
        watch.check(dropped([100]), 1000)
    assert not caplog.records
    watch.check(dropped([900]), 1000)
    assert "90 % of the latest transitions of seed 0" in caplog.text


def test_averages_leave_out_what_was_not_reported():
    result = summarize(reports({"x": torch.tensor([1.0, NAN, NAN])}, {"x": torch.tensor([3.0, 5.0, NAN])}))
    assert np.array_equal(result["x"], [2.0, 5.0, NAN], equal_nan=True)


def test_returns_and_lengths_are_means_over_episodes():
    one = {"rollout/episode_return": torch.tensor([500.0, NAN]), "rollout/episode_length": torch.tensor([9.0, NAN])}
    two = {"rollout/episode_return": torch.tensor([10.0, 4.0]), "rollout/episode_length": torch.tensor([1.0, 2.0])}
    counts = {"rollout/episodes": torch.tensor([1, 0])}, {"rollout/episodes": torch.tensor([100, 2])}
    found = summarize(reports(one | counts[0], two | counts[1]))
    assert found["rollout/episode_return"].tolist() == [(500 + 100 * 10) / 101, 4.0]
    assert found["rollout/episode_length"].tolist() == [109 / 101, 2.0]
    assert found["rollout/episodes"].tolist() == [101, 2]
    none = summarize(reports({"rollout/episode_return": torch.tensor([NAN]), "rollout/episodes": torch.tensor([0])}))
    assert np.isnan(none["rollout/episode_return"]).all()


def test_a_loss_that_went_wrong_is_not_averaged_away():
    result = summarize(reports({"losses/x": 1.0}, {"losses/x": NAN}, {"losses/x": 2.0}))
    assert math.isnan(result["losses/x"])


def test_infinite_numbers_stay_visible():
    assert summarize(reports({"x": 1.0}, {"x": math.inf}))["x"] == math.inf


def test_counts_are_added():
    for name in ("health/skipped_updates", "rollout/episodes"):
        result = summarize(reports({name: torch.tensor([1, 0])}, {name: torch.tensor([2, 0])}))
        assert result[name].tolist() == [3, 0]


def loss(*values):
    return {"losses/policy": torch.tensor(values)}


def test_ten_bad_reports_in_a_row_end_training():
    guard = Guard()
    guard.check(reports(*[loss(1.0, NAN)] * 9))
    with pytest.raises(NonFiniteError, match=r"losses/policy of seed 1 .*NaN or Inf in 10 iterations in a row"):
        guard.check(reports(loss(1.0, math.inf)))


def test_nan_up_to_the_end_of_a_short_training_causes_a_warning(caplog):
    guard = Guard()
    guard.check(reports(*({"losses/value": torch.tensor([1.0, NAN]), "losses/policy": 0.0} for _ in range(3))))
    guard.close()
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "losses/value of seed 1 (counted from 0): was NaN or Inf in each of the last 3 iterations"
    )
    guard.check(reports({"losses/value": torch.tensor([1.0, NAN]), "health/skipped_updates": torch.tensor([0, 2])}))
    guard.check(reports({"losses/value": torch.tensor([1.0, NAN]), "health/skipped_updates": torch.tensor([0, 2])}))
    guard.close()
    assert "skipped_updates of seed 1 (counted from 0): updates were skipped" in caplog.records[1].getMessage()
    for skipped in (0, 0, 2):  # one bad iteration does not end training
        good = {"losses/value": torch.tensor([1.0, 2.0]), "health/skipped_updates": torch.tensor([0, skipped])}
        guard.check(reports(good))
    guard.close()
    assert len(caplog.records) == 2


def test_one_good_report_forgives():
    guard = Guard()
    for _ in range(3):
        guard.check(reports(*[loss(NAN)] * 9, loss(1.0)))
    guard.check(reports(*[loss(NAN)] * 9))
    guard.check(reports(loss(1.0)))
    guard.check(reports(*[loss(NAN)] * 9))


def test_seeds_are_counted_apart():
    Guard().check(reports(*[loss(NAN, 1.0), loss(1.0, NAN)] * 20))


def test_skipped_updates_count_too():
    with pytest.raises(
        NonFiniteError, match=r"health/skipped_updates of seed 2 .*updates were skipped in 4 iterations"
    ):
        Guard(patience=4).check(reports(*[{"health/skipped_updates": torch.tensor([0, 0, 1])}] * 4))


def test_a_waiting_seed_reports_no_updates():
    def skipped(first, second):
        return {"health/skipped_updates": torch.tensor([first, second])}

    waiting, other = [skipped(NAN, 0.0)] * 7, [skipped(1.0, 0.0)]
    guard = Guard(patience=3)
    guard.check(reports(*waiting, *other))
    guard.check(reports(*waiting))
    guard.check(reports(*other, *waiting))
    with pytest.raises(NonFiniteError, match=r"health/skipped_updates of seed 0 .*skipped in 3 iterations"):
        guard.check(reports(*other))
    guard = Guard(patience=2)
    guard.check(reports(*other, skipped(0.0, NAN), *other))
    assert summarize(reports(*waiting, *other))["health/skipped_updates"].tolist() == [1.0, 0.0]


def updates(due, skipped):
    return {"health/updates": torch.tensor(due), "health/skipped_updates": torch.tensor(skipped)}


def test_more_than_a_tenth_of_skipped_updates_is_warned_of_once(caplog):
    watch = SkipWatch()
    for _ in range(9):
        watch.check(reports(updates([10, 10, NAN], [1, 4, NAN])))
    assert not caplog.records, "fewer than a hundred updates are reported only at the end"
    watch.check(reports(updates([10, 10, NAN], [1, 4, NAN])))
    watch.check(reports(updates([10, 10, 100], [1, 4, 99])))
    watch.close()
    (record,) = caplog.records
    assert record.getMessage().startswith("40 % of the updates of seed 1 (counted from 0) were skipped")


def test_a_short_training_is_warned_of_its_skipped_updates_at_its_end(caplog):
    watch = SkipWatch()
    watch.check(reports({"health/updates": 1.0, "health/skipped_updates": 0.0}))
    watch.close()
    assert not caplog.records
    watch.check(reports(*[{"health/updates": 1.0, "health/skipped_updates": 1.0}] * 2))
    watch.close()
    (record,) = caplog.records
    assert record.getMessage().startswith("67 % of the updates of seed 0")
    SkipWatch().check(reports({"health/skipped_updates": 1.0}))  # of a learner that does not count its updates


def test_scalars_have_no_seed():
    with pytest.raises(NonFiniteError, match="losses/x: was NaN or Inf"):
        Guard(patience=2).check(reports({"losses/x": NAN}, {"losses/x": NAN}))


def test_other_metrics_may_be_anything():
    Guard(patience=1).check(reports({"rollout/episode_return": NAN, "health/other": 3.0}))


def test_a_policy_that_stays_where_it_is_is_warned_of_once_a_seed(caplog):
    watch = RejectionWatch(patience=3)
    for rejected in ([0, 1], [1, 1], [0, 1], [0, 1], [0, 1], [0, 0]):
        watch.check({"health/rejected_steps": np.array([rejected], dtype=float)})
    watch.check({"losses/value": np.zeros((1, 2))})
    watch.check({"health/rejected_steps": np.ones((3, 2))})
    texts = [record.getMessage() for record in caplog.records]
    assert [text.split(" (")[0] for text in texts] == ["3 steps in a row of seed 1", "3 steps in a row of seed 0"]


def test_infos_are_averaged_over_the_episodes_that_report_them():
    nothing = {"rollout/episodes": torch.tensor([2, 5]), "rollout/episode_return": torch.zeros(2)}
    said = nothing | {"rollout/success_rate": torch.tensor([1.0, NAN]), "rollout/info/x": torch.tensor([4.0, 1.0])}
    more = {**said, "rollout/episodes": torch.tensor([6, 1]), "rollout/info/x": torch.tensor([0.0, 7.0])}
    taken = reports(nothing, said, nothing, more, nothing)
    assert taken["rollout/info/x"].shape == (5, 2)
    summary = summarize(taken)
    assert summary["rollout/info/x"].tolist() == [1.0, 2.0]
    assert summary["rollout/success_rate"][0] == 1.0
    assert np.isnan(summary["rollout/success_rate"][1])


def test_numbers_of_environments_without_a_number_of_episodes_are_averaged():
    told = [{"rollout/info/height": 1.0, "rollout/success_rate": 0.0}, {"rollout/info/height": 2.0}]
    assert summarize(reports(*told)) == {"rollout/info/height": 1.5, "rollout/success_rate": 0.0}


def test_returns_that_are_reported_with_ended_episodes_only_have_their_weights():
    told = [{"rollout/episodes": 3.0, "rollout/episode_return": 1.0}, {"rollout/episodes": 0.0}]
    told += [{"rollout/episodes": 1.0, "rollout/episode_return": 5.0}]
    assert summarize(reports(*told))["rollout/episode_return"] == 2.0


def test_a_return_of_all_seeds_is_weighted_by_their_episodes():
    told = [{"rollout/episodes": torch.tensor([1, 2]), "rollout/episode_return": 1.0}]
    told += [{"rollout/episodes": torch.tensor([1, 0]), "rollout/episode_return": 5.0}]
    assert summarize(reports(*told))["rollout/episode_return"] == 2.0
