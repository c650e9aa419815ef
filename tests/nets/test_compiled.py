import gc
import inspect
import os
import signal
import subprocess
import sys
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from needs import needs_compiler
from operant.nets import Program, compilable, compiled, compiler, missing_tool, programs
from operant.nets.compiled import MOST_OPERATIONS, _operations


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):
    """Begin every test without compiled functions of others."""
    monkeypatch.setattr(compiled, "BINARIES", {})


@pytest.fixture
def counted(monkeypatch):
    """Record the calls of the compiler."""
    calls, compile_ = [], torch._inductor.compile
    monkeypatch.setattr(torch._inductor, "compile", lambda *a, **options: calls.append(0) or compile_(*a, **options))
    return calls


@dataclass(frozen=True)
class Batch:
    inputs: Tensor
    weights: Tensor | None


class Model:
    def __init__(self):
        self.weight = torch.zeros(3, 4)
        self.calls = 0

    @compilable
    def gradient(self, batch: Batch, scale: float, squared: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gradient of a loss with respect to the weight."""
        self.calls += 1
        weight = self.weight.detach().requires_grad_()
        loss = (batch.inputs @ weight).exp() * scale
        if batch.weights is not None:
            loss = loss * batch.weights
        if squared:
            loss = loss.square()
        (gradient,) = torch.autograd.grad(loss.sum(), weight)
        return gradient, {"loss": loss.detach().sum()}


def randn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def both(batch, scale, squared, weight):
    plain, fast = Model(), Model()
    fast.gradient.compiled = True
    for model in (plain, fast):
        model.gradient(batch, 1.0, squared)
        model.weight.copy_(weight)
    return plain.gradient(batch, scale, squared), fast.gradient(batch, scale, squared)


@needs_compiler
@pytest.mark.parametrize("weights", [None, torch.tensor([[0.0], [1.0], [2.0], [0.5], [1.0]])])
@pytest.mark.parametrize("squared", [False, True])
def test_a_program_reads_tensors_and_numbers_at_every_call(weights, squared):
    plain, fast = both(Batch(randn(0, 5, 3), weights), 0.7, squared, randn(1, 3, 4))
    torch.testing.assert_close(fast, plain)
    assert plain[0].abs().max() > 0


@needs_compiler
def test_python_runs_once_for_each_shape_and_choice():
    model = Model()
    model.gradient.compiled = True
    for rows, scale, squared in ((5, 1.0, False), (5, 2.0, False), (5, 2.0, True), (6, 2.0, True), (6, 3.0, True)):
        model.gradient(Batch(randn(rows, rows, 3), None), scale, squared)
    assert model.calls == 3
    strided = Batch(randn(0, 3, 6).mT, None)
    plain = Model()
    torch.testing.assert_close(model.gradient(strided, 1.0, True), plain.gradient(strided, 1.0, True))


@needs_compiler
def test_a_program_gives_the_same_numbers_at_every_call(counted):
    model, again, other = Model(), Model(), Model()
    for one in (model, again, other):
        one.gradient.compiled = True
        one.weight.copy_(randn(1, 3, 4))
    batch = Batch(randn(0, 5, 3), None)
    first = model.gradient(batch, 1.0, True)[0]
    assert torch.equal(first, model.gradient(batch, 1.0, True)[0])
    compiled.BINARIES.clear()
    assert torch.equal(first, again.gradient(batch, 1.0, True)[0])
    assert len(counted) == 2
    other.weight.copy_(randn(2, 3, 4))
    assert torch.equal(model.gradient(batch, 1.0, True)[0], first)
    assert not torch.equal(other.gradient(batch, 1.0, True)[0], first)
    assert len(counted) == 2, "equal programs are compiled once"


@needs_compiler
def test_programs_share_what_was_compiled_last_and_no_tensors(counted, monkeypatch):
    monkeypatch.setattr(compiled, "SHARED", 2)

    def compute(exponent):
        held, given = torch.full((3,), 2.0), torch.ones(3)
        program = Program(lambda x: held * x**exponent)
        program.compiled = True
        assert program(given).tolist() == [2.0] * 3
        return weakref.ref(held), weakref.ref(given)

    freed = [compute(exponent) for exponent in (3, 4, 4, 5, 4, 3)]
    assert len(counted) == 4, "3, 4 and 5, and 3 again"
    gc.collect()
    assert not any(tensor() is not None for pair in freed for tensor in pair)


class Stack:
    """One model per row."""

    def __init__(self, weight):
        self.weight = weight

    def one_by_one(self):
        return [Stack(self.weight[row : row + 1]) for row in range(len(self.weight))]

    @compilable
    def gradient(self, batch: Batch, scale: float) -> tuple[Tensor, dict[str, Tensor]]:
        weight = self.weight.detach().requires_grad_()
        losses = (batch.inputs @ weight).sin().sum((1, 2)) * scale
        (gradient,) = torch.autograd.grad(losses.sum(), weight)
        return gradient, {"loss": losses.detach()}


@needs_compiler
def test_rows_one_by_one_are_compiled_once_and_give_the_results_of_all_together(counted):
    weight = randn(0, 3, 4, 2)
    plain, stack = Stack(weight), Stack(weight)
    stack.gradient.compiled = True
    batch = Batch(randn(1, 3, 5, 4), None)
    for scale in (0.5, 2.0):
        torch.testing.assert_close(stack.gradient(batch, scale), plain.gradient(batch, scale))
        weight.copy_(randn(2, 3, 4, 2))
    assert len(counted) == stack.gradient.calls - 1 == 1
    gradient, report = stack.gradient(batch, 1.0)
    alone = Stack(weight[1:2])
    alone.gradient.compiled = True
    compiled.BINARIES.clear()
    found = alone.gradient(Batch(batch.inputs[1:2], None), 1.0)
    assert torch.equal(found[0][0], gradient[1])
    assert found[1]["loss"][0] == report["loss"][1]


def test_a_class_can_be_inspected():
    assert dict(inspect.getmembers(Model))["gradient"] is vars(Model)["gradient"]
    assert "Return the gradient" in Model.gradient.__doc__


def test_instances_have_separate_programs():
    one, other = Model(), Model()
    assert one.gradient is one.gradient
    assert programs(one) == [one.gradient]
    assert one.gradient is not other.gradient
    one.gradient.compiled = True
    assert not other.gradient.compiled
    assert isinstance(one.gradient, Program)
    assert programs(object()) == []
    one.borrowed, one.same = other.gradient, one.gradient
    assert programs(one) == [one.gradient, other.gradient]


def test_a_compiler_is_looked_for_where_programs_are(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert compiler() is None
    for device in ("cpu", "cuda"):
        assert missing_tool(torch.device(device)) == "a C++ compiler such as g++"


@needs_compiler
def test_a_library_of_a_killed_compiler_is_built_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    half, real = tmp_path / "program.main.so", torch._inductor.compile
    half.touch()

    def compile_or_load(*args, **kwargs):
        if half.exists():
            raise RuntimeError(f"ImportError: {half}: file too short")
        return real(*args, **kwargs)

    monkeypatch.setattr(torch._inductor, "compile", compile_or_load)
    program = Program(lambda x: x + 1)
    program.compiled = True
    assert program(torch.ones(3)).tolist() == [2.0] * 3
    assert not half.exists()


@needs_compiler
@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals cannot be blocked here")
def test_interrupts_wait_for_the_compiler(monkeypatch):
    heard, real = [], torch._inductor.compile

    def interrupted(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        subprocess.run(["kill", "-INT", "0"], check=True, process_group=0)  # a child that must not end either
        assert not heard
        return real(*args, **kwargs)

    monkeypatch.setattr(torch._inductor, "compile", interrupted)
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        program = Program(lambda x: x + 2)
        program.compiled = True
        assert program(torch.ones(3)).tolist() == [3.0] * 3
        assert heard == [1]
    finally:
        signal.signal(signal.SIGINT, before)


@needs_compiler
def test_handlers_of_a_program_that_embeds_python_are_left_alone(monkeypatch):
    known = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGTERM else known(number))
    program = Program(lambda x: x + 3)
    program.compiled = True
    assert program(torch.ones(3)).tolist() == [4.0] * 3


def test_libraries_of_others_are_left_alone(tmp_path, monkeypatch):
    theirs = tmp_path / "libc.so"
    theirs.touch()

    def broken(*_, **__):
        raise ImportError(f"{theirs}: file too short")

    monkeypatch.setattr(torch._inductor, "compile", broken)
    program = Program(lambda x: x + 4)
    program.compiled = True
    with pytest.raises(RuntimeError, match=r"libc.so: file too short"):
        program(torch.ones(3))
    assert theirs.exists()


def test_the_reason_why_a_program_cannot_be_compiled_is_reported(monkeypatch):
    def broken(*_, **__):
        raise ImportError("no such machine\nand much more")

    monkeypatch.setattr(torch._inductor, "compile", broken)
    program = Program(lambda x: x + 3)
    program.compiled = True
    with pytest.raises(RuntimeError, match=r"could not be compiled \(ImportError: no such machine\); --compile off"):
        program(torch.ones(3))


def test_programs_for_cuda_need_triton_too(tmp_path, monkeypatch):
    (tmp_path / "g++").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.path", [])
    assert missing_tool(torch.device("cpu")) is None
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    assert missing_tool(torch.device("cuda:0")) == "triton"


@needs_compiler
def test_a_program_may_read_nothing_but_what_it_holds():
    first, second = torch.ones(3), torch.full((3,), 2.0)
    program = Program(lambda _: first * second + second)
    program.compiled = True
    for number in range(2):
        first.fill_(number)
        assert program(torch.zeros(1)).tolist() == [2.0 * number + 2.0] * 3


@needs_compiler
def test_inputs_that_nothing_reads_are_left_out():
    program = Program(lambda batch, x: x + batch.weights)
    program.compiled = True
    for number in range(2):
        batch = Batch(torch.full((2, 3), float(number)), torch.full((2,), 3.0 + number))
        assert program(batch, torch.ones(2)).tolist() == [4.0 + number] * 2


def test_branches_on_values_cannot_be_compiled():
    program = Program(lambda x: x + 1 if x.sum() > 0 else x)
    assert program(torch.ones(2)).tolist() == [2, 2]
    program.compiled = True
    with pytest.raises(RuntimeError, match=r"branches on the values of tensors: use torch\.where, or --compile off"):
        program(torch.ones(2))


def test_operations_are_counted():
    def function(x):
        for _ in range(5):
            x = x * 2 + 1
        return x.sum()

    assert _operations(function, [torch.ones(3)]) == 11


@pytest.mark.gpu
def test_a_long_function_is_captured_on_a_gpu_and_not_compiled(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("it was compiled")

    def unrolled(x, rate):
        for _ in range(MOST_OPERATIONS):
            x = torch.sin(x) * rate
        return {"last": x}

    monkeypatch.setattr(torch._inductor, "compile", refuse)
    program = Program(unrolled)
    program.compiled = True
    for seed in range(4):
        x = torch.randn(5, generator=torch.Generator().manual_seed(seed)).cuda()
        torch.testing.assert_close(program(x, 1.1)["last"], unrolled(x, 1.1)["last"])
