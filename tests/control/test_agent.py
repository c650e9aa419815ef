from dataclasses import replace

import pytest
import torch

import graphs
from control.learners import Changed, assert_resumes_exactly, build, same
from control.probes import Constant, Pendular
from operant import ops, streams
from operant.control import A2C, DQN, PPO, SAC, A2CConfig, DQNConfig, PPOConfig, Reinforce, ReinforceConfig, SACConfig
from operant.control.agent import Agent, Samples, Scaling, require_apart, require_rows
from operant.envs import Wrapper, make, start
from operant.envs.tensor import TENSOR_ENVS
from operant.nets import Graph, Spec
from operant.runtime.acting import draw_noise
from operant.state import clone
from operant.streams import row_seeds


def agent(task="CartPole-v1", seeds=(3, 5), *, rows=4, observations=False, make_env=None):
    rows_seeds = row_seeds(seeds, rows, "environment")
    if make_env is not None:
        env = make_env(TENSOR_ENVS[task], rows_seeds)
    else:
        env = task(rows_seeds) if isinstance(task, type) else make(task, rows, seeds)
    return Agent(
        env,
        seeds=seeds,
        rows=rows,
        algorithm="ppo",
        spec=Spec(hidden=(8,), activation="tanh", shared=False),
        log_std=-0.5,
        scaling=Scaling(observations=observations, rewards=False, gamma=0.9),
    )


class Pair(Wrapper):
    """Wrapper with two learned tensors."""

    LEARNED = ("first", "second")
    in_evaluation = False

    def start(self, seeds):
        self.first = self.second = torch.zeros(len(seeds))


def test_wrappers_that_learn_from_all_environments_are_named_once():
    env = Pair(Pair(make("CartPole-v1", 2, (3,))))
    start(env, (3,))
    with pytest.raises(ValueError, match=r"^Pair on CartPole-v1 needs .* leave out --bonus or --wrapper, or --shards$"):
        require_apart(env)
    with pytest.raises(ValueError, match=r"^normalize_obs, Pair on .*: leave out normalize_obs and --bonus or"):
        require_apart(env, "normalize_obs")
    with pytest.raises(ValueError, match=r"leave out normalize_obs, or --shards$"):
        require_apart(env.env.env, "normalize_obs")


@pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1"])
def test_a_rollout_contains_actions_and_outputs(task):
    it = agent(task)
    rollout = it.collect(6)
    actions, outputs = rollout.kept
    for t in range(6):
        torch.testing.assert_close(outputs[t], it.networks.policy(rollout.obs[t]))
    assert actions.shape[:3] == (6, 2, 4)
    batch = Samples.of(rollout, it, advantages=rollout.rewards, values=2 * rollout.rewards)
    expected = it.head.log_prob(batch.outputs, it.networks.free, batch.actions)
    torch.testing.assert_close(batch.old_log_probs, expected)
    assert torch.equal(batch.targets, 3 * batch.advantages)
    for s in range(2):
        assert torch.equal(batch.obs[s], rollout.obs[:, s].flatten(0, 1))
        assert torch.equal(batch.advantages[s], rollout.rewards[:, s].flatten())


def test_a_seed_acts_the_same_in_any_company():
    together, alone = agent(seeds=(3, 5, 8)), agent(seeds=(5,))
    first, second = together.collect(10), alone.collect(10)
    assert torch.equal(first.kept[0][:, 1], second.kept[0][:, 0])
    torch.testing.assert_close(first.obs[:, 1], second.obs[:, 0])
    assert not torch.equal(first.kept[0][:, 0], first.kept[0][:, 1])


@pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1", Pendular])
@pytest.mark.parametrize("observations", [False, True])
def test_acting_resumes_bit_for_bit_from_a_state(task, observations):
    first, second = (agent(task, observations=observations) for _ in range(2))
    first.collect(7)
    second.load_state_dict(first.state_dict())
    for one, other in zip(first.collect(7).kept, second.collect(7).kept, strict=True):
        assert torch.equal(one, other)
    assert same(first.state_dict(), second.state_dict())


def test_acting_for_others_is_greedy_without_noise_and_changes_nothing():
    it = agent(observations=True)
    it.collect(5)
    before = it.state_dict()["collector"]["statistics"].clone()
    obs = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(0))
    outputs = it.networks.policy(it.normalizer.normalize(obs))
    assert torch.equal(it.act(obs, None, None)[0], outputs.argmax(-1))
    noise = draw_noise(it, 9, streams.of_seeds(it.seeds, "test"))
    assert torch.equal(it.act(obs, None, noise)[0], it.head.sample(outputs, it.networks.free, noise))
    assert torch.equal(it.state_dict()["collector"]["statistics"], before)


def numbered():
    """Return samples that are identified by their numbers: two seeds with twelve samples each."""
    number = torch.arange(12.0).expand(2, 12) + torch.tensor([[0.0], [100.0]])
    names = ("actions", "old_log_probs", "advantages", "targets", "old_values")
    return Samples(obs=number.unsqueeze(-1), outputs=number.unsqueeze(-1), weights=None, **dict.fromkeys(names, number))


def test_shuffled_samples_stay_together_and_with_their_seed():
    generator = torch.Generator().manual_seed(0)
    order = torch.stack([torch.randperm(12, generator=generator) for _ in range(2)])
    parts = numbered().shuffled(order, 3)
    assert parts.targets.shape == (3, 2, 4)
    assert torch.equal(parts.targets.transpose(0, 1).reshape(2, 12), order + torch.tensor([[0.0], [100.0]]))
    assert torch.equal(parts.obs.squeeze(-1), parts.targets)
    assert torch.equal(parts.advantages, parts.targets)


@pytest.mark.parametrize("weighted", [False, True])
def test_advantages_are_standardized_for_each_seed(weighted):
    samples = numbered()
    if weighted:
        samples = replace(samples, weights=torch.arange(12).remainder(2).float().expand(2, 12))
    standard = samples.standardized()
    torch.testing.assert_close(standard.advantages, ops.standardize(samples.advantages, samples.weights))
    torch.testing.assert_close(standard.advantages[0], standard.advantages[1], rtol=1e-4, atol=1e-4)
    assert torch.equal(standard.targets, samples.targets)


def test_another_number_of_rows_is_rejected():
    with pytest.raises(ValueError, match="2 seeds with 4 environments each need 8, but there are 6"):
        require_rows(Constant(range(6)), (0, 1), 4)


def test_minibatches_shuffle_the_active_seeds_alone_each_by_its_own_stream():
    it, batch = agent(), numbered()
    streams = [torch.Generator().manual_seed(seed) for seed in (3, 5)]
    parts = list(it.minibatches(batch, 3, streams, active=torch.tensor([True, False])))
    assert [part.targets.shape for part in parts] == [(2, 4)] * 3
    first, second = torch.cat([part.targets for part in parts], dim=1)
    expected = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    assert torch.equal(first, batch.targets[0][expected])
    assert torch.equal(second, batch.targets[1])
    assert torch.equal(streams[1].get_state(), torch.Generator().manual_seed(5).get_state())
    assert next(it.minibatches(batch, 1, streams)) is batch


def test_minibatches_are_standardized_each_by_itself():
    streams = [torch.Generator().manual_seed(seed) for seed in (3, 5)]
    for part in agent().minibatches(numbered(), 3, streams, standardize=True):
        torch.testing.assert_close(part.advantages.mean(1), torch.zeros(2), atol=1e-5, rtol=0)
        torch.testing.assert_close(part.advantages.std(1, correction=0), torch.ones(2), atol=1e-4, rtol=0)


@pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1"])
def test_acting_after_a_recorded_rollout_equals_acting_after_a_played_one(task, torch_library, monkeypatch):
    graphs.emulate(monkeypatch)
    played, recorded = (agent(task, make_env=torch_library) for _ in range(2))
    recorded.capture()
    assert recorded.graph is None  # an option of CUDA devices
    recorded.graph = Graph(recorded._play, recorded.device)
    for turn in range(8):
        steps = 40 if turn % 2 else 25
        one, other = (replace(each.collect(steps), metrics={}) for each in (played, recorded))
        assert same(vars(one), vars(other))
        assert same(played.state_dict(), recorded.state_dict())
        if turn == 5:
            recorded.load_state_dict(clone(played.state_dict()))
        for each in (played, recorded):
            each.parameters.mul_(0.9)
    assert len(recorded.graph._recordings) == 2
    assert all(recording.calls == 1 for recording in recorded.graph._recordings.values())


def test_a_recorded_rollout_has_the_extra_tensors_of_its_steps(torch_library, monkeypatch):
    graphs.emulate(monkeypatch)

    def with_bonus(*args, **options):
        return Changed(torch_library(*args, **options), lambda step, _: step._replace(extras={"bonus": 2 * step.obs}))

    played, recorded = (agent("CartPole-v1", make_env=with_bonus) for _ in range(2))
    recorded.graph = Graph(recorded._play, recorded.device)
    for _ in range(3):
        one, other = (each.collect(4).extras["bonus"] for each in (played, recorded))
        assert torch.equal(one, other)
        assert one.shape == (4, *played.collector.obs.shape)


class Largest(Wrapper):
    """Wrapper that scales rewards by the largest of each seed so far, and counts the steps of each environment."""

    STATE = ("largest", "begun")
    LEARNED = ("largest",)

    def start(self, seeds):
        self.largest, self.begun = torch.ones(len(seeds), 1), torch.zeros(self.rows)

    def step(self, actions):
        step = super().step(actions)
        self.begun += 1
        rewards = step.reward.view(len(self.largest), -1)
        self.largest.copy_(torch.maximum(self.largest, rewards.abs().amax(1, keepdim=True)))
        return step._replace(reward=(rewards / self.largest).flatten() + 0.01 * self.begun)

    def metrics(self):
        return {"wrapper/largest": self.largest.flatten().clone()}


SMALL = {"num_envs": 4, "hidden_sizes": (8,)}
QUICK = {**SMALL, "learning_starts": 8, "batch_size": 8, "buffer_size": 100, "train_freq": 2}
WRAPPED = [
    (PPO, PPOConfig(**SMALL, num_steps=8, num_minibatches=2, normalize_obs=True), "Pendulum-v1"),
    (A2C, A2CConfig(**SMALL), "Pendulum-v1"),
    (DQN, DQNConfig(**QUICK), "CartPole-v1"),
    (SAC, SACConfig(**QUICK), "Pendulum-v1"),
]


@pytest.mark.parametrize(("kind", "config", "task"), WRAPPED)
def test_wrappers_belong_to_a_run(kind, config, task, tmp_path):
    def fresh():
        return build(kind, config, task, wrap=Largest)

    assert_resumes_exactly(fresh, tmp_path)
    it = fresh()
    metrics = [it.iterate() for _ in range(3)][-1]
    kept = it.learned["Largest.largest"]
    assert torch.equal(metrics["wrapper/largest"], kept.flatten())
    assert kept.shape == (2, 1)
    if task == "Pendulum-v1":
        assert (kept > 1).all()


def test_a_method_without_saved_environments_rejects_wrappers_with_a_state():
    with pytest.raises(ValueError, match="would lose the state of Largest"):
        build(Reinforce, ReinforceConfig(**SMALL), wrap=Largest)
    build(Reinforce, ReinforceConfig(**SMALL), wrap=Wrapper).iterate()
