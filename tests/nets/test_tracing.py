import pytest
import torch

from operant.nets import Program
from operant.nets.tracing import traced, tracing


def test_a_function_is_traced_when_its_program_is_made_and_not_when_that_runs():
    seen = []

    def function(numbers):
        seen.append(tracing())
        return numbers + 1

    program = Program(function)
    program(torch.zeros(2))
    program.compiled = True
    program(torch.zeros(2))
    program(torch.zeros(2))
    assert seen == [False, True]


def test_tracing_ends_with_an_error_too():
    @traced()
    def fails():
        assert tracing()
        raise ValueError("an error")

    with pytest.raises(ValueError, match="an error"):
        fails()
    assert not tracing()
