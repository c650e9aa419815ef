import copy
import sys
from itertools import pairwise

import gymnasium
import pytest
import torch

from operant.envs import Atari, BatchEnv, make
from operant.envs.atari import is_atari
from operant.envs.making import maker_like

ale_py = pytest.importorskip("ale_py")
gymnasium.register_envs(ale_py)


def actions(env, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(int(env.action_space.n), (steps, env.rows), generator=generator)


def short(task="ALE/Breakout-v5", *, frames=160, **options):
    """Return two rows of a game that is truncated after `frames` frames."""
    spec = copy.deepcopy(gymnasium.spec(task))
    spec.kwargs["max_num_frames_per_episode"] = frames
    return Atari(spec, [3, 5], **options)


@pytest.fixture(scope="module")
def played():
    """Play Breakout until every row has ended an episode; return the first observation and the steps."""
    env = make("ALE/Breakout-v5", 2, [7])
    first = env.reset()
    steps = []
    for choice in actions(env, 400):
        steps.append(env.step(choice))
        if torch.stack([step.terminated for step in steps]).any(0).all():
            break
    env.close()
    env.close()
    return first, steps


def test_the_task_is_made_by_its_name():
    env: BatchEnv = make("ALE/Pong-v5", 2, [0, 1])
    assert isinstance(env, Atari)
    assert (env.task, env.rows, env.always_valid) == ("ALE/Pong-v5", 4, True)
    assert env.observation_space == gymnasium.spaces.Box(0, 255, (4, 84, 84), "uint8")
    assert env.action_space == gymnasium.spaces.Discrete(6)
    assert env.reset().shape == (4, 4, 84, 84)
    env.close()


def test_keyword_arguments_take_effect_or_are_rejected():
    given = {"max_episode_steps": 10, "full_action_space": True, "frameskip": 4}
    env = make("ALE/Pong-v5", 1, [0], env_kwargs=given, max_steps=20)
    env.reset()
    assert any(bool(env.step(choice).truncated) for choice in actions(env, 10))
    other = maker_like(env, 1)(0)
    assert other.action_space == env.action_space == gymnasium.spaces.Discrete(18)
    for each in (env, other):
        each.close()
    for name, value in {"frameskip": 1, "mode": 3, "obs_type": "ram"}.items():
        with pytest.raises(ValueError, match=f"{name}={value!r} of ALE/Pong-v5 is not supported.*max_episode_steps"):
            make("ALE/Pong-v5", 1, [0], env_kwargs={name: value})
    with pytest.raises(ValueError, match="at least 1 step, got 0"):
        make("ALE/Pong-v5", 1, [0], env_kwargs={"max_episode_steps": 0})


def test_only_the_games_themselves_are_atari():
    assert is_atari(gymnasium.spec("ALE/Pong-v5"))
    assert not is_atari(gymnasium.spec("CartPole-v1"))


def test_images_are_stacked_bytes(played):
    first, steps = played
    assert first.dtype is steps[0].obs.dtype is torch.uint8
    assert first.float().std() > 0
    for before, after in pairwise(steps[:20]):
        assert torch.equal(before.obs[:, 1:], after.obs[:, :-1]), "three of four frames were seen before"


def test_ends_restart_in_the_same_step(played):
    _, steps = played
    ends = [(step, row) for step in steps for row in step.terminated.nonzero().flatten().tolist()]
    assert len(ends) >= 2
    for step, row in ends:
        assert not torch.equal(step.obs[row], step.final_obs[row])
    for step in steps:
        assert step.valid.all()
        assert not step.truncated.any()
        goes_on = ~step.terminated
        assert torch.equal(step.obs[goes_on], step.final_obs[goes_on])


def test_scores_are_those_of_the_game_and_rewards_are_clipped():
    env, raw = short("ALE/Qbert-v5", frames=4000), short("ALE/Qbert-v5", frames=4000, clip_rewards=False)
    env.reset()
    raw.reset()
    scores = []
    for choice in actions(env, 60):
        step, other = env.step(choice), raw.step(choice)
        assert torch.equal(step.score, other.score)
        assert torch.equal(other.reward, other.score)
        assert torch.equal(step.reward, step.score.clamp(-1, 1))
        scores.append(step.score)
    assert torch.stack(scores).max() == 25.0
    env.close()
    raw.close()


def test_a_limit_of_frames_truncates():
    env = short()
    env.reset()
    ends = [env.step(choice) for choice in actions(env, 45)]
    cut = torch.stack([step.truncated for step in ends])
    assert cut.any(0).all()
    assert not torch.stack([step.terminated for step in ends]).any()
    step = next(step for step in ends if step.truncated[0])
    assert not torch.equal(step.obs[0], step.final_obs[0])
    env.close()


@pytest.mark.parametrize("episodic_life", [False, True])
def test_losing_a_life_is_terminal_only_where_it_is_asked_for(episodic_life):
    env = short(frames=100_000, episodic_life=episodic_life)
    env.reset()
    ended, restarted = 0, 0
    for choice in actions(env, 300):
        step = env.step(choice)
        for row in step.terminated.nonzero().flatten().tolist():
            ended += 1
            restarted += not torch.equal(step.obs[row], step.final_obs[row])
    assert restarted > 0
    assert ended >= 4 * restarted if episodic_life else ended == restarted
    env.close()


def test_a_state_is_restored_bit_for_bit_in_the_middle_of_episodes():
    env = short()
    env.reset()
    for choice in actions(env, 57):
        step = env.step(choice)
    other = short()
    assert torch.equal(other.load_state_dict(env.state_dict()), step.obs)
    for choice in actions(env, 30, seed=1):
        here, there = env.step(choice), other.step(choice)
        for name in ("obs", "reward", "terminated", "truncated", "final_obs", "score"):
            assert torch.equal(getattr(here, name), getattr(there, name)), name
    env.close()
    other.close()


def test_a_row_depends_only_on_its_seed():
    spec = gymnasium.spec("ALE/Breakout-v5")
    pair, alone = Atari(spec, [3, 5]), Atari(spec, [5])
    assert torch.equal(pair.reset()[1:], alone.reset())
    for choice in actions(pair, 25):
        assert torch.equal(pair.step(choice).obs[1:], alone.step(choice[1:]).obs)
    assert not torch.equal(pair.reset([3, 6])[1], alone.reset()[0]), "another seed waits for another number of frames"
    pair.close()
    alone.close()


def test_a_missing_emulator_is_named_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "operant\[atari\]"'):
        make("ALE/Pong-v5", 1, [0])


def test_games_are_truncated_after_the_given_number_of_steps():
    env = make("ALE/Pong-v5", 1, [0], max_steps=20)
    env.reset()
    lengths, length = [], 0
    while len(lengths) < 2:
        step = env.step(torch.zeros(1, dtype=torch.int64))
        length += int(step.valid)
        if step.truncated.any():
            lengths.append(length)
            length = 0
    assert all(10 <= length <= 20 for length in lengths)  # frames of the random start count, too
