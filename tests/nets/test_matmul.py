import threading
import time

import pytest
import torch

from operant.nets import Program, StackedMLP, matmul, set_precision
from operant.nets.jacobian import Jacobian

BFLOAT16 = 2.0**-8


@pytest.fixture
def medium():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def bfloat16_processor(medium, monkeypatch):
    """Simulate a processor with products of bfloat16 numbers, fast or not."""
    monkeypatch.setattr(matmul, "multiplies_bfloat16", lambda: True)


@pytest.fixture
def half(monkeypatch):
    """Simulate a processor on which MKL uses half of the vectors, so that oneDNN gets large products."""
    if not matmul._onednn_is_exact():
        pytest.skip("oneDNN rounds on this processor what it may round")
    monkeypatch.setattr(matmul, "halves_vectors", lambda: True)
    monkeypatch.setattr(matmul._OneDNN, "__enter__", counted(matmul._OneDNN.__enter__))
    return matmul._OneDNN.__enter__


def counted(function):
    def wrapper(*args):
        wrapper.calls += 1
        return function(*args)

    wrapper.calls = 0
    return wrapper


@pytest.fixture
def no_bfloat16_processor(medium, monkeypatch):
    monkeypatch.setattr(matmul, "multiplies_bfloat16", lambda: False)


def operands(seeds=2, rows=64, inner=256, columns=256):
    rng = torch.Generator().manual_seed(0)
    shapes = (seeds, 1, columns), (seeds, rows, inner), (seeds, inner, columns)
    return [torch.randn(shape, generator=rng) for shape in shapes]


def rounded(tensor):
    """Return the numbers rounded to bfloat16, in 64 bits, in which their products are exact."""
    return tensor.bfloat16().double()


@pytest.fixture
def whole(monkeypatch):
    """Simulate a processor on which MKL uses whole vectors, so that it gets all products of 32-bit numbers."""
    monkeypatch.setattr(matmul, "halves_vectors", lambda: False)


def test_a_product_is_exact_to_rounding_unless_it_may_be_less(whole):
    bias, left, right = operands()
    assert not matmul.rounds(left, right)
    assert torch.equal(matmul.product(left, right), torch.bmm(left, right))
    expected = 2 * (bias.double() + left.double() @ right.double())
    torch.testing.assert_close(matmul.product(left, right, bias=bias, scale=2).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize("given", [False, True])
def test_at_medium_precision_products_are_those_of_rounded_numbers(bfloat16_processor, scale, given):
    bias, left, right = operands()
    exact = rounded(left) @ rounded(right)
    out = torch.full_like(exact, torch.nan, dtype=torch.float32) if given else None
    product = matmul.product(left, right, out=out)
    assert product.dtype == torch.float32
    assert given == (product is out)
    torch.testing.assert_close(product.double(), exact, rtol=BFLOAT16, atol=1e-3)
    assert not torch.equal(product, torch.bmm(left, right))
    both = matmul.product(left, right, bias=bias, scale=scale, out=out)
    assert both.dtype == torch.float32
    # The bias is added in 32 bits: the sum is as far off as the product.
    error = (both.double() - scale * (bias.double() + exact)).abs()
    assert (error <= scale * (BFLOAT16 * exact.abs() + 1e-3)).all()


def test_a_sum_can_take_the_place_of_its_bias(bfloat16_processor):
    _, left, right = operands()
    total = torch.ones(2, 64, 256)
    expected = matmul.product(left, right, bias=total.clone())
    assert matmul.product(left, right, bias=total, out=total) is total
    assert torch.equal(total, expected)


@pytest.mark.parametrize("sizes", [(63, 512, 256), (512, 3, 256), (512, 256, 2), (64, 64, 64)])
def test_small_products_stay_exact(bfloat16_processor, sizes):
    _, left, right = operands(1, *sizes)
    assert not matmul.rounds(left, right)
    assert torch.equal(matmul.product(left, right), torch.bmm(left, right))


def test_a_processor_that_cannot_multiply_them_rounds_nothing(no_bfloat16_processor):
    _, left, right = operands()
    assert not matmul.rounds(left, right)


def test_other_devices_choose_by_themselves(bfloat16_processor):
    left, right = (tensor.to("meta") for tensor in operands()[1:])
    assert not matmul.rounds(left, right)


def test_whether_a_processor_multiplies_bfloat16_is_what_its_flags_say():
    flags = torch.cpu._is_avx512_bf16_supported(), torch.cpu._is_amx_tile_supported()
    assert matmul.multiplies_bfloat16() == any(flags)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("outputs", [1, 2, 64])
def test_gradients_at_medium_precision_point_where_exact_ones_do(bfloat16_processor, activation, outputs):
    mlp = StackedMLP((3, 256, 256, outputs), activation=activation)
    rng = torch.Generator().manual_seed(0)
    parameters = mlp.initial(rng, [(outputs, 1.0)]).unsqueeze(0)
    inputs, cotangent = torch.randn(1, 128, 3, generator=rng), torch.randn(1, 128, outputs, generator=rng)

    def everything():
        jacobian = Jacobian(mlp, mlp.layers(parameters), inputs)
        buffers = mlp.buffers(inputs), mlp.buffers(inputs)
        trace = mlp.trace(mlp.layers(parameters), inputs, buffers[0])
        pulled = torch.cat(mlp.pullback(mlp.layers(parameters), trace, cotangent, buffers[1]), dim=1)
        return [jacobian.outputs, jacobian.pull(cotangent), pulled, jacobian.push(parameters)]

    rough = everything()
    torch.set_float32_matmul_precision("highest")
    for got, exact in zip(rough, everything(), strict=True):
        error = (got - exact).norm() / exact.norm()
        assert 1e-5 < error < 0.05  # rectifiers near 0 switch


@pytest.mark.parametrize(
    "case",
    [
        ("medium", "cpu", False, "highest"),
        ("medium", "cpu", True, "medium"),
        ("medium", "cuda", False, "medium"),
        ("high", "cpu", False, "high"),
        ("highest", "cpu", False, "highest"),
    ],
    ids=str,
)
def test_torch_takes_part_in_medium_only_where_that_helps(bfloat16_processor, monkeypatch, case):
    precision, device, units, torch_s = case
    _, left, right = operands()
    monkeypatch.setattr(matmul, "_has_matrix_units", lambda: units)
    try:
        set_precision(precision, torch.device(device))
        assert matmul.precision() == precision
        assert torch.get_float32_matmul_precision() == torch_s
        assert matmul.rounds(left, right) == (precision == "medium")
    finally:
        set_precision("highest", torch.device("cpu"))
    assert matmul.precision() == "highest"
    assert not matmul.rounds(left, right)


def test_modules_of_torch_take_its_own_medium(bfloat16_processor, monkeypatch):
    _, left, right = operands()
    monkeypatch.setattr(matmul, "_has_matrix_units", lambda: False)
    set_precision("medium", torch.device("cpu"))
    assert torch.get_float32_matmul_precision() == "highest"
    set_precision("medium", torch.device("cpu"), stacked=False)
    assert torch.get_float32_matmul_precision() == "medium"
    set_precision("highest", torch.device("cpu"), stacked=False)
    assert not matmul.rounds(left, right)


def test_without_numbers_to_multiply_medium_is_torch_s_own(no_bfloat16_processor):
    set_precision("medium", torch.device("cpu"))
    assert torch.get_float32_matmul_precision() == "medium"


def test_a_program_follows_the_precision(bfloat16_processor, whole):
    _, left, right = operands()
    program = Program(matmul.product)
    program.compiled = True
    assert torch.equal(program(left, right), matmul.product(left, right))
    torch.set_float32_matmul_precision("highest")
    torch.testing.assert_close(program(left, right), torch.bmm(left, right))


EXACT = 2e-6
"""Largest error of a product of 32-bit numbers relative to its largest element; bfloat16 has a thousand times that."""

LARGE = (128, 256, 64)
"""Rows, inner size and columns of a product that oneDNN gets."""


def apart(matrices):
    """Return the same numbers with others between the matrices, as weights are stored between other parameters."""
    if matrices.mT.is_contiguous():
        return apart(matrices.mT).mT
    between = torch.ones(len(matrices), 3)
    return torch.cat((matrices.flatten(1), between), dim=1)[:, :-3].unflatten(1, matrices.shape[1:])


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("layout", ["dense", "turned", "apart", "turned and apart"])
def test_large_products_of_32_bits_go_to_onednn_and_are_exact_to_rounding(half, given, layout):
    bias, left, right = operands(2, *LARGE)
    if "turned" in layout:
        left, right = left.mT.contiguous().mT, right.mT.contiguous().mT
    if "apart" in layout:
        assert right[0].numel() == matmul.LEAST_ALONE
        right = apart(right)
        assert not right.is_contiguous()
        assert not right.mT.is_contiguous()
    exact = left.double() @ right.double()
    out = torch.full((2, 128, 64), torch.nan) if given else None
    product = matmul.product(left, right, out=out)
    assert given == (product is out)
    assert (product.double() - exact).abs().max() < EXACT * exact.abs().max()
    both = matmul.product(left, right, bias=bias, scale=2, out=out).double()
    assert (both - 2 * (bias.double() + exact)).abs().max() < EXACT * exact.abs().max()
    assert half.calls == 2
    assert torch.backends.mkldnn.matmul.fp32_precision != "bf16"


def test_small_products_stay_with_mkl(half):
    bias, left, right = operands(1, *LARGE)
    assert left.numel() * right.shape[2] == matmul.LEAST_FOR_ONEDNN
    less = left[:, :-1]
    assert torch.equal(matmul.product(less, right), torch.bmm(less, right))
    assert torch.equal(matmul.product(less, right, bias=bias), torch.baddbmm(bias, less, right))
    assert half.calls == 0
    matmul.product(left, right)
    matmul.product(left.expand(2, -1, -1)[:, :64], right.expand(2, -1, -1))  # of all seeds together
    assert half.calls == 2


def test_mkl_gets_all_products_if_it_uses_whole_vectors(whole):
    _, left, right = operands(1, *LARGE)
    assert torch.equal(matmul.product(left, right), torch.bmm(left, right))


def test_other_devices_never_ask_onednn(half):
    left, right = (tensor.to("meta") for tensor in operands(1, *LARGE)[1:])
    assert matmul.product(left, right).device.type == "meta"
    assert half.calls == 0


def test_the_permission_to_round_ends_with_an_error_too(half):
    before = torch.backends.mkldnn.matmul.fp32_precision
    _, left, right = operands(1, *LARGE)
    with pytest.raises(RuntimeError):
        matmul.product(left, right[:, 1:])
    assert half.calls == 1
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_a_program_gives_large_products_to_onednn(half):
    bias, left, right = operands(2, *LARGE)
    for options in ({}, {"bias": bias}):
        program = Program(matmul.product)
        program.compiled = True
        got = program(left, right, **options)
        assert (got - matmul.product(left, right, **options)).abs().max() < EXACT * got.abs().max()
        half.calls = 0
        assert torch.equal(program(left, right, **options), got)
        assert half.calls == 1


def test_a_program_can_be_the_first_to_ask_for_the_processor():
    matmul.halves_vectors.cache_clear()
    _, left, right = operands(2, *LARGE)
    program = Program(matmul.product)
    program.compiled = True
    got = program(left, right)
    assert (got - matmul.product(left, right)).abs().max() < EXACT * got.abs().max()


def test_products_under_autograd_keep_their_derivatives(half):
    _, left, right = operands(1, *LARGE)
    left.requires_grad_()

    def derivative(left, right):
        return torch.autograd.grad(matmul.product(left, right).square().sum(), left)[0]

    expected = 2 * (left @ right) @ right.mT
    program = Program(derivative)
    program.compiled = True
    for got in (derivative(left, right), program(left, right)):
        assert (got - expected).abs().max() < EXACT * expected.abs().max()


@pytest.mark.parametrize(
    ("flags", "half"),
    [
        ({"avx512_f": True, "avx_vnni": True, "cpu_name": "AMD EPYC 9755"}, True),
        ({"avx512_f": True, "avx_vnni": False, "cpu_name": "AMD EPYC 9654"}, False),  # Zen 4
        ({"avx512_f": True, "avx_vnni": True, "cpu_name": "Intel Xeon Platinum 8480"}, False),
        ({"avx512_f": False, "avx_vnni": True, "cpu_name": "AMD EPYC"}, False),
        ({"avx512_f": True, "avx_vnni": True}, False),
        ({"architecture": "aarch64", "cpu_name": "ARM Neoverse V2"}, False),
    ],
    ids=str,
)
def test_mkl_takes_half_of_other_makers_processors_with_long_vectors(monkeypatch, flags, half):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)
    monkeypatch.setattr(matmul, "_has_matrix_units", lambda: False)
    monkeypatch.setattr(matmul, "_onednn_is_exact", lambda: True)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert matmul.halves_vectors.__wrapped__() == half


def test_onednn_is_not_asked_where_it_would_round(monkeypatch):
    monkeypatch.setattr(
        torch.cpu, "get_capabilities", lambda: dict.fromkeys(("avx512_f", "avx_vnni"), True) | {"cpu_name": "AMD"}
    )
    monkeypatch.setattr(matmul, "_has_matrix_units", lambda: False)
    monkeypatch.setattr(matmul, "_by_onednn", lambda left, right: (left.bfloat16() @ right.bfloat16()).float())
    assert not matmul.halves_vectors.__wrapped__()
    monkeypatch.setattr(matmul, "_has_matrix_units", lambda: True)
    assert not matmul.halves_vectors.__wrapped__()


def test_the_shape_that_decides_may_be_that_of_a_part(half):
    bias, left, right = operands(rows=256)
    for like, calls in (((2, 8, 256), 0), (None, 1), ((2, 256, 256), 2)):
        found = matmul.product(left, right, bias=bias, like=like)
        torch.testing.assert_close(found, bias + left @ right, rtol=1e-4, atol=1e-4)
        assert half.calls == calls


def test_a_part_is_rounded_where_it_would_be_alone(bfloat16_processor):
    _, left, right = operands(rows=256)
    assert matmul.rounds(left, right)
    assert not matmul.rounds(left, right, (2, matmul.LEAST_SIDE - 1, 256))
    exact = matmul.product(left, right, like=(2, matmul.LEAST_SIDE - 1, 256))
    assert not torch.equal(exact, matmul.product(left, right))
    torch.testing.assert_close(exact.double(), left.double() @ right.double(), rtol=1e-4, atol=1e-4)


def test_threads_take_turns_with_the_library_of_all():
    """While one thread uses oneDNN, PyTorch answers no question about its precision, and would keep the setting."""
    matmul_of_all, before = matmul._OneDNN.matmul, matmul._OneDNN.matmul.fp32_precision
    inside, faults = threading.Event(), []

    def multiply():
        with matmul._OneDNN():
            inside.set()
            time.sleep(0.01)

    def ask():
        inside.wait()
        try:
            assert matmul.precision() == "highest"
            with matmul._OneDNN():
                assert matmul_of_all.fp32_precision == "bf16"
        except BaseException as error:  # a thread loses what it raises
            faults.append(error)

    threads = [threading.Thread(target=work) for work in (multiply, ask, ask)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert matmul_of_all.fp32_precision == before
