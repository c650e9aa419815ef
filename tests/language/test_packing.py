import pytest
import torch

from operant import ops
from operant.language.packing import Sample, group_batches, micro_batches, pack, step_weights, take

KINDS = ["llama", "llama-tied", "qwen3", "mistral", "gpt2", "gemma2", "gemma3", "phi", "cohere", "granite"]


def draw(lengths, *, seed=0, vocabulary=99):
    """Return samples with prompts and completions of the given lengths, in groups that share a prompt."""
    generator = torch.Generator().manual_seed(seed)

    def ids(count):
        return torch.randint(3, vocabulary, (count,), generator=generator).tolist()

    return [Sample(prompt, ids(n)) for p, completions in lengths for prompt in [ids(p)] for n in completions]


SAMPLES = draw([(7, (5, 1, 11)), (1, (3,)), (2, (9, 9)), (0, (6,)), (12, (2, 4))])


def alone(model, samples):
    """Compute log-probabilities of each sample by a plain forward pass, without code of the package."""
    found = []
    for prompt, completion, mask in samples:
        ids = torch.tensor([[*prompt, *completion]])
        logits = model.network(input_ids=ids, use_cache=False).logits[0]
        log_probs = logits.log_softmax(-1)
        live = mask or [True] * len(completion)
        places = [i for i, counts in zip(range(len(prompt), ids.shape[1]), live, strict=True) if counts and i]
        found.append(torch.stack([log_probs[i - 1, ids[0, i]] for i in places]))
    return found


def gradients(model):
    return torch.cat([p.grad.flatten() for p in model.trained().values() if p.grad is not None])


def sft_loss(model, samples, **options):
    """Return the mean over tokens of the negative log-probability, and run its backward pass."""
    model.network.zero_grad()
    batch = pack(samples, **options)
    weights = ops.token_weights(batch.lengths, how="token_mean")
    loss = -(weights[batch.owner] * model.log_probs(batch)[0]).sum()
    loss.backward()
    return loss.detach(), gradients(model)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_gives_what_each_sequence_gives_alone(make_model, kind):
    model = make_model(kind)
    loss, gradient = sft_loss(model, SAMPLES)
    flat = torch.cat(alone(model, SAMPLES))
    torch.testing.assert_close(model.log_probs(pack(SAMPLES))[0], flat, atol=1e-5, rtol=1e-5)
    model.network.zero_grad()
    (-flat.mean()).backward()
    torch.testing.assert_close(loss, -flat.mean().detach(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(gradient, gradients(model), atol=1e-5, rtol=1e-4)
    assert gradient.abs().max() > 0.01


def test_in_double_precision_it_is_the_same_to_rounding(make_model):
    model = make_model("gpt2", dtype=torch.float64)
    found = []
    for log_probs in (model.log_probs(pack(SAMPLES))[0], torch.cat(alone(model, SAMPLES))):
        model.network.zero_grad()
        log_probs.mean().backward()
        found.append((log_probs.detach(), gradients(model)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-10)


ALIKE = [
    *(Sample([1, 5, 6], completion) for completion in ([20, 21, 22, 2], [20, 21, 22, 2], [20, 30, 2], [20, 21, 2])),
    *(Sample([1, 5, 7], completion) for completion in ([20, 21, 22, 2], [20], [20, 21, 23, 24, 25, 2])),
    *(Sample([], completion) for completion in ([1, 8, 9], [1, 8], [4, 8, 9])),
    Sample([1, 5, 6], [20, 21, 22, 2], [False, True, False, True]),
]
"""Answers with common beginnings, or equal answers; the number of tokens with and without sharing:"""
TOKENS = {
    True: 3 + 7 + 3 + 8 + 6 + 7,
    False: 4 * 3 + 14 + 3 * 3 + 11 + 8 + 7,
}


@pytest.mark.parametrize("samples", [SAMPLES, ALIKE])
@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2"])
def test_sharing_prefixes_changes_no_result(make_model, kind, samples):
    model = make_model(kind)
    expected = sft_loss(model, samples, share=False)
    torch.testing.assert_close(model.log_probs(pack(samples))[0], torch.cat(alone(model, samples)), atol=1e-5, rtol=0)
    for options in ({}, {"ends": False}, {"share": False, "ends": False}):
        for one, other in zip(sft_loss(model, samples, **options), expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_batch_has_one_copy_of_what_is_shared():
    for share, tokens in TOKENS.items():
        assert len(pack(ALIKE, share=share).ids) == tokens
    shared, apart = pack(SAMPLES), pack(SAMPLES, share=False)
    assert len(shared.ids) == sum(len(s.completion) for s in SAMPLES) + 7 + 1 + 2 + 12
    assert len(apart.ids) == sum(len(s.prompt) + len(s.completion) for s in SAMPLES)
    for share in TOKENS:
        batch = pack(ALIKE, share=share)
        assert batch.ids[batch.last].tolist() == [sample.completion[-1] for sample in ALIKE]
        assert batch.positions[batch.last].tolist() == [len(s.prompt) + len(s.completion) - 1 for s in ALIKE]


def test_tokens_that_predict_nothing_can_be_left_out():
    batch = pack(ALIKE, ends=False)
    ended = pack(ALIKE)
    assert len(batch.ids) == TOKENS[True] - (3 + 2 + 2 + 1)  # tokens at the ends, which no other answer shares
    assert len(batch.last) == 0
    for name in ("targets", "owner", "lengths"):
        assert torch.equal(getattr(batch, name), getattr(ended, name))
    assert batch.ids[batch.before].tolist() == ended.ids[ended.before].tolist()
    assert pack([Sample([1, 5], [6])], ends=False).ids.tolist() == [1, 5]


def test_tokens_that_are_not_shared_are_consecutive():
    batch = pack(ALIKE, share=False)
    for last, sample in zip(batch.last.tolist(), ALIKE, strict=True):
        own = [*sample.prompt, *sample.completion]
        assert batch.ids[last + 1 - len(own) : last + 1].tolist() == own


def test_the_order_of_the_batch_changes_nothing(make_model):
    model = make_model()
    order = [4, 8, 0, 6, 2, 5, 1, 7, 3]
    straight, shuffled = sft_loss(model, SAMPLES), sft_loss(model, take(SAMPLES, order))
    for one, other in zip(straight, shuffled, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    packed = pack(take(SAMPLES, order))
    rows = model.log_probs(packed)[0].split(packed.lengths.tolist())
    for position, row in zip(order, rows, strict=True):
        (expected,) = alone(model, [SAMPLES[position]])
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("how", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize("tokens", [1, 10, 20, 25, 1000])
def test_the_division_into_micro_batches_changes_nothing(make_model, how, tokens):
    model = make_model("gpt2", dtype=torch.float64)

    def accumulated(most):
        model.network.zero_grad()
        parts = [take(SAMPLES, part) for part in micro_batches(SAMPLES, tokens=most)]
        packed = [pack(part) for part in parts]
        weights = ops.token_weights(torch.cat([p.lengths for p in packed]), how=how)
        total = torch.zeros((), dtype=torch.float64)
        for batch, weight in zip(packed, weights.split([len(part) for part in parts]), strict=True):
            loss = -(weight.double()[batch.owner] * model.log_probs(batch)[0]).sum()
            loss.backward()
            total += loss.detach()
        return total, gradients(model)

    for one, other in zip(accumulated(tokens), accumulated(10_000), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-10)


def test_sequences_of_a_pack_are_independent(make_model):
    model = make_model()
    one, other = (draw([(5, (4,)), (6, (7,))], seed=seed) for seed in (0, 1))
    mixed = [other[0], one[1]]
    first, second = (model.log_probs(pack(samples))[0][4:] for samples in (one, mixed))
    torch.testing.assert_close(first, second, atol=1e-6, rtol=0)
    hidden = model.read(pack(one))
    (edge,) = torch.autograd.grad(hidden[-1].sum(), [model.network.get_input_embeddings().weight], retain_graph=True)
    touched = edge.abs().sum(1).nonzero().flatten().tolist()
    assert set(touched) <= {*one[1].prompt, *one[1].completion}


def test_the_layout_of_a_batch():
    samples = [
        Sample([1, 5], [6, 2]),
        Sample([1, 5], [7, 8, 2], [True, False, True]),
        Sample([], [9, 3, 2]),
        Sample([1, 5], [2]),
    ]
    batch = pack(samples)
    assert batch.ids.tolist() == [1, 5, 6, 2, 7, 8, 2, 9, 3, 2, 1, 5, 2]
    assert batch.positions.tolist() == [0, 1, 2, 3, 2, 3, 4, 0, 1, 2, 0, 1, 2]
    assert batch.before.tolist() == [1, 2, 1, 5, 7, 8, 11]
    assert batch.targets.tolist() == [6, 2, 7, 2, 3, 2, 2]
    assert batch.owner.tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert batch.lengths.tolist() == [2, 2, 2, 1]
    assert batch.last.tolist() == [3, 6, 9, 12]


def test_tokens_that_do_not_count_are_read_but_not_trained(make_model):
    model = make_model()
    mask = [True, False, False, True, True]
    (sample,) = draw([(4, (5,))])
    whole = model.log_probs(pack([sample]))[0]
    masked = model.log_probs(pack([sample._replace(mask=mask)]))[0]
    torch.testing.assert_close(masked, whole[torch.tensor(mask)])


def test_a_batch_in_which_nothing_counts_has_a_loss_of_zero(make_model):
    model = make_model()
    (sample,) = draw([(4, (2,))])
    loss, gradient = sft_loss(model, [sample._replace(mask=[False, False])])
    assert loss == 0
    assert (gradient == 0).all()


def test_micro_batches_count_a_shared_prompt_once():
    assert micro_batches(SAMPLES[:3], tokens=24) == [[0, 1, 2]]
    assert micro_batches(SAMPLES[:3], tokens=23) == [[0, 1], [2]]
    assert micro_batches(SAMPLES[:3], tokens=12) == [[0], [1], [2]]
    assert micro_batches(SAMPLES[:3], tokens=1) == [[0], [1], [2]], "a longer sample forms a separate part"
    assert micro_batches([], tokens=5) == []


def test_shards_are_divided_separately():
    samples = [SAMPLES[0]] * 7
    assert micro_batches(samples, tokens=10_000, shards=4) == [[0], [1, 2], [3, 4], [5, 6]]
    assert micro_batches(samples, tokens=1, shards=2) == [[i] for i in range(7)]
    assert micro_batches(samples[:2], tokens=10_000, shards=4) == [[0], [1]], "two shards are empty"
    assert group_batches([SAMPLES[:3], SAMPLES[4:6], SAMPLES[7:9]], tokens=10_000, shards=2) == [[0], [1, 2]]


def test_groups_are_not_parted():
    groups = [SAMPLES[:3], SAMPLES[4:6], SAMPLES[7:9]]  # 24, 20 and 18 tokens
    assert group_batches(groups, tokens=62) == [[0, 1, 2]]
    assert group_batches(groups, tokens=61) == [[0, 1], [2]]
    assert group_batches(groups, tokens=40) == [[0], [1, 2]]
    assert group_batches(groups, tokens=1) == [[0], [1], [2]]
    assert group_batches([groups[0][:2], groups[0][1:]], tokens=7 + 5 + 1 + 1 + 11) == [[0, 1]], "the prompt is shared"


@pytest.mark.parametrize("tokens", [13, 20, 31, 64])
def test_micro_batches_keep_the_limit_and_the_order(tokens):
    parts = micro_batches(SAMPLES, tokens=tokens)
    assert [i for part in parts for i in part] == list(range(len(SAMPLES)))
    assert all(len(pack(take(SAMPLES, part)).ids) <= tokens or len(part) == 1 for part in parts)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "at least one sample"),
        ([Sample([1], [2]), Sample([1, 4], [])], "sample 1 has a prompt of 2 and a completion of 0 tokens"),
        ([Sample([], [2])], "sample 0 has a prompt of 0 and a completion of 1 tokens"),
        ([Sample([1], [4, 2], [True])], "sample 0 has 2 completion tokens but a mask of 1"),
    ],
)
def test_invalid_samples_are_rejected(samples, message):
    with pytest.raises(ValueError, match=message):
        pack(samples)


@pytest.mark.parametrize(
    ("how", "expected"),
    [("sequence_mean", [0.25, 0.0625]), ("token_mean", [0.1, 0.1]), ("constant", [1 / 32, 1 / 32])],
)
def test_weights_of_answers_of_2_and_8_tokens(how, expected):
    samples = [Sample([1, 5], [3] * n) for n in (2, 5, 8)]
    for parts in ([[0, 2]], [[2], [0]]):
        found = step_weights(samples, parts, how=how, longest=16)
        torch.testing.assert_close(found, torch.tensor([expected[0], 0, expected[1]]))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("token_mean", [1 / 6, 0.0, 0.0, 1 / 6, 0.0]),
        ("sequence_mean", [1 / 2 / 3, 0.0, 0.0, 1 / 2 / 3, 0.0]),
        ("constant", [1 / 2 / 8, 0.0, 0.0, 1 / 2 / 8, 0.0]),
    ],
)
def test_weights_are_those_of_the_step_and_0_elsewhere(how, expected):
    samples = [Sample([1, 5], [3] * n) for n in (3, 2, 1, 3, 5)]
    found = step_weights(samples, [[3], [0]], how=how, longest=8)
    torch.testing.assert_close(found, torch.tensor(expected))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("token_mean", [1 / 6, 0.0, 0.0, 1 / 6, 0.0]),  # only tokens that are trained
        ("sequence_mean", [1 / 4 / 3, 0.0, 0.0, 1 / 4 / 3, 0.0]),
        ("constant", [1 / 4 / 8, 0.0, 0.0, 1 / 4 / 8, 0.0]),
    ],
)
def test_answers_that_were_masked_stay_in_the_denominators_of_sequences(how, expected):
    samples = [Sample([1, 5], [3] * n) for n in (3, 2, 1, 3, 5)]
    found = step_weights(samples, [[3], [0]], how=how, longest=8, answers=4)
    torch.testing.assert_close(found, torch.tensor(expected))
