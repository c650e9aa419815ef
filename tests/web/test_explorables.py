import itertools
import json
import math

import pytest

from operant.tabular.bandits import Arms, lai_robbins
from operant.tabular.strategies import UCB1, UCBConfig
from operant.web import explorables
from operant.web.explorables import EXPLORABLES, GAMBLERS
from operant.web.workers import NotFoundError


def drawn(name, **values):
    found = explorables.draw(None, name, values)
    return {curve["name"]: (curve["x"], curve["y"]) for curve in found["curves"]}, found["facts"]


def near(xs, at):
    return min(range(len(xs)), key=lambda i: abs(xs[i] - at))


@pytest.mark.parametrize("name", EXPLORABLES)
@pytest.mark.parametrize("end", ["least", "most", "value"])
def test_every_knob_can_be_turned_to_its_ends(name, end):
    values = {knob.name: getattr(knob, end) for knob in EXPLORABLES[name].knobs}
    curves, _ = drawn(name, **values)
    assert all(len(x) == len(y) >= 1 and all(map(math.isfinite, y)) for x, y in curves.values())
    json.dumps(explorables.draw(None, name, values), allow_nan=False)


def test_the_surrogate_is_flat_beyond_the_range_on_one_side():
    curves, _ = drawn("clip", epsilon=0.2, epsilon_high=0.28)
    x, up = curves["advantage 1"]
    down = curves["advantage −1"][1]
    low, high = near(x, 0.5), near(x, 3.0)
    assert (up[high], down[low]) == (pytest.approx(1.28), pytest.approx(-0.8))
    assert (up[low], down[high]) == (pytest.approx(x[low]), pytest.approx(-x[high]))
    assert drawn("clip", dual_clip=2)[0]["advantage −1"][1][high] == pytest.approx(-2)


def test_k1_and_k3_are_right_on_average_and_k2_is_not():
    curves, _ = drawn("kl", p=0.7)
    x, exact = curves["KL(p‖q)"]
    i = near(x, 0.1)
    assert exact[i] == pytest.approx(0.7 * math.log(0.7 / x[i]) + 0.3 * math.log(0.3 / (1 - x[i])))
    assert curves["mean of k1"][1] == pytest.approx(exact)
    assert curves["mean of k3"][1] == pytest.approx(exact)
    assert abs(curves["mean of k2"][1][i] - exact[i]) > 0.1


def test_group_advantages_by_pass_rate():
    curves, _ = drawn("group", size=4, eps=0)
    assert curves["GRPO, right"][0] == [0.25, 0.5, 0.75]
    assert curves["Dr. GRPO, right"][1] == pytest.approx([0.75, 0.5, 0.25])
    assert curves["Dr. GRPO, wrong"][1] == pytest.approx([-0.25, -0.5, -0.75])
    assert curves["leave one out, right"][1] == pytest.approx([1, 2 / 3, 1 / 3])
    assert curves["GRPO, right"][1][0] == pytest.approx(0.75 / 0.5)  # the deviation of 1, 0, 0, 0


def test_the_overlong_penalty_and_lambda():
    (x, penalty) = drawn("overlong", buffer=200)[0]["penalty"]
    assert [penalty[x.index(n)] for n in (0, 800, 900, 1000, 1200)] == pytest.approx([0, 0, -0.5, -1, -1])
    curves, _ = drawn("lambda", gamma=0.5, lam=0)
    assert curves["λ = 0"][1][:2] == pytest.approx([0.5 * 1.9 - 1.6, 0.5 * 2.0 - 1.9])
    assert curves["λ = 1"][1][-1] == pytest.approx(2.0 - 2.1)


def test_entropy_in_bits():
    even = {f"{name}{i}": 0.25 for name in "pq" for i in range(1, 5)}
    _, facts = drawn("bits", **even)
    assert facts["entropy of p, bits"] == pytest.approx(2)
    assert facts["KL(p‖q), bits"] == pytest.approx(0)
    _, facts = drawn("bits", **even | {"p1": 0.5, "p2": 0.25, "p3": 0.125, "p4": 0.125})
    assert facts["entropy of p, bits"] == pytest.approx(1.75)
    assert facts["KL(p‖q), bits"] == pytest.approx(0.25)
    assert facts["cross-entropy of p and q, bits"] == pytest.approx(2)


def test_the_regret_of_bandits_is_that_of_the_library():
    curves, facts = drawn("bandits", best=0.9, gap=0.1, arms=2, epsilon=0.2, pulls=500)
    arms = Arms.paying_one([0.9, 0.8], GAMBLERS)
    learner = UCB1(UCBConfig(steps_per_iteration=500), arms, seeds=range(GAMBLERS))
    assert facts["regret of UCB1"] == pytest.approx(float(learner.iterate()["bandit/regret"].mean()))
    times, bound = curves["C ln T (Lai and Robbins)"]
    assert (times[0], times[-1], len(times)) == (10, 500, 50)
    assert bound[-1] == pytest.approx(float(lai_robbins(arms)[0]) * math.log(500))
    assert all(a <= b for a, b in itertools.pairwise(curves["KL-UCB"][1]))
    assert facts["regret of ε-greedy, ε = 0.2"] == pytest.approx(500 * 0.2 / 2 * 0.1, rel=0.9)


@pytest.mark.parametrize("values", [{"p": 2}, {"p": "x"}, {"p": None}, {"nothing": 1}, {"p": float("nan")}], ids=str)
def test_invalid_parameters_are_an_error(values):
    with pytest.raises(ValueError, match=r"must be from 0.02 to 0.98|unknown parameter 'nothing': use p"):
        explorables.draw(None, "kl", values)


def test_there_is_no_other_explorable(ask):
    with pytest.raises(NotFoundError):
        explorables.draw(None, "x", {})
    assert ask("explorables/draw", explorable="kl", values={"p": 3})[0] == 400
    names = [one["name"] for one in ask("explorables/index")[1]["explorables"]]
    assert names == list(EXPLORABLES)
