from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch

from operant.envs.base import EndlessError, begins_anew, is_array, is_mapping


@pytest.mark.parametrize(
    ("value", "mapping", "array"),
    [
        ({"a": 1}, True, False),
        (MappingProxyType({}), True, False),
        (np.zeros(2), False, True),
        (np.float32(1), False, False),
        (torch.zeros(2), False, False),
        ([1], False, False),
    ],
)
def test_parts_and_arrays_are_distinguished(value, mapping, array):
    assert (is_mapping(value), is_array(value)) == (mapping, array)


def test_environments_resume_saved_episodes_unless_they_opt_out():
    assert not begins_anew(SimpleNamespace())
    assert not begins_anew(SimpleNamespace(begins_anew=False))
    assert begins_anew(SimpleNamespace(begins_anew=True))


def test_an_endless_episode_is_named_with_what_can_be_done():
    text = str(EndlessError.of("A-v0", 3, 100, remedy=", or take shorter ones"))
    assert " 3 of A-v0 " in text
    assert " 100 steps" in text
    assert text.endswith(", or take shorter ones")
