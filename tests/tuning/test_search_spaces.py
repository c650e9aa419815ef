from dataclasses import dataclass

import pytest

from operant import catalog, configure
from operant.control import PPOConfig
from operant.tuning import SPACES, Choices, Factor, Range, space_of
from operant.tuning.search_spaces import dimension_of, inside, table_of


@dataclass(frozen=True)
class Config:
    learning_rate: float = 1e-3
    gamma: float = 0.97
    max_grad_norm: float | None = None
    hidden_sizes: tuple[int, ...] = (32, 32)
    other: int = 3


def test_the_space_of_a_configuration():
    space = space_of(Config())
    assert set(space) == {"learning_rate", "gamma", "hidden_sizes"}  # fields that are None or unknown stay unchanged
    assert space["learning_rate"] == Range(1e-3 / 30, 3e-2, log=True)
    assert space["gamma"].choices == (0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)  # sorted, with the default
    assert set(space_of(Config(), fixed={"gamma"})) == {"learning_rate", "hidden_sizes"}


def test_every_space_has_a_field_and_contains_each_default():
    fields = set()
    for entry in catalog.CONTROL + catalog.TABULAR:
        config = entry.config_class()
        if not any(getattr(config, name, 0) for name in SPACES):
            continue  # all of them are disabled
        space = space_of(config)
        fields |= set(space)
        for name, dimension in space.items():
            value = getattr(config, name)
            if isinstance(dimension, Range):
                assert dimension.low <= value <= dimension.high
            else:
                assert (list(value) if isinstance(value, tuple) else value) in dimension.choices
    assert fields == set(SPACES)


def test_a_custom_space():
    own = {
        "other": {"low": 1, "high": 9},
        "gamma": {"choices": [0.5, 0.9]},
        "learning_rate": {"low": 1e-4, "high": 1.0},
    }
    space = space_of(Config(), own=own)
    assert space["other"] == Range(1, 9, whole=True)
    assert space["gamma"] == Choices((0.5, 0.9, 0.97))
    assert not space["learning_rate"].log
    for dimension in space.values():
        assert dimension_of(table_of(dimension), "space") == dimension


def test_choices_of_a_field_that_is_none_include_it_as_in_files():
    space = space_of(Config(), own={"max_grad_norm": {"choices": [0.5, 1.0]}})
    assert space["max_grad_norm"] == Choices((0.5, 1.0, "none"))
    assert not space["max_grad_norm"].ordered
    named = {"choices": ["none", 0.5]}
    again = space_of(Config(), own={"max_grad_norm": named})["max_grad_norm"]
    assert table_of(again) == named
    assert dimension_of(named, "space") == again


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"gama": {"choices": [1, 2]}}, "space.gama: Config has no such field; did you mean gamma"),
        ({"gamma": 0.5}, "space.gamma must be a table with low and high, or with choices, got 0.5"),
        ({"gamma": {"low": 0.5}}, "high"),
        ({"gamma": {"low": 0.5, "high": 0.1}}, "low < high, got 0.5 and 0.1"),
        ({"gamma": {"low": 0.0, "high": 0.1, "log": True}}, "low must be positive on a logarithmic scale, got 0.0"),
        ({"gamma": {"choices": [0.5]}}, "two or more different values"),
        ({"gamma": {"choices": [0.5, "high"]}}, "space.gamma: 'high' is not a value of type float"),
        ({"other": {"low": 1, "high": 9, "whole": False}}, "space.other: 1.0 is not a value of type int"),
        ({"max_grad_norm": {"low": 0.5, "high": 1.0}}, "None cannot be part of a range; use choices"),
    ],
)
def test_wrong_spaces(own, message):
    with pytest.raises(ValueError, match="(?s).*" + message.replace("(", "\\(")):
        space_of(Config(), own=own)


def test_nothing_to_tune():
    with pytest.raises(
        ValueError, match=r"nothing to tune: the fields with a space, activation, .*set on the command line"
    ):
        space_of(PPOConfig(), fixed=set(vars(PPOConfig())))
    own = {"gamma": {"low": 0.9, "high": 1.0}}
    message = r"the fields of the space, gamma, are set on the command line; leave out their flags, or add other fields"
    with pytest.raises(ValueError, match=message):
        space_of(PPOConfig(), fixed={"gamma"}, own=own)
    with pytest.raises(ValueError, match="the space is empty; add fields to the file"):
        space_of(PPOConfig(), own={})
    message = (
        "no field of KLUCBConfig has a predefined search space; its fields are steps_per_iteration: give the space"
    )
    with pytest.raises(ValueError, match=message):
        space_of(configure("kl-ucb", "operant/TwoArms-v0"))


def test_rounded_numbers_stay_within_the_range():
    assert Range(0.12345, 1.0).rounded(0.1234512) == 0.12345
    assert Range(0.1, 1.0).rounded(0.123456) == 0.123
    assert Range(1, 9, whole=True).rounded(3.0) == 3
    assert Range(0.999, 0.9999).rounded(0.999456789) == 0.999457
    assert Range(-1.001, -1.0).rounded(-1.000123456) == -1.00012
    assert Factor(4.0, most=1.0).around(0.5) == Range(0.125, 1.0, log=True)
    with pytest.raises(ValueError, match="positive number, got 0"):
        Factor(4.0).around(0)


def test_values_within_a_space():
    assert [Range(1.0, 2.0).contains(value) for value in (1, 1.0, 1.5, 2.1, True, "none")] == [
        *[True] * 3,
        *[False] * 3,
    ]
    assert [Range(1, 3, whole=True).contains(value) for value in (0, 1, 3, 2.0, True)] == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert [Choices(([4], [4, 4])).contains(value) for value in ([4, 4], [8], "none")] == [True, False, False]


@dataclass(frozen=True)
class Scheduled(Config):
    step_size: float = 0.1
    step_size_schedule: str = "visits"
    exploration_final_eps: float = 0.02
    exploration_schedule: str = "constant"


def test_fields_without_an_effect_are_left_out():
    assert set(space_of(Scheduled())) == {"learning_rate", "gamma", "hidden_sizes"}
    decaying = Scheduled(step_size_schedule="linear", exploration_schedule="linear")
    assert {"step_size", "exploration_final_eps"} <= set(space_of(decaying))
    own = {"step_size": {"low": 0.1, "high": 0.5}}
    with pytest.raises(ValueError, match=r"space\.step_size: it has no effect if step_size_schedule is 'visits'"):
        space_of(Scheduled(), own=own)
    both = own | {"step_size_schedule": {"choices": ["visits", "constant"]}}
    assert set(space_of(Scheduled(), own=both)) == set(both)


@pytest.mark.parametrize(
    ("algorithm", "task", "without"),
    [
        ("reinforce", "CartPole-v1", {"gae_lambda", "critic_learning_rate"}),
        ("reinforce-to-go", "CartPole-v1", {"gae_lambda", "critic_learning_rate"}),
        ("reinforce-baseline", "CartPole-v1", {"gae_lambda"}),
        ("vpg", "CartPole-v1", set()),
        ("ppo-penalty", "CartPole-v1", {"clip_range"}),
        ("ppo", "CartPole-v1", set()),
        ("a2c", "CartPole-v1", {"n_step"}),
        ("a2c", "LunarLander-v3", {"gae_lambda", "n_step"}),  # n_step is None: num_steps
        (
            "bootstrapped-dqn",
            "operant/DeepSea-v0",
            {"exploration_initial_eps", "exploration_final_eps", "exploration_fraction"},
        ),
        ("dqn", "CartPole-v1", set()),
    ],
)
def test_idle_fields_of_an_algorithm_are_left_out(algorithm, task, without):
    names = {
        *("gae_lambda", "critic_learning_rate", "clip_range", "n_step"),
        *("exploration_initial_eps", "exploration_final_eps", "exploration_fraction"),
    }
    config = configure(algorithm, task)
    assert set(space_of(config)) & names == {name for name in names if hasattr(config, name)} - without


@pytest.mark.parametrize(
    ("algorithm", "task", "fields"),
    [
        ("r-max", "operant/RiverSwim-v0", {"known"}),
        ("mbie-eb", "operant/RiverSwim-v0", {"bonus_coef"}),
        ("dyna-q-plus", "operant/DynaMaze-v0", {"bonus_coef"}),
        ("bootstrapped-dqn", "operant/DeepSea-v0", {"num_heads", "prior_scale", "mask_prob"}),
        ("ucb1", "operant/TwoArms-v0", {"bonus_coef"}),
        ("epsilon-greedy", "operant/TwoArms-v0", {"exploration_rate"}),
    ],
)
def test_the_parameters_of_exploration_are_tuned(algorithm, task, fields):
    assert fields <= set(space_of(configure(algorithm, task)))
    assert "bonus_coef" not in space_of(configure("q-learning", "CliffWalking-v1"))  # 0: no bonus


def test_custom_ranges_keep_their_bounds_and_the_initial_value_moves_inside():
    own = {"gamma": {"low": 0.1, "high": 0.9}, "other": {"low": 5, "high": 9}, "learning_rate": {"low": 0, "high": 1}}
    space = space_of(Config(), own=own)
    assert space["gamma"] == Range(0.1, 0.9)
    assert inside(Config(), space) == Config(gamma=0.9, other=5)
    assert isinstance(inside(Config(), space).other, int)


def test_the_type_of_a_field_decides_whether_its_range_has_integers():
    own = {"gamma": {"low": 0, "high": 1}, "other": {"low": 1.0, "high": 9.0}}
    space = space_of(Config(), own=own)
    assert not space["gamma"].whole
    assert space["gamma"].contains(0.97)
    assert space["other"].whole
    with pytest.raises(ValueError, match=r"integers must be integers, got 0\.5 and 3"):
        space_of(Config(), own={"other": {"low": 0.5, "high": 3}})
    ppo = space_of(PPOConfig(), own={"gamma": {"low": 0, "high": 1}, "num_epochs": {"low": 1, "high": 3}})
    assert [ppo[name].whole for name in ("gamma", "num_epochs")] == [False, True]
