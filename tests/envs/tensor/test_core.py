import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from operant.envs.tensor import CLASSIC_CONTROL, CartPole, MountainCar, MountainCarContinuous, Pendulum
from operant.nets import Graph
from operant.streams import row_seeds

TASKS = list(CLASSIC_CONTROL.values())


def actions_of(env, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if hasattr(env.action_space, "n"):
        return torch.randint(int(env.action_space.n), (steps, env.rows), generator=generator)
    return torch.rand(steps, env.rows, 1, generator=generator) * 2 - 1


def play(env, actions):
    return [env.step(action) for action in actions]


def parts(step):
    """Return the tensors of a step without `infos`, which these environments do not have."""
    assert step.infos is None
    return step[: step._fields.index("infos")]


def assert_same(left, right):
    for one, other in zip(left, right, strict=True):
        for a, b in zip(parts(one), parts(other), strict=True):
            assert torch.equal(a, b)


def test_an_episode_ends_by_termination_truncation_or_both_and_restarts_in_the_same_step():
    env = MountainCar([1, 2, 3, 4], max_episode_steps=3)
    state = env.state_dict()
    state["state"] = torch.tensor([[0.495, 0.495, -0.5, -0.5], [0.05, 0.05, 0.0, 0.0]])
    state["elapsed"] = torch.tensor([0, 2, 2, 0])
    env.load_state_dict(state)
    step = env.step(torch.full((4,), 2))
    assert step.terminated.tolist() == [True, True, False, False]
    assert step.truncated.tolist() == [False, True, True, False]
    assert step.valid.all()
    assert (step.final_obs[:2, 0] >= 0.5).all()
    assert ((step.obs[:3, 0] >= -0.6) & (step.obs[:3, 0] <= -0.4) & (step.obs[:3, 1] == 0)).all()
    assert torch.equal(step.obs[3], step.final_obs[3])
    after = env.state_dict()
    assert after["elapsed"].tolist() == [0, 0, 0, 1]
    assert after["episode"].tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("kind", TASKS)
def test_time_limit_counts_the_steps_of_each_episode(kind):
    env = kind([0, 1], max_episode_steps=7)
    steps = play(env, actions_of(env, 21))
    truncated = torch.stack([step.truncated for step in steps])
    terminated = torch.stack([step.terminated for step in steps])
    assert not terminated.any()
    assert truncated.nonzero()[:, 0].tolist() == [6, 6, 13, 13, 20, 20]


@pytest.mark.parametrize("kind", TASKS)
def test_a_row_evolves_as_it_would_alone(kind):
    seeds = row_seeds([4], 8, "environment")
    together, alone = kind(seeds, max_episode_steps=20), kind(seeds[3:4], max_episode_steps=20)
    actions = actions_of(together, 90)
    for many, one in zip(play(together, actions), play(alone, actions[:, 3:4]), strict=True):
        for a, b in zip(parts(many), parts(one), strict=True):
            torch.testing.assert_close(a[3:4], b, rtol=1e-5, atol=1e-6)


def test_starts_do_not_depend_on_when_an_episode_begins():
    early, late = CartPole([7], max_episode_steps=2), CartPole([7], max_episode_steps=5)
    first = [step.obs for step in play(early, actions_of(early, 6)) if step.truncated]
    second = [step.obs for step in play(late, actions_of(late, 15)) if step.truncated]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert len({start[0, 0].item() for start in first}) == 3


@pytest.mark.parametrize("kind", TASKS)
def test_resume_is_exact(kind):
    seeds = row_seeds([1, 2], 3, "environment")
    env = kind(seeds, max_episode_steps=15)
    actions = actions_of(env, 60)
    before = play(env, actions[:22])
    state = env.state_dict()
    other = kind([0] * 6, max_episode_steps=15)
    assert torch.equal(other.load_state_dict(state), before[-1].obs)
    assert_same(play(env, actions[22:]), play(other, actions[22:]))


def test_a_saved_state_holds_the_parameters_and_shares_no_memory():
    env = CartPole([0, 1], gravity=3.0)
    state = env.state_dict()
    env.step(torch.tensor([0, 1]))
    assert state["elapsed"].tolist() == [0, 0]
    other = CartPole([0, 1])
    other.load_state_dict(state)
    assert other.parameters["gravity"].item() == 3.0
    other.step(torch.tensor([0, 1]))
    assert torch.equal(env.state_dict()["state"], other.state_dict()["state"])


@pytest.mark.parametrize("kind", TASKS)
def test_results_are_not_overwritten_by_later_steps(kind):
    env = kind(range(5), max_episode_steps=4)
    first = env.reset()
    kept, copies = [], []
    saved = first.clone()
    for action in actions_of(env, 12):
        step = env.step(action)
        kept.append(step)
        copies.append(type(step)(*(field.clone() for field in parts(step))))
    assert torch.equal(first, saved)
    assert_same(kept, copies)


@pytest.mark.parametrize("kind", TASKS)
def test_a_single_row_has_separate_memory(kind):
    env = kind([0])
    first = env.reset()
    saved = first.clone()
    env.step(actions_of(env, 1)[0])
    assert torch.equal(first, saved)


@pytest.mark.parametrize("kind", TASKS)
def test_other_devices_give_the_same_numbers(kind, torch_library):
    host = kind(range(6), max_episode_steps=5, dtype=torch.float64)
    device = torch_library(kind, range(6), max_episode_steps=5, dtype=torch.float64)
    assert isinstance(device._state, torch.Tensor)
    actions = actions_of(host, 40)
    for one, other in zip(play(host, actions), play(device, actions), strict=True):
        for a, b in zip(parts(one), parts(other), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    state = device.state_dict()
    device.step(actions[0])
    torch.testing.assert_close(host.load_state_dict(state), device.load_state_dict(state), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", TASKS)
def test_other_devices_look_at_no_result_and_keep_their_memory(kind, torch_library):
    """A graph can capture the step; a fake tensor has no values to read."""
    env = torch_library(kind, range(4))
    action = actions_of(env, 1)[0]
    memory = env._state, env._elapsed, env._episode
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert env.step(action).obs.shape == (4, *env.observation_space.shape)
        with pytest.raises(DataDependentOutputException):
            bool((env._elapsed + action.sum() > 0).all())
    assert all(a is b for a, b in zip(memory, (env._state, env._elapsed, env._episode), strict=True))


@pytest.mark.parametrize("kind", TASKS)
def test_a_cuda_graph_plays_the_same_episodes(kind, graph_device, torch_library):
    graphed, eager = (
        torch_library(kind, range(64), max_episode_steps=6)
        if graph_device.type == "cpu"
        else kind(range(64), device=graph_device, max_episode_steps=6)
        for _ in range(2)
    )
    graph = Graph(graphed.step, graph_device)
    for chosen in actions_of(eager, 20).to(graph_device):
        for ours, theirs in zip(parts(graph(chosen)), parts(eager.step(chosen)), strict=True):
            assert torch.equal(ours, theirs)


def test_reset_starts_again_and_takes_new_seeds():
    env = CartPole([1, 2, 3])
    first = env.reset()
    play(env, actions_of(env, 30))
    assert torch.equal(env.reset(), first)
    other = env.reset([1, 2, 9])
    assert torch.equal(other[:2], first[:2])
    assert not torch.equal(other[2], first[2])
    play(env, actions_of(env, 5))
    assert torch.equal(env.reset(), other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seeds": []}, "one seed per environment"),
        ({"seeds": [-1]}, "non-negative"),
        ({"seeds": [0], "dtype": torch.float16}, "float32 or torch.float64"),
        ({"seeds": [0], "max_episode_steps": 0}, "max_episode_steps"),
        ({"seeds": [0], "lenght": 1.0}, "no parameter 'lenght'; it has .*length"),
        ({"seeds": [0], "length": -1.0}, "finite and positive"),
        ({"seeds": [0], "gravity": float("nan")}, "finite"),
        ({"seeds": [0, 1], "length": torch.ones(3)}, r"shape \[\] or \[2\], got \[3\]"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        CartPole(**arguments)


def test_bad_actions_and_states_are_named():
    env = CartPole([0, 1])
    with pytest.raises(ValueError, match=r"shape \[2, 1\], but \[2\]"):
        env.step(torch.zeros(2, 1, dtype=torch.int64))
    with pytest.raises(TypeError, match="int64"):
        env.step(torch.zeros(2))
    with pytest.raises(TypeError, match="floating"):
        Pendulum([0]).step(torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="detach"):
        MountainCarContinuous([0]).step(torch.zeros(1, 1, requires_grad=True))
    with pytest.raises(ValueError, match="'Pendulum-v1', but this environment is 'CartPole-v1'"):
        env.load_state_dict(Pendulum([0, 1]).state_dict())
    with pytest.raises(ValueError, match="'seeds' has shape"):
        env.load_state_dict(CartPole([0]).state_dict())
    with pytest.raises(ValueError, match="got 1 for 2 environments"):
        env.reset([4])
