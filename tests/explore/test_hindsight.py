"""Hindsight: every relabeled transition equals that of a naive twin, which loops over the episodes."""

import gymnasium
import pytest
import torch
from gymnasium import spaces

from control.learners import assert_resumes_exactly, build
from operant import api
from operant.control import DQN, SAC, TD3, DQNConfig, SACConfig, TD3Config
from operant.control.replay_collector import STRATEGIES as NAMES
from operant.control.replay_collector import Experience, ReplayConfig
from operant.envs import Wrapper, make
from operant.explore.hindsight import STRATEGIES

SEEDS, ROWS = (3, 5), 2
TASKS = {"operant/BitFlip-v0": {"bits": 3}, "operant/Reach-v0": {"tolerance": 0.5}}


class Diary(Wrapper):
    """Wrapper that records the steps of each row."""

    def reset(self, seeds=None):
        self.seen = super().reset(seeds)
        self.rows = self.env.rows
        self.stories = [[] for _ in range(self.rows)]
        return self.seen

    def step(self, actions):
        step = super().step(actions)
        for row, story in enumerate(self.stories):
            ended = bool(step.terminated[row] | step.truncated[row])
            obs, final = ({name: part[row] for name, part in tree.items()} for tree in (self.seen, step.final_obs))
            story.append((obs, float(step.reward[row]), final, bool(step.terminated[row]), ended))
        self.seen = step.obs
        return step


def experience(task, *, backend="auto", capacity=2 * 40, **hindsight):
    env = Diary(make(task, ROWS, SEEDS, backend=backend, env_kwargs=TASKS[task]))
    size = env.action_space.shape or None

    def random(shape, generator):
        if size:
            return torch.rand((*shape, *size), generator=generator) * 2 - 1
        return torch.randint(int(env.action_space.n), shape, generator=generator)

    return Experience(
        env,
        seeds=SEEDS,
        rows=ROWS,
        capacity=capacity,
        to_env=lambda actions: actions,
        random=random,
        config=ReplayConfig(**hindsight),
    )


def episode_of(story, oldest, step):
    """Return the first and the last stored step of the episode around a step."""
    first = last = step
    while first > oldest and not story[first - 1][4]:
        first -= 1
    while not story[last][4] and last + 1 < len(story):
        last += 1
    return first, last


def naive(memory, strategy, ratio, index, streams):
    """Relabel one transition after another, with the same random numbers."""
    env, filled, length = memory.collector.env, memory.replay.filled, memory.replay.length
    single = gymnasium.make(env.task, **TASKS[env.task]).unwrapped
    for s, stream in enumerate(streams):
        chosen = torch.rand(index.shape[1], generator=stream).tolist()
        draws = [0.0] * len(chosen)
        if strategy != "final":
            draws = torch.rand(index.shape[1], generator=stream, dtype=torch.float64).tolist()
        for m, place in enumerate(index[s].tolist()):
            story = env.stories[s * ROWS + place % ROWS]
            oldest = len(story) - filled
            step = next(t for t in range(oldest, len(story)) if t % length == place // ROWS)
            obs, reward, final, terminated, _ = story[step]
            goal = obs["desired_goal"]
            if chosen[m] < ratio / (1 + ratio):
                first, last = episode_of(story, oldest, step)
                low = {"future": step, "episode": first, "final": last}[strategy]
                goal = story[low + int(draws[m] * (last - low + 1))][2]["achieved_goal"]
                pair = final["achieved_goal"].numpy(), goal.numpy()
                reward, terminated = (getattr(single, f"compute_{it}")(*pair, {}) for it in ("reward", "terminated"))
            yield s, m, obs | {"desired_goal": goal}, float(reward), final | {"desired_goal": goal}, bool(terminated)


@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("task", TASKS)
def test_every_transition_is_that_of_a_naive_twin(task, strategy, backend):
    memory = experience(task, backend=backend, hindsight=strategy)
    encode, changed = memory.collector.features.encode, 0
    for steps in (7, 20, 31):
        memory.explore(steps)
        twins = [torch.Generator() for _ in SEEDS]
        for twin, stream in zip(twins, memory.sample_streams, strict=True):
            twin.set_state(stream.get_state())
        index = torch.arange(memory.replay.size).expand(2, -1)
        plain, found = memory.replay.take(index, gamma=0.9), memory.take(index, gamma=0.9)
        assert torch.equal(found.actions, plain.actions)
        assert torch.equal(found.discounts, plain.discounts)
        for s, m, obs, reward, final, terminated in naive(memory, strategy, 4.0, index, twins):
            one, other = ({name: part.unsqueeze(0) for name, part in tree.items()} for tree in (obs, final))
            assert torch.equal(found.obs[s, m], encode(one)[0])
            assert torch.equal(found.next_obs[s, m], encode(other)[0])
            assert float(found.rewards[s, m]) == reward
            assert bool(found.terminated[s, m]) == terminated
        changed += int((found.obs != plain.obs).any(-1).sum())
        assert (found.rewards == 0).sum() > (plain.rewards == 0).sum()
    assert changed > 100


@pytest.mark.parametrize("ratio", [0.5, 4.0])
def test_the_ratio_determines_how_many_are_relabeled(ratio):
    memory = experience("operant/Reach-v0", hindsight="final", hindsight_ratio=ratio, capacity=8000)
    memory.explore(2000)
    index = torch.arange(4000).expand(2, -1)
    plain, found = memory.replay.take(index, gamma=0.9), memory.take(index, gamma=0.9)
    share = (found.obs != plain.obs).any(-1).float().mean()
    assert float(share) == pytest.approx(ratio / (1 + ratio), abs=0.02)


class Endless(Wrapper):
    """Wrapper with rewards of goals, but without the terminations."""

    def compute_reward(self, achieved_goal, desired_goal):
        return self.env.compute_reward(achieved_goal, desired_goal)


def test_ends_that_do_not_depend_on_the_goal_are_kept():
    env = Endless(make("operant/BitFlip-v0", ROWS, SEEDS, env_kwargs={"bits": 2}))
    memory = Experience(
        env,
        seeds=SEEDS,
        rows=ROWS,
        capacity=200,
        to_env=lambda actions: actions,
        random=lambda shape, generator: torch.randint(2, shape, generator=generator),
        config=ReplayConfig(hindsight="final"),
    )
    memory.explore(100)
    index = torch.arange(200).expand(2, -1)
    plain, found = memory.replay.take(index, gamma=0.9), memory.take(index, gamma=0.9)
    assert torch.equal(found.terminated, plain.terminated)
    assert plain.terminated.any()
    assert not torch.equal(found.rewards, plain.rewards)


SMALL = {"num_envs": 2, "learning_starts": 20, "train_freq": 4, "batch_size": 8, "buffer_size": 60}
LEARNERS = {
    "operant/BitFlip-v0": (DQN, DQNConfig(**SMALL, hidden_sizes=(8,), hindsight="future", reward_range=(-1.0, 0.0))),
    "operant/Reach-v0": (
        SAC,
        SACConfig(**SMALL, rounds_per_iteration=2, gradient_steps=3, hidden_sizes=(8,), hindsight="episode"),
    ),
}


@pytest.mark.parametrize("task", LEARNERS)
def test_runs_with_hindsight_resume_bit_for_bit(task, tmp_path):
    assert_resumes_exactly(lambda: build(*LEARNERS[task], task), tmp_path, iterations=6)


@pytest.mark.parametrize("task", LEARNERS)
def test_a_seed_is_relabeled_the_same_alone_and_with_another(task):
    block, alone = (build(*LEARNERS[task], task, seeds=seeds).experience for seeds in ((3, 5), (5,)))
    for memory in (block, alone):
        memory.explore(40)
    one, other = block.sample(30, gamma=0.9), alone.sample(30, gamma=0.9)
    for name in ("obs", "next_obs", "rewards", "terminated"):
        torch.testing.assert_close(getattr(one, name)[1:], getattr(other, name), rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "config"), [(SAC, SACConfig), (TD3, TD3Config)])
def test_targets_are_clipped_to_the_returns_that_rewards_allow(kind, config):
    def targets(**bounds):
        it = build(kind, config(**SMALL, hidden_sizes=(8,), gamma=0.75, **bounds), "operant/Reach-v0")
        it.experience.explore(30)
        for name in ("targets", "target_critics"):
            if name in it.parameters:
                it.parameters[name].mul_(60.0)
        batch = it.experience.sample(200, gamma=0.75)
        noise = torch.zeros(2, 200, 2)
        return it.compute_targets(batch, noise)

    free, clipped = targets(), targets(reward_range=(-1.0, 0.0))
    assert (free.min() < -4.0) or (free.max() > 0.0)
    torch.testing.assert_close(clipped, free.clamp(-4.0, 0.0))


STRATEGY = '''
def first(episodes, streams):
    """Take the first step for the goal."""
    return episodes.first
'''


def test_training_with_a_custom_strategy(tmp_path):
    (tmp_path / "mine.py").write_text(STRATEGY)
    trained = api.train(
        "dqn",
        "operant/BitFlip-v0",
        env_kwargs={"bits": 3},
        budget=300,
        run=tmp_path / "run",
        hindsight=f"{tmp_path / 'mine.py'}:first",
        learning_starts=50,
        hidden_sizes=(8,),
        progress="silent",
    )
    assert trained.run.config(DQNConfig).hindsight.endswith("mine.py:first")
    assert len(trained.outcome.evaluation.success_rate) == 1


WRONG = """
def short(episodes, streams):
    return episodes.first[:, :3]

def real(episodes, streams):
    return episodes.first * 1.0

def nothing(episodes, streams):
    return None

def later(episodes, streams):
    return episodes.last + 1
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("short", r"must return steps, torch.int64 \[2, 8\], got torch.int64 \[2, 3\]"),
        ("real", r"must return steps, torch.int64 \[2, 8\], got torch.float32 \[2, 8\]"),
        ("nothing", r"must return steps, torch.int64 \[2, 8\], got None"),
        ("later", "must return steps from episodes.first to episodes.last, got others"),
    ],
)
def test_the_result_of_a_custom_strategy_is_checked(name, said, tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    memory = experience("operant/Reach-v0", hindsight=f"{tmp_path / 'wrong.py'}:{name}")
    memory.explore(20)
    with pytest.raises(ValueError, match=rf"wrong.py:{name} {said}"):
        memory.sample(8, gamma=0.9)


def test_names_are_those_of_the_strategies():
    assert ("none", *STRATEGIES) == NAMES


class Half(Wrapper):
    """Wrapper whose achieved goal is shorter than the desired goal."""

    def __init__(self, env):
        super().__init__(env)
        parts = dict(env.observation_space.spaces)
        self.observation_space = spaces.Dict(parts | {"achieved_goal": spaces.Box(-1.0, 1.0, (1,))})

    def observation(self, obs):
        return obs | {"achieved_goal": obs["achieved_goal"][:, :1]}


class Column(Wrapper):
    """Wrapper whose rewards have an axis too many."""

    def compute_reward(self, achieved_goal, desired_goal):
        return self.env.compute_reward(achieved_goal, desired_goal).unsqueeze(1)


ASKED = {
    **{"seeds": (3, 5), "rows": 2, "capacity": 20, "to_env": None, "random": None},
    "config": ReplayConfig(hindsight="future"),
}


def test_first_rewards_that_compute_reward_does_not_return_are_named():
    env = make("operant/BitFlip-v0", ROWS, SEEDS, env_kwargs={"bits": 2})
    computed = env.compute_reward
    added = torch.tensor(5.0)
    env.compute_reward = lambda achieved, desired: computed(achieved, desired) + added
    memory = Experience(
        env,
        **ASKED
        | {
            "to_env": lambda actions: actions,
            "random": lambda shape, generator: torch.randint(2, shape, generator=generator),
        },
    )
    with pytest.raises(ValueError, match=r"% of the rewards of operant/BitFlip-v0 differ .*, such as -1 and 4, so"):
        memory.explore(10)
    added.fill_(0.0)
    memory.explore(10)
    added.fill_(5.0)
    memory.explore(10)  # later rewards are not compared


def test_unsupported_environments_are_named():
    with pytest.raises(ValueError, match="CartPole-v1 have no achieved_goal and no desired_goal: remove hindsight"):
        build(DQN, DQNConfig(learning_starts=0, hindsight="final"))
    with pytest.raises(ValueError, match="achieved_goal of operant/Reach-v0 has 1 numbers and desired_goal 2"):
        Experience(Half(make("operant/Reach-v0", 2, (3, 5))), **ASKED)
    with pytest.raises(ValueError, match=r"returned shape \[2, 1\] for 2 goals, expected \[2\]"):
        Experience(Column(make("operant/Reach-v0", 2, (3, 5))), **ASKED)
    with pytest.raises(ValueError, match="hindsight must be none, future, final, episode or a custom function"):
        DQNConfig(hindsight="past")
    with pytest.raises(ValueError, match="n_step must be 1 with hindsight='future', got 3"):
        DQNConfig(hindsight="future", n_step=3)
    with pytest.raises(ValueError, match=r"hindsight_ratio must be in \(0, inf\), got 0"):
        SACConfig(hindsight_ratio=0)
    with pytest.raises(ValueError, match=r"reward_range must be the minimum and maximum reward, got \(0, -1\)"):
        TD3Config(reward_range=(0, -1))
