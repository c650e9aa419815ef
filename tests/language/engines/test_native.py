import math

import pytest
import torch

from operant.language.engines import native
from operant.language.engines.native import NativeEngine, draw
from operant.language.engines.protocol import Sampling
from operant.language.models import LanguageModel
from operant.language.packing import Sample, pack
from operant.runtime.checkpoints import NonFiniteError

PROMPTS = [[1, 20, 21], [1], [1, 40, 41, 42, 43, 44, 45], [1, 9], [1, 9, 9, 9]]
KINDS = ["llama", "llama-tied", "qwen3", "mistral", "gpt2", "gemma2", "gemma3", "phi", "cohere", "granite"]


def ask(model, prompts, count=1, *, rows=256, seed=0, **sampling):
    generator = torch.Generator().manual_seed(seed)
    return NativeEngine(model, rows=rows).generate(prompts, count, Sampling(**sampling), generator=generator)


def texts(found):
    return [[completion.ids for completion in answers] for answers in found]


def with_stop(model, *stop):
    return LanguageModel(model.network, model.tokenizer, stop=frozenset(stop))


def endless(model):
    return with_stop(model, 99)


def eager_stop(model):
    """Return a model whose stop tokens are sampled now and then, so that sequences end at different times."""
    return with_stop(model, *range(2, 12))


@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_are_those_of_the_trainer(make_model, kind):
    model = eager_stop(make_model(kind))
    found = ask(model, PROMPTS, 4, rows=3, max_tokens=20, temperature=0.7)
    samples = [Sample(p, c.ids) for p, answers in zip(PROMPTS, found, strict=True) for c in answers]
    expected, _ = model.log_probs(pack(samples), temperature=0.7)
    drawn = torch.tensor([value for answers in found for c in answers for value in c.log_probs])
    torch.testing.assert_close(drawn, expected.detach(), atol=1e-5, rtol=1e-5)
    assert len({len(c.ids) for answers in found for c in answers}) > 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_overflows_is_an_error(make_model, temperature):
    model = make_model("llama")
    with torch.no_grad():
        next(iter(model.named().values())).fill_(math.nan)
    with pytest.raises(NonFiniteError, match="logits are NaN or too large, so no token can be sampled"):
        ask(model, PROMPTS, 2, max_tokens=3, temperature=temperature)
    with pytest.raises(NonFiniteError, match="lower the learning rate"):
        list(NativeEngine(model).stream([1, 20], Sampling(3), generator=torch.Generator()))


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_answers_are_those_of_transformers(make_model, kind):
    model = make_model(kind)
    first = texts(ask(endless(model), PROMPTS, max_tokens=30, temperature=0))
    stop = sorted({answers[0][i] for answers, i in zip(first, (4, 9, 14, 19, 29), strict=True)})
    model = with_stop(model, *stop)
    found = ask(model, PROMPTS, rows=2, max_tokens=30, temperature=0)
    for prompt, (answer,) in zip(PROMPTS, found, strict=True):
        model.network.eval()
        ids = model.network.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=30,
            eos_token_id=stop,
            pad_token_id=0,
        )
        assert answer.ids == ids[0, len(prompt) :].tolist()
        assert answer.truncated == (answer.ids[-1] not in stop)
    assert any(answer.truncated for (answer,) in found) or len({len(a.ids) for (a,) in found}) > 1


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 256])
def test_the_number_of_rows_changes_nothing(make_model, rows):
    model = eager_stop(make_model())
    expected, found = (ask(model, PROMPTS, 4, rows=n, max_tokens=25) for n in (20, rows))
    assert texts(found) == texts(expected)
    for one, other in zip(found, expected, strict=True):
        for completion, twin in zip(one, other, strict=True):
            assert completion.truncated == twin.truncated
            assert completion.log_probs == pytest.approx(twin.log_probs, abs=1e-5)


def test_neighbors_of_a_sequence_change_nothing(make_model):
    model = eager_stop(make_model())
    together = texts(ask(model, PROMPTS, 4, max_tokens=25))
    beside = texts(ask(model, [PROMPTS[0], *PROMPTS[:0:-1]], 4, max_tokens=25))
    assert together[0] == beside[0]
    assert texts(ask(model, PROMPTS[:1], 4, max_tokens=25))[0] == together[0]


def test_the_limit_of_prompt_tokens_per_pass_changes_nothing(make_model, monkeypatch):
    model = eager_stop(make_model())
    expected = texts(ask(model, PROMPTS, 4, max_tokens=25))
    sizes = []
    prefill = native.Prefill.of

    def watched(prompts, device):
        sizes.append(sum(map(len, prompts)))
        return prefill(prompts, device)

    monkeypatch.setattr(native.Prefill, "of", watched)
    monkeypatch.setattr(native, "PREFILL_TOKENS", 5)
    assert texts(ask(model, PROMPTS, 4, max_tokens=25)) == expected
    assert max(sizes) == 7, "a longer prompt is processed alone"
    assert all(size <= 5 or size == 7 for size in sizes)


def test_a_group_shares_one_pass_over_its_prompt(make_model, monkeypatch):
    model = make_model()
    read = []
    hidden = model.hidden

    def watched(ids, positions, layout):
        read.append(len(ids))
        return hidden(ids, positions, layout)

    monkeypatch.setattr(model, "hidden", watched)
    ask(model, [PROMPTS[2], PROMPTS[0]], 8, max_tokens=1)
    assert read == [7 + 3]


@pytest.mark.parametrize("rows", [3, 256])
def test_a_beginning_that_answers_share_is_read_once(make_model, monkeypatch, rows):
    model = with_stop(make_model(vocab_size=6), 2, 3)
    read, hidden = [], model.hidden
    monkeypatch.setattr(model, "hidden", lambda ids, *others: read.append(len(ids)) or hidden(ids, *others))
    found = ask(model, [[1, 5], [1]], 100, rows=rows, max_tokens=4)
    paths = [{tuple(c.ids[:n]) for c in answers for n in range(1, len(c.ids))} for answers in found]
    tokens = sum(len(c.ids) - 1 for answers in found for c in answers)
    assert 2 * sum(map(len, paths)) < tokens
    if rows == 256:
        assert sum(read) == 2 + 1 + sum(map(len, paths))
    samples = [Sample(p, c.ids) for p, answers in zip([[1, 5], [1]], found, strict=True) for c in answers]
    expected, _ = model.log_probs(pack(samples))
    drawn = torch.tensor([value for answers in found for c in answers for value in c.log_probs])
    torch.testing.assert_close(drawn, expected.detach(), atol=1e-5, rtol=1e-5)


def test_chance_belongs_to_the_generator(make_model):
    model = make_model()
    first, again, other = (texts(ask(model, PROMPTS, 2, max_tokens=8, seed=seed)) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    generator = torch.Generator().manual_seed(0)
    engine = NativeEngine(model)
    one, two = (engine.generate(PROMPTS, 2, Sampling(max_tokens=8), generator=generator) for _ in range(2))
    assert texts(one) != texts(two)
    assert len({tuple(ids) for ids in texts(ask(model, PROMPTS[:1], 8, max_tokens=8))[0]}) == 8


def test_an_end_belongs_to_the_completion(make_model):
    model = make_model()
    whole = texts(ask(endless(model), PROMPTS, 2, max_tokens=40))
    stop = {whole[0][0][3], whole[2][1][0], whole[4][0][11]}
    found = ask(with_stop(model, *stop), PROMPTS, 2, max_tokens=40)
    for answers, full in zip(found, whole, strict=True):
        for answer, ids in zip(answers, full, strict=True):
            end = next((i for i, token in enumerate(ids) if token in stop), None)
            assert answer.ids == (ids if end is None else ids[: end + 1])
            assert len(answer.log_probs) == len(answer.ids)
            assert answer.truncated == (end is None)
    assert len(found[2][1].ids) == 1
    assert len({len(answer.ids) for answers in found for answer in answers}) > 3


def test_an_end_at_the_last_token_is_no_truncation(make_model):
    model = make_model()
    ((ids,),) = texts(ask(model, PROMPTS[:1], max_tokens=6, temperature=0))
    last = next(i for i in range(5, -1, -1) if ids[i] not in ids[:i])
    ((answer,),) = ask(with_stop(model, ids[last]), PROMPTS[:1], max_tokens=last + 1, temperature=0)
    assert answer.ids == ids[: last + 1]
    assert not answer.truncated


def test_padding_with_the_end_is_harmless(make_model, make_words):
    network = make_model(vocab_size=310).network
    answers = []
    for tokenizer in (make_words(), make_words(eos="<|end|>")):
        model = LanguageModel(network, tokenizer, stop=frozenset({0, 2}))
        answers.append(texts(ask(model, [[2, 50, 2, 60], [0, 0, 70]], 4, max_tokens=30)))
    assert answers[0] == answers[1]
    assert all(0 not in ids[:-1] and 2 not in ids[:-1] for found in answers[0] for ids in found)


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_one_token(make_model, temperature):
    found = ask(make_model(), PROMPTS, 3, rows=2, max_tokens=1, temperature=temperature)
    assert all(len(c.ids) == len(c.log_probs) == 1 and c.truncated for answers in found for c in answers)


def test_long_completions_next_to_short_ones(make_model):
    model = with_stop(make_model("mistral"), 20)
    found = ask(model, [[1, 30], [1] + [31] * 80], 8, rows=5, max_tokens=150)
    assert max(len(c.ids) for answers in found for c in answers) > 64
    samples = [Sample(p, c.ids) for p, answers in zip([[1, 30], [1] + [31] * 80], found, strict=True) for c in answers]
    expected, _ = model.log_probs(pack(samples))
    drawn = torch.tensor([value for answers in found for c in answers for value in c.log_probs])
    torch.testing.assert_close(drawn, expected.detach(), atol=1e-5, rtol=1e-5)


def test_new_weights_are_used_immediately(make_model):
    model = make_model()
    engine = NativeEngine(model)

    def now():
        return engine.generate(PROMPTS, 1, Sampling(max_tokens=9, temperature=0), generator=torch.Generator())

    before = texts(now())
    with torch.no_grad():
        for parameter in model.trained().values():
            parameter.mul_(-1.5)
    after = texts(now())
    assert before != after
    assert after == texts(ask(model, PROMPTS, max_tokens=9, temperature=0))


def test_sampling_leaves_no_graph(make_model):
    model = make_model()
    ask(model, PROMPTS, 2, max_tokens=4)
    assert all(parameter.grad is None for parameter in model.trained().values())


def exact(model, prompt, length, temperature):
    """Return the probability of every completion of `length` tokens, by a forward pass of transformers."""
    found = {(): 1.0}
    for _ in range(length):
        longer = {}
        for ids, probability in found.items():
            if ids and ids[-1] in model.stop:
                longer[ids] = longer.get(ids, 0.0) + probability
                continue
            with torch.no_grad():
                logits = model.network(input_ids=torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0, -1]
            for token, p in enumerate((logits / temperature).softmax(-1).tolist()):
                longer[(*ids, token)] = probability * p
        found = longer
    return found


def test_completions_have_the_probabilities_of_the_model(make_model):
    model = make_model(vocab_size=5, seed=3)
    prompts, count = [[1, 4, 3], [3]], 4000
    found = ask(model, prompts, count, rows=500, max_tokens=3, temperature=1.3)
    for prompt, answers in zip(prompts, found, strict=True):
        expected = exact(model, prompt, 3, 1.3)
        assert math.isclose(sum(expected.values()), 1, rel_tol=1e-5)
        seen = dict.fromkeys(expected, 0)
        for answer in answers:
            seen[tuple(answer.ids)] += 1
        common = [ids for ids, p in expected.items() if p * count >= 5]
        rest = [ids for ids in expected if ids not in common]
        cells = [([ids], expected[ids]) for ids in common] + [(rest, sum(expected[ids] for ids in rest))]
        chi = sum((sum(seen[i] for i in ids) - p * count) ** 2 / (p * count) for ids, p in cells if p > 0)
        freedom = len(cells) - 1
        assert freedom > 10
        assert chi < freedom + 4 * math.sqrt(2 * freedom)


def cut(logits, *, temperature, top_k, top_p):
    """Return the allowed tokens and their probabilities: one row, in plain Python."""
    weights = [math.exp(x / temperature) for x in logits]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    if top_k:
        order = order[:top_k]
    total = sum(weights[i] for i in order)
    kept, mass = [], 0.0
    for i in order:
        if mass >= top_p * total:
            break
        kept.append(i)
        mass += weights[i]
    return {i: weights[i] / mass for i in kept}


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 0.01])
@pytest.mark.parametrize("top_k", [0, 1, 3, 50])
def test_top_k_and_top_p_against_a_twin(top_k, top_p):
    generator = torch.Generator().manual_seed(top_k)
    logits = 2 * torch.randn(4, 9, generator=generator)
    sampling = Sampling(max_tokens=1, temperature=0.8, top_k=top_k, top_p=top_p)
    grid = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    for row in logits:
        (tokens,), (log_probs,) = draw(row.unsqueeze(0), sampling, grid.unsqueeze(0))
        shares = tokens.bincount(minlength=9) / len(grid)
        expected = cut(row.tolist(), temperature=0.8, top_k=top_k, top_p=top_p)
        assert {i for i in range(9) if shares[i] > 0} == set(expected)
        assert all(abs(float(shares[i]) - p) < 2e-4 for i, p in expected.items())
        torch.testing.assert_close(log_probs, (row / 0.8).log_softmax(-1)[tokens])


def test_chance_at_its_ends_draws_a_token_that_can_be_drawn():
    logits = torch.tensor([[-math.inf, 0.0, 1.0, -math.inf]])
    for chance in (0.0, 1 - 2**-53):
        tokens, _ = draw(logits, Sampling(max_tokens=1), torch.tensor([[chance]], dtype=torch.float64))
        assert tokens.item() == (1 if chance == 0 else 2)


@pytest.mark.parametrize("prompts", [[[]], [[1], []]])
def test_an_empty_prompt_is_rejected(make_model, prompts):
    with pytest.raises(ValueError, match="every prompt must have at least one token"):
        ask(make_model(), prompts, max_tokens=2)


def test_bad_numbers_are_rejected(make_model):
    with pytest.raises(ValueError, match="every prompt must have at least one token"):
        ask(make_model(), PROMPTS, 0, max_tokens=2)
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        NativeEngine(make_model(), rows=0)
    assert ask(make_model(), [], max_tokens=2) == []


def test_half_precision_stays_near_the_trainer(make_model):
    model = eager_stop(make_model(dtype=torch.bfloat16))
    found = ask(model, PROMPTS, 4, max_tokens=20)
    samples = [Sample(p, c.ids) for p, answers in zip(PROMPTS, found, strict=True) for c in answers]
    expected, _ = model.log_probs(pack(samples))
    drawn = torch.tensor([value for answers in found for c in answers for value in c.log_probs])
    gap = (drawn - expected.detach()).abs()
    assert gap.mean() < 0.02
