import re
from itertools import count
from pathlib import Path

import pytest
import torch

from operant import api
from operant.doors import DoorError
from operant.language.configs import SamplingConfig
from operant.language.engines import NativeEngine, Sampling
from operant.language.engines.outside import CHECKED, OutsideEngine
from operant.language.members import engine_for
from operant.runtime.encoding import digest

CODE = '''
from copy import deepcopy

from operant.language.engines import Completion, NativeEngine

class Mine:
    """Samples from a copy of the model, which may miss an update, or return something else."""

    made = []

    def __init__(self, model, deaf_from=None, fault=None):
        self.updates, self.deaf_from, self.fault = 0, deaf_from, fault
        self.sampler, self.closed = NativeEngine(model.frozen()), False
        self.calls = 0
        Mine.made.append(self)

    def reach(self):
        if self.fault == "absent":
            raise OSError("nobody is there: start the server")

    def generate(self, prompts, count, sampling, *, generator):
        self.calls += 1
        found = self.sampler.generate(prompts, count, sampling, generator=generator)
        if self.fault == "fewer":
            return found[1:]
        if self.fault == "bare":
            return [[Completion(c.ids, c.log_probs[:-1], c.truncated) for c in answers] for answers in found]
        if self.fault == "endless":
            return [[c._replace(truncated=False) for c in answers] for answers in found]
        if self.fault == "foreign":
            return [[c._replace(ids=[*c.ids[:-1], 99]) for c in answers] for answers in found]
        return found

    def update(self, model):
        self.updates += 1
        if self.deaf_from is None or self.updates < self.deaf_from:
            self.sampler.model.network.load_state_dict(model.network.state_dict())

    def close(self):
        self.closed = True

class Sharded(Mine):
    def generate_shards(self, shards, count, sampling, *, generators):
        self.calls += 1
        found = self.sampler.generate_shards(shards, count, sampling, generators=generators)
        return found[1:] if self.fault == "fewer" else found

class Sending(Mine):
    sent = 0

    def send_weights(self):
        self.sent += 1

class Incomplete:
    def __init__(self, model):
        self.generate = self.update = None
'''
PROMPTS = [[3, 4, 5], [6, 7]]


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return f"{path}:Mine"


def ask(engine, answers=2, **options):
    generator = torch.Generator().manual_seed(0)
    return engine.generate(PROMPTS, answers, Sampling(5, **options), generator=generator)


def change(model):
    with torch.no_grad():
        for parameter in model.trained().values():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("ahead", [False, True])
def test_it_samples_what_the_model_would(mine, make_model, ahead):
    model = make_model()
    engine = OutsideEngine(mine, model, ahead=ahead)
    engine.reach()
    for _ in range(2):
        assert [len(answers) for answers in ask(engine)] == [2, 2]
        assert ask(engine, temperature=0.0)
        change(model)
        engine.update(model)
    assert engine.version == 2
    assert {completion.version for completions in ask(engine) for completion in completions} == {2}
    assert ask(engine, answers=1) == ask(engine, answers=1)
    engine.close()
    assert engine.engine.closed


def sharded(engine):
    shards = [PROMPTS, [], [[8, 9]]]
    chances = [torch.Generator().manual_seed(number) for number in range(3)]
    return engine.generate_shards(shards, 2, Sampling(5), generators=chances)


def test_shards_are_sampled_in_one_call_if_the_engine_can(mine, make_model):
    model = make_model()
    plain, joint = OutsideEngine(mine, model), OutsideEngine(mine.replace(":Mine", ":Sharded"), model)
    assert [[len(answers) for answers in own] for own in sharded(joint)] == [[2, 2], [], [2]]
    assert sharded(joint) == sharded(NativeEngine(model))
    assert joint.engine.calls == 2
    chance = torch.Generator().manual_seed(2)
    assert sharded(plain)[2] == plain.generate([[8, 9]], 2, Sampling(5), generator=chance)
    assert plain.engine.calls == 3, "no call for a shard without prompts"


def test_answers_of_shards_are_checked(mine, make_model):
    name, model = mine.replace(":Mine", ":Sharded"), make_model()
    with pytest.raises(ValueError, match=r"returned completions of 2 shards, expected 3"):
        sharded(OutsideEngine(f"{name}(fault='fewer')", model))
    engine = OutsideEngine(f"{name}(deaf_from=1)", model)
    change(model)
    engine.update(model)
    with pytest.raises(ValueError, match=r"nats off the trainer's after update 1"):
        sharded(engine)


def test_stale_weights_are_found_before_their_answers_are_learned_from(mine, make_model):
    model = make_model()
    engine = OutsideEngine(f"{mine}(deaf_from=2)", model)
    change(model)
    engine.update(model)
    ask(engine)
    change(model)
    engine.update(model)
    with pytest.raises(ValueError, match=r"mine\.py:Mine\(deaf_from=2\) are .* nats off the trainer's after update 2"):
        ask(engine)


def test_an_engine_that_samples_ahead_is_checked_after_each_update(mine, make_model):
    model = make_model()
    engine = OutsideEngine(f"{mine}(deaf_from=1)", model, ahead=True)
    ask(engine)
    change(model)
    with pytest.raises(ValueError, match=r"nats off the trainer's after update 1 .*it samples from other weights"):
        engine.update(model)
    assert engine.engine.calls == 2
    change(model)  # during an update: samples of that time are not compared
    assert len(ask(engine, answers=CHECKED)) == 2


def test_an_engine_that_samples_ahead_is_not_compared_with_a_model_that_learns(mine, make_model):
    model = make_model()
    engine = OutsideEngine(mine, model, ahead=True)
    first = ask(engine)
    change(model)  # during the first update
    assert ask(engine) == first


def test_weights_are_sent_by_engines_that_can(mine, make_model):
    plain, sending = (OutsideEngine(mine.replace(":Mine", f":{name}"), make_model()) for name in ("Mine", "Sending"))
    plain.send_weights()
    sending.send_weights()
    assert sending.engine.sent == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("fewer", "returned 2 completions of 1 prompts, expected 2 of each of 2"),
        ("bare", "returned a completion of .* tokens with .* log-probabilities, expected 1 to 5 with one each"),
        ("endless", "ends in the token .* and is not truncated, expected one of .* keep the end of sequence"),
        ("foreign", "returned tokens from .* to 99, expected 0 to 98: it has another model"),
    ],
)
def test_an_answer_of_another_shape_is_named(mine, make_model, fault, message):
    with pytest.raises(ValueError, match=message):
        ask(OutsideEngine(f"{mine}(fault={fault!r})", make_model()))


def test_classes_that_are_not_engines_are_named(mine, make_model):
    with pytest.raises(TypeError, match="Incomplete is no engine: it has no reach, close"):
        OutsideEngine(mine.replace(":Mine", ":Incomplete"), make_model())
    with pytest.raises(DoorError, match=r"mine\.py has no 'Other', expected a class whose instances are engines"):
        OutsideEngine(mine.replace(":Mine", ":Other"), make_model())


def test_it_is_an_engine_of_the_configuration(mine, make_model):
    assert isinstance(engine_for(SamplingConfig(engine=mine), make_model()), OutsideEngine)
    assert engine_for(SamplingConfig(engine=f"{mine}(fault=None, deaf_from=3)", max_staleness=1), make_model()).ahead


SMALL = {
    "prompts_per_batch": 3,
    "num_generations": 2,
    "train_examples": 10,
    "held_out": 4,
    "max_completion_length": 5,
    "budget": 9,
    "progress": "silent",
}


def learner(run):
    return api.load(run).experiment.members[0].learner


def weights(run):
    return digest({"parameters": learner(run).model.state_dict()})


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_samples_by_it_and_continues_with_it(mine, tmp_path, monkeypatch, staleness):
    monkeypatch.chdir(tmp_path)
    options = SMALL | {"engine": "mine.py:Mine", "max_staleness": staleness}
    api.train("grpo", "arithmetic", run=tmp_path / "whole", **options)
    started, calls = tmp_path / "parts" / "eval" / "evaluations.jsonl", count()
    stop = {"interrupted": lambda: started.exists() and started.stat().st_size > 0 and next(calls) > 0}
    api.train("grpo", "arithmetic", run=tmp_path / "parts", **options, **stop)
    assert 0 < learner(tmp_path / "parts").consumed < SMALL["budget"]
    assert f'engine = "{mine}"' in (tmp_path / "parts" / "config.toml").read_text(), "valid in every working folder"
    assert "mine.py" in (tmp_path / "parts" / "run.json").read_text(), "the file is recorded with its hash"
    api.resume(tmp_path / "parts", progress="silent")
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    if not staleness:
        api.train("grpo", "arithmetic", run=tmp_path / "native", **SMALL)
        assert weights(tmp_path / "native") == weights(tmp_path / "whole"), "the same answers"


def test_a_run_in_shards_samples_by_it(mine, tmp_path):
    for name, engine in (("native", "native"), ("joint", mine.replace(":Mine", ":Sharded")), ("plain", mine)):
        api.train("grpo", "arithmetic", engine=engine, run=tmp_path / name, shards=2, **SMALL)
        assert learner(tmp_path / name).consumed == SMALL["budget"]
    assert weights(tmp_path / "joint") == weights(tmp_path / "native"), "the same answers"


def test_a_run_whose_engine_is_absent_does_not_begin(mine, tmp_path):
    with pytest.raises(OSError, match="nobody is there: start the server"):
        api.train("grpo", "arithmetic", engine=f"{mine}(fault='absent')", run=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


def test_the_example_of_the_documentation(tmp_path, make_model):
    page = Path(__file__).parents[3] / "docs" / "engines.md"
    (example,) = re.findall(r"^```py title=\"my_engine.py\"\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "my_engine.py").write_text(example)
    model = make_model()
    engine = OutsideEngine(f"{tmp_path}/my_engine.py:MyEngine(rows=2)", model)
    engine.reach()
    before = ask(engine, temperature=0.0)
    change(model)
    engine.update(model)
    assert ask(engine, temperature=0.0) != before
    engine.close()
