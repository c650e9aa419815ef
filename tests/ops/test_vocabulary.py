import inspect
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from operant.ops.vocabulary import token_log_probs

FAST = settings(max_examples=30, deadline=None)
SEEDS = st.integers(0, 2**31)
CHUNKS = st.sampled_from([None, 1, 7, 40, 1000])
FORMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0.3, 3.0),
        "softcap": st.floats(0.5, 20.0),
        "scale": st.floats(0.2, 3.0),
    },
)


def batch(
    seed: int, *, tokens: int = 9, choices: int = 17, width: int = 5, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return hidden states, an embedding, targets and a bias, all but the targets with a gradient."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((tokens, width), (choices, width), (choices,))
    hidden, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes
    )
    return hidden, weight, torch.randint(choices, (tokens,), generator=generator), bias


def plain(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Compute the same from the matrix of all logits."""
    logits = scale * torch.nn.functional.linear(hidden, weight, bias)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    log_probs = torch.log_softmax(logits / temperature, -1)
    return log_probs.gather(1, targets[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(-1)


def test_one_token_worked_by_hand():
    hidden, weight = torch.tensor([[2.0]]), torch.tensor([[0.0], [1.0]]).log1p()  # logits 0 and 2 log 2: 1 and 4 of 5
    log_probs, entropies = token_log_probs(hidden, weight, torch.tensor([1]), entropy=True)
    torch.testing.assert_close(log_probs, torch.tensor([math.log(0.8)]))
    torch.testing.assert_close(entropies, torch.tensor([-0.8 * math.log(0.8) - 0.2 * math.log(0.2)]))
    halved = token_log_probs(hidden, weight, torch.tensor([1]), temperature=2.0)  # 1 and 2 of 3
    torch.testing.assert_close(halved, torch.tensor([math.log(2 / 3)]))
    biased = token_log_probs(hidden, weight, torch.tensor([1]), bias=torch.tensor([math.log(4.0), 0.0]))
    torch.testing.assert_close(biased, torch.tensor([math.log(0.5)]))
    far = token_log_probs(1000 * hidden, weight, torch.tensor([0]), softcap=math.log(3.0))  # tanh is 1: 1 and 3 of 4
    torch.testing.assert_close(far, torch.tensor([math.log(0.25)]))


def test_gradient_of_one_token_worked_by_hand():
    hidden, weight = torch.zeros(1, 1, requires_grad=True), torch.tensor([[1.0], [5.0]], requires_grad=True)
    token_log_probs(hidden, weight, torch.tensor([1])).sum().backward()  # p = 1/2 each: 5 - (1 + 5) / 2
    assert hidden.grad is not None
    assert hidden.grad.tolist() == [[2.0]]


@FAST
@given(SEEDS, FORMS, CHUNKS, st.booleans())
def test_values_and_gradients_are_those_of_the_whole_logits(
    seed: int, form: dict[str, float], chunk: int | None, biased: bool
):
    hidden, weight, targets, bias = batch(seed)
    inputs = [hidden, weight, bias] if biased else [hidden, weight]
    offset = bias if biased else None
    actual = token_log_probs(hidden, weight, targets, bias=offset, **form, entropy=True, chunk=chunk)  # pyright: ignore[reportCallIssue, reportArgumentType]
    expected = plain(hidden, weight, targets, bias=offset, **form)
    upstream = torch.randn(2, len(targets), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for value, twin in zip(actual, expected, strict=True):
        torch.testing.assert_close(value, twin)
    for parts in ((0,), (1,), (0, 1)):
        loss, twin = (sum((upstream[i] * results[i]).sum() for i in parts) for results in (actual, expected))
        gradients = torch.autograd.grad(loss, inputs, retain_graph=True)
        for gradient, other in zip(gradients, torch.autograd.grad(twin, inputs, retain_graph=True), strict=True):
            torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("chunk", [None, 20])
@pytest.mark.parametrize("form", [{}, {"temperature": 0.7, "softcap": 3.0, "scale": 1.5}])
def test_gradients(chunk: int | None, form: dict[str, Any]):
    hidden, weight, targets, bias = batch(0, tokens=4, choices=6, width=3)
    assert torch.autograd.gradcheck(
        lambda h, w, b: token_log_probs(h, w, targets, bias=b, **form, entropy=True, chunk=chunk),
        (hidden, weight, bias),
    )


@FAST
@given(SEEDS, FORMS, CHUNKS)
def test_probabilities_of_all_tokens_sum_to_one_and_give_the_entropy(
    seed: int, form: dict[str, float], chunk: int | None
):
    hidden, weight, _, bias = batch(seed, tokens=1)
    log_probs, entropies = token_log_probs(
        hidden.expand(17, -1), weight, torch.arange(17), bias=bias, **form, entropy=True, chunk=chunk
    )  # pyright: ignore[reportCallIssue, reportArgumentType]
    torch.testing.assert_close(log_probs.exp().sum().item(), 1.0)
    torch.testing.assert_close(entropies, -(log_probs.exp() * log_probs).sum().expand(17))


def test_a_zero_embedding_is_uniform():
    hidden, weight, targets, _ = batch(1)
    log_probs, entropies = token_log_probs(hidden, torch.zeros_like(weight), targets, entropy=True, chunk=40)
    torch.testing.assert_close(log_probs, torch.full_like(log_probs, -math.log(17)))
    torch.testing.assert_close(entropies, torch.full_like(entropies, math.log(17)))


@FAST
@given(SEEDS, CHUNKS, st.floats(-1e3, 1e3))
def test_a_shift_of_all_logits_changes_nothing(seed: int, chunk: int | None, shift: float):
    hidden, weight, targets, bias = batch(seed)
    expected = token_log_probs(hidden, weight, targets, bias=bias, entropy=True, chunk=chunk)
    shifted = token_log_probs(hidden, weight, targets, bias=bias + shift, entropy=True, chunk=chunk)
    for value, twin in zip(shifted, expected, strict=True):
        torch.testing.assert_close(value, twin, rtol=1e-7, atol=1e-7)


@FAST
@given(SEEDS, CHUNKS)
def test_the_order_of_tokens_and_of_the_vocabulary_does_not_matter(seed: int, chunk: int | None):
    hidden, weight, targets, bias = batch(seed)
    expected = token_log_probs(hidden, weight, targets, bias=bias, chunk=chunk)
    generator = torch.Generator().manual_seed(seed)
    tokens, choices = torch.randperm(9, generator=generator), torch.randperm(17, generator=generator)
    shuffled = token_log_probs(
        hidden[tokens], weight[choices], choices.argsort()[targets[tokens]], bias=bias[choices], chunk=chunk
    )
    torch.testing.assert_close(shuffled, expected[tokens])


def test_only_the_gradients_that_are_asked_for_are_computed():
    for asked in ((0,), (1,), (2,), (0, 2)):
        inputs = list(batch(2))
        hidden, weight, targets, bias = inputs
        wanted = [(hidden, weight, bias)[i] for i in asked]
        expected = torch.autograd.grad(plain(hidden, weight, targets, bias=bias)[0].sum(), wanted)
        for i, tensor in enumerate((hidden, weight, bias)):
            tensor.requires_grad_(i in asked)
        token_log_probs(hidden, weight, targets, bias=bias, chunk=30).sum().backward()
        for i, tensor in enumerate((hidden, weight, bias)):
            assert (tensor.grad is not None) == (i in asked)
        for tensor, gradient in zip(wanted, expected, strict=True):
            torch.testing.assert_close(tensor.grad, gradient)
    with torch.no_grad():
        assert not token_log_probs(hidden, weight, targets).requires_grad


@pytest.mark.parametrize("chunk", [None, 5])
def test_no_tokens_give_nothing_and_zero_gradients(chunk: int | None):
    hidden, weight, targets, bias = batch(3, tokens=0)
    log_probs, entropies = token_log_probs(hidden, weight, targets, bias=bias, entropy=True, chunk=chunk)
    assert log_probs.shape == entropies.shape == (0,)
    (log_probs.sum() + entropies.sum()).backward()
    for tensor in (hidden, weight, bias):
        assert tensor.grad is not None
        assert tensor.grad.shape == tensor.shape
        assert (tensor.grad == 0).all()


@pytest.mark.parametrize("chunk", [None, 100])
def test_backward_may_be_called_twice(chunk: int | None):
    hidden, weight, targets, _ = batch(4)
    loss = token_log_probs(hidden, weight, targets, chunk=chunk).sum()
    first = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    second = torch.autograd.grad(loss, (hidden, weight))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_second_derivatives_are_rejected():
    hidden, weight, targets, _ = batch(5)
    loss = token_log_probs(hidden, weight, targets).sum()
    with pytest.raises(RuntimeError, match="token_log_probs has no second derivatives: call backward or grad with"):
        torch.autograd.grad(loss, hidden, create_graph=True)


def test_single_precision_is_exact_to_1e_5():
    hidden, weight, targets, _ = batch(6, tokens=200, choices=3000, width=64, dtype=torch.float32)
    expected = plain(hidden.double(), weight.double(), targets)
    for chunk in (None, 2**14):
        actual = token_log_probs(hidden, weight, targets, entropy=True, chunk=chunk)
        for value, twin in zip(actual, expected, strict=True):
            torch.testing.assert_close(value, twin.float(), rtol=1e-5, atol=1e-5)
        gradients = torch.autograd.grad(actual[0].mean() + actual[1].mean(), (hidden, weight))
        twins = torch.autograd.grad(expected[0].mean() + expected[1].mean(), (hidden, weight), retain_graph=True)
        for gradient, twin in zip(gradients, twins, strict=True):
            torch.testing.assert_close(gradient, twin, rtol=1e-4, atol=1e-6)


def test_a_certain_token_keeps_its_small_entropy():
    hidden, weight = torch.tensor([[20.0]]), torch.tensor([[5.0], [4.0]])  # logits 100 and 80
    log_probs, entropies = token_log_probs(hidden, weight, torch.tensor([0]), entropy=True)
    assert entropies.item() == pytest.approx(21 * math.exp(-20.0), rel=0.06)
    assert -1e-7 <= log_probs.item() <= 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("chunk", [None, 2**10])
def test_half_precision_logits_are_not_rounded(dtype: torch.dtype, chunk: int | None):
    hidden, weight, targets, bias = batch(7, tokens=50, choices=300, width=32, dtype=dtype)
    wide = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight, bias)]
    expected = plain(wide[0], wide[1], targets, bias=wide[2], temperature=0.5)[0]
    actual = token_log_probs(hidden, weight, targets, bias=bias, temperature=0.5, chunk=chunk)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected.float(), rtol=1e-5, atol=1e-5)
    twins = torch.autograd.grad(expected.sum(), wide)
    for gradient, twin in zip(torch.autograd.grad(actual.sum(), (hidden, weight, bias)), twins, strict=True):
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient, twin.to(dtype), rtol=1e-2, atol=1e-4)


def test_autocast_does_not_round_either():
    hidden, weight, targets, _ = batch(8, dtype=torch.float32)
    expected = token_log_probs(hidden, weight, targets, chunk=40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = token_log_probs(hidden, weight, targets, chunk=40)
    assert torch.equal(actual, expected)


def test_the_full_logits_are_never_in_memory():
    hidden, weight, targets, _ = batch(9, tokens=64, choices=5000, width=4, dtype=torch.float32)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                largest = max(largest, result.numel())
            return result

    with Watch():
        log_probs, entropies = token_log_probs(hidden, weight, targets, entropy=True, chunk=2**12)
        (log_probs.sum() + entropies.sum()).backward()
    assert largest == weight.numel(), "a tile has at most 4096 elements, the embedding 20 000, the logits 320 000"


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("chunk", [None, 2**12])
def test_a_cuda_device_gives_the_same(dtype: torch.dtype, tolerance: float, chunk: int | None):
    hidden, weight, targets, bias = batch(10, tokens=64, choices=1000, width=32, dtype=dtype)
    expected = token_log_probs(hidden, weight, targets, bias=bias, entropy=True)
    there = [tensor.detach().cuda().requires_grad_() for tensor in (hidden, weight, bias)]
    actual = token_log_probs(there[0], there[1], targets.cuda(), bias=there[2], entropy=True, chunk=chunk)
    for value, twin in zip(actual, expected, strict=True):
        torch.testing.assert_close(value.cpu(), twin, rtol=1e-4, atol=1e-4)
    gradients = torch.autograd.grad(actual[0].sum() + actual[1].sum(), there)
    twins = torch.autograd.grad(expected[0].sum() + expected[1].sum(), (hidden, weight, bias))
    for gradient, twin in zip(gradients, twins, strict=True):
        torch.testing.assert_close(gradient.cpu(), twin, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, r"temperature is 0\.0, expected a positive number"),
        ({"softcap": -1.0}, r"softcap is -1\.0, expected a positive number"),
        ({"scale": math.nan}, "scale is nan, expected a positive number"),
        ({"chunk": 0}, "chunk is 0, expected a positive number"),
        ({"targets": torch.tensor([1, 2, -100])}, "targets contain -100, expected token ids from 0 to 16: omit"),
        ({"targets": torch.tensor([1, 17, 2])}, "targets contain 17, expected token ids from 0 to 16"),
        ({"targets": torch.tensor([1, 2])}, r"targets has shape \(2,\), expected \(3,\)"),
        ({"weight": torch.zeros(17, 4)}, r"hidden has shape \(3, 5\) and weight \(17, 4\), expected \[n, H\]"),
        ({"hidden": torch.zeros(1, 3, 5)}, r"hidden has shape \(1, 3, 5\)"),
        ({"bias": torch.zeros(5)}, r"bias has shape \(5,\), expected \(17,\)"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str):
    hidden, weight, targets, _ = batch(0, tokens=3)
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(token_log_probs)(**{"hidden": hidden, "weight": weight, "targets": targets, **change})
