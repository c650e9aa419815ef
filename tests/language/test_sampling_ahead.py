import threading

import pytest
import torch

from operant.language.engines.protocol import Completion, Sampling
from operant.language.examples import Prompt
from operant.language.rewards import Rewards
from operant.language.sampling_ahead import AheadSampler

BUDGET = 12


class Engine:
    """Engine that completes a prompt with the version of its weights; a gate can block it."""

    def __init__(self):
        self.version, self.calls, self.sent, self.gate = 0, [], [], threading.Event()
        self.gate.set()

    def send_weights(self):
        self.sent.append((threading.current_thread(), len(self.calls)))

    def generate(self, prompts, count, sampling, *, generator):
        assert self.gate.wait(60)
        self.calls.append((threading.current_thread().name, self.version))
        noise = torch.rand((), generator=generator).item()
        answer = Completion([self.version, 5], [-noise, -0.5], truncated=False, version=self.version)
        return [[answer] * count for _ in prompts]

    def update(self, model):
        self.version += 1


class Tokenizer:
    all_special_ids = ()

    def decode(self, ids, **options):
        return " ".join(map(str, ids))


def reward(*, prompts, **columns):
    ones = torch.ones(len(prompts))
    return Rewards(ones[:, None], ones, ones.bool(), ("one",), {})


@pytest.fixture
def make():
    def make(engine):
        prompts = [Prompt([i], {"prompt": str(i)}) for i in range(5)]
        return AheadSampler(engine, prompts, reward, Tokenizer(), Sampling(4), seed=0, budget=BUDGET)

    return make


def versions(rollout):
    found = {completion.version for completion in rollout.answers.completions}
    assert found == {completion.ids[0] for completion in rollout.answers.completions}
    return found


def test_a_batch_is_sampled_by_weights_that_are_one_update_older(make):
    engine = Engine()
    sampler, found = make(engine), []
    while sampler.asked < BUDGET:
        rollout = sampler.draw(3, 2)
        found.append((versions(rollout), sampler.metrics()["sampling/staleness"]))
        sampler.begin(3, 2)
        sampler.update(None, len(found))
    assert found == [({0}, 0.0), ({0}, 1.0), ({1}, 1.0), ({2}, 1.0)]
    assert [name.startswith("sampling") for name, _ in engine.calls] == [False, True, True, True]  # none at the end


def test_the_staleness_of_a_refilled_batch_is_that_of_its_oldest_answers(make):
    sampler, found = make(Engine()), []
    for version in (1, 2):
        draws = [versions(sampler.draw(count, 2)) for count in (3, 1)]
        found.append((draws, sampler.metrics()["sampling/staleness"]))
        sampler.begin(3, 2)
        sampler.update(None, version)
    assert found == [([{0}, {0}], 0.0), ([{0}, {1}], 1.0)]


def test_learning_does_not_wait_and_the_update_does(make):
    engine = Engine()
    sampler = make(engine)
    sampler.draw(3, 2)
    engine.gate.clear()
    sampler.begin(3, 2)  # returns although the engine is blocked
    assert len(engine.calls) == 1
    threading.Timer(0.2, engine.gate.set).start()
    sampler.update(None, 1)
    assert [version for _, version in engine.calls] == [0, 0]
    assert engine.version == 1


def test_prompts_are_those_of_a_sampler_that_does_not_work_ahead(make):
    ahead, plain = make(Engine()), make(Engine())
    for step in range(4):
        first, second = ahead.draw(3, 2), plain.draw(3, 2)
        assert [p.prompt for p in first.answers.prompts] == [p.prompt for p in second.answers.prompts]
        assert first.answers.completions[0].log_probs == second.answers.completions[0].log_probs  # the same stream
        ahead.begin(3, 2)
        ahead.update(None, step + 1)


def test_a_resumed_sampler_has_the_same_answers(make):
    sampler = make(Engine())
    for step in range(2):
        sampler.draw(3, 2)
        sampler.begin(3, 2)
        sampler.update(None, step + 1)
    other = make(Engine())
    other.load_state_dict(sampler.state_dict())
    other.update(None, 2)
    for step in range(2):
        first, second = sampler.draw(3, 2), other.draw(3, 2)
        assert first.answers == second.answers
        assert {completion.version for completion in second.answers.completions} == {step + 1}
        for each in (sampler, other):
            each.begin(3, 2)
            each.update(None, step + 3)


def test_a_state_with_nothing_waiting(make):
    sampler = make(Engine())
    sampler.load_state_dict(make(Engine()).state_dict())
    assert versions(sampler.draw(3, 2)) == {0}
    assert sampler.metrics() == {"sampling/staleness": 0.0}


def test_an_error_of_the_server_is_that_of_the_update(make):
    sampler = make(Engine())
    sampler.draw(3, 2)
    sampler.engine.generate = lambda *_, **__: (_ for _ in ()).throw(OSError("connection closed"))
    sampler.begin(3, 2)
    with pytest.raises(OSError, match="connection closed"):
        sampler.update(None, 1)


def test_weights_are_sent_before_the_model_learns(make):
    sampler = make(Engine())
    sampler.draw(3, 2)
    sampler.engine.gate.clear()
    sampler.begin(3, 2)
    assert sampler.engine.sent == [(threading.current_thread(), 1)]
    sampler.engine.gate.set()
    sampler.update(None, 1)


def test_answers_that_are_two_updates_old_are_rejected_before_they_are_judged(make):
    sampler = make(Engine())
    sampler.draw(3, 2)
    sampler.begin(3, 2)
    sampler.update(None, 1)
    sampler.update(None, 2)
    sampler.rewards = None
    said = "weights of version 0 sampled a completion, expected at most max_staleness=1 updates before .* version 2"
    with pytest.raises(ValueError, match=said):
        sampler.draw(3, 2)
