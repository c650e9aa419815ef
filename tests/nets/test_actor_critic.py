import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces

from operant.nets import ActorCritic, Pass, Spec, head_for

D, M = 4, 6
SPACES = {"discrete": spaces.Discrete(3), "continuous": spaces.Box(np.float32(-1), np.float32(1), (2,))}
EVERY_SHAPE = pytest.mark.parametrize(
    ("space", "shared", "activation", "hidden"),
    [*itertools.product(SPACES, [False, True], ["tanh", "relu"], [(5, 7)]), ("discrete", False, "tanh", ())],
)
SEEDS = pytest.mark.parametrize("seeds", [1, 3])


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def make(space="discrete", shared=False, activation="tanh", hidden=(5, 7)):
    head = head_for(SPACES[space], log_std=-0.3, device=torch.device("cpu"))
    return ActorCritic(D, head, Spec(hidden=hidden, activation=activation, shared=shared))


def random_parameters(shape, seeds, dtype=torch.float32):
    size = shape.initial([rng()]).shape[1]
    return 0.5 * torch.randn(seeds, size, generator=rng(1), dtype=dtype)


def observations(seeds, dtype=torch.float32):
    return torch.randn(seeds, M, D, generator=rng(2), dtype=dtype)


def objective(outputs, free, values):
    """Return a scalar with an asymmetric gradient in all outputs, different for each seed and sample."""
    weights = torch.arange(1.0, values.numel() + 1, dtype=values.dtype).view_as(values)
    return (
        (weights.unsqueeze(-1) * outputs.sin()).sum()
        + (weights * values.square()).sum()
        + (free.exp() * outputs.mean((1, 2)).unsqueeze(-1)).sum()
    )


@EVERY_SHAPE
@SEEDS
def test_a_pass_agrees_with_policy_and_value(space, shared, activation, hidden, seeds):
    shape = make(space, shared, activation, hidden)
    bound = shape.bind(random_parameters(shape, seeds))
    obs = observations(seeds)
    result = Pass(bound, obs)
    assert result.outputs.shape == (seeds, M, shape.head.outputs)
    assert result.values.shape == (seeds, M)
    torch.testing.assert_close(result.outputs.detach(), bound.policy(obs))
    torch.testing.assert_close(result.values.detach(), bound.value(obs))
    assert torch.equal(result.free.detach(), bound.free)
    assert bound.free.shape == (seeds, shape.head.free)


@EVERY_SHAPE
@SEEDS
def test_the_gradient_is_that_of_autograd(space, shared, activation, hidden, seeds):
    shape = make(space, shared, activation, hidden)
    parameters = random_parameters(shape, seeds, torch.float64)
    obs = observations(seeds, torch.float64)
    result = Pass(shape.bind(parameters), obs)
    gradient = result.gradient(objective(result.outputs, result.free, result.values))

    leaf = parameters.clone().requires_grad_()
    bound = shape.bind(leaf)
    (expected,) = torch.autograd.grad(objective(bound.policy(obs), bound.free, bound.value(obs)), leaf)
    assert gradient.dtype is torch.float64
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("heads", [2, 5])  # 5 are more than the outputs of the policy
def test_a_critic_may_predict_several_values(space, shared, heads):
    head = head_for(SPACES[space], log_std=-0.3, device=torch.device("cpu"))
    spec = Spec(hidden=(5, 7), activation="tanh", shared=shared, value_heads=heads)
    shape = ActorCritic(D, head, spec)
    parameters, obs = random_parameters(shape, 3, torch.float64), observations(3, torch.float64)
    result = Pass(shape.bind(parameters), obs)
    assert result.values.shape == (3, M, heads)
    assert result.outputs.shape == (3, M, head.outputs)
    torch.testing.assert_close(result.values.detach(), shape.bind(parameters).value(obs))
    weights = torch.arange(1.0, heads + 1, dtype=torch.float64)
    gradient = result.gradient(objective(result.outputs, result.free, result.values @ weights))

    leaf = parameters.clone().requires_grad_()
    bound = shape.bind(leaf)
    loss = objective(bound.policy(obs), bound.free, bound.value(obs) @ weights)
    torch.testing.assert_close(gradient, torch.autograd.grad(loss, leaf)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shared", [False, True])
def test_every_value_head_begins_like_a_single_one(shared):
    head = head_for(SPACES["discrete"], log_std=0.0, device=torch.device("cpu"))
    shape = ActorCritic(D, head, Spec(hidden=(5, 7), activation="tanh", shared=shared, value_heads=2))
    bound = shape.bind(shape.initial([rng(5), rng(6)]))
    heads = bound.critic[-1][0][..., bound.shape.value_column]
    torch.testing.assert_close(heads.norm(dim=1), torch.ones(2, 2))
    assert not torch.equal(heads[..., 0], heads[..., 1])


@pytest.mark.parametrize(("heads", "critics"), [(0, 1), (2, 2)])
def test_invalid_value_heads_are_rejected(heads, critics):
    with pytest.raises(ValueError, match=f"value_heads .* got {heads} with {critics} critics"):
        Spec(hidden=(5,), activation="tanh", shared=False, critics=critics, value_heads=heads)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("shared", [False, True])
def test_the_gradient_passes_gradcheck(space, shared):
    shape = make(space, shared)
    obs = observations(2, torch.float64)

    class Objective(torch.autograd.Function):
        @staticmethod
        def forward(ctx, parameters):
            result = Pass(shape.bind(parameters), obs)
            with torch.enable_grad():
                loss = objective(result.outputs, result.free, result.values)
            ctx.gradient = result.gradient(loss)
            return loss.detach()

        @staticmethod
        def backward(ctx, scale):
            return scale * ctx.gradient

    assert torch.autograd.gradcheck(Objective.apply, random_parameters(shape, 2, torch.float64).requires_grad_())


@pytest.mark.parametrize("space", SPACES)
def test_a_loss_of_one_part_has_no_gradient_elsewhere(space):
    shape = make(space)
    result = Pass(shape.bind(random_parameters(shape, 1)), observations(1))
    actor, critic = result.gradient(result.values.sum()).view(2, -1)
    assert actor.count_nonzero() == 0
    assert critic.count_nonzero() > 0
    result = Pass(shape.bind(random_parameters(shape, 1)), observations(1))
    actor, critic = result.gradient(result.outputs.square().sum()).view(2, -1)
    assert actor.count_nonzero() > 0
    assert critic.count_nonzero() == 0


def test_the_gradients_of_seeds_stay_apart():
    shape = make("continuous")
    parameters, obs = random_parameters(shape, 3), observations(3)
    block = Pass(shape.bind(parameters), obs)
    together = block.gradient(objective(block.outputs, block.free, block.values))
    weights = torch.arange(1.0, 3 * M + 1).view(3, M)
    for seed in range(3):
        alone = Pass(shape.bind(parameters[seed : seed + 1]), obs[seed : seed + 1])
        loss = (
            (weights[seed : seed + 1].unsqueeze(-1) * alone.outputs.sin()).sum()
            + (weights[seed : seed + 1] * alone.values.square()).sum()
            + (alone.free.exp() * alone.outputs.mean((1, 2)).unsqueeze(-1)).sum()
        )
        torch.testing.assert_close(together[seed], alone.gradient(loss)[0], rtol=1e-5, atol=1e-6)


def test_bound_networks_follow_their_parameters():
    shape = make("continuous", shared=True)
    parameters = random_parameters(shape, 2)
    bound, obs = shape.bind(parameters), observations(2)
    before = bound.policy(obs)
    parameters.mul_(2)
    assert not torch.equal(bound.policy(obs), before)
    torch.testing.assert_close(bound.policy(obs), shape.bind(parameters.clone()).policy(obs))
    parameters.zero_()
    assert bound.value(obs).count_nonzero() == 0
    assert bound.free.count_nonzero() == 0


@pytest.mark.parametrize("shared", [False, True])
def test_initial_gains_are_the_documented_ones(shared):
    shape = make("discrete", shared)
    bound = shape.bind(shape.initial([rng(3), rng(4)]))
    hidden = bound.actor[0][0]
    torch.testing.assert_close(hidden @ hidden.mT, 2 * torch.eye(D).expand(2, D, D), atol=1e-5, rtol=0)
    policy = bound.actor[-1][0][..., : shape.head.outputs]
    torch.testing.assert_close(policy.mT @ policy, 1e-4 * torch.eye(3).expand(2, 3, 3), atol=1e-9, rtol=0)
    value = bound.critic[-1][0][..., bound.shape.value_column]
    torch.testing.assert_close(value.norm(dim=1), torch.ones(2))
    assert all(bias.count_nonzero() == 0 for _, bias in bound.layers)


def test_the_initial_policy_is_close_to_uniform():
    shape = make("discrete")
    bound = shape.bind(shape.initial([rng(3)]))
    probabilities = bound.policy(observations(1)).softmax(-1)
    torch.testing.assert_close(probabilities, torch.full_like(probabilities, 1 / 3), atol=0.02, rtol=0)


def test_the_initial_deviation_of_actions_is_the_configured_one():
    shape = make("continuous")
    assert shape.bind(shape.initial([rng(), rng(1)])).free.flatten().tolist() == pytest.approx([-0.3] * 4)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("shared", [False, True])
def test_initial_parameters_of_a_seed_do_not_depend_on_its_neighbors(space, shared):
    shape = make(space, shared)
    together = shape.initial([rng(5), rng(6), rng(7)])
    assert torch.equal(together[1:2], shape.initial([rng(6)]))
    assert torch.equal(together[[2, 0]], shape.initial([rng(7), rng(5)]))
    assert not torch.equal(together[0], together[1])


def test_actor_and_critic_have_different_initial_weights():
    shape = make("discrete")
    bound = shape.bind(shape.initial([rng()]))
    assert not torch.equal(bound.actor[0][0], bound.critic[0][0])


def test_shared_networks_have_one_trunk():
    shape = make("discrete", shared=True)
    bound = shape.bind(random_parameters(shape, 2))
    assert all(torch.equal(a, c) for (a, _), (c, _) in zip(bound.actor, bound.critic, strict=True))
    assert shape.mlp.shapes[-1] == (7, 4), "three actions and a value"


@pytest.mark.parametrize("space", SPACES)
@SEEDS
def test_the_value_of_several_critics_is_their_mean_and_each_has_a_gradient(space, seeds):
    head = head_for(SPACES[space], log_std=-0.3, device=torch.device("cpu"))
    shape = ActorCritic(D, head, Spec(hidden=(5, 7), activation="tanh", shared=False, critics=3))
    parameters = random_parameters(shape, seeds)
    bound, obs = shape.bind(parameters), observations(seeds)
    networks = Pass(bound, obs)
    assert networks.values.shape == (seeds, 3, M)
    torch.testing.assert_close(bound.value(obs), networks.values.detach().mean(1))
    torch.testing.assert_close(bound.policy(obs), networks.outputs.detach())
    weights = torch.randn(seeds, 3, M, generator=rng(5))
    loss = (weights * networks.values.square()).sum() + networks.outputs.sin().sum() + networks.free.exp().sum()
    gradient = networks.gradient(loss)
    leaf = parameters.clone().requires_grad_()
    twin = shape.bind(leaf)
    critics = torch.stack([shape.mlp(layers, obs)[..., 0] for layers in twin.critics], dim=1)
    slow = (weights * critics.square()).sum() + twin.policy(obs).sin().sum() + twin.free.exp().sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(slow, leaf)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("critics", "shared"), [(0, False), (2, True)])
def test_invalid_critics_are_rejected(critics, shared):
    with pytest.raises(ValueError, match=f"critics must be 1, or more .* got {critics} critics and shared={shared}"):
        Spec(hidden=(4,), activation="tanh", shared=shared, critics=critics)


@pytest.mark.parametrize("shared", [False, True])
@SEEDS
def test_images_go_through_convolutions(shared, seeds):
    head = head_for(SPACES["discrete"], log_std=0.0, device=torch.device("cpu"))
    shape = ActorCritic((2, 5, 6), head, Spec(hidden=(7,), activation="tanh", shared=shared, encoder="small"))
    parameters = shape.initial([rng(seed) for seed in range(seeds)]).double()
    obs = torch.randint(0, 256, (seeds, M, 2, 5, 6), generator=rng(2), dtype=torch.uint8)
    result = Pass(shape.bind(parameters), obs)
    gradient = result.gradient(objective(result.outputs, result.free, result.values))

    leaf = parameters.clone().requires_grad_()
    bound = shape.bind(leaf)
    torch.testing.assert_close(result.outputs, bound.policy(obs))
    torch.testing.assert_close(result.values, bound.value(obs))
    (expected,) = torch.autograd.grad(objective(bound.policy(obs), bound.free, bound.value(obs)), leaf)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


def test_each_of_several_choices_has_a_separate_mask():
    head = head_for(spaces.MultiDiscrete([2, 3]), log_std=0.0, device=torch.device("cpu"))
    shape = ActorCritic(D + 5, head, Spec(hidden=(5,), activation="tanh", shared=True), masked=5)
    mask = torch.tensor([[1, 0, 0, 1, 1], [0, 0, 1, 0, 0], [1, 1, 0, 0, 0]]).expand(2, 3, 5)
    obs = torch.cat((torch.randn(2, 3, D, generator=rng(5)), mask), dim=-1)
    outputs = shape.bind(random_parameters(shape, 2)).policy(obs)
    allowed = torch.tensor([[1, 0, 0, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    assert torch.equal(outputs.isfinite(), allowed.expand(2, 3, 5))
    assert head.entropy(outputs, torch.zeros(2, 0)).isfinite().all()


@pytest.mark.parametrize("shared", [False, True])
def test_a_mask_at_the_end_of_an_observation_excludes_actions_and_is_not_seen(shared):
    head = head_for(SPACES["discrete"], log_std=0.0, device=torch.device("cpu"))
    shape = ActorCritic(D + 3, head, Spec(hidden=(5,), activation="tanh", shared=shared), masked=3)
    plain = ActorCritic(D, head, Spec(hidden=(5,), activation="tanh", shared=shared))
    parameters = random_parameters(plain, 2)
    seen, mask = observations(2), torch.randint(0, 2, (2, M, 3), generator=rng(5))
    mask[0, 0] = 0
    obs = torch.cat((seen, mask), dim=-1)
    allowed = (mask > 0) | ~mask.any(-1, keepdim=True)
    free, bound = plain.bind(parameters), shape.bind(parameters)
    expected = torch.where(allowed, free.policy(seen), -torch.inf)
    assert torch.equal(bound.policy(obs), expected)
    assert torch.equal(bound.value(obs), free.value(seen))
    result = Pass(bound, obs)
    torch.testing.assert_close(result.outputs.detach(), expected)
    actions = expected.argmax(-1)
    loss = (head.log_prob(result.outputs, result.free, actions) + head.entropy(result.outputs, result.free)).sum()
    gradient = result.gradient(loss)
    assert gradient.isfinite().all()
    leaf = parameters.clone().requires_grad_()
    outputs = torch.where(allowed, plain.bind(leaf).policy(seen), -torch.inf)
    slow = (head.log_prob(outputs, result.free, actions) + head.entropy(outputs, result.free)).sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(slow, leaf)[0], rtol=1e-4, atol=1e-6)
