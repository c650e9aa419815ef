import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pytest

from operant import catalog, configure, doors
from operant.catalog import outside
from operant.control import PPO, PPOConfig
from operant.control.reinforce import Reinforce
from operant.language import GRPO
from operant.tabular import BanditLearner, QLearning, TabularLearner, UCBConfig

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass(frozen=True)
class SurprisedConfig(PPOConfig):
    """Hyperparameters."""

    bonus: float = 0.5


class Surprised(PPO):
    """PPO that likes surprises.

    More of it.
    """

    CATALOG: ClassVar = {"title": "Surprised PPO", "budget": 5000, "actions": ("discrete",), "values": {"gamma": 0.5}}

    config: SurprisedConfig


class Alone:
    """Learner without a base class."""

    def __init__(self, config: "AloneConfig", env, *, seeds, budget):
        pass

    def iterate(self): ...

    state_dict = load_state_dict = iterate


@dataclass(frozen=True)
class AloneConfig:
    """Hyperparameters."""

    num_envs: int = 4


class Copied(Alone):
    """Learner that is `like` an algorithm but not a subclass of it."""

    CATALOG: ClassVar = {"like": "double-dqn"}


class Speaking(Alone):
    """Learner of a package without support for outside learners."""

    CATALOG: ClassVar = {"package": "language"}


class Misspelled(Alone):
    """Learner with an unknown key."""

    CATALOG: ClassVar = {"seed": 3}


class Unlike(Alone):
    """Learner that is `like` an unknown algorithm."""

    CATALOG: ClassVar = {"like": "pppo"}


class Elsewhere(Alone):
    """Learner of an unknown package."""

    CATALOG: ClassVar = {"package": "web"}


class Unconfigured:
    """Learner without a configuration."""

    iterate = state_dict = load_state_dict = Alone.iterate


@dataclass
class Loose:
    """Configuration that is not frozen."""


@dataclass(frozen=True)
class Demanding:
    """Configuration without defaults."""

    needed: int


class OfLoose(Alone):
    """Learner with a configuration that is not frozen."""

    config: Loose


class OfDemanding(Alone):
    """Learner with a configuration without defaults."""

    config: Demanding


class Undecorated(AloneConfig):
    """Configuration whose base alone is a dataclass."""

    added: int = 3


@dataclass(frozen=True)
class Unreadable:
    """Configuration with a type that is not imported."""

    found: "Decimal" = None


class OfUndecorated(Alone):
    """Learner with a configuration that lacks its decorator."""

    config: Undecorated


class OfUnreadable(Alone):
    """Learner with a configuration of unknown types."""

    config: Unreadable


class Listed(Alone):
    """Learner with presets in its entry."""

    CATALOG: ClassVar = {"presets": {"fast": {"gamma": 0.9}}}


class Single(Alone):
    """Learner with a name in place of a list."""

    CATALOG: ClassVar = {"actions": "discrete"}


class Valued(Alone):
    """Learner with a value of a field that does not exist."""

    CATALOG: ClassVar = {"values": {"gama": 0.9}}


class Table(TabularLearner):
    """Tabular learner."""

    config: AloneConfig


class Arm(BanditLearner):
    """Bandit learner."""

    config: UCBConfig


class Answers(GRPO):
    """Language model learner."""


class Episodes(Reinforce):
    """REINFORCE."""


class Sure(QLearning):
    """Q-learning."""


def test_a_subclass_inherits_from_its_base_and_overrides_by_name():
    found, ppo = catalog.find(Surprised), catalog.find("ppo")
    assert found.name == doors.name_of(Surprised)
    assert (found.label, found.title, found.idea) == ("Surprised", "Surprised PPO", "PPO that likes surprises.")
    assert (found.base, found.root) == ("ppo", "ppo")
    assert (found.package, found.family, found.on_policy, found.sees) == (
        *(ppo.package, ppo.family, ppo.on_policy, ppo.sees),
    )
    assert (found.budget, found.actions, found.seeds) == (5000, ("discrete",), ppo.seeds)
    assert found.config_class is SurprisedConfig
    assert found.learner_class is Surprised
    assert found.presets == ppo.presets
    assert "Schulman et al. 2017" in found.paper


def test_presets_and_values_count_as_for_the_base():
    built_in, own = configure("ppo", "CartPole-v1"), configure(Surprised, "CartPole-v1")
    assert isinstance(own, SurprisedConfig)
    assert own.num_envs == built_in.num_envs == 64
    assert (own.gamma, own.bonus) == (0.5, 0.5)
    assert configure(Surprised, "CartPole-v1", preset="zoo", bonus=2).bonus == 2.0
    with pytest.raises(ValueError, match="has no preset 'nothing'; presets: paper, zoo"):
        configure(Surprised, "CartPole-v1", preset="nothing")


def test_a_class_from_scratch_has_defaults_that_reject_nothing():
    found = catalog.find(Alone)
    assert (found.package, found.base, found.on_policy) == ("control", None, True)
    assert set(found.actions) == {"discrete", "multi-discrete", "continuous"}
    assert set(found.sees) == {"images", "mixtures", "masks"}
    assert found.presets == ("paper",)
    assert configure(Alone, "CartPole-v1") == AloneConfig()


def test_a_class_can_say_what_it_is_like_without_being_a_subclass():
    found = catalog.find(Copied)
    assert (found.root, found.on_policy, found.values) == ("double-dqn", False, (("double", True),))
    assert found.presets == ("paper",), "the presets are for another configuration"
    assert configure(Copied, "CartPole-v1") == AloneConfig(), "the values are for another configuration"


@pytest.mark.parametrize(
    ("learner", "package", "observations", "root"),
    [
        (Table, "tabular", "finite", None),
        (Arm, "tabular", "none", None),
        (Sure, "tabular", "finite", "q-learning"),
        (Answers, "language", "text", "grpo"),
        (Episodes, "control", "continuous", "reinforce"),
    ],
)
def test_the_package_is_that_of_the_base(learner, package, observations, root):
    found = catalog.find(learner)
    assert (found.package, found.observations, found.base) == (package, observations, root)


@pytest.mark.parametrize(
    ("learner", "said"),
    [
        (Speaking, r"Speaking trains a language model, so it must extend a built-in algorithm"),
        (Misspelled, r"CATALOG of .*Misspelled has unknown key 'seed'; valid keys: like, title"),
        (Unlike, r"CATALOG of .*Unlike: there is no built-in algorithm 'pppo'"),
        (Elsewhere, r"CATALOG of .*Elsewhere: package must be tabular, control, language, got 'web'"),
        (Unconfigured, r"Unconfigured has no configuration: annotate the parameter `config`"),
        (OfLoose, r"the configuration Loose of .*OfLoose is mutable: decorate it"),
        (OfDemanding, r"the configuration Demanding of .*OfDemanding: needed has no default; add one"),
        (OfUndecorated, r"the configuration Undecorated of .*OfUndecorated is no dataclass itself, .*: decorate it"),
        (OfUnreadable, r"the types of its fields cannot be read, name 'Decimal' is not defined: import it also"),
        (Listed, r"CATALOG of .*Listed: presets must be a list of names, got {'fast': {'gamma': 0\.9}}"),
        (Single, r"CATALOG of .*Single: actions must be a list of names, got 'discrete'"),
        (Valued, r"CATALOG of .*Valued: AloneConfig has no field 'gama' for 'values'"),
        (AloneConfig, r"is the class AloneConfig, expected a class with the methods iterate, state_dict, load_state"),
    ],
)
def test_classes_that_cannot_be_trained_are_rejected(learner, said):
    with pytest.raises(doors.DoorError, match=said):
        catalog.find(learner)


def test_an_entry_survives_a_file():
    found = catalog.find(Surprised)
    again = catalog.Algorithm.of_facts(json.loads(json.dumps({**found.facts(), "unknown": 1})))
    assert again == found
    assert again.learner_class is Surprised


def test_a_configuration_is_that_of_the_class_itself_before_that_of_its_base():
    assert outside.config_of(Surprised) is SurprisedConfig
    assert outside.config_of(PPO) is PPOConfig
    assert outside.config_of(Copied) is AloneConfig, "the annotation is a string"
    assert outside.config_of(int) is None


def test_every_built_in_learner_would_be_found_through_the_same_door():
    first = {(entry.module, entry.learner): entry for entry in reversed(catalog.ALGORITHMS)}
    for entry in first.values():
        again = outside.algorithm(entry.learner_class)
        assert again.config_class is entry.config_class
        assert (again.package, again.observations, again.unit) == (entry.package, entry.observations, entry.unit)
        assert again.preset_values == entry.preset_values


def test_an_entry_point_is_found_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "its_ppo.py").write_text("from operant.control import PPO\n\nclass It(PPO):\n    '''It.'''\n")
    info = tmp_path / "its_ppo-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: its-ppo\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(f"[{catalog.ENTRY_POINTS}]\nits-ppo = its_ppo:It\nppo = its_ppo:It\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = catalog.find("its-ppo")
    assert (found.name, found.label, found.learner, found.base) == ("its-ppo", "its-ppo", "It", "ppo")
    assert catalog.find("ppo") in catalog.ALGORITHMS, "packages use none of our names"
    with pytest.raises(ValueError, match="no algorithm is called 'its-pp'; did you mean 'its-ppo'"):
        catalog.find("its-pp")


@pytest.mark.parametrize(
    ("changed", "name", "accepted"),
    [
        ({}, "/my/ppo.py:PPO", True),
        ({"config": "Config"}, "/my/ppo.py:PPO", True),
        ({"config": "/my/ppo.py:Config"}, "/my/ppo.py:PPO", True),
        ({"config": "/my/other.py:Config"}, "/my/ppo.py:PPO", False),
        ({"config": "evil:Config"}, "/my/ppo.py:PPO", False),
        ({"config": "operants:Config"}, "/my/ppo.py:PPO", False),
        ({"module": "/my/other.py"}, "/my/ppo.py:PPO", False),
        ({"module": "evil"}, "/my/ppo.py:PPO", False),
        ({"module": "a.b"}, "a.c:PPO", True),
        ({"module": "a.b"}, "b.c:PPO", False),
        ({"module": "a.b"}, "uninstalled", True),
        ({"module": "/my/other.py"}, "uninstalled", False),
        ({"module": "a.b", "config": "/my/other.py:Config"}, "uninstalled", False),
    ],
)
def test_the_record_of_a_run_adds_no_code_to_what_its_configuration_names(changed, name, accepted):
    facts = catalog.find("ppo").facts() | {"module": "/my/ppo.py", "config": "operant.control.ppo:PPOConfig"} | changed
    found = outside.recorded(name, json.loads(json.dumps(facts)))
    assert found.facts() == facts | {"name": name} | ({} if accepted else {"module": ""})


def test_a_base_that_is_no_built_in_algorithm_is_dropped():
    facts = catalog.find("ppo").facts() | {"module": "/my/ppo.py"}
    assert outside.recorded("/my/ppo.py:PPO", facts | {"base": "a2c"}).base == "a2c"
    assert outside.recorded("/my/ppo.py:PPO", facts | {"base": "/my/evil.py:PPO"}).base is None


def test_classes_of_a_record_with_other_code_are_those_of_the_name(tmp_path):
    (tmp_path / "settings_of_mine.py").write_text(
        "from dataclasses import dataclass\n\nfrom operant.control import PPOConfig\n\n\n@dataclass(frozen=True)\n"
        "class Own(PPOConfig):\n    extra: float = 0.1\n"
    )
    (tmp_path / "mine.py").write_text(
        "from settings_of_mine import Own\n\nfrom operant.control import PPO\n\n\nclass Mine(PPO):\n    config: Own\n"
    )
    entry = outside.algorithm(f"{tmp_path / 'mine.py'}:Mine")
    assert entry.config == f"{tmp_path / 'settings_of_mine.py'}:Own"
    found = outside.recorded(entry.name, entry.facts())
    assert found.title == "Mine"
    assert (found.config_class, found.learner_class) == (entry.config_class, entry.learner_class)
