"""Wrong wrappers of users are reported before a run is created."""

import pytest
import torch

import operant
from operant.envs import Wrapper, make
from operant.envs.conformance import try_once
from operant.envs.trial import trial_of, try_wrappers

TINY = {"budget": 32, "progress": "silent", "evaluate_episodes": 2}
SMALL = {**TINY, "num_envs": 2, "num_steps": 8, "hidden_sizes": (4,)}


class Longer(Wrapper):
    def observation(self, obs):
        return torch.cat((obs, obs), 1)


class Total(Wrapper):
    def step(self, actions):
        step = super().step(actions)
        return step._replace(reward=step.reward.sum())


class Missing(Wrapper):
    STATE = ("visits",)


class Silent(Wrapper):
    def step(self, actions):
        super().step(actions)


class Unwrapping(Wrapper):
    def __init__(self, env):
        self.inner = env


class Counting(Wrapper):
    def metrics(self):
        return {"count": torch.zeros(7)}


class Measuring(Wrapper):
    def metrics(self):
        return {"count": 1.0}


class Drawing(Wrapper):
    """Wrapper that changes nothing but the global generator of torch."""

    def step(self, actions):
        torch.rand(())
        return super().step(actions)


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        (Longer, r"the wrapper Longer does not fit CartPole-v1: reset\(\) must have shape \[2, 4\], got \[2, 8\]"),
        (Total, r"the wrapper Total .*: Step\.reward must be a float of shape \[2\] on cpu, got torch\.float32 \[\]"),
        (Silent, r"the wrapper Silent does not fit CartPole-v1: step\(\) must return a Step, got None"),
        (Unwrapping, r"Unwrapping\.__init__ must call super\(\)\.__init__\(env\)"),
        (Counting, r"the wrapper Counting .*: metrics\(\)\['count'\] must be a tensor of shape \[1\], got \[7\]"),
        (Measuring, r"the wrapper Measuring .*: metrics\(\)\['count'\] must be a tensor of shape \[1\], got a float"),
        (Missing, r"the wrapper Missing .*: its state cannot be saved, as STATE names .*'visits'"),
    ],
)
def test_a_wrapper_that_does_not_fit_is_reported_before_there_is_a_run(wrapper, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        operant.train("a2c", "CartPole-v1", wrappers=[wrapper], run=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


def test_wrappers_of_tables_are_tried_too(tmp_path):
    with pytest.raises(ValueError, match=r"the wrapper Total does not fit FrozenLake-v1: Step\.reward must be"):
        operant.train("q-learning", "FrozenLake-v1", wrappers=[Total], run=tmp_path / "run", **TINY)
    assert not (tmp_path / "run").exists()


def test_the_trial_leaves_the_global_generator_and_the_run_as_they_are(tmp_path):
    plain = operant.train("a2c", "CartPole-v1", run=tmp_path / "plain", **SMALL)
    before = torch.random.get_rng_state()
    with trial_of(lambda: Drawing(make("CartPole-v1", 2, [0]))) as env:
        try_once(env, [0])
    assert torch.equal(torch.random.get_rng_state(), before)
    wrapped = operant.train("a2c", "CartPole-v1", wrappers=[Drawing], run=tmp_path / "wrapped", **SMALL)
    assert torch.equal(*(one.experiment.learner.agent.parameters for one in (plain, wrapped)))


class Visits(Wrapper):
    """Wrapper that counts steps in tensors, some of which are saved or private."""

    STATE = (("known", "saved"),)

    def start(self, seeds):
        self.lost, self.saved, self._private, self.constant = torch.zeros(4, len(seeds)).unbind()

    def step(self, actions):
        for part in (self.lost, self.saved, self._private):
            part.add_(1)
        return super().step(actions)


class Saving(Visits):
    def state_dict(self):
        return super().state_dict()


@pytest.mark.parametrize(("kind", "said"), [(Visits, 1), (Saving, 0)])
def test_tensors_that_no_state_contains_cause_a_warning(kind, said, caplog):
    try_wrappers(lambda: kind(make("CartPole-v1", 2, [0])), [0])
    message = "steps change lost of the wrapper Visits, which a resumed run begins without: name it in STATE if later"
    assert [message in text for text in caplog.messages] == [True] * said
