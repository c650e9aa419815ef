from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

from control.learners import (
    TASKS,
    Changed,
    assert_a_bad_reward_is_dropped,
    assert_learns_alone_as_in_company,
    assert_reports_alike,
    assert_resumes_exactly,
    build,
    next_step,
    poison,
)
from control.probes import Aimed, Lasting, Matched, Observed, Pendular, Probe, Several, Solution
from operant import ops, streams
from operant.control.recurrent_ppo import RecurrentPPO, RecurrentPPOConfig
from operant.nets import Pass
from operant.runtime.acting import draw_noise
from operant.runtime.evaluation import evaluate_policy
from operant.streams import row_seeds

SMALL = {
    "num_envs": 4,
    "num_steps": 8,
    "num_epochs": 2,
    "num_minibatches": 2,
    "hidden_sizes": (8,),
    "rnn_hidden_size": 6,
    "learning_rate": 1e-3,
}


def learner(task="CartPole-v1", seeds=(3, 5), *, budget=10_000, backend="auto", wrap=None, **config):
    return build(
        RecurrentPPO, RecurrentPPOConfig(**{**SMALL, **config}), task, seeds, budget=budget, backend=backend, wrap=wrap
    )


class Remembered(Probe):
    """Probe whose cue is visible at the first step only, and whose last action must match it."""

    DELAY = 5

    def lengths(self):
        return 1 + self.DELAY

    def observe(self):
        return torch.where(self.elapsed == 0, self.sign, 0.0)

    def reward(self, actions):
        return torch.where(self.elapsed == self.DELAY, self.sign * (2.0 * actions - 1.0), 0.0)

    @classmethod
    def solution(cls, gamma):
        return Solution(torch.tensor([[1.0], [-1.0]]), torch.full((2,), gamma**cls.DELAY))


class Masked(Probe):
    """Probe with a mask: the second of three actions is the best allowed one; the first gives more but is forbidden."""

    observation_space = gymnasium.spaces.Dict(
        obs=gymnasium.spaces.Box(-np.inf, np.inf, (1,)), action_mask=gymnasium.spaces.MultiBinary(3)
    )
    action_space = gymnasium.spaces.Discrete(3)

    def _seen(self, obs):
        return {"obs": obs, "action_mask": torch.tensor([[0, 1, 1]], dtype=torch.int8).expand(self.rows, 3)}

    def reward(self, actions):
        assert (actions > 0).all(), "a forbidden action was chosen"
        return torch.tensor([5.0, 1.0, 0.0])[actions]

    def reset(self, seeds=None):
        return self._seen(super().reset(seeds))

    def step(self, actions):
        step = super().step(actions)
        return step._replace(obs=self._seen(step.obs), final_obs=self._seen(step.final_obs))

    def load_state_dict(self, state):
        return self._seen(super().load_state_dict(state))


# Learning


def train(probe, iterations, **config):
    settings = {"num_envs": 8, "num_epochs": 4, "learning_rate": 1e-2, "lr_schedule": "linear", "hidden_sizes": (16,)}
    steps = config.get("num_steps", SMALL["num_steps"])
    ppo = learner(probe, budget=iterations * 8 * steps, max_grad_norm=None, log_std_init=-1.0, **{**settings, **config})
    for _ in range(iterations):
        ppo.iterate()
    return ppo


@pytest.mark.parametrize(
    "probe", [Observed, Matched, Several, Aimed, Lasting, Pendular], ids=lambda probe: probe.__name__
)
def test_probes_are_solved(probe):
    gamma = 0.5
    ppo = train(probe, 80 if probe is Aimed else 50, gamma=gamma)
    rollout = ppo.agent.collect(ppo.config.num_steps)
    seen = rollout.obs[..., :1]
    values, _ = rollout.successor_values(ppo.agent.networks.value)
    solution = probe.solution(gamma)
    which = (seen == solution.obs.squeeze(1)).to(torch.uint8).argmax(-1)
    torch.testing.assert_close(values, solution.values[which], atol=0.15, rtol=0)
    if solution.actions is not None:
        greedy, _ = ppo.act(solution.obs.expand(2, *solution.obs.shape), None, None)
        torch.testing.assert_close(greedy, solution.actions.expand_as(greedy), atol=0.1, rtol=0)


def test_a_cue_is_remembered_until_the_end():
    gamma = 0.9
    ppo = train(Remembered, 60, gamma=gamma, num_steps=12, rnn_hidden_size=16)
    score = evaluate_policy(ppo.agent, Remembered(row_seeds((3, 5), 10, "evaluation")), seeds=2, episodes=20)
    assert score.scores == (1.0, 1.0)
    rollout = ppo.agent.collect(12)
    cue = rollout.obs[..., 0] != 0
    values, _ = rollout.successor_values(ppo.agent.networks.value)
    torch.testing.assert_close(values[cue], torch.full((int(cue.sum()),), gamma**5), atol=0.15, rtol=0)


def test_masked_actions_are_never_chosen_and_the_best_of_the_others_is_learned():
    ppo = train(Masked, 20, gamma=0.5)
    obs = {"obs": torch.zeros(2, 3, 1), "action_mask": torch.tensor([0, 1, 1]).expand(2, 3, 3)}
    actions, hidden_state = ppo.act(obs, None, None)
    assert (actions == 1).all()
    assert hidden_state.shape == (2, 3, 6)
    assert ppo.agent.parameters.isfinite().all()


# Hidden states


def follow(ppo, packed, hidden_state):
    """Process a column of packed steps ``[T, ...]`` of one seed; return the outputs and the hidden state."""
    network, parameters = ppo.agent.network, ppo.agent.parameters
    layers, out = network.layers(parameters[:, : network.size]), []
    for row in packed:
        start = row[-1 - network.units]
        hidden_state = torch.zeros_like(hidden_state) if start else hidden_state
        step = torch.cat((row[: network.inputs], torch.zeros(1), hidden_state))
        outputs, after = network.step(layers, step.view(1, 1, -1).expand(len(parameters), 1, -1))
        hidden_state = after[0, 0]
        out.append(outputs[0, 0])
    return torch.stack(out), hidden_state


def test_a_rollout_is_what_a_walk_through_its_steps_gives():
    ppo = learner(seeds=(3,), num_steps=40)
    ppo.agent.parameters.mul_(3.0)
    for _ in range(2):
        hidden_state = ppo.agent.hidden_state.clone()
        rollout = ppo.agent.collect(40)
        values, _ = rollout.successor_values(ppo.agent.networks.value)
        assert rollout.terminated.any()
        for row in range(4):
            out, last = follow(ppo, rollout.obs[:, 0, row], hidden_state[0, row])
            torch.testing.assert_close(rollout.kept[1][:, 0, row], out[:, :2])
            torch.testing.assert_close(values[:, 0, row], out[:, 2])
            ended = rollout.terminated[-1, 0, row] | rollout.truncated[-1, 0, row]
            torch.testing.assert_close(ppo.agent.hidden_state[0, row], last * ~ended)
            assert ppo.agent.starts[0, row] == ended
            starts = rollout.obs[1:, 0, row, 4] > 0
            assert torch.equal(starts, (rollout.terminated | rollout.truncated)[:-1, 0, row])


def test_a_truncated_episode_bootstraps_from_its_own_memory():
    def cut(step, time):
        ended = torch.zeros_like(step.truncated)
        if time % 5 == 4:
            ended[:] = True
        return step._replace(terminated=torch.zeros_like(ended), truncated=ended)

    ppo = learner(wrap=lambda env: Changed(env, cut), num_steps=10)
    ppo.agent.parameters.mul_(3.0)
    rollout = ppo.agent.collect(10)
    values, successors = rollout.successor_values(ppo.agent.networks.value)
    torch.testing.assert_close(successors[:4], values[1:5])
    hidden_state = ppo.agent.step(rollout.obs[4])[1]
    going_on = ppo.agent.pack(rollout.final_obs[4, ..., :4], torch.zeros(2, 4, dtype=torch.bool), hidden_state)
    torch.testing.assert_close(successors[4], ppo.agent.networks.value(going_on))
    forgetful = ppo.agent.pack(rollout.final_obs[4, ..., :4], torch.ones(2, 4, dtype=torch.bool), hidden_state)
    assert not torch.allclose(successors[4], ppo.agent.networks.value(forgetful))


def test_acting_hands_the_memory_on():
    ppo = learner()
    ppo.agent.parameters.mul_(3.0)
    obs = torch.randn(5, 2, 7, 4, generator=torch.Generator().manual_seed(0))
    noise = draw_noise(ppo, 7, streams.of_seeds(ppo.seeds, "test"))
    hidden_state, actions = None, []
    for step in obs:
        action, hidden_state = ppo.act(step, hidden_state, noise)
        actions.append(action)
    assert hidden_state.shape == (2, 7, 6)
    packed = torch.cat((obs, torch.zeros(5, 2, 7, 7)), dim=-1)
    inputs = packed.movedim(1, 0).flatten(1, 2)
    network = type(ppo.agent.network)(
        4, (8,), 3, activation="tanh", recurrence=replace(ppo.config.spec.recurrence, steps=5)
    )
    outputs = network.trace(ppo.agent.networks.actor, inputs)[-1].view(2, 5, 7, 3)[..., :2]
    expected = ppo.agent.head.sample(outputs, ppo.agent.networks.free, noise.unsqueeze(1).expand_as(outputs))
    assert torch.equal(torch.stack(actions, dim=1), expected)
    forgetful = torch.stack([ppo.act(step, None, noise)[0] for step in obs], dim=1)
    assert torch.equal(forgetful[:, 0], expected[:, 0])


# Loss and gradient


def slow_loss(ppo, parameters, part, sequences):
    """Compute equation 9 of Schulman et al. 2017, negated, seed by seed, sequence by sequence and step by step."""
    config, network = ppo.config, ppo.agent.network
    outputs = ppo.agent.head.outputs
    bound = ppo.agent.networks.shape.bind(parameters)
    steps, total = part.obs.shape[1] // sequences, 0.0
    for s in range(len(ppo.seeds)):
        for k in range(sequences):
            hidden_state = part.obs[s, k, -network.units :]
            for t in range(steps):
                i = t * sequences + k
                hidden_state = torch.zeros(network.units) if part.obs[s, i, network.inputs] else hidden_state
                row = torch.cat((part.obs[s, i, : network.inputs], torch.zeros(1), hidden_state))
                out, after = network.step(bound.layers, row.expand(len(parameters), 1, -1))
                hidden_state = after[s, 0]
                if ppo.agent.head.free:
                    policy = Independent(Normal(out[s, 0, :outputs], bound.free[s].exp()), 1)
                else:
                    policy = Categorical(logits=out[s, 0, :outputs])
                ratio = (policy.log_prob(part.actions[s, i]) - part.old_log_probs[s, i]).exp()
                clipped = ratio.clamp(1 - config.clip_range, 1 + config.clip_range)
                objective = torch.min(ratio * part.advantages[s, i], clipped * part.advantages[s, i])
                error = (out[s, 0, outputs] - part.targets[s, i]) ** 2
                objective = objective - config.vf_coef * error / 2
                objective = objective + config.ent_coef * policy.entropy()
                total = total - objective / part.targets.shape[1]
    return total


@TASKS
def test_loss_and_gradient_are_those_of_the_paper(task):
    def cut(step, time):
        return step._replace(truncated=torch.full_like(step.truncated, time % 5 == 4))

    ppo = learner(task, wrap=lambda env: Changed(env, cut), ent_coef=0.02)
    batch = ppo.estimate_advantages(ppo.agent.collect(8))
    ppo.agent.parameters += 0.3 * torch.randn(ppo.agent.parameters.shape, generator=torch.Generator().manual_seed(1))
    part = next(ppo.minibatches(batch))
    networks = Pass(ppo.agent.networks, part.obs)
    loss, _ = ppo.loss(networks, part, ppo.agent.networks.free.clone(), 1.0)
    gradient = networks.gradient(loss)
    leaf = ppo.agent.parameters.clone().requires_grad_()
    slow = slow_loss(ppo, leaf, part, sequences=2)
    torch.testing.assert_close(loss.detach(), slow.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, torch.autograd.grad(slow, leaf)[0], rtol=1e-3, atol=1e-4)


def test_before_the_first_update_every_part_has_ratio_one():
    ppo = learner(num_steps=24, num_envs=6, num_minibatches=3)
    ppo.iterate()
    batch = ppo.estimate_advantages(ppo.agent.collect(24))
    assert (batch.obs[..., 4] > 0).any(), "the test must have episodes that begin within a row"
    for part in ppo.minibatches(batch):
        networks = Pass(ppo.agent.networks, part.obs)
        torch.testing.assert_close(networks.outputs.detach(), part.outputs)
        torch.testing.assert_close(networks.values.detach(), part.old_values)


def test_minibatches_are_made_of_whole_rows():
    ppo = learner(num_envs=6, num_minibatches=3)
    order = ppo.agent.order(48, 3, torch.Generator().manual_seed(0))
    assert torch.equal(order.sort().values, torch.arange(48))
    for part in order.view(3, 8, 2):
        assert torch.equal(part // 6, torch.arange(8).unsqueeze(1).expand(8, 2)), "ordered by time"
        assert (part % 6 == part[0] % 6).all(), "the same environments at all times"
    assert not torch.equal(order, ppo.agent.order(48, 3, torch.Generator().manual_seed(1)))


# Independence of seeds, resume and invalid numbers


@TASKS
def test_one_update_is_the_same_alone_and_among_other_seeds(task):
    block, alone = learner(task, (3, 5, 8)), learner(task, (5,))
    for _ in range(2):
        block.iterate()
    batch = block.estimate_advantages(block.agent.collect(8))
    for name in ("first", "second", "steps", "skipped"):
        getattr(alone.optimizer, name).copy_(getattr(block.optimizer, name)[1:2])
    alone.agent.parameters.copy_(block.agent.parameters[1:2])
    alone.batch_streams[0].set_state(block.batch_streams[1].get_state())
    before = alone.agent.parameters.clone()
    block.update(batch, 0.9)
    alone.update(batch.map(lambda tensor: tensor[1:2]), 0.9)
    assert not torch.equal(alone.agent.parameters, before)
    torch.testing.assert_close(block.agent.parameters[1:2], alone.agent.parameters, rtol=1e-5, atol=1e-7)


def test_a_seed_learns_the_same_in_any_company():
    assert_learns_alone_as_in_company(lambda seeds: learner("Pendulum-v1", seeds, normalize_reward=True), iterations=3)


def test_a_seed_that_is_stopped_reports_the_same_in_any_company():
    seeds = (3, 5, 8, 13)
    config = {"target_kl": 0.003, "num_epochs": 6, "num_steps": 32, "learning_rate": 3e-3}
    block = learner(seeds=seeds, **config)
    alone = [learner(seeds=(seed,), **config) for seed in seeds]
    for _ in range(3):
        together = block.iterate()
        for place, each in enumerate(alone):
            assert_reports_alike(together, each.iterate(), place=place)
    assert len(set(block.optimizer.steps.tolist())) > 1, "the test must stop seeds at different times"


@pytest.mark.parametrize("task", ["CartPole-v1", "operant/HiddenCartPole-v0"])
def test_training_resumes_bit_for_bit_from_a_checkpoint(task, tmp_path):
    assert_resumes_exactly(
        lambda: learner(
            task, normalize_reward=True, lr_schedule="linear", clip_range_schedule="linear", target_kl=0.05
        ),
        tmp_path,
    )


def test_a_reward_that_is_not_a_number_is_dropped_and_harms_no_other_seed():
    config = {"normalize_advantage": "batch", "num_minibatches": 1}
    clean, hit = learner(**config), learner(wrap=poison(row=5, when=10), **config)
    assert_a_bad_reward_is_dropped(clean, hit)


def test_invalid_transitions_take_no_part():
    def run(junk):
        ppo = learner(wrap=next_step(junk), num_steps=24, ent_coef=0.01)
        return [ppo.iterate() for _ in range(3)], ppo

    (_, calm), (metrics, wild) = run(0.0), run(1e6)
    assert torch.equal(calm.agent.parameters, wild.agent.parameters)
    assert sum(int(m["rollout/episodes"].sum()) for m in metrics) > 8


# Errors


def test_state_dependent_noise_is_rejected():
    with pytest.raises(ValueError, match="use_sde must be false: recurrent policies have no state-dependent noise"):
        RecurrentPPOConfig(use_sde=True)


def test_separate_networks_are_rejected():
    with pytest.raises(ValueError, match="share_features must be true: policy and value share the hidden state"):
        RecurrentPPOConfig(share_features=False)


def test_minibatches_must_divide_the_environments():
    with pytest.raises(ValueError, match=r"num_minibatches \(3\) must divide the 4 environments"):
        RecurrentPPOConfig(num_envs=4, num_steps=9, num_minibatches=3)


@pytest.mark.parametrize(("name", "value"), [("rnn_hidden_size", 0), ("gamma", 1.5), ("clip_range", 0.0)])
def test_invalid_values_are_rejected_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got {value!r}$"):
        RecurrentPPOConfig(**{name: value})


def test_images_are_rejected():
    with pytest.raises(
        ValueError, match=r"recurrent-ppo needs vectors, but the observations of .* are images, .* ppo,"
    ):
        learner("operant/PixelCatch-v0")


def test_unsuitable_spaces_are_rejected():
    probe = type("Odd", (Probe,), {"action_space": gymnasium.spaces.MultiBinary(2)})
    with pytest.raises(
        ValueError,
        match=r"recurrent-ppo needs actions of Discrete or MultiDiscrete or a Box of float, but those of Odd are Multi",
    ):
        learner(probe)


def test_the_surrogate_is_that_of_ppo(monkeypatch):
    calls, original = [], ops.clipped_surrogate

    def recording(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(ops, "clipped_surrogate", recording)
    learner().iterate()
    assert len(calls) == 2 * 2
