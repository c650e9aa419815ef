import math

import pytest
import torch

from operant import ops, streams
from operant.language import divergence
from operant.language.configs import ModelOptions, SamplingConfig
from operant.language.divergence import Start, kl_of_batch
from operant.language.engines import NativeEngine, Sampling
from operant.language.models import load
from operant.language.packing import Sample, pack

SAMPLES = [Sample([1, 40 + i % 50], [50 + i % 40, 60, 2][: 1 + i % 3]) for i in range(96)]


def disturb(model, scale=0.05):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in model.trained().values():
            value.add_(scale * torch.randn(value.shape, generator=generator))


def log_probs(model, samples):
    with torch.no_grad():
        return model.log_probs(pack(samples))[0].split([len(s.completion) for s in samples])


@pytest.mark.parametrize("tokens", [1, 16_384])
def test_the_kl_of_a_batch_is_that_of_some_answers(make_model, tokens):
    model, config = make_model(), SamplingConfig(micro_batch_tokens=tokens)
    old = log_probs(model, SAMPLES)
    assert float(kl_of_batch(model, SAMPLES, old, config)) == pytest.approx(0.0, abs=1e-6)
    disturb(model)
    found = kl_of_batch(model, SAMPLES, old, config)
    chosen = [0, 32, 64]  # a 32nd
    new = torch.cat([log_probs(model, SAMPLES)[i] for i in chosen])
    expected = ops.kl_estimate(torch.cat([old[i] for i in chosen]), new, "k3").mean()
    assert float(found) == pytest.approx(float(expected), rel=1e-4)
    assert expected > 0.001


@pytest.mark.parametrize("rank", [0, 2], ids=["copy", "adapter"])
def test_the_kl_to_the_start_is_that_of_the_distributions(rank):
    model = load(ModelOptions(lora_r=rank), seed=0)
    start, before = Start(model), load(ModelOptions(), seed=0)
    prompt = [1, 20, 30]
    assert start.kl(model, [Sample(prompt, [5])], tokens=100) == {"objective/kl_start": 0.0, "kl_start": 0.0}
    disturb(model, 0.04)
    generator = streams.torch_generator(0, "test")
    (answers,) = NativeEngine(model).generate([prompt], 400, Sampling(max_tokens=1), generator=generator)
    found = start.kl(model, [Sample(prompt, answer.ids) for answer in answers], tokens=50)
    ids = torch.tensor([prompt])
    with torch.no_grad():
        new, old = (one.network(input_ids=ids).logits[0, -1] for one in (model, before))
    exact = float(ops.categorical_kl(new, old))
    assert exact > 0.01
    assert found["kl_start"] == found["objective/kl_start"] == pytest.approx(exact, rel=0.25)


def test_an_answer_counts_whole_and_by_the_token(make_model):
    model = make_model()
    start = Start(model)
    disturb(model)
    found = start.kl(model, SAMPLES[:6], tokens=1000)
    assert found["objective/kl_start"] == pytest.approx(2 * found["kl_start"])  # they are two tokens long on average
    assert math.isfinite(found["kl_start"])


def test_of_a_large_model_no_copy_is_kept(make_model, monkeypatch, caplog):
    monkeypatch.setattr(divergence, "LARGEST", 10)
    with caplog.at_level("INFO"):
        start = Start(make_model())
    assert "is not measured" in caplog.text
    assert start.kl(make_model(), SAMPLES, tokens=100) == {}
    adapted = load(ModelOptions(lora_r=2), seed=0)
    assert Start(adapted).kl(adapted, SAMPLES, tokens=1000) != {}
