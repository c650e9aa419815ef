import gymnasium
import numpy as np
import pytest

from operant.envs.worlds.pixels import CELLS, PixelCatch


def returns(policy, episodes=200, **options):
    env = PixelCatch(**options)
    totals = []
    for seed in range(episodes):
        env.reset(seed=seed)
        total, over, steps = 0.0, False, 0
        while not over:
            obs, reward, over, truncated, _ = env.step(policy(env))
            assert not truncated
            assert env.observation_space.contains(obs)
            total, steps = total + reward, steps + 1
        assert steps == CELLS - 1
        totals.append(total)
    return np.array(totals)


def chase(env):
    return 1 + int(np.sign(env.ball - env.paddle))


def test_every_ball_can_be_caught():
    assert (returns(chase) == 1.0).all()


def test_standing_still_catches_one_ball_in_ten():
    totals = returns(lambda _: 1, episodes=2000)
    assert set(totals) == {-1.0, 1.0}
    assert totals.mean() == pytest.approx(-0.8, abs=0.05)


@pytest.mark.parametrize("side", [10, 35, 84])
def test_the_image_shows_ball_and_paddle(side):
    env = PixelCatch(side)
    obs, _ = env.reset(seed=1)
    scale = side // 10
    assert obs.shape == (1, side, side)
    assert obs.dtype == np.uint8
    assert (obs == 255).sum() == 2 * scale**2
    assert obs[0, 0, env.ball * scale] == 255
    assert obs[0, 9 * scale, 5 * scale] == 255
    obs, *_ = env.step(0)
    assert obs[0, scale, env.ball * scale] == 255
    assert obs[0, 9 * scale, 4 * scale] == 255


def test_the_paddle_stays_on_the_field():
    env = PixelCatch()
    for action, edge in ((0, 0), (2, 9)):
        env.reset(seed=0)
        for _ in range(9):
            env.step(action)
        assert env.paddle == edge


def test_the_registered_world_is_one_gray_image():
    env = gymnasium.make("operant/PixelCatch-v0", side=40, render_mode="rgb_array")
    assert env.observation_space.shape == (1, 40, 40)
    env.reset(seed=0)
    assert env.render().shape == (40, 40, 3)


def test_invalid_values_are_rejected():
    with pytest.raises(ValueError, match="side must be at least 10 pixels, one per cell, got 9"):
        PixelCatch(9)
    with pytest.raises(ValueError, match="render_mode must be None or 'rgb_array', got 'human'"):
        PixelCatch(render_mode="human")
    env = PixelCatch()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions are 0 \(left\), 1 \(stay\) and 2 \(right\), got 3"):
        env.step(3)


def test_rendering_without_a_mode_warns():
    env = PixelCatch()
    env.reset(seed=0)
    with pytest.warns(UserWarning, match=r"render\(\) shows nothing"):
        assert env.render() is None


def test_wide_balls_and_paddles():
    """Use a width of three cells: cells outside the field are not visible, and a paddle next to the ball catches it."""
    env = PixelCatch(width=3)
    obs, _ = env.reset(seed=0)
    assert obs[0, 0].nonzero()[0].tolist() == [c for c in (env.ball - 1, env.ball, env.ball + 1) if 0 <= c < CELLS]
    assert obs[0, -1].nonzero()[0].tolist() == [4, 5, 6]
    assert np.isin(returns(lambda env: 1, width=3, episodes=300), (-1, 1)).all()
    assert abs(returns(lambda env: 1, width=3, episodes=300).mean() + 0.4) < 0.15
    assert (returns(chase, episodes=50, width=3) == 1).all()
    env.ball = 0
    assert env._image()[0, 0].nonzero()[0].tolist() == [0, 1]


@pytest.mark.parametrize("width", [0, 2, -1])
def test_a_width_is_odd(width):
    with pytest.raises(ValueError, match=f"width must be an odd number of cells, .* got {width}"):
        PixelCatch(width=width)
