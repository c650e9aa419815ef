"""The rooms obey their rules: a simulator on the drawing takes the same steps."""

from collections import deque

import gymnasium
import numpy as np
import pytest

from operant.envs.worlds.key_door import KeyDoor, Layout
from operant.mdp import MDP, solve


class Drawn:
    """Simulator of the task on the characters of its first drawing."""

    STEPS = "^>v<"

    def __init__(self, picture):
        self.cells = [list(line) for line in picture.splitlines()]
        self.row, self.column = next(self.find("@"))
        self.cells[self.row][self.column] = "."
        self.has_key = False

    def find(self, mark):
        return ((r, line.index(mark)) for r, line in enumerate(self.cells) if mark in line)

    def ahead(self, action):
        down, right = {"^": (-1, 0), ">": (0, 1), "v": (1, 0), "<": (0, -1)}[self.STEPS[action]]
        return self.row + down, self.column + right

    def play(self, action):
        """Take an action and return `(reward, terminated)`."""
        if action == 4:
            if self.cells[self.row][self.column] == "K":
                self.cells[self.row][self.column], self.has_key = ".", True
            elif self.has_key:
                for row, column in map(self.ahead, range(4)):
                    if self.cells[row][column] == "D":
                        self.cells[row][column] = "."
            return 0.0, False
        row, column = self.ahead(action)
        if self.cells[row][column] in "#D":
            return 0.0, False
        self.row, self.column = row, column
        return float(self.cells[row][column] == "G"), self.cells[row][column] == "G"

    def picture(self):
        shown = [line.copy() for line in self.cells]
        shown[self.row][self.column] = "@"
        return "".join("".join(line) + "\n" for line in shown)

    def shortest(self):
        """Return the fewest steps to the goal, by breadth-first search over copies."""
        first = (self.row, self.column, False, False)
        seen, waiting = {first}, deque([(first, 0)])
        while waiting:
            (row, column, has_key, is_open), steps = waiting.popleft()
            for action in range(5):
                twin = Drawn.__new__(Drawn)
                twin.cells = [line.copy() for line in self.cells]
                twin.row, twin.column, twin.has_key = row, column, has_key
                (door,) = self.find("D")
                (key,) = self.find("K")
                if is_open:
                    twin.cells[door[0]][door[1]] = "."
                if has_key:
                    twin.cells[key[0]][key[1]] = "."
                if twin.play(action)[1]:
                    return steps + 1
                after = (twin.row, twin.column, twin.has_key, twin.cells[door[0]][door[1]] == ".")
                if after not in seen:
                    seen.add(after)
                    waiting.append((after, steps + 1))
        raise AssertionError("no way to the goal")


@pytest.mark.parametrize("size", [5, 6, 9])
@pytest.mark.parametrize("layout_seed", range(4))
def test_every_step_is_that_of_a_simulator_on_the_drawing(size, layout_seed):
    env = KeyDoor(size, layout_seed=layout_seed, render_mode="ansi")
    rng, found = np.random.default_rng(1), 0
    env.reset()
    twin = Drawn(env.render())
    for _ in range(6000):
        action = int(rng.integers(0, 5))
        _, reward, terminated, truncated, _ = env.step(action)
        assert (reward, terminated) == twin.play(action)
        assert env.render() == twin.picture()
        found += terminated
        if terminated or truncated:
            env.reset()
            twin = Drawn(env.render())
    assert found > 0 or size > 5


@pytest.mark.parametrize(("size", "layout_seed"), [(5, 0), (5, 2), (8, 0), (8, 2)])
def test_the_exact_solution_takes_the_shortest_way(size, layout_seed):
    env = KeyDoor(size, layout_seed=layout_seed, render_mode="ansi")
    state, _ = env.reset()
    value = solve(MDP.from_gymnasium(env), gamma=0.5).values[state]
    assert value == pytest.approx(0.5 ** (Drawn(env.render()).shortest() - 1))


def test_layouts_by_hand():
    """Seed 0 of size 5: start below the key, door next to the start, goal behind the door."""
    assert Layout.draw(5, 0) == Layout(5, start=(3, 1), key=(2, 1), door=(3, 2), goal=(3, 3))
    env = gymnasium.make("operant/KeyDoor-v0", size=5)
    env.reset()
    ways = [(0, 0.0), (4, 0.0), (2, 0.0), (4, 0.0), (1, 0.0), (1, 1.0)]
    assert [env.step(action)[1] for action, _ in ways] == [reward for _, reward in ways]


def test_things_differ_from_seed_to_seed_and_lie_where_they_should():
    layouts = [Layout.draw(8, seed) for seed in range(50)]
    assert len(set(layouts)) > 45
    for layout in layouts:
        assert layout.start != layout.key
        assert layout.start[1] < layout.door[1] > layout.key[1]
        assert layout.door[1] < layout.goal[1]


def test_episodes_are_cut_after_ten_steps_a_cell():
    env = gymnasium.make("operant/KeyDoor-v0", size=5)
    env.reset()
    assert [env.step(3)[3] for _ in range(250)] == [False] * 249 + [True]
    env.reset()
    assert not env.step(3)[3]


def test_sizes_that_are_too_small_are_named():
    with pytest.raises(ValueError, match=r"size must be at least 5, .* got 4"):
        KeyDoor(4)
    with pytest.raises(ValueError, match="layout_seed must not be negative, got -1"):
        KeyDoor(layout_seed=-1)
