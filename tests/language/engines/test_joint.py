import pytest
import torch

from operant.language.engines import joint
from operant.language.engines.joint import TILE
from operant.language.engines.native import NativeEngine
from operant.language.engines.protocol import Sampling
from operant.language.models import LanguageModel
from operant.runtime.evaluation import StoppedError

SHARDS = [[[1, 20, 21], [1]], [[1, 40, 41, 42, 43, 44, 45], [1, 9], [1, 9, 9, 9]], [], [[1, 33] * 20]]
KINDS = ["llama", "llama-tied", "qwen3", "mistral", "gpt2", "gemma2", "gemma3", "phi", "cohere", "granite"]


class Watched(LanguageModel):
    """Model that records the number of tokens of each pass with a cache, and adds an error to some passes.

    Args:
        model: the model.
        error: maps the number of tokens of a pass to the number that is added to its hidden states.
    """

    def __init__(self, model, error=lambda size: 0.0):
        super().__init__(model.network, model.tokenizer, stop=frozenset(range(2, 12)))  # a random model samples these
        self.error, self.sizes = error, []

    def hidden(self, ids, positions, layout):
        if isinstance(layout, joint._Apart):
            self.sizes.append(len(ids))
        return super().hidden(ids, positions, layout) + self.error(len(ids))


def generators(shards):
    return [torch.Generator().manual_seed(number) for number in range(len(shards))]


def together(model, shards=SHARDS, count=6, *, rows=256, max_tokens=25):
    engine = NativeEngine(model, rows=rows)
    return engine.generate_shards(shards, count, Sampling(max_tokens=max_tokens), generators=generators(shards))


def alone(model, shards=SHARDS, count=6, *, rows=256, max_tokens=25):
    sampling, found = Sampling(max_tokens=max_tokens), []
    for prompts, chance in zip(shards, generators(shards), strict=True):
        found += NativeEngine(model, rows=rows).generate_shards([prompts], count, sampling, generators=[chance])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_shards_have_the_bits_that_they_have_alone(make_model, kind):
    model = Watched(make_model(kind))
    found = together(model)
    joined = max(model.sizes)
    assert found == alone(model)
    assert joined > TILE
    assert len({completion.log_probs[0] for prompts in found for answers in prompts for completion in answers}) > 9


def test_shards_are_those_of_generate_up_to_rounding(make_model):
    model = Watched(make_model())
    found = together(model)
    for prompts, chance, answers in zip(SHARDS, generators(SHARDS), found, strict=True):
        expected = NativeEngine(model).generate(prompts, 6, Sampling(max_tokens=25), generator=chance)
        assert [[c.ids for c in own] for own in answers] == [[c.ids for c in own] for own in expected]
        for own, other in zip(answers, expected, strict=True):
            for completion, twin in zip(own, other, strict=True):
                assert completion.log_probs == pytest.approx(twin.log_probs, abs=1e-5)
                assert completion.truncated == twin.truncated


def test_all_shards_share_the_pass_of_a_token(make_model):
    model = Watched(make_model())
    found = together(model)
    assert len(model.sizes) == max(len(c.ids) for prompts in found for answers in prompts for c in answers) - 1
    assert not any(size % TILE for size in model.sizes)


def test_shards_with_other_lengths_of_queues(make_model):
    model = Watched(make_model())
    assert together(model, rows=5) == alone(model, rows=5) != []


@pytest.mark.parametrize("wrong", [32, 48])
def test_a_size_whose_passes_round_in_another_way_is_not_used(make_model, wrong):
    model = Watched(make_model(), lambda size: 1e-6 if size == wrong else 0.0)
    found = together(model, [[[1, 20]], [[1, 21]], [[1, 22]]], 12)
    joined = set(model.sizes)
    assert joined & {32, 48} == {32, 48} - {wrong}
    assert found == alone(model, [[[1, 20]], [[1, 21]], [[1, 22]]], 12)


def test_a_shard_whose_own_size_rounds_in_another_way_stays_alone(make_model):
    model = Watched(make_model(), lambda size: 1e-6 if size == 2 * TILE else 0.0)
    shards = [[[1, 20]], [[1, 21]]]
    found = together(model, shards, 30)
    assert 2 * TILE in model.sizes
    assert 3 * TILE not in model.sizes
    assert 4 * TILE not in model.sizes
    assert found == alone(model, shards, 30)


def test_one_difference_among_many_numbers_counts(make_model):
    def error(size):
        off = torch.zeros(size, 1)
        off[-1] = 1e-5 * (size == 2 * TILE)
        return off

    model = Watched(make_model(), error)
    together(model, [[[1, 20]], [[1, 21]]], 12)
    assert set(model.sizes) == {TILE}


@pytest.mark.parametrize("settings", [{"num_local_experts": 8}, {"rope_parameters": {"rope_type": "dynamic"}}])
def test_networks_that_mix_tokens_pass_shards_one_by_one(make_model, settings):
    model = Watched(make_model())
    for name, value in settings.items():
        setattr(model.config, name, value)
    together(model, [[[1, 20]], [[1, 21]]], 12)
    assert set(model.sizes) == {TILE}


def test_passes_have_a_limit(make_model, monkeypatch):
    monkeypatch.setattr(joint, "LIMIT", 2 * TILE)
    model = Watched(make_model())
    shards = [[[1, 20 + i]] for i in range(5)]
    found = together(model, shards, 12)
    assert max(model.sizes) == 2 * TILE
    assert found == alone(model, shards, 12)


def test_passes_have_more_tokens_than_the_network_has_positions(make_model):
    model = Watched(make_model("gpt2", n_positions=64, max_position_embeddings=64))
    shards = [[[1, 20 + i]] for i in range(6)]
    found = together(model, shards, 12)
    assert max(model.sizes) > model.context == 64
    assert found == alone(model, shards, 12)


def test_the_proof_takes_enough_numbers_and_is_taken_once(make_model, monkeypatch):
    compared = []
    compare = joint.Agreement.compare

    def watched(self, faster, other):
        compared.append(sum(int(result.count_nonzero()) for result in faster))
        compare(self, faster, other)

    monkeypatch.setattr(joint.Agreement, "compare", watched)
    engine = NativeEngine(Watched(make_model()))
    shards = [[[1, 20]], [[1, 21]]]
    for _ in range(3):
        engine.generate_shards(shards, 12, Sampling(max_tokens=9), generators=generators(shards))
        assert 2 * 10_000 <= sum(compared) < 2 * 10_000 + 2 * max(compared), "passes of 16 and 32 tokens"


def test_shards_without_prompts_have_no_answers(make_model):
    assert together(Watched(make_model()), [[], []]) == [[], []]


def test_bad_prompts_and_counts(make_model):
    model = make_model()
    with pytest.raises(ValueError, match="at least one token, and count must be at least 1"):
        together(model, [[[1]], [[]]])
    with pytest.raises(ValueError, match="at least one token, and count must be at least 1"):
        together(model, [[[1]]], 0)


def test_an_interruption_ends_sampling(make_model):
    engine = NativeEngine(make_model(), interrupted=iter([False, False, True]).__next__)
    with pytest.raises(StoppedError, match="interrupted during sampling"):
        engine.generate_shards([[[1]], [[1, 5]]], 2, Sampling(max_tokens=9), generators=generators([0, 1]))
