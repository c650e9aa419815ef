import pytest

from operant.envs import parse_grid
from operant.web.worlds import WORLDS


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_every_world_is_a_drawing(world):
    grid = parse_grid(world.drawing)
    assert grid.symbols.size >= 6
    assert 0 < world.gamma <= 1


def test_names_are_different():
    assert len({world.name for world in WORLDS}) == len({world.title for world in WORLDS}) == len(WORLDS)


def test_the_first_world_has_one_reward_and_one_trap():
    grid = parse_grid(WORLDS[0].drawing)
    assert grid.shape == (8, 8)
    assert sorted(grid.rewards[grid.ends]) == [-1.0, 1.0]
