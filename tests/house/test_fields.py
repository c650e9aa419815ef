"""Rules for fields of configurations by name are for fields that exist: a renamed field would lose its rule."""

from dataclasses import fields

import pytest

from operant import build, catalog
from operant.cli import errors
from operant.runtime import idle


@pytest.mark.parametrize(
    "names",
    [
        build._LAYOUT,
        errors.MEMORY_SETTINGS,
        [name for condition in idle.CONDITIONS for name in (*condition.fields, condition.field)],
    ],
    ids=["layout", "memory", "idle"],
)
def test_names_are_of_fields(names):
    known = {field.name for entry in catalog.ALGORITHMS for field in fields(entry.config_class)}
    assert [name for name in names if name not in known] == []
