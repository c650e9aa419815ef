import os

import pytest

from operant.scale.variables import environment_variables

NAMES = "OPERANT_TEST_A", "OPERANT_TEST_B", "OPERANT_TEST_C"


def values():
    return [os.environ.get(name) for name in NAMES]


def fail():
    with environment_variables(dict(zip(NAMES, ("new", None, "new"), strict=True))):
        assert values() == ["new", None, "new"]
        del os.environ[NAMES[2]]
        raise OSError("within")


def test_variables_are_restored_even_if_the_block_fails_or_changes_them(monkeypatch):
    monkeypatch.setenv(NAMES[0], "old")
    monkeypatch.setenv(NAMES[1], "old")
    monkeypatch.delenv(NAMES[2], raising=False)
    with pytest.raises(OSError, match="within"):
        fail()
    assert values() == ["old", "old", None]
