import numpy as np
import pytest
from dense import optimal

from operant.envs.worlds.gambler import Gambler


def test_best_chances_of_the_gambler():
    chances = optimal(Gambler().transitions, 1.0)
    assert chances[[25, 50, 75]] == pytest.approx([0.16, 0.4, 0.64], abs=1e-12)
    assert (np.diff(chances[:100]) > 0).all()


def test_a_fair_coin_leaves_the_chances_to_the_capital():
    chances = optimal(Gambler(0.5, goal=10).transitions, 1.0)
    assert chances[1:10] == pytest.approx(np.arange(1, 10) / 10, abs=1e-9)


def test_stakes():
    env = Gambler()
    assert env.reset(seed=0, options={"state": 3})[1]["action_mask"].sum() == 3
    assert env.P[60][39] == [(0.4, 100, 1.0, True), (0.6, 20, 0.0, False)]
    assert env.P[60][40] == []
    assert env.P[3][2] == [(0.4, 6, 0.0, False), (0.6, 0, 0.0, True)]
    assert env.transitions.start[1:100].tolist() == [1 / 99] * 99


@pytest.mark.parametrize("wrong", [{"heads": 0.0}, {"heads": 1.0}, {"goal": 1}])
def test_no_game_without_chance(wrong):
    with pytest.raises(ValueError, match=r"heads must be a probability|the goal must be at least 2"):
        Gambler(**wrong)
