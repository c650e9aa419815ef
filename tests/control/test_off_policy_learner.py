"""What SAC, discrete SAC and TD3 have in common: independent seeds, exact resume, invalid numbers, and errors."""

from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch

from control.learners import assert_resumes_exactly, build, poison
from control.off_policy import QUICK, Named, a_batch, only, transplant
from control.probes import Aimed, Probe
from operant import catalog
from operant.control import sac, sac_discrete, td3
from operant.envs import make
from operant.runtime.configuration import configuration
from operant.runtime.training import train


class Kind(NamedTuple):
    """A learner, its configuration, presets, a task, and the space of actions of probes for it."""

    name: str
    learner: Any
    config: Any
    presets: Any
    task: str
    actions: gymnasium.Space

    def __call__(self, task=None, seeds=(3, 5), *, budget=10_000, backend="auto", wrap=None, **config):
        """Return a learner."""
        config = self.config(**{**QUICK, **config})
        return build(self.learner, config, task or self.task, seeds, budget=budget, backend=backend, wrap=wrap)

    def probe(self, kind=Probe, **attributes):
        """Return the class of a probe with these actions, and other attributes."""
        return type("Odd", (kind,), {"action_space": self.actions, **attributes})


KINDS = [
    Kind("sac", sac.SAC, sac.SACConfig, sac.PRESETS, "Pendulum-v1", Aimed.action_space),
    Kind("td3", td3.TD3, td3.TD3Config, td3.PRESETS, "Pendulum-v1", Aimed.action_space),
    Kind(
        "sac-discrete",
        sac_discrete.DiscreteSAC,
        sac_discrete.DiscreteSACConfig,
        sac_discrete.PRESETS,
        "CartPole-v1",
        Probe.action_space,
    ),
]
CONTINUOUS = KINDS[:2]
of_every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


# Independence of seeds, resume and invalid numbers


@of_every_kind
def test_one_update_is_the_same_alone_and_among_other_seeds(kind):
    block, alone = kind(seeds=(3, 5, 8)), kind(seeds=(5,))
    for _ in range(2):
        block.iterate()
    batch = a_batch(block)
    transplant(block, alone, 1)
    before = {name: parameters.clone() for name, parameters in alone.parameters.items()}
    for _ in range(2):  # an update of the policy may be due in every second only
        block.update(batch)
        alone.update(only(batch, 1))
    for name, parameters in alone.parameters.items():
        assert not torch.equal(parameters, before[name])
        torch.testing.assert_close(block.parameters[name][1:2], parameters, rtol=1e-5, atol=1e-7)


@of_every_kind
def test_a_seed_learns_the_same_in_any_company(kind):
    block, alone, pair = (kind(seeds=seeds, learning_rate=1e-3) for seeds in [(3, 5, 8), (5,), (5, 3)])
    for _ in range(4):
        reports = [learner.iterate() for learner in (block, alone, pair)]
    updates = block.config.rounds_per_iteration * block.config.gradient_steps * len(block.optimizers)
    assert reports[0]["health/updates"].max() <= updates
    assert reports[0]["health/updates"].min() > updates / 3, "an update of the policy may be due in every second only"
    for name, parameters in block.parameters.items():
        torch.testing.assert_close(parameters[1], alone.parameters[name][0], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(parameters[[1, 0]], pair.parameters[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
@of_every_kind
def test_training_resumes_bit_for_bit_from_a_checkpoint(kind, backend, tmp_path):
    delay = {"policy_delay": 3} if kind.name == "td3" else {}
    assert_resumes_exactly(lambda: kind(backend=backend, buffer_size=90, **delay), tmp_path)


@of_every_kind
def test_a_state_of_another_configuration_is_rejected(kind):
    with pytest.raises(ValueError, match=r"'parameters.actor' has shape .* saved by a different configuration"):
        kind(hidden_sizes=(4,)).load_state_dict(kind().state_dict())


@of_every_kind
def test_bad_targets_stop_their_own_seed_alone(kind):
    clean, hit = kind(), kind()
    clean.iterate()
    hit.iterate()
    batch = a_batch(clean)
    before = hit.parameters["critics"][1].clone()
    clean.update(batch)
    bad = batch.rewards.clone()
    bad[1, 3] = torch.nan
    hit.update(type(batch)(**{**vars(batch), "rewards": bad}))
    assert torch.equal(hit.parameters["critics"][1], before)
    assert hit.counts[1].tolist() == [0, 1]
    for name, parameters in hit.parameters.items():
        assert torch.equal(parameters[0], clean.parameters[name][0])
        assert parameters.isfinite().all()


@of_every_kind
def test_one_bad_reward_harms_no_other_seed(kind):
    clean, hit = kind(), kind(wrap=poison(row=5, when=20))
    train(clean, budget=200, seeds=2, progress="silent")
    train(hit, budget=200, seeds=2, progress="silent")
    for name, parameters in hit.parameters.items():
        torch.testing.assert_close(parameters[0], clean.parameters[name][0], rtol=1e-3, atol=1e-5)
        assert parameters.isfinite().all()


# Spaces


@of_every_kind
def test_dictionaries_are_concatenated_in_training_and_in_evaluation(kind):
    learner = kind(kind.probe(Named))
    metrics = learner.iterate()
    assert metrics["losses/critic"].isfinite().all()
    seen = learner.experience.replay.fields["obs"][: learner.experience.replay.filled]
    assert set(map(tuple, seen.flatten(0, 2).tolist())) == {(0.0, 1.0, 1.0), (1.0, 0.0, -1.0)}, "name, then number"
    obs = {"number": torch.tensor([[[1.0], [-1.0]]] * 2), "name": torch.tensor([[1, 0]] * 2)}
    assert learner.act(obs, None, None)[0].shape[:2] == (2, 2)


@of_every_kind
def test_unsupported_actions_are_rejected_with_what_supports_them(kind):
    message = r"needs actions of a Box of float, .* CartPole-v1 are Discrete\(2\).* ppo,"
    if kind.name == "sac-discrete":
        message = "needs actions of Discrete, but those of Pendulum-v1 are .*sac"
    for budget in (10_000, 10):  # more wrong than the budget
        with pytest.raises(ValueError, match=f"{kind.name} {message}"):
            kind("Pendulum-v1" if kind.name == "sac-discrete" else "CartPole-v1", budget=budget)


@pytest.mark.parametrize("kind", CONTINUOUS, ids=lambda kind: kind.name)
def test_unbounded_actions_are_rejected(kind):
    space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    with pytest.raises(ValueError, match=f"{kind.name} needs actions with finite bounds"):
        kind(kind.probe(Aimed, action_space=space))


@of_every_kind
def test_non_numeric_observations_are_rejected(kind):
    with pytest.raises(ValueError, match=f"{kind.name} does not support the observations of"):
        kind(kind.probe(observation_space=gymnasium.spaces.Text(3)))


@of_every_kind
def test_images_and_masks_are_rejected_with_what_takes_them(kind):
    image = gymnasium.spaces.Box(0, 255, (9, 9, 3), np.uint8)
    with pytest.raises(
        ValueError, match=f"{kind.name} needs vectors, .*Odd are images, .*FlattenObservation; these support .* ppo,"
    ):
        kind(kind.probe(observation_space=image))
    if isinstance(kind.actions, gymnasium.spaces.Discrete):
        masked = gymnasium.spaces.Dict(seen=Probe.observation_space, action_mask=gymnasium.spaces.MultiBinary(2))
        with pytest.raises(ValueError, match=f"{kind.name} does not support action masks, .*Odd have one; .* ppo,"):
            kind(kind.probe(observation_space=masked))


# Hyperparameters


@of_every_kind
def test_other_rows_and_no_budget_are_rejected(kind):
    with pytest.raises(ValueError, match="2 seeds with 4 environments each need 8, but"):
        kind.learner(kind.config(**QUICK), make(kind.task, 3, (0, 1)), seeds=(0, 1), budget=100)
    with pytest.raises(ValueError, match="budget must be at least 1 environment step, got 0"):
        kind(budget=0)
    with pytest.raises(
        ValueError, match=r"learning_starts must be less than the budget of 64 environment steps, got 64: .*raise"
    ):
        kind(budget=64)


POSITIVE = ("num_envs", "train_freq", "gradient_steps", "rounds_per_iteration", "batch_size", "buffer_size")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, 0) for name in (*POSITIVE, "learning_rate")],
        *[(name, 1.1) for name in ("gamma", "tau", "random_exploration")],
        *[(name, -0.1) for name in ("gamma", "tau", "random_exploration", "learning_starts")],
        *[(name, float("nan")) for name in ("learning_rate", "gamma", "tau")],
        ("max_grad_norm", 0.0),
    ],
)
@of_every_kind
def test_invalid_values_are_rejected_by_name(kind, name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got {value!r}$"):
        kind.config(**{name: value})


@of_every_kind
def test_a_buffer_smaller_than_a_step_is_rejected(kind):
    with pytest.raises(ValueError, match="buffer_size must hold one step of all 8 environments of each seed, got 7"):
        kind.config(num_envs=8, buffer_size=7)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in KINDS for name in kind.presets], ids=lambda each: str(each)[:40]
)
def test_every_preset_is_a_configuration(kind, name):
    config = configuration(catalog.find(kind.name), "no such task", name)
    assert {key: getattr(config, key) for key in kind.presets[name]} == kind.presets[name]
