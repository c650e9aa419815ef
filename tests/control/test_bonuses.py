import pytest
import torch

import operant
import operant.explore
from operant import catalog, doors
from operant.catalog.bonuses import BONUSES
from operant.control import configuration
from operant.control.bonuses import Named, with_bonuses
from operant.runtime.settings import Settings


def settings(algorithm="ppo", **changes):
    return Settings(algorithm=algorithm, task="CartPole-v1", seeds=(0,), **changes)


def config(algorithm, **values):
    return configuration(catalog.find(algorithm), "CartPole-v1", None, **values)


class Own(operant.explore.Episodic):
    """A bonus whose constructor takes none of the parameters of `Bonus`."""

    weight = 2.0

    def __init__(self, env, scale=1.0):
        super().__init__(env)


class More(Own):
    gamma = 0.9

    def __init__(self, env, **options):
        super(Own, self).__init__(env, **options)


def test_classes_declare_the_defaults_of_their_bonuses():
    name = Named.of("episodic")
    assert Named.of("operant.explore:Episodic") == name
    assert Named.of("operant.explore:HashedCounts").wrapper() == "operant.explore:HashedCounts(gamma=0.99)"
    own, more = Named.of(f"{__file__}:Own(scale=3.0)"), Named.of(f"{__file__}:More(episodic=False)")
    assert (own.weight, own.is_episodic, own.gamma, own.can_mix) == (2.0, True, 0.99, False)
    assert own.parameters == {"scale": 3.0}
    assert (more.weight, more.is_episodic, more.gamma, more.can_mix) == (2.0, False, 0.9, True)
    assert more.parameters == {"gamma": 0.9}
    for built_in in BONUSES.values():
        kind = doors.load(built_in.place, expected="a bonus")
        assert (kind.weight, kind.episodic) == (built_in.weight, built_in.is_episodic)


@pytest.mark.parametrize("name", BONUSES)
def test_every_name_leads_to_a_bonus(name):
    from operant.explore import Bonus

    bonus = Named.of(name)
    assert issubclass(doors.load(bonus.place, expected="a bonus"), Bonus)
    assert (bonus.channel, bonus.gamma) == ("intrinsic", 0.99)
    assert bonus.weight == (0.05 if name == "episodic" else 0.5)
    assert bonus.is_episodic == (name == "episodic")


def test_a_bonus_may_be_discounted_entirely():
    assert Named.of("rnd(gamma=0.0)").gamma == 0.0


def test_a_method_with_channels_gets_one_for_the_bonus():
    asked, learns = with_bonuses(
        settings(wrappers=("a.py:B",)), config("ppo"), ["rnd(weight=0.1, width=128, gamma=0.9)"]
    )
    assert asked.wrappers == ("a.py:B", "operant.explore:RandomDistillation(gamma=0.9, width=128)")
    assert learns.reward_channels == {"intrinsic": {"gamma": 0.9, "weight": 0.1, "episodic": False}}


def test_the_configuration_of_the_channel_wins():
    own = config("ppo", reward_channels={"intrinsic": {"weight": 2.0}, "other": {"gamma": 0.5}})
    _, learns = with_bonuses(settings(), own, ["episodic"])
    assert learns.reward_channels == {
        "intrinsic": {"gamma": 0.99, "weight": 2.0, "episodic": True},
        "other": {"gamma": 0.5},
    }


def test_other_methods_get_it_added_to_the_reward():
    asked, learns = with_bonuses(settings("dqn"), config("dqn"), ["hashed(bits=8)"])
    assert asked.wrappers == ("operant.explore:HashedCounts(gamma=0.99, bits=8, mixed=0.5)",)
    assert learns == config("dqn")


def test_two_bonuses_need_two_channels():
    with pytest.raises(
        ValueError, match="two bonuses have the channel 'intrinsic': rename one, such as channel='second'"
    ):
        with_bonuses(settings(), config("ppo"), ["rnd", "episodic"])
    asked, learns = with_bonuses(settings(), config("ppo"), ["rnd", "episodic(channel='second')"])
    assert len(asked.wrappers) == 2
    assert learns.reward_channels.keys() == {"intrinsic", "second"}


@pytest.mark.parametrize(
    ("algorithm", "bonus", "message"),
    [
        (
            "ppo",
            "curious",
            "bonus must be counts, hashed, episodic, rnd, forward, icm or a custom class, .* got 'curious'",
        ),
        ("ppo", "rnd(0.1)", "parameters are given by name"),
        ("ppo", "counts", "exact counts need Discrete observations"),
        (
            "ppo",
            "rnd(breadth=3)",
            "the bonus rnd has no parameter 'breadth': it takes weight, episodic, channel, ",
        ),
        ("dqn", "rnd(weigth=3)", r"the bonus rnd has no parameter 'weigth'; did you mean weight\?"),
        (
            "ppo",
            "rnd(channel='reward')",
            "channel='reward' of a bonus is the channel of the task's reward: leave it out",
        ),
        (
            "dqn",
            "rnd(channel='reward')",
            "channel='reward' of a bonus is the channel of the task's reward: leave it out",
        ),
        ("ppo", "rnd(every=1.5)", "every must be an integer, got 1.5"),
        ("ppo", "rnd(width=8.0)", "width must be an integer, got 8.0"),
        ("ppo", "hashed(bits=2.5)", "bits must be an integer, got 2.5"),
        ("ppo", "episodic(capacity=2.5)", "capacity must be an integer, got 2.5"),
        ("ppo", "rnd(weight=-1)", "the weight of the bonus rnd must be a number of at least 0, got -1"),
        ("ppo", "rnd(episodic=1)", "episodic of the bonus rnd must be True or False, got 1"),
        ("dqn", "rnd(episodic=True)", "dqn adds bonuses to the reward: leave episodic of .* out"),
        (
            "ppo",
            "operant.envs:NoisyTV",
            "operant.envs:NoisyTV must be a subclass of operant.explore.Bonus, which it is not; --wrapper takes",
        ),
        ("dqn", f"{__file__}:Own", "dqn adds bonuses to the reward, so __init__ of .*:Own must take mixed"),
        ("q-learning", "rnd", "q-learning takes no bonus, leave it out; deep control does, such as ppo and dqn"),
    ],
)
def test_invalid_values_are_rejected_before_anything_is_written(algorithm, bonus, message, tmp_path):
    task = "CliffWalking-v1" if algorithm == "q-learning" else "CartPole-v1"
    with pytest.raises(ValueError, match=message):
        operant.train(algorithm, task, bonus=bonus, run=tmp_path / "run", progress="silent")
    assert not (tmp_path / "run").exists()


OWN = '''
import torch
from operant.explore import Bonus


class Speed(Bonus):
    """Bonus for the speed of the cart."""

    def novelty(self, seen, actions, valid):
        return seen[..., 1].abs()
'''


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_custom_bonus_resumes_bit_for_bit(algorithm, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    small = {"ppo": {"num_steps": 16, "num_minibatches": 1}, "dqn": {"learning_starts": 32, "buffer_size": 500}}[
        algorithm
    ]
    asked = {"bonus": f"{tmp_path / 'own.py'}:Speed(weight=0.3)", "seeds": 2, "progress": "silent", **small}
    whole = operant.train(algorithm, "CartPole-v1", run=tmp_path / "whole", budget=256, **asked)
    stops = iter([False, True])
    cut = operant.train(
        algorithm, "CartPole-v1", run=tmp_path / "cut", budget=256, interrupted=lambda: next(stops, True), **asked
    )
    assert cut.outcome.interrupted
    resumed = operant.resume(tmp_path / "cut", progress="silent")
    first, second = (run.experiment.learner.state_dict() for run in (whole, resumed))
    assert torch.equal(torch.tensor(first["consumed"]), torch.tensor(second["consumed"]))
    for one, other in zip(_tensors(first), _tensors(second), strict=True):
        assert torch.equal(one, other)


def _tensors(state):
    if isinstance(state, torch.Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]
