"""Search trees: against another library, bounds, and independent rows."""

import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from operant.worlds.muzero import MuZeroConfig
from operant.worlds.search import Expansion, Planner, search

GOLDEN = json.loads(Path(__file__).with_name("golden_trees.json").read_text(encoding="utf-8"))
"""Trees of 1 to 50 simulations that mctx 0.0.71 built in a random world of 24 states with rewards, discounts and turns:
`gumbel_muzero_policy` with three considered actions and no noise, and `muzero_policy` without noise."""


class World:
    """Model with tables."""

    def __init__(self, tables):
        self.tables = {name: torch.tensor(values) for name, values in tables.items()}

    def __call__(self, states, actions):
        (state,), tables = states, self.tables
        after = tables["next"][state, actions]
        return Expansion(
            (after,),
            tables["logits"][after],
            tables["value"][after],
            tables["reward"][state, actions],
            tables["discount"][state, actions],
        )

    def root(self, states, allowed=None):
        logits = self.tables["logits"][states]
        logits = logits if allowed is None else logits.masked_fill(~allowed, -torch.inf)
        nothing = torch.zeros(len(states))
        return Expansion((states,), logits, self.tables["value"][states], nothing, nothing)


def visits(tree):
    return tree.action_visits[:, 0]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"{case['kind']}-{case['simulations']}")
def test_trees_are_those_of_another_library(case):
    world = World(GOLDEN["tables"])
    roots = world.root(torch.arange(4), ~torch.tensor(GOLDEN["invalid"]).bool())
    planner = Planner(kind=case["kind"], simulations=case["simulations"], considered=3, scale=0.1)
    found = search(planner, roots, world, None)
    assert found.actions.tolist() == case["actions"]
    assert visits(found.tree).int().tolist() == case["visits"]
    assert found.tree.parents[:, 1:].tolist() == [row[1:] for row in case["parents"]]
    assert_close(found.policy, torch.tensor(case["policy"]), atol=1e-5, rtol=0)
    assert_close(found.value, torch.tensor(case["value"]), atol=1e-5, rtol=0)
    assert_close(found.tree.values, torch.tensor(case["node_values"]), atol=2e-5, rtol=0)


def one_step_worlds(count, actions=4):
    """Return a world of `count` roots with actions that end it, and their exact values `[count, A]`.

    A root is worth the mean over its prior, so the model is exact.
    """
    draw = torch.Generator().manual_seed(count)
    q = torch.randn(count, actions, generator=draw)
    logits = torch.randn(count, actions, generator=draw)
    states = torch.arange(count)
    tables = {
        "next": states.unsqueeze(1).expand(-1, actions),
        "reward": q,
        "discount": torch.zeros(count, actions),
        "logits": logits,
        "value": (logits.softmax(1) * q).sum(1),
    }
    return World({name: part.tolist() for name, part in tables.items()}), q


@pytest.mark.parametrize("simulations", range(2, 17))
def test_the_improved_policy_is_at_least_as_good_as_its_prior(simulations):
    """Danihelka et al. 2022, on 1 000 random trees: in the mean over the noise the action is worth at least as much.

    Each root is searched 50 times, with independent Gumbel noise.
    """
    trees, tries = 1000, 50
    world, q = one_step_worlds(trees)
    draw = torch.Generator().manual_seed(simulations)
    uniform = torch.rand(trees * tries, 4, generator=draw).clamp(1e-9, 1 - 1e-7)
    states = torch.arange(trees).repeat_interleave(tries)
    planner = Planner(simulations=simulations, considered=4)
    found = search(planner, world.root(states), world, -(-uniform.log()).log())
    earned = q[states, found.actions].view(trees, tries)
    prior = world.tables["value"]
    error = earned.std(1) / tries**0.5
    assert (earned.mean(1) >= prior - 4 * error - 1e-6).all()  # four standard errors of each of 1 000
    assert (earned.mean(1) - prior).mean() > 0.3
    learned = (found.policy * q[states]).sum(1).view(trees, tries).mean(1)
    assert (learned - prior).mean() > 0.3


@pytest.mark.parametrize("kind", ["gumbel", "puct"])
def test_rows_do_not_see_each_other(kind):
    world = World(GOLDEN["tables"])
    planner = Planner(kind=kind, simulations=20, considered=4)
    noise = planner.noise((8, 4), torch.Generator().manual_seed(0))
    states = torch.arange(8)
    together = search(planner, world.root(states), world, noise)
    for row in range(8):
        alone = search(planner, world.root(states[row : row + 1]), world, noise[row : row + 1])
        assert torch.equal(alone.tree.values[0], together.tree.values[row])
        assert torch.equal(alone.tree.children[0], together.tree.children[row])
        assert torch.equal(alone.policy[0], together.policy[row])
        assert alone.actions[0] == together.actions[row]


def test_actions_that_are_not_allowed_are_never_taken():
    world = World(GOLDEN["tables"])
    allowed = torch.tensor([[True, False, True, False], [False, False, False, True]])
    for kind in ("gumbel", "puct"):
        planner = Planner(kind=kind, simulations=30, considered=4)
        noise = planner.noise((2, 4), torch.Generator().manual_seed(1))
        found = search(planner, world.root(torch.arange(2), allowed), world, noise)
        assert (visits(found.tree)[~allowed] == 0).all()
        assert (found.policy[~allowed] == 0).all()
        assert allowed[torch.arange(2), found.actions].all()


def test_puct_draws_actions_from_the_visits_and_takes_the_most_visited_without_noise(monkeypatch):
    """In AlphaZero and MuZero moves of self-play are drawn, and evaluations take the best one."""
    world, tries = World(GOLDEN["tables"]), 4000
    monkeypatch.setattr("operant.worlds.search.EXPLORATION", 0.0)
    planner = Planner(kind="puct", simulations=20)
    states = torch.zeros(tries, dtype=torch.int64)
    noise = planner.noise((tries, 4), torch.Generator().manual_seed(0))
    found = search(planner, world.root(states), world, noise)
    shares = found.actions.bincount(minlength=4) / tries
    assert (found.policy == found.policy[0]).all()
    assert_close(shares, found.policy[0], atol=0.03, rtol=0)
    assert (shares > 0).sum() > 1
    greedy = search(planner, world.root(states[:1]), world, None)
    assert greedy.actions[0] == greedy.policy[0].argmax()


@pytest.mark.parametrize("kind", ["gumbel", "puct"])
def test_no_simulation_is_the_network_alone(kind):
    world = World(GOLDEN["tables"])
    found = search(Planner(kind=kind, simulations=0), world.root(torch.arange(6)), world, None)
    assert torch.equal(found.actions, world.tables["logits"][:6].argmax(1))
    assert_close(found.policy, world.tables["logits"][:6].softmax(1))


def test_a_model_may_have_no_states_and_outputs_of_other_types():
    """Only rewards differ between the actions: float64 outputs, and views that are not contiguous."""
    reward = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64)

    def model(states, actions):
        nothing = torch.zeros(1, dtype=torch.float64).expand(len(actions))
        return Expansion(states, torch.zeros(3, len(actions), dtype=torch.float64).T, nothing, reward[actions], nothing)

    root = model((), torch.zeros(2, dtype=torch.int64))
    found = search(Planner(simulations=8), root, model, None)
    assert found.actions.tolist() == [1, 1]
    assert found.states == ()
    assert found.tree.visits[:, 0].tolist() == [9, 9]


def test_the_mean_of_a_node_is_that_of_its_children():
    """Visits of a node are those of its actions plus its own; its value is the mean of theirs and the model's."""
    world = World(GOLDEN["tables"])
    tree = search(Planner(simulations=40, considered=4), world.root(torch.arange(6)), world, None).tree
    assert torch.equal(tree.visits, tree.action_visits.sum(2) + 1)
    mean = (tree.raw_values + (tree.action_visits * tree.action_values).sum(2)) / tree.visits
    assert_close(tree.values, mean, atol=1e-5, rtol=0)
    rows = torch.arange(6).unsqueeze(1)
    assert torch.equal(tree.children[rows, tree.parents[:, 1:], tree.actions[:, 1:]], torch.arange(1, 41).expand(6, -1))


def test_results_of_a_search_can_be_used_in_training():
    """Results and states are ordinary tensors, which autograd may save."""
    world = World(GOLDEN["tables"])
    root = world.root(torch.arange(4))
    root = root._replace(states=(torch.randn(4, 3),))

    def model(states, actions):
        after = world((torch.arange(4),), actions)
        return after._replace(states=states)

    found = search(Planner(simulations=4, considered=4), root, model, None)
    weights = torch.ones(4, 4, requires_grad=True)
    (found.policy * weights).sum().backward()
    assert torch.equal(weights.grad, found.policy)
    scale = torch.ones(3, requires_grad=True)
    (found.states[0] * scale).sum().backward()
    assert_close(scale.grad, found.states[0].sum((0, 1)))


@pytest.mark.parametrize(
    ("kind", "shape", "needed"), [("gumbel", (1, 4), "2, 4"), ("gumbel", (2, 3), "2, 4"), ("puct", (1, 5), "2, 5")]
)
def test_noise_of_another_shape_is_rejected(kind, shape, needed):
    """The kernels would read beyond its end."""
    world = World(GOLDEN["tables"])
    with pytest.raises(ValueError, match=rf"noise must have the shape \[{needed}\], as from planner.noise"):
        search(Planner(kind=kind, simulations=2), world.root(torch.arange(2)), world, torch.zeros(shape))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("kind", "uct", "kind must be 'gumbel' or 'puct', got 'uct'"),
        ("simulations", -1, "simulations must be at least 0, got -1"),
        ("considered", 0, "considered must be at least 1, got 0"),
    ],
)
def test_impossible_settings_are_rejected(field, value, message):
    with pytest.raises(ValueError, match=message):
        Planner(**{field: value})


def test_a_search_is_that_of_a_configuration():
    planner = Planner.of(MuZeroConfig(search="puct", dirichlet_alpha=0.5), actions=3, value_range=None)
    assert planner == Planner("puct", simulations=16, considered=3, scale=1.0, concentration=0.5)
