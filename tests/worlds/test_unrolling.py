"""Training data of MuZero: windows and returns by hand, and its loss against a plain one."""

from dataclasses import replace

import torch
from torch.testing import assert_close

from operant.envs.tensor.board_games import BoardGame
from operant.runtime.transitions import Sequences
from operant.worlds.latent_model import LatentShape
from operant.worlds.unrolling import Unroll, returns_of, turned, unrolled, unrolled_losses

SHAPE = LatentShape(inputs=4, actions=2, latent=6, hidden=(8,), activation="relu", support_size=5)


def parameters():
    """Return networks with random outputs."""
    found = SHAPE.initial([torch.Generator().manual_seed(3)])
    return found + 0.1 * torch.randn(found.shape, generator=torch.Generator().manual_seed(5))


def window(rewards, *, terminated=(), truncated=(), policy=None, behavior=None):
    """Return one window of one seed, with ends at these steps."""
    steps = len(rewards)

    def column(numbers, dtype=torch.float32):
        return torch.tensor(numbers, dtype=dtype).view(steps, 1, 1)

    flags = [column([t in ends for t in range(steps)], torch.bool) for ends in (terminated, truncated)]
    policy = torch.tensor(policy or [[0.25 + t / 20, 0.75 - t / 20] for t in range(steps)]).view(steps, 1, 1, 2)
    obs = torch.arange(steps * 4, dtype=torch.float32).view(steps, 1, 1, 4) / 10
    return Sequences(
        obs=obs,
        actions=column([t % 2 for t in range(steps)], torch.int64),
        rewards=column(rewards),
        next_obs=obs,
        terminated=flags[0],
        truncated=flags[1],
        is_first=torch.zeros_like(flags[0]),
        weights=None,
        extras={
            "policy": policy,
            "behavior": column(behavior or [0.5] * steps),
        },
        index=torch.zeros(1, 1, dtype=torch.int64),
    )


def returns(steps, values=None, *, off_policy=False, turn=1.0, gamma=1.0, lam=1.0):
    worth = torch.tensor(values or [0.0] * len(steps.obs)).view(-1, 1, 1)
    return returns_of(steps, worth, off_policy=off_policy, turn=turn, gamma=gamma, lam=lam).flatten().tolist()


def sample(steps, k=3):
    """Return a window as a sample without a discount."""
    made = torch.Generator().manual_seed(0)
    found = returns_of(steps, torch.zeros(len(steps.obs), 1, 1), off_policy=False, turn=1.0, gamma=1.0, lam=1.0)
    return unrolled(steps, found, torch.ones(1, 1), k=k, actions=2, generators=[made])


def test_returns_look_to_the_end_of_the_window_the_episode_or_the_cut():
    goes_on = returns(window([1, 2, 3, 9]), [0.0, 0, 0, 8], gamma=0.5)
    assert goes_on == [1 + 0.5 * (2 + 0.5 * (3 + 0.5 * 8)), 2 + 0.5 * (3 + 4), 7]
    assert returns(window([1, 2, 3, 9], terminated=(1,)), [0.0, 0, 5, 8], gamma=0.5) == [2, 2, 7]
    cut = returns(window([1, 2, 3, 9], truncated=(1,)), [0.0, 6, 5, 8], gamma=0.5)
    assert cut == [1 + 0.5 * 6, 6, 7], "if the successor is unknown, a step has the value of the model"
    assert returns(window([1, 2, 3, 9]), [0.0, 4, 6, 8], gamma=0.5, lam=0.0) == [3, 5, 7]


def test_returns_follow_old_actions_as_far_as_the_last_policy_takes_them():
    """Action 1 of the second step had probability 1/2 and has 1/4 now: half of its error counts."""
    policy = [[0.5, 0.5], [0.75, 0.25], [0.5, 0.5], [0.5, 0.5]]
    second = 4 + 0.5 * (2 + 0.5 * (3 + 0.5 * 8) - 4)
    found = returns(window([1, 2, 3, 9], policy=policy), [0.0, 4, 6, 8], off_policy=True, gamma=0.5)
    assert found == [1 + 0.5 * second, second, 7]
    never = [[1.0, 0.0]] * 4
    assert returns(window([1, 2, 3, 9], policy=never), [0.0, 4, 6, 8], off_policy=True) == [5, 4, 11]
    rarely = window([1, 2, 3, 9], policy=[[1.0, 0.0]] * 4, behavior=[0.5, 0.0, 0.5, 0.5])
    assert returns(rarely, [0.0, 4, 6, 8], off_policy=True) == [5, 4, 11]


def test_returns_of_games_change_their_sign_with_the_turn():
    assert returns(window([0, 0, 1, 0], terminated=(2,)), turn=-1.0) == [1, -1, 1]
    goes_on = returns(window([0, 0, 0, 0]), [0.125, 0.25, 0.375, 0.5], turn=-1.0)
    assert goes_on == [-0.5, 0.5, -0.5]


def test_values_are_zero_after_termination_and_unknown_after_truncation():
    whole = sample(window([1, 2, 3, 4, 5, 6]))
    assert whole.acting.flatten().tolist() == whole.known.flatten().tolist() == [1, 1, 1, 1]
    assert whole.returns.flatten().tolist() == [15, 14, 12, 9]
    ended = sample(window([1, 2, 3, 4, 5, 6], terminated=(1,)))
    assert ended.acting.flatten().tolist() == [1, 1, 0, 0]
    assert ended.known.flatten().tolist() == [1, 1, 1, 1]
    assert ended.returns.flatten().tolist() == [3, 2, 0, 0]
    assert ended.rewards.flatten().tolist() == [1, 2, 0]
    assert ended.actions[:2].flatten().tolist() == [0, 1]
    cut = sample(window([1, 2, 3, 4, 5, 6], truncated=(1,), terminated=(3,)))
    assert cut.acting.flatten().tolist() == cut.known.flatten().tolist() == [1, 1, 0, 0]
    assert cut.returns.flatten().tolist() == [1, 0, 0, 0]


def test_an_invalid_step_ends_what_is_known():
    """Step 2 was dropped: the reward before it counts, and returns bootstrap from the value of step 1."""
    steps = window([1, 2, 0, 4, 5, 6])
    steps = replace(steps, weights=torch.tensor([1.0, 1, 0, 1, 1, 1]).view(-1, 1, 1))
    found = sample(steps)
    assert found.known.flatten().tolist() == found.acting.flatten().tolist() == [1, 1, 0, 0]
    assert returns(steps, [0.0, 7, 9, 9, 9, 8])[:2] == [1 + 7, 7]
    between = replace(window([1, 2, 0, 4, 5, 6], terminated=(1,)), weights=steps.weights)
    assert sample(between).known.flatten().tolist() == [1, 1, 1, 1], "after the end everything is known"
    assert sample(between).returns.flatten().tolist() == [3, 2, 0, 0]
    assert sample(replace(steps, weights=steps.weights.roll(-2, 0))).known.sum() == 0


def plain_losses(model, batch, place):
    """Return policy, value and reward loss of one sample, step by step as in the paper."""
    latent = model.represent(batch.obs[:, place : place + 1])
    policy = value = reward = 0.0
    for t in range(len(batch.actions) + 1):
        share = 1.0 if t == 0 else 1 / len(batch.actions)
        if t:
            latent, said = model.follow(latent, batch.actions[t - 1, :, place : place + 1])
            if batch.known[t - 1, 0, place]:
                reward += share * float(model.loss(said, batch.rewards[t - 1, :, place : place + 1]))
        logits, said = model.predict(latent)
        if batch.acting[t, 0, place]:
            policy -= share * float((batch.policies[t, 0, place] * logits[0, 0].log_softmax(-1)).sum())
        if batch.known[t, 0, place]:
            value += share * float(model.loss(said, batch.returns[t, :, place : place + 1]))
    return policy, value, reward


def test_the_losses_are_those_of_the_samples_one_by_one():
    model = SHAPE.bind(parameters())
    windows = [window([1, 2, 3, 4, 5, 6]), window([1, 2, 3, 4, 5, 6], terminated=(1,))]
    windows.append(window([1, 2, 3, 4, 5, 6], truncated=(0,)))
    samples = [sample(one) for one in windows]
    names = vars(samples[0])
    dims = {name: 1 if name in ("obs", "weights") else 2 for name in names}
    batch = Unroll(**{name: torch.cat([getattr(one, name) for one in samples], dims[name]) for name in names})
    expected = torch.tensor([plain_losses(model, batch, place) for place in range(3)])
    losses, _ = unrolled_losses(model, batch, 0)
    assert_close(torch.stack(losses)[:, 0], expected.mean(0), atol=1e-5, rtol=1e-5)
    weighted = replace(batch, weights=torch.tensor([[1.0, 0.5, 0.0]]))
    losses, _ = unrolled_losses(model, weighted, 0)
    assert_close(torch.stack(losses)[:, 0], (expected * weighted.weights.T).sum(0) / 1.5, atol=1e-5, rtol=1e-5)


def test_the_gradient_is_halved_at_every_step_of_the_dynamics():
    """For parameters of the representation and the loss of step n alone: 2⁻ⁿ of the whole gradient."""
    batch, size = sample(window([1, 2, 3, 4, 5, 6])), SHAPE.networks[0].size
    for n in range(4):
        only = torch.zeros_like(batch.acting)
        only[n] = 1.0
        leaf = parameters().requires_grad_()
        model = SHAPE.bind(leaf)
        latent = model.represent(batch.obs)
        for t in range(n):
            latent, _ = model.follow(latent, batch.actions[t])
        share = 1.0 if n == 0 else 1 / 3
        loss = -share * (batch.policies[n] * model.predict(latent)[0].log_softmax(-1)).sum()
        whole = torch.autograd.grad(loss, leaf)[0][:, :size]
        alone = replace(batch, acting=only, known=torch.zeros_like(only))
        losses, _ = unrolled_losses(SHAPE.bind(leaf), alone, 0)
        halved = torch.autograd.grad(losses[0].sum(), leaf)[0][:, :size]
        assert_close(halved, whole / 2**n, atol=1e-7, rtol=1e-4)


def test_actions_that_are_not_allowed_take_no_part_at_the_first_step():
    """The last two numbers of an observation are the mask: with a single legal action the policy has no gradient."""
    batch = sample(window([1, 2, 3, 4, 5, 6]))
    obs = batch.obs.clone()
    obs[..., -2:] = torch.tensor([0.0, 1.0])
    policies, acting = batch.policies.clone(), torch.zeros_like(batch.acting)
    policies[0], acting[0] = torch.tensor([0.0, 1.0]), 1.0
    (policy, _, _), _ = unrolled_losses(
        SHAPE.bind(parameters()), replace(batch, obs=obs, policies=policies, acting=acting), 2
    )
    assert_close(policy, torch.zeros(1), atol=1e-6, rtol=0)


def test_a_turned_sample_is_that_of_the_turned_game():
    """The image of each position follows from the one before by the image of the action."""
    game = BoardGame.tic_tac_toe()
    taken, positions = [0, 4, 1, 7], [game.start(1)]
    for action in taken:
        positions.append(game.play(positions[-1], torch.tensor([action])))
    seen = [torch.cat((game.observe(p).flatten(), (game.moves(p) != 0).float().flatten())) for p in positions]
    policies = torch.nn.functional.one_hot(torch.tensor([*taken, 2]), 9).float().view(5, 1, 1, 9)
    count = len(game.symmetries.cells)
    nothing = torch.zeros(5, 1, count)
    batch = Unroll(
        obs=seen[0].expand(1, count, -1),
        actions=torch.tensor(taken).view(4, 1, 1).expand(-1, 1, count),
        policies=policies.expand(-1, 1, count, -1),
        returns=nothing,
        rewards=nothing[:4],
        acting=nothing + 1,
        known=nothing + 1,
        weights=nothing[0] + 1,
    )
    found = turned(batch, game.symmetries, torch.arange(count).unsqueeze(0))
    for turn, inputs in enumerate(game.symmetries.inputs):
        assert torch.equal(found.obs[0, turn], seen[0][inputs])
        image = game.start(1)
        for t in range(4):
            assert found.policies[t, 0, turn].argmax() == found.actions[t, 0, turn]
            image = game.play(image, found.actions[t, 0, turn].view(1))
            board = seen[t + 1][inputs][:18].view(1, 2, 3, 3)
            assert all(torch.equal(a, b) for a, b in zip(image, game.positions(board), strict=True))
    assert torch.equal(found.returns, batch.returns)
    assert sorted(found.actions[0, 0].tolist()) == [0, 0, 2, 2, 6, 6, 8, 8], "a corner becomes each corner twice"
