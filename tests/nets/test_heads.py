import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy import stats
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from operant.nets import CategoricalHead, GaussianHead, MultiCategoricalHead, head_for
from operant.ops import fisher_vector_product

CPU = torch.device("cpu")
NO_PARAMETERS = torch.zeros(2, 0)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def box(low, high, width=2):
    return spaces.Box(np.float32(low), np.float32(high), (width,))


def gaussian(space=None, log_std=0.0):
    return GaussianHead(space or box(-1, 1), log_std=log_std, device=CPU)


def test_categorical_matches_torch():
    head = CategoricalHead(spaces.Discrete(4))
    assert (head.outputs, head.free) == (4, 0)
    assert head.initial().shape == (0,)
    logits = 3 * torch.randn(2, 5, 4, generator=rng())
    actions = torch.randint(0, 4, (2, 5), generator=rng(1))
    expected = Categorical(logits=logits)
    torch.testing.assert_close(head.log_prob(logits, NO_PARAMETERS, actions), expected.log_prob(actions))
    torch.testing.assert_close(head.entropy(logits, NO_PARAMETERS), expected.entropy())
    assert torch.equal(head.mode(logits, NO_PARAMETERS), expected.mode)


CHOICES = spaces.MultiDiscrete([2, 4, 3])


def test_several_choices_are_independent_categorical_ones():
    head = MultiCategoricalHead(CHOICES, device=CPU)
    assert (head.outputs, head.free, head.choices) == (9, 0, [2, 4, 3])
    logits, old = (3 * torch.randn(2, 5, 9, generator=rng(seed)) for seed in range(2))
    actions = torch.stack([torch.randint(0, int(n), (2, 5), generator=rng(2)) for n in CHOICES.nvec], dim=-1)
    each = [Categorical(logits=part) for part in logits.split([2, 4, 3], dim=-1)]
    before = [Categorical(logits=part) for part in old.split([2, 4, 3], dim=-1)]
    log_prob = sum(one.log_prob(chosen) for one, chosen in zip(each, actions.unbind(-1), strict=True))
    torch.testing.assert_close(head.log_prob(logits, NO_PARAMETERS, actions), log_prob)
    torch.testing.assert_close(head.entropy(logits, NO_PARAMETERS), sum(one.entropy() for one in each))
    kl = sum(kl_divergence(was, one) for was, one in zip(before, each, strict=True))
    torch.testing.assert_close(head.kl(old, NO_PARAMETERS, logits, NO_PARAMETERS), kl)
    assert torch.equal(head.mode(logits, NO_PARAMETERS), torch.stack([one.mode for one in each], dim=-1))
    assert torch.equal(head.to_env(actions), actions)


def test_probabilities_of_all_joint_choices_sum_to_1():
    head = MultiCategoricalHead(CHOICES, device=CPU)
    actions = torch.cartesian_prod(*(torch.arange(int(n)) for n in CHOICES.nvec)).unsqueeze(0)
    logits = 3 * torch.randn(1, 1, 9, generator=rng()).expand(1, len(actions[0]), 9)
    torch.testing.assert_close(head.log_prob(logits, NO_PARAMETERS, actions).exp().sum(), torch.tensor(1.0))


def test_samples_of_several_choices_have_the_joint_probabilities():
    head = MultiCategoricalHead(spaces.MultiDiscrete([2, 3]), device=CPU)
    logits = torch.tensor([[[0.0, 1.0, 2.0, 0.0, -1.0]]])
    noise = head.noise((1, 20_000), rng())
    assert noise.shape == (1, 20_000, 5)
    actions = head.sample(logits.expand(1, 20_000, 5), NO_PARAMETERS, noise)[0]
    counts = torch.bincount(3 * actions[:, 0] + actions[:, 1], minlength=6).numpy()
    first, second = (part.softmax(0).double() for part in logits[0, 0].split([2, 3]))
    expected = torch.outer(first, second).flatten().numpy()
    assert stats.chisquare(counts, 20_000 * expected / expected.sum()).pvalue > 1e-3


def test_gaussian_matches_torch():
    head = gaussian()
    assert (head.outputs, head.free) == (2, 2)
    mean = torch.randn(3, 5, 2, generator=rng())
    log_std = torch.randn(3, 2, generator=rng(1))
    actions = 2 * torch.randn(3, 5, 2, generator=rng(2))
    for seed in range(3):
        expected = Independent(Normal(mean[seed], log_std[seed].exp()), 1)
        torch.testing.assert_close(head.log_prob(mean, log_std, actions)[seed], expected.log_prob(actions[seed]))
        torch.testing.assert_close(head.entropy(mean, log_std)[seed], expected.entropy())
    assert torch.equal(head.mode(mean, log_std), mean)


def test_kl_matches_torch_in_its_direction():
    head = CategoricalHead(spaces.Discrete(4))
    old, new = (3 * torch.randn(2, 5, 4, generator=rng(seed)) for seed in range(2))
    expected = kl_divergence(Categorical(logits=old), Categorical(logits=new))
    torch.testing.assert_close(head.kl(old, NO_PARAMETERS, new, NO_PARAMETERS), expected)
    old, new = (torch.randn(3, 5, 2, generator=rng(seed)) for seed in range(2))
    old_free, free = (torch.randn(3, 2, generator=rng(seed)) for seed in range(2, 4))
    found = gaussian().kl(old, old_free, new, free)
    for seed in range(3):
        first = Independent(Normal(old[seed], old_free[seed].exp()), 1)
        second = Independent(Normal(new[seed], free[seed].exp()), 1)
        torch.testing.assert_close(found[seed], kl_divergence(first, second))


@pytest.mark.parametrize(
    "head",
    [CategoricalHead(spaces.Discrete(4)), MultiCategoricalHead(CHOICES, device=CPU), gaussian()],
    ids=lambda head: type(head).__name__,
)
def test_fisher_products_are_the_second_derivatives_of_the_divergence(head):
    outputs, change = torch.randn(2, 3, 5, head.outputs, generator=rng(), dtype=torch.float64)
    free, free_change = torch.randn(2, 3, head.free, generator=rng(1), dtype=torch.float64)
    both = torch.cat((outputs.flatten(1), free), dim=1)

    def total(new):
        parts = new[:, : 5 * head.outputs].view(3, 5, head.outputs), new[:, 5 * head.outputs :]
        return head.kl(outputs, free, *parts).sum(1)

    vector = torch.cat((change.flatten(1), free_change), dim=1)
    expected = fisher_vector_product(total, both, vector, damping=0.0)
    found, found_free = head.fisher(outputs, free, change, free_change)
    torch.testing.assert_close(found, expected[:, : 5 * head.outputs].view_as(found))
    torch.testing.assert_close(5 * found_free, expected[:, 5 * head.outputs :])


def test_categorical_samples_have_the_probabilities_of_the_policy():
    head = CategoricalHead(spaces.Discrete(3))
    logits = torch.tensor([[[0.0, 1.0, -1.0]], [[2.0, 0.0, 0.0]]])
    noise = head.noise((2, 20_000), rng())
    assert noise.shape == (2, 20_000, 3)
    actions = head.sample(logits.expand(2, 20_000, 3), NO_PARAMETERS, noise)
    for row, probabilities in zip(actions, logits[:, 0].softmax(-1), strict=True):
        counts = torch.bincount(row, minlength=3).numpy()
        expected = probabilities.numpy().astype(np.float64)
        assert stats.chisquare(counts, 20_000 * expected / expected.sum()).pvalue > 1e-3


def test_gaussian_samples_have_the_mean_and_deviation_of_the_policy():
    head = gaussian()
    mean, log_std = torch.tensor([[[1.0, -2.0]], [[0.0, 5.0]]]), torch.tensor([[0.0, -1.0], [1.0, 0.5]])
    noise = head.noise((2, 20_000), rng())
    actions = head.sample(mean.expand(2, 20_000, 2), log_std, noise)
    standard = (actions - mean) / log_std.exp().unsqueeze(1)
    for column in standard.movedim(2, 1).reshape(4, -1):
        assert stats.kstest(column.numpy(), "norm").pvalue > 1e-3


@pytest.mark.parametrize("head", [CategoricalHead(spaces.Discrete(3)), gaussian()], ids=["categorical", "gaussian"])
def test_noise_comes_from_the_generator_alone(head):
    before = torch.get_rng_state()
    first = head.noise((4, 2), rng(1))
    assert torch.equal(first, head.noise((4, 2), rng(1)))
    assert not torch.equal(first, head.noise((4, 2), rng(2)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("low", "high", "middle", "unit"),
    [
        (-1, 3, 1, 2),
        (10, np.inf, 10, 1),
        (-np.inf, -5, -5, 1),
        (0, np.inf, 0, 1),
        (-2, np.inf, 0, 1),
        (-3e38, 3e38, 0, 1),
    ],
)
def test_the_middle_of_the_policy_lies_within_the_bounds(low, high, middle, unit):
    head = gaussian(box(low, high, width=1))
    actions = head.to_env(torch.tensor([[[0.0], [0.5], [-0.5], [torch.nan]]])).flatten()
    expected = torch.tensor([0.0, 0.5, -0.5, 0.0]) * unit + middle
    assert torch.equal(actions, expected.clamp(low, high))


def test_discrete_actions_are_shifted_to_the_first_of_the_space():
    actions = torch.tensor([[0, 2], [1, 0]])
    assert torch.equal(CategoricalHead(spaces.Discrete(3)).to_env(actions), actions)
    head = CategoricalHead(spaces.Discrete(3, start=-1))
    assert head.outputs == 3
    assert head.to_env(actions).tolist() == [[-1, 1], [0, -1]]
    assert head.to_env(actions).dtype is torch.int64


def test_continuous_actions_are_mapped_to_the_bounds_and_clipped():
    space = spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))
    actions = torch.tensor([[[-1.0, -1.0], [0.0, 0.0], [0.5, 0.5], [1.0, 1.0], [-3.0, 7.0]]])
    expected = [[-2, 0], [0, 5], [1, 7.5], [2, 10], [-2, 10]]
    assert gaussian(space).to_env(actions)[0].tolist() == expected


def test_actions_without_bounds_are_taken_as_they_are():
    space = spaces.Box(np.float32([-np.inf, 0, -np.inf]), np.float32([np.inf, np.inf, 3]))
    actions = torch.tensor([[[-7.0, -7.0, -7.0], [7.0, 7.0, 7.0]]])
    assert gaussian(space).to_env(actions)[0].tolist() == [[-7, 0, -7], [7, 7, 3]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bounds_as_wide_as_numbers_go_are_none(dtype):
    widest = np.finfo(dtype).max
    actions = torch.tensor([[[0.0, 0.0], [-7.0, 7.0]]])
    assert torch.equal(gaussian(spaces.Box(-widest, widest, (2,), dtype)).to_env(actions), actions)


EXACT = spaces.Box(-0.1, 0.7, (2,), np.float64)  # the nearest of float32 to -0.1 lies outside


@pytest.mark.parametrize("space", [box(-2, 2), box(0, 10), box(-np.inf, np.inf), box(1, np.inf), EXACT], ids=str)
def test_every_action_handed_to_the_environment_is_in_its_space(space):
    head = gaussian(space)
    actions = head.to_env(5 * torch.randn(1, 100, 2, generator=rng()))
    assert all(space.contains(action) for action in actions[0].numpy())


def test_the_initial_deviation_is_the_configured_one():
    assert gaussian(log_std=-0.5).initial().tolist() == [-0.5, -0.5]


def test_head_for_chooses_by_the_space():
    discrete = head_for(spaces.Discrete(5, start=2), log_std=0.0, device=CPU)
    assert isinstance(discrete, CategoricalHead)
    assert (discrete.outputs, discrete.start) == (5, 2)
    several = head_for(CHOICES, log_std=0.0, device=CPU)
    assert isinstance(several, MultiCategoricalHead)
    continuous = head_for(box(-1, 1, width=3), log_std=-1.0, device=CPU)
    assert isinstance(continuous, GaussianHead)
    assert (continuous.outputs, continuous.free, continuous.log_std) == (3, 3, -1.0)


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([[2], [3]]),
        spaces.MultiDiscrete([2, 3], start=[0, 1]),
        spaces.MultiBinary(3),
        spaces.Box(-1, 1, (2, 3)),
        spaces.Box(-1, 1, ()),
        spaces.Box(0, 10, (2,), dtype=np.int64),
        spaces.Dict(a=spaces.Discrete(2)),
    ],
    ids=str,
)
def test_spaces_without_a_head_are_rejected(space):
    with pytest.raises(
        ValueError,
        match=r"no policy head for action space (?s:.*); Discrete, MultiDiscrete with one .*, and one-dimensional Box",
    ):
        head_for(space, log_std=0.0, device=CPU)
