import pytest
import torch

from operant.control import PPOConfig
from operant.runtime.checkpoints import CheckpointError
from operant.runtime.evaluation import Evaluation
from operant.runtime.run import Run, RunError
from operant.runtime.settings import Settings
from operant.runtime.weights import Best, load_weights, opened


class Pupil:
    """Learner with two numbers per seed, and one more."""

    def __init__(self, *rows, consumed=0):
        self.learned = {"parameters": torch.tensor(rows), "moments": torch.zeros(len(rows), 1, 2)}
        self.consumed = consumed

    def rows(self):
        return self.learned["parameters"].tolist()


def scored(*scores):
    return Evaluation.of([[score] for score in scores])


@pytest.fixture
def best(tmp_path):
    return Best(Run.create(tmp_path / "run", Settings("tiny", "nothing", seeds=(0, 1)), PPOConfig()))


def test_lessons_are_taken_seed_by_seed_in_place():
    pupil, teacher = Pupil([0.0, 0.0], [0.0, 0.0]), Pupil([1.0, 2.0], [3.0, 4.0])
    tensor = pupil.learned["parameters"]
    load_weights(pupil, teacher.learned)
    assert tensor.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    teacher.learned["parameters"][:] = 9.0
    assert pupil.rows() == [[1.0, 2.0], [3.0, 4.0]]


def test_a_single_teacher_teaches_all_seeds():
    pupil = Pupil([0.0, 0.0], [0.0, 0.0])
    load_weights(pupil, Pupil([5.0, 6.0]).learned)
    assert pupil.rows() == [[5.0, 6.0]] * 2


@pytest.mark.parametrize(
    ("lesson", "message"),
    [
        ({"moments": torch.ones(2, 1, 2)}, "only one of the runs has 'parameters'"),
        (Pupil([1.0, 2.0]).learned | {"other": torch.ones(1)}, "only one of the runs has 'other'"),
        (Pupil([1.0], [2.0]).learned, r"'parameters' has shape \[1\] in that run, but \[2\] in this one"),
        (
            Pupil([1.0, 2.0], [1.0, 2.0], [1.0, 2.0]).learned,
            "that run has 3 seeds and this one 2; only a single seed can initialize others",
        ),
        (
            {"parameters": torch.ones(2, 2), "moments": torch.ones(2, 2, 2)},
            r"'moments' has shape \[2, 2\] in that run, but \[1, 2\] in this one",
        ),
    ],
)
def test_mismatched_weights_are_rejected_and_change_nothing(lesson, message):
    pupil = Pupil([0.0, 0.0], [0.0, 0.0])
    with pytest.raises(ValueError, match=message):
        load_weights(pupil, lesson)
    assert pupil.rows() == [[0.0, 0.0]] * 2


def test_each_seed_keeps_what_it_had_learned_when_it_scored_highest(best):
    best.offer(Pupil([1.0, 1.0], [1.0, 1.0], consumed=10), scored(5.0, -7.0))
    best.offer(Pupil([2.0, 2.0], [2.0, 2.0], consumed=20), scored(5.0, -6.0))  # the first is no better
    best.offer(Pupil([3.0, 3.0], [3.0, 3.0], consumed=30), scored(4.0, -8.0))
    kept = best.load()
    assert kept.learned["parameters"].tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert (kept.scores.tolist(), kept.consumed.tolist()) == ([5.0, -6.0], [10, 20])


def test_the_best_weights_are_a_copy(best):
    pupil = Pupil([1.0, 1.0], [1.0, 1.0], consumed=10)
    best.offer(pupil, scored(1.0, 1.0))
    pupil.learned["parameters"].zero_()
    assert best.load().learned["parameters"].tolist() == [[1.0, 1.0]] * 2


def test_a_score_that_is_no_number_is_the_lowest(best):
    best.offer(Pupil([1.0, 1.0], [1.0, 1.0], consumed=10), scored(float("nan"), 1.0))
    best.offer(Pupil([2.0, 2.0], [2.0, 2.0], consumed=20), scored(-9.0, float("nan")))
    assert best.load().learned["parameters"].tolist() == [[2.0, 2.0], [1.0, 1.0]]


def test_networks_that_are_not_finite_are_passed_over(best):
    best.offer(Pupil([float("nan"), 1.0], [1.0, 1.0], consumed=10), scored(9.0, 1.0))
    with pytest.raises(RunError, match="has no best policies"):
        best.load()
    best.offer(Pupil([1.0, 1.0], [1.0, 1.0], consumed=20), scored(3.0, 1.0))
    best.offer(Pupil([2.0, float("inf")], [2.0, 2.0], consumed=30), scored(9.0, 2.0))
    assert best.load().learned["parameters"].tolist() == [[1.0, 1.0], [2.0, 2.0]]


def test_a_training_taken_up_again_keeps_the_same(best):
    for consumed, score in ((10, 1.0), (20, 2.0), (20, 2.0)):  # the last evaluation was lost, and is repeated
        best.offer(Pupil([score, score], [score, score], consumed=consumed), scored(score, score))
    assert best.load().consumed.tolist() == [20, 20]


def test_a_repeated_evaluation_with_a_higher_score_replaces_the_lost_one(best):
    best.offer(Pupil([1.0, 1.0], [1.0, 1.0], consumed=10), scored(1.0, 1.0))
    best.offer(Pupil([2.0, 2.0], [2.0, 2.0], consumed=10), scored(2.0, 0.0))  # after a kill, with another budget
    kept = best.load()
    assert (kept.scores.tolist(), kept.learned["parameters"].tolist()) == ([2.0, 1.0], [[2.0, 2.0], [1.0, 1.0]])


def test_failing_to_keep_is_only_warned_of(best, caplog, monkeypatch):
    best.offer(Pupil([1.0, 1.0], [1.0, 1.0], consumed=10), scored(1.0, 1.0))
    monkeypatch.setattr("operant.runtime.checkpoints.save_file", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    best.offer(Pupil([2.0, 2.0], [2.0, 2.0], consumed=20), scored(2.0, 2.0))
    assert "the best policies could not be saved in" in caplog.text
    assert best.load().consumed.tolist() == [10, 10]


def test_damage_is_reported(best):
    best.offer(Pupil([1.0, 1.0], [1.0, 1.0], consumed=10), scored(1.0, 1.0))
    (folder,) = (best._path / "best").glob("step_*")
    (folder / "state.json").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"state\.json is damaged"):
        best.load()


def test_seeds_that_are_not_stacked_are_kept_by_themselves_and_once(best):
    run = Run.open(best._path)
    for consumed, scores in ((0, (1.0, 5.0)), (10, (2.0, 4.0)), (20, (3.0, 4.0))):
        for place in (0, 1):
            Best(run, index=place).offer(Pupil([consumed + place, 0.0], consumed=consumed), scored(*scores))
    kept = [Best(run, index=place).load() for place in (0, 1)]
    assert [one.consumed.tolist() for one in kept] == [[20], [0]]
    assert [one.learned["parameters"].tolist() for one in kept] == [[[20.0, 0.0]], [[1.0, 0.0]]]
    assert sorted(str(path.relative_to(run.path)) for path in run.path.glob("best/*/*")) == [
        "best/seed_0/step_000000000020",
        "best/seed_1/step_000000000000",
    ]


def test_the_best_of_a_run_is_named_like_a_folder_of_it(best):
    path = best._path
    assert [(run.path, chosen) for run, chosen in map(opened, (path, path / "best", str(path / "best")))] == [
        (path, False),
        (path, True),
        (path, True),
    ]
    with pytest.raises(RunError, match="is not the folder of a run"):
        opened(path / "checkpoints" / "best")


def test_the_best_weights_of_earlier_versions_without_some_statistics_are_kept(best):
    earlier = Pupil([1.0, 1.0], [1.0, 1.0], consumed=10)
    del earlier.learned["moments"]
    best.offer(earlier, scored(5.0, -7.0))
    best.offer(Pupil([2.0, 2.0], [2.0, 2.0], consumed=20), scored(4.0, -6.0))
    kept = best.load()
    assert kept.learned["parameters"].tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert kept.learned["moments"].tolist() == [[[0.0, 0.0]]] * 2
