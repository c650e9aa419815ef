from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import one_hot

from operant import check_learner
from operant.control.dqn import DQN, DQNConfig
from operant.envs import make
from operant.explore import BootstrappedDQN, BootstrappedDQNConfig

SMALL = {
    "num_envs": 2,
    "train_freq": 3,
    "gradient_steps": 2,
    "batch_size": 8,
    "buffer_size": 100,
    "learning_starts": 12,
    "target_update_interval": 3,
    "hidden_sizes": (8,),
    "double": True,
}
TASK, SIZE = "operant/DeepSea-v0", 3


def learner(seeds=(3, 5), *, kind=BootstrappedDQN, **config):
    made = BootstrappedDQNConfig if kind is BootstrappedDQN else DQNConfig
    options = (
        {**SMALL, "num_heads": 4, "prior_scale": 3.0, "mask_prob": 0.5, **config}
        if kind is BootstrappedDQN
        else {**SMALL, **config}
    )
    env = make(TASK, options["num_envs"], seeds, env_kwargs={"size": SIZE})
    return kind(made(**options), env, seeds=seeds, budget=1000)


def trained(made, iterations=6):
    for _ in range(iterations):
        made.iterate()
    return made


def test_one_head_without_a_prior_that_owns_all_data_is_dqn():
    ours = trained(learner(num_heads=1, prior_scale=0.0, mask_prob=1.0, exploration_final_eps=0.1))
    same = {name: getattr(ours.config, name) for name in ("learning_rate", "huber_delta", "exploration_initial_eps")}
    theirs = trained(learner(kind=DQN, exploration_final_eps=0.1, **same))
    assert ours.updates == theirs.updates > 0
    torch.testing.assert_close(ours.parameters, theirs.parameters, rtol=1e-6, atol=1e-7)


def test_a_head_adds_its_prior_which_never_changes():
    made = learner(prior_scale=2.0)
    obs, before = torch.randint(SIZE * SIZE + 1, (2, 5, 1)), made.priors.clone()
    bare = replace(made.online, prior=None)
    stacked = obs.repeat_interleave(4, 0)
    torch.testing.assert_close(made.online(stacked), bare(stacked) + 2.0 * made.online.prior(stacked))
    first = made.parameters.clone()
    trained(made)
    assert torch.equal(made.priors, before)
    assert (made.parameters != first).any(1).all()
    assert not torch.equal(made.priors.view(2, 4, -1)[:, 0], made.priors.view(2, 4, -1)[:, 1])


def test_each_head_learns_from_its_own_transitions_towards_its_own_targets():
    made = trained(learner())
    batch, _ = made.sample(16, 1.0)
    next_q = made.target(batch.next_obs)
    gradient, _, _ = made.gradient(batch, next_q, None)
    own = made.experience.replay.read("extras.masks", batch.index[::4])
    assert batch.weights.tolist() == own.mT.flatten(0, 1).float().tolist()
    assert 0 < batch.weights.sum() < batch.weights.numel()
    parameters, priors, lookup = made.parameters.view(8, -1), made.priors.view(8, -1), made.online.shape.mlp
    of_rows = one_hot(gradient.numbers, lookup.entries).float().mT @ gradient.rows
    for head in range(8):
        leaf = parameters.detach()[head : head + 1].clone().requires_grad_()
        bound, prior = made.online.shape.bind(leaf), made.online.shape.bind(priors[head : head + 1])
        mine = batch.weights[head] > 0
        obs, next_obs = batch.obs[head : head + 1, mine], batch.next_obs[head : head + 1, mine]
        best = (bound(next_obs) + 3.0 * prior(next_obs)).argmax(-1)[0]
        following = next_q[head, mine].gather(-1, best.unsqueeze(-1)).squeeze(-1)
        targets = batch.rewards[head, mine] + 0.99 * following * ~batch.terminated[head, mine]
        values = (bound(obs) + 3.0 * prior(obs))[0].gather(-1, batch.actions[head, mine].unsqueeze(-1)).squeeze(-1)
        (expected,) = torch.autograd.grad(0.5 * (targets.detach() - values).square().mean(), leaf)
        rows, rest = expected[0, : lookup.rest.start].view_as(of_rows[head]), expected[0, lookup.rest]
        torch.testing.assert_close(of_rows[head], rows, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(gradient.rest[head], rest, rtol=1e-4, atol=1e-6)


def test_an_episode_follows_one_head_to_its_end():
    made = learner(num_heads=50, train_freq=1, num_envs=1, learning_starts=0)
    followed = []
    for _ in range(30):
        followed.append(made.heads[:, 0].clone())
        made.collect()
    heads = torch.stack(followed).view(10, SIZE, 2)  # dives of three steps
    assert (heads == heads[:, :1]).all()
    assert len(heads[:, 0].unique()) > 5


def test_heads_change_where_dives_end_within_a_rollout():
    made, seen = learner(num_heads=1000, train_freq=7, learning_starts=0), []
    behave = made.behave
    made.behave = lambda obs: (seen.append((obs[..., 0].clone(), made.heads.clone())), behave(obs))[1]
    for _ in range(3):
        made.collect()
    for (_, before), (begins, after) in pairwise(seen):
        assert torch.equal(before != after, begins == 0)  # dives start in cell 0; 1000 heads almost never coincide


def test_the_followed_head_acts_greedily():
    made = learner()
    obs = torch.tensor([[0], [1]]).expand(2, 2, 1)
    values = made.values(obs)
    for seed in range(2):
        for row in range(2):
            head = made.heads[seed, row]
            assert made.behave(obs)[seed, row] == values[seed, head, row].argmax()


@pytest.mark.parametrize(("by", "action"), [("vote", 0), ("mean", 1)])
def test_heads_vote_or_are_averaged(by, action):
    made = learner((3,), num_heads=3, evaluate_by=by)
    made.values = lambda obs: torch.tensor([[[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 9.0]]]])
    assert made.greedy(torch.zeros(1, 1, 1)).item() == action
    made.values = lambda obs: torch.tensor([[[[1.0, 0.0]], [[0.0, 9.0]]]])  # a tie
    assert made.greedy(torch.zeros(1, 1, 1)).item() == 1


def test_seeds_do_not_know_of_each_other():
    both, alone = trained(learner((3, 5))), trained(learner((5,)))
    torch.testing.assert_close(both.parameters[1:], alone.parameters, rtol=1e-5, atol=1e-6)
    assert torch.equal(both.heads[1:], alone.heads)


def test_it_keeps_the_contract_of_learners():
    check_learner(learner)


def test_priorities_are_rejected():
    with pytest.raises(ValueError, match=r"per_alpha must be 0 because the heads have different errors, got 0\.6"):
        BootstrappedDQNConfig(per_alpha=0.6)
