import dataclasses
import hashlib
import shutil
import time
from pathlib import Path

import pytest
import torch

from operant import api
from operant.build import reassemble
from operant.runtime.encoding import digest
from operant.runtime.metrics import RecordWriter, read_records
from operant.runtime.run import Run, RunError
from operant.runtime.time_travel import DivergedError, TimeTravel
from operant.runtime.training import train
from runtime.test_history import make
from runtime.test_training import stop_after
from runtime.tiny import Regression


def trajectory(learner, end):
    """Return the hash of the state after each update, by the budget used."""
    found = {0: digest(learner.state_dict())}
    while learner.consumed < end:
        learner.iterate()
        found.setdefault(learner.consumed, digest(learner.state_dict()))
    return found


def trained(path, keep=4, **options):
    run = make(path, keep)
    train(Regression(), run, budget=400, progress="silent", **options)
    return run


def contents(path):
    return {file: file.read_bytes() for file in sorted(Path(path).rglob("*")) if file.is_file()}


@pytest.mark.parametrize("memory", [0, 1 << 20])
@pytest.mark.parametrize("keep", [4, "none"])
def test_every_update_is_restored_bit_for_bit_and_nothing_is_written(tmp_path, keep, memory):
    run, truth = trained(tmp_path / "run", keep), trajectory(Regression(), 400)
    before = contents(run.path)
    travel = TimeTravel(run, Regression(), memory=memory)
    for at in [400, 0, 210, 200, 50, 390, 10, 300, 310, 300, 120, 400]:
        arrival = travel.go(at)
        assert arrival.consumed == at == travel.learner.consumed
        assert arrival.sha256 == truth[at] == digest(travel.learner.state_dict())
        assert arrival.verified == (keep == 4 and at % 100 == 0)
    assert contents(run.path) == before


def test_the_nearest_state_before_is_where_it_begins(tmp_path):
    run = trained(tmp_path / "run")
    travel = TimeTravel(run, Regression(), memory=0)
    found = TimeTravel(run, Regression(), memory=0).go(230)
    assert (found.origin, found.began, found.updates) == ("checkpoint", 200, 3)
    travel = TimeTravel(run, Regression())
    travel.go(230)
    found = travel.go(260)
    assert (found.origin, found.began, found.updates) == ("here", 230, 3)
    found = travel.go(240)
    assert (found.origin, found.began, found.updates) == ("memory", 240, 0)


def test_a_budget_between_two_updates_is_that_of_the_first_to_reach_it(tmp_path):
    travel = TimeTravel(trained(tmp_path / "run"), Regression())
    assert [travel.go(at).consumed for at in (191, 200, 201, 195, 1)] == [200, 200, 210, 200, 10]


def test_one_goes_back_update_by_update(tmp_path):
    run, truth = trained(tmp_path / "run"), trajectory(Regression(), 400)
    for memory in (0, 1 << 20):
        travel = TimeTravel(run, Regression(), memory=memory)
        travel.go(220)
        for expected in range(210, 150, -10):
            for _ in travel.back():
                pass
            assert travel.arrival().consumed == expected
            assert travel.arrival().sha256 == truth[expected]
    travel.go(0)
    list(travel.back())
    assert travel.arrival().consumed == 0


def test_a_state_without_a_hash_is_confirmed_by_the_next_one(tmp_path):
    travel = TimeTravel(trained(tmp_path / "run"), Regression())
    before = travel.go(230)
    assert not before.verified
    assert travel.next_recorded() == 300
    steps = list(travel.confirm())
    assert steps == [240, 250, 260, 270, 280, 290, 300]
    after = travel.arrival()
    assert (after.consumed, after.sha256) == (before.consumed, before.sha256)
    bare = TimeTravel(trained(tmp_path / "bare", "none"), Regression())
    bare.go(230)
    with pytest.raises(RunError, match="no recorded hash of a state from 230 on"):
        list(bare.confirm())


def test_updates_that_lead_elsewhere_are_an_error_and_not_shown(tmp_path):
    run = trained(tmp_path / "run")
    shutil.rmtree(run.history.folder / "step_000000000200")

    class Other(Regression):
        def iterate(self):
            metrics = super().iterate()
            if self.consumed == 150:
                self.weight = self.weight + 2.0**-24
            return metrics

    travel = TimeTravel(run, Other())
    travel.go(140)
    with pytest.raises(DivergedError, match=r"at 200, recomputed from 140, .* SHA-256.*0, 100, 300, 400"):
        travel.go(210)
    assert travel.go(310).consumed == 310  # from a checkpoint that is after it
    assert travel.go(300).verified


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    run, truth = trained(tmp_path / "run"), trajectory(Regression(), 400)
    file = run.history.folder / "step_000000000200" / "state.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    found = TimeTravel(run, Regression(), memory=0).go(200)
    assert (found.began, found.updates, found.sha256, found.verified) == (100, 10, truth[200], True)


def test_one_cannot_go_further_than_the_run(tmp_path):
    run = make(tmp_path / "run", 4)
    train(Regression(), run, budget=400, progress="silent", interrupted=stop_after(12), evaluate_every=1000)
    travel = TimeTravel(run, Regression())
    assert travel.end == 120
    assert travel.go(120).consumed == 120
    for at in (-1, 121):
        with pytest.raises(ValueError, match=f"at must be an integer between 0 and 120, .*, got {at}"):
            travel.go(at)
    with pytest.raises(ValueError, match="has already used 120 of its budget"):
        TimeTravel(run, travel.learner)


def test_the_end_of_a_long_run_is_known_without_reading_all_of_it(tmp_path):
    run = trained(tmp_path / "run")
    travel = TimeTravel(run, Regression())
    line = b'{"consumed": 1, "loss": [0.125, 0.25, 0.5, 1.0]}\n'
    run.metrics_path.write_bytes(line * 400_000 + run.metrics_path.read_bytes())
    began = time.monotonic()
    assert travel.end == 400
    assert time.monotonic() - began < 0.5


def test_updates_under_another_budget_are_not_computed_again(tmp_path):
    run = make(tmp_path / "run", 4)
    train(Regression(), run, budget=400, progress="silent")
    run.settings = dataclasses.replace(run.settings, budget=800)
    run.keep_settings()
    run.add_session([], 400)
    learner = Regression()
    learner.load_state_dict(TimeTravel(run, Regression()).go(400) and _state_of(run))
    train(learner, run, budget=800, progress="silent")
    travel = TimeTravel(run, Regression())
    assert travel.go(300).verified
    with pytest.raises(RunError, match=r"with a budget of 400 at 300, and now has one of 800"):
        travel.go(310)
    assert travel.go(510).consumed == 510


def test_sessions_that_were_rewound_do_not_count(tmp_path):
    run = make(tmp_path / "run", 4)
    train(Regression(), run, budget=100, progress="silent")
    for budget, start in ((200, 100), (300, 150), (400, 100)):  # the second and the third were killed
        run.settings = dataclasses.replace(run.settings, budget=budget)
        run.keep_settings()
        run.add_session([], start)
    learner = Regression()
    learner.load_state_dict(_state_of(run))
    train(learner, run, budget=400, progress="silent")
    travel = TimeTravel(run, Regression())
    assert travel.go(120).consumed == 120
    assert travel.go(210).consumed == 210


def _state_of(run):
    from operant.runtime.checkpoints import load

    return load(run.checkpoints.latest()[0])


def test_a_run_that_began_with_another_needs_a_state_of_its_start(tmp_path):
    run = trained(tmp_path / "run")
    run._update(lambda facts: facts["resolved"].update(init="elsewhere"))
    assert TimeTravel(Run.open(run.path), Regression()).go(10).consumed == 10
    run.history.drop()
    with pytest.raises(RunError, match="no state before 10 to recompute it from; stored states: 400"):
        TimeTravel(Run.open(run.path), Regression()).go(10)


def test_a_later_state_does_not_pass_for_an_earlier_one(tmp_path):
    run = trained(tmp_path / "run")
    run._update(lambda facts: facts["resolved"].update(init="elsewhere"))
    run.history.drop()
    travel = TimeTravel(Run.open(run.path), Regression())
    assert travel.go(400).consumed == 400
    with pytest.raises(RunError, match="no state before 50 to recompute it from; stored states: 400"):
        travel.go(50)
    with pytest.raises(RunError, match="no state before 400 to recompute it from; stored states: 400"):
        list(travel.back())
    assert travel.go(400).origin == "here"


def test_after_a_state_that_differs_from_its_hash_an_earlier_one_is_loaded(tmp_path):
    run, truth = trained(tmp_path / "run"), trajectory(Regression(), 400)
    run.history.drop(after=100)
    other = Regression(seeds=(2, 3))
    trajectory(other, 300)
    run.history.save(other.state_dict(), 300)
    travel = TimeTravel(run, Regression(), memory=0)
    travel.go(100)
    found = travel.go(310)
    assert (found.began, found.sha256) == (100, truth[310])


def test_one_goes_back_from_a_saved_state_that_follows_another_closely(tmp_path):
    class Slow(Regression):
        examples = 1

    run = make(tmp_path / "run", "all", budget=8)
    train(Slow(), run, budget=8, progress="silent")
    travel = TimeTravel(run, Slow())
    travel.go(8)
    list(travel.back())
    assert travel.here == 7


def test_updates_that_use_no_budget_are_passed_through(tmp_path):
    class Waiting(Regression):
        """Learner that uses budget in every third update only, like learners of whole episodes."""

        examples = 0
        turns = 0

        def iterate(self):
            self.turns += 1
            self.examples = 10
            metrics = super().iterate()
            self.consumed -= 10 if self.turns % 3 else 0
            return metrics

        def state_dict(self):
            return super().state_dict() | {"turns": self.turns}

        def load_state_dict(self, state):
            super().load_state_dict(state)
            self.turns = state["turns"]

    run = make(tmp_path / "run", 4)
    train(Waiting(), run, budget=400, progress="silent")
    truth = trajectory(Waiting(), 400)
    travel = TimeTravel(run, Waiting())
    for at in (130, 120, 400, 30):
        assert travel.go(at).sha256 == truth[at]
    list(travel.back())
    assert travel.arrival().consumed == 20


REAL = {
    "ppo": ("CartPole-v1", {"budget": 4096, "num_envs": 8, "num_steps": 32, "num_minibatches": 2}),
    "dqn": ("CartPole-v1", {"budget": 600, "learning_starts": 100, "buffer_size": 300, "env_backend": "gymnasium"}),
    "q-learning": ("FrozenLake-v1", {"budget": 3000}),
    "reinforce": ("CartPole-v1", {"budget": 2000, "num_envs": 4}),
}


@pytest.mark.parametrize("algorithm", REAL)
def test_updates_of_real_runs_are_restored_bit_for_bit(tmp_path, algorithm):
    task, options = REAL[algorithm]
    run = api.train(algorithm, task, seeds=2, run=tmp_path / "run", progress="silent", **options).run
    experiment = reassemble(run, remote_code=False)
    truth = trajectory(experiment.learner, read_records(run.metrics_path)[-1]["consumed"])
    experiment.close()
    experiment = reassemble(run, remote_code=False)
    travel = TimeTravel(run, experiment.learner)
    places = sorted(truth)
    before = contents(run.path)
    chosen = torch.randperm(len(places), generator=torch.Generator().manual_seed(0))[:12].tolist()
    for place in [len(places) - 1, 0, *chosen]:
        assert travel.go(places[place]).sha256 == truth[places[place]]
    assert contents(run.path) == before
    experiment.close()


def test_a_run_is_loaded_and_scored_as_it_was(tmp_path):
    task, options = REAL["ppo"]
    run = api.train("ppo", task, seeds=2, run=tmp_path / "run", progress="silent", evaluate_every=1024, **options).run
    recorded = {record["consumed"]: record["scores"] for record in read_records(run.evaluations_path)}
    for at in (1024, 3072):
        found = api.load(run.path, at=at)
        assert found.arrival.consumed == found.experiment.learner.consumed == at
        assert list(found.evaluate(20, backend="tensor").scores) == recorded[at]
        found.close()
    with pytest.raises(ValueError, match="best and at=1024"):
        api.load(run.path, at=1024, best=True)


def test_a_hash_that_was_tampered_with_is_noticed(tmp_path):
    run = trained(tmp_path / "run")
    writer = RecordWriter(run.hashes_path)
    writer.write({"consumed": 250, "sha256": hashlib.sha256(b"another").hexdigest()})
    writer.close()
    with pytest.raises(DivergedError, match="at 250"):
        TimeTravel(run, Regression()).go(260)
