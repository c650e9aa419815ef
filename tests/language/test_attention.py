import logging

import pytest
import torch

from operant.language.attention import NAME, Segment, Segments, dot_product_attention
from operant.language.models import LanguageModel
from operant.language.packing import Sample, pack

SEGMENTS = [
    Segment(0, 5),
    Segment(5, 3, 0),
    Segment(8, 1, 0),
    Segment(9, 9, 0),
    Segment(18, 1),
    Segment(19, 4, 4),
    Segment(23, 6),
    Segment(29, 2, 3),
    Segment(31, 1, 3),
    Segment(32, 3, 7),
]


def seen(segments, n, window):
    """List the tokens that each token attends to."""
    rows = {}
    for segment in segments:
        before = []
        parent = segment.parent
        while parent is not None:
            start, length, parent = segments[parent]
            before = [*range(start, start + length), *before]
        for i in range(segment.length):
            whole = before + list(range(segment.start, segment.start + i + 1))
            rows[segment.start + i] = whole[-window:] if window else whole
    return [rows[i] for i in range(n)]


def brute_force(queries, keys, values, segments, *, scale, window):
    """Compute attention token by token and head by head."""
    share = queries.shape[1] // keys.shape[1]
    found = torch.zeros_like(queries)
    for token, others in enumerate(seen(segments, len(queries), window)):
        for head in range(queries.shape[1]):
            products = keys[others, head // share] @ queries[token, head] * scale
            found[token, head] = products.softmax(0) @ values[others, head // share]
    return found


def tensors(n, heads, key_heads, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, h, 8, generator=generator, dtype=torch.float64) for h in (heads, key_heads, key_heads)]


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (4, 2), (3, 1)])
def test_each_token_sees_its_own_past_and_its_ancestors(heads, key_heads, window):
    rows = tensors(35, heads, key_heads)
    layout = Segments(SEGMENTS)
    for scale in (0.3, 0.7):
        found = layout.attend(0, *rows, scale=scale, window=window)
        torch.testing.assert_close(found, brute_force(*rows, SEGMENTS, scale=scale, window=window))


def test_layers_with_and_without_a_window_share_a_layout():
    rows, layout = tensors(35, 2, 2), Segments(SEGMENTS)
    for window in (None, 2, None, 2):
        found = layout.attend(0, *rows, scale=0.5, window=window)
        torch.testing.assert_close(found, brute_force(*rows, SEGMENTS, scale=0.5, window=window))


def test_gradients_are_those_of_the_brute_force():
    found = []
    for attend in (Segments(SEGMENTS).attend, None):
        rows = [row.requires_grad_() for row in tensors(35, 4, 2)]
        if attend:
            answer = attend(0, *rows, scale=0.5, window=None)
        else:
            answer = brute_force(*rows, SEGMENTS, scale=0.5, window=None)
        answer.sin().sum().backward()
        found.append([row.grad for row in rows])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 33], [40] * 6])
def test_sequences_of_any_lengths(lengths):
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    segments = [Segment(start, length) for start, length in zip(starts, lengths, strict=True)]
    rows = tensors(sum(lengths), 2, 2)
    found = Segments(segments).attend(0, *rows, scale=0.5, window=None)
    torch.testing.assert_close(found, brute_force(*rows, segments, scale=0.5, window=None))


def test_many_children_of_one_parent():
    segments = [Segment(0, 6), *(Segment(6 + 2 * i, 2, 0) for i in range(50))]
    rows = tensors(106, 2, 1)
    found = Segments(segments).attend(0, *rows, scale=0.5, window=None)
    torch.testing.assert_close(found, brute_force(*rows, segments, scale=0.5, window=None))


@pytest.mark.parametrize("parent", [1, 2, -1])
def test_a_parent_that_does_not_come_before_is_rejected(parent):
    with pytest.raises(ValueError, match=f"segment 1 has the parent {parent}, which does not come before it"):
        Segments([Segment(0, 2), Segment(2, 2, parent), Segment(4, 2)])


def test_a_softcap_in_attention_is_rejected(make_network, characters):
    model = LanguageModel(make_network("gemma2", attn_logit_softcapping=50.0), characters, stop=frozenset({2}))
    with pytest.raises(
        ValueError, match=r"Gemma2Attention uses softcap \(.*\), which packed sequences do not"
    ) as caught:
        model.log_probs(pack([Sample([1, 4], [5, 2])]))
    assert "dropout" not in str(caught.value)


def test_dropout_in_attention_is_rejected(make_model):
    model = make_model()
    for module in model.network.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.1
    with pytest.raises(ValueError, match=r"uses dropout.*set attention_dropout to 0"):
        model.log_probs(pack([Sample([1, 4], [5, 2])]))


def test_a_model_without_an_attention_interface_is_rejected(characters, caplog):
    from transformers import AutoModelForCausalLM, BloomConfig

    network = AutoModelForCausalLM.from_config(BloomConfig(vocab_size=99, hidden_size=16, n_layer=1, n_head=2))
    with caplog.at_level(logging.ERROR, "transformers"), pytest.raises(ValueError, match=r"Bloom.*own attention"):
        LanguageModel(network, characters, stop=frozenset({2}))


def test_a_model_with_recurrent_layers_is_rejected(characters):
    from transformers import AutoModelForCausalLM, MambaConfig

    network = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=99, hidden_size=16, num_hidden_layers=1))
    with pytest.raises(ValueError, match=r"MambaForCausalLM has recurrent layers.*use a model with attention only"):
        LanguageModel(network, characters, stop=frozenset({2}))


def test_without_a_layout_a_model_attends_as_before(make_network):
    network = make_network("mistral").eval()
    ids = torch.arange(3, 15).view(1, -1)
    expected = network(input_ids=ids).logits
    from operant.language.attention import install

    install(network)
    assert network.config._attn_implementation == NAME
    torch.testing.assert_close(network(input_ids=ids).logits, expected)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.int64), ids], 1)
    mask = (torch.arange(15) >= 3).long().view(1, -1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = network(input_ids=padded, attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(logits[:, 3:], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_attention_of_any_shape_is_the_softmax_without_a_plan_for_each_shape(key_heads, device):
    torch.manual_seed(0)
    for length in (5, 8, 33):
        queries = torch.randn(3, 4, 6, 16, requires_grad=True)
        keys, values = torch.randn(2, 3, key_heads, length, 16).unbind()
        mask = torch.rand(3, 1, 6, length) < 0.7
        mask[..., 0] = True
        repeated, seen = (tensor.repeat_interleave(4 // key_heads, 1) for tensor in (keys, values))
        scores = (0.3 * queries @ repeated.transpose(2, 3)).masked_fill(~mask, -torch.inf)
        expected = scores.softmax(-1) @ seen
        (gradient,) = torch.autograd.grad(expected.square().sum(), queries)
        queries_there = queries.detach().to(device).requires_grad_()
        with torch.profiler.profile() as profile:
            found = dot_product_attention(queries_there, keys.to(device), values.to(device), mask.to(device), scale=0.3)
        (gradient_there,) = torch.autograd.grad(found.square().sum(), queries_there)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(gradient_there.cpu(), gradient, rtol=1e-3, atol=1e-3)
        assert not [event.key for event in profile.key_averages() if "cudnn" in event.key]
