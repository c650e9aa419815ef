import sys
import types
from dataclasses import dataclass, replace

import pytest

from operant.catalog import Algorithm
from operant.runtime.configuration import configuration, learner_kind, require_own
from operant.runtime.settings import Settings


@dataclass(frozen=True)
class TinyConfig:
    """Configuration with two numbers."""

    gamma: float = 0.99
    lam: float | None = 0.5


class Tiny:
    """Learner without any methods."""


@pytest.fixture
def entry(monkeypatch):
    module = types.ModuleType("tiny_algorithm")
    module.TinyConfig, module.Tiny = TinyConfig, Tiny
    monkeypatch.setattr(Tiny, "__module__", "tiny_algorithm")
    module.PRESETS = {"Task-v0": {"gamma": 0.9}, "quick": {"gamma": 0.5}}
    monkeypatch.setitem(sys.modules, "tiny_algorithm", module)
    texts = dict.fromkeys(("title", "package", "family", "idea", "paper"), "tiny")
    named = {"module": "tiny_algorithm", "config": "TinyConfig", "learner": "Tiny", "presets": ("paper",)}
    return Algorithm(name="tiny", model="none", on_policy=True, actions=("discrete",), **texts, **named)


def test_a_variant_wins_over_a_preset_and_a_named_value_over_the_variant(entry):
    variant = replace(entry, values=(("lam", 0.2),))
    assert configuration(variant, "Task-v0") == TinyConfig(gamma=0.9, lam=0.2)
    assert configuration(variant, "Task-v0", lam=0.3) == TinyConfig(gamma=0.9, lam=0.3)


def test_defaults_then_the_preset_then_single_values(entry):
    assert configuration(entry, "Other-v0") == TinyConfig()
    assert configuration(entry, "Task-v0") == TinyConfig(gamma=0.9)
    assert configuration(entry, "Task-v0", "quick") == TinyConfig(gamma=0.5)
    assert configuration(entry, "Task-v0", "paper") == TinyConfig()
    assert configuration(entry, "Task-v0", gamma=0.1, lam=None) == TinyConfig(gamma=0.1, lam=None)


def test_a_namespace_may_have_a_preset(entry):
    sys.modules["tiny_algorithm"].PRESETS |= {"ALE/*": {"gamma": 0.1}, "ALE/Pong-v5": {"gamma": 0.2}}
    assert configuration(entry, "ALE/Breakout-v5") == TinyConfig(gamma=0.1)
    assert configuration(entry, "ALE/Pong-v5") == TinyConfig(gamma=0.2)
    assert configuration(entry, "ALE/Breakout-v5", "paper") == TinyConfig()


def test_unknown_names_are_rejected(entry):
    with pytest.raises(ValueError, match="tiny has no preset 'fast'; presets: paper, Task-v0, quick"):
        configuration(entry, "Task-v0", "fast")
    with pytest.raises(ValueError, match="did you mean gamma"):
        configuration(entry, "Task-v0", gama=0.1)


def test_unknown_fields_of_presets_are_rejected(entry):
    sys.modules["tiny_algorithm"].PRESETS["Typo-v0"] = {"gama": 0.9}
    with pytest.raises(ValueError, match=r"preset 'Typo-v0' of \S+: there is no field 'gama'; did you mean gamma\?"):
        configuration(entry, "Typo-v0")


def test_a_learner_needs_its_own_class_of_configuration(entry):
    assert learner_kind(entry, TinyConfig()) is Tiny
    with pytest.raises(TypeError, match="tiny needs a configuration of TinyConfig, got 3"):
        learner_kind(entry, 3)


def test_values_below_the_preset_take_the_place_of_the_defaults(entry):
    below = {"gamma": 0.3, "lam": 0.4}
    assert configuration(entry, "Other-v0", under=below) == TinyConfig(gamma=0.3, lam=0.4)
    assert configuration(entry, "Other-v0", "quick", under=below) == TinyConfig(gamma=0.5, lam=0.4)
    assert configuration(replace(entry, values=(("lam", 0.2),)), "Other-v0", under=below, gamma=0.1) == TinyConfig(
        gamma=0.1, lam=0.2
    )
    with pytest.raises(TypeError, match="gama"):
        configuration(entry, "Other-v0", under={"gama": 0.1})


def test_a_preset_that_is_named_twice_is_listed_once(entry):
    with pytest.raises(ValueError, match=r"presets: paper, quick, Task-v0$"):
        configuration(replace(entry, presets=("paper", "quick")), "Task-v0", "fast")


@pytest.mark.parametrize("choice", ["auto", "off"])
def test_nothing_to_compile_is_no_fault(choice):
    require_own(Settings("q-learning", "FrozenLake-v1", compile=choice), "tabular")


@pytest.mark.parametrize(
    ("package", "changes"),
    [
        ("tabular", {"compile": "on"}),
        ("tabular", {"clip_rewards": False}),
        ("tabular", {"shards": 2}),
        ("language", {"wrappers": ("my.py:Bonus",)}),
        ("language", {"vectorization": "async"}),
        ("language", {"worker_seconds": 3.0}),
        ("language", {"clip_rewards": False}),
        ("language", {"env_kwargs": {"size": 3}}),
        ("language", {"evaluate_episodes": 3}),
    ],
)
def test_settings_of_other_packages_are_rejected_by_name(package, changes):
    ((name, value),) = changes.items()
    require_own(Settings("mine", "a task", **changes), "control")
    with pytest.raises(ValueError, match=rf"^mine has no {name}, which algorithms .*: remove {name}=") as caught:
        require_own(Settings("mine", "a task", **changes), package)
    assert str(caught.value).endswith(f"{name}={value!r}")


def test_a_task_is_a_name(entry):
    with pytest.raises(TypeError, match=r"task must be a name such as 'CartPole-v1', got <object.*gymnasium.register"):
        configuration(entry, object())
