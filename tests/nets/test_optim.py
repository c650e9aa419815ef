import pytest
import torch

from operant.nets import OPTIMIZERS, StackedAdam, StackedLaProp, StackedRMSprop

S, P = 3, 6


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def gradients(steps, scale=1.0):
    """Return gradients ``[steps, S, P]`` of very different norms."""
    sizes = torch.tensor([0.01, 1.0, 100.0]).unsqueeze(1)
    return scale * sizes * torch.randn(steps, S, P, generator=rng())


def start():
    return torch.randn(S, P, generator=rng(9))


class Separate:
    """``torch.optim.Adam`` and ``clip_grad_norm_`` for each seed separately."""

    def __init__(self, parameters, max_grad_norm, epsilon):
        self.rows = [torch.nn.Parameter(row.clone()) for row in parameters]
        self.adams = [torch.optim.Adam([row], lr=1.0, eps=epsilon) for row in self.rows]
        self.max_grad_norm = max_grad_norm

    def step(self, seed, gradient, learning_rate):
        row, adam = self.rows[seed], self.adams[seed]
        adam.param_groups[0]["lr"] = learning_rate
        row.grad = gradient.clone()
        if self.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_([row], self.max_grad_norm)
        adam.step()

    @property
    def parameters(self):
        return torch.stack([row.detach() for row in self.rows])


@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_every_seed_is_stepped_as_by_a_separate_adam(max_grad_norm):
    parameters = start()
    optimizer = StackedAdam(parameters, epsilon=1e-5, max_grad_norm=max_grad_norm)
    separate = Separate(parameters, max_grad_norm, 1e-5)
    for t, gradient in enumerate(gradients(60)):
        learning_rate = 1e-2 / (1 + t)
        for seed in range(S):
            separate.step(seed, gradient[seed], learning_rate)
        norm = optimizer.step(gradient.clone(), learning_rate=learning_rate)
        torch.testing.assert_close(norm, gradient.norm(dim=1))
    torch.testing.assert_close(parameters, separate.parameters, rtol=1e-5, atol=1e-6)
    assert optimizer.counts.tolist() == [[60, 60, 60], [0, 0, 0]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_a_seed_with_a_bad_gradient_waits_and_the_others_do_not_notice(bad, max_grad_norm):
    parameters = start()
    optimizer = StackedAdam(parameters, max_grad_norm=max_grad_norm)
    separate = Separate(parameters, max_grad_norm, 1e-8)
    for t, gradient in enumerate(gradients(20)):
        broken = gradient.clone()
        if 5 <= t < 8:
            broken[1, 2] = bad
        before = [tensor[1].clone() for tensor in (parameters, optimizer.first, optimizer.second)]
        norm = optimizer.step(broken, learning_rate=1e-2)
        for seed in range(S):
            if not (seed == 1 and 5 <= t < 8):
                separate.step(seed, gradient[seed], 1e-2)
        if 5 <= t < 8:
            after = [tensor[1] for tensor in (parameters, optimizer.first, optimizer.second)]
            assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
            assert norm.isfinite().tolist() == [True, False, True]
    assert optimizer.counts.tolist() == [[20, 20, 20], [0, 3, 0]]
    torch.testing.assert_close(parameters, separate.parameters, rtol=1e-5, atol=1e-6)


def test_an_inactive_seed_waits_is_not_counted_and_the_others_do_not_notice():
    parameters = start()
    optimizer = StackedAdam(parameters, max_grad_norm=0.5)
    separate = Separate(parameters, 0.5, 1e-8)
    for t, gradient in enumerate(gradients(20)):
        active = torch.tensor([True, t % 3 == 0, True])
        if not active[1]:
            gradient[1, 0] = float("nan")  # the gradient of an inactive seed is ignored
        before = [tensor[1].clone() for tensor in (parameters, optimizer.first, optimizer.second)]
        optimizer.step(gradient.clone(), learning_rate=1e-2, active=active)
        for seed in active.nonzero().flatten().tolist():
            separate.step(seed, gradient[seed], 1e-2)
        if not active[1]:
            after = [tensor[1] for tensor in (parameters, optimizer.first, optimizer.second)]
            assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert optimizer.counts.tolist() == [[20, 7, 20], [0, 0, 0]]
    torch.testing.assert_close(parameters, separate.parameters, rtol=1e-5, atol=1e-6)


def test_no_seed_at_all_may_be_active():
    parameters = start()
    optimizer = StackedAdam(parameters)
    before = parameters.clone()
    optimizer.step(torch.ones(S, P), learning_rate=0.1, active=torch.zeros(S, dtype=torch.bool))
    assert torch.equal(parameters, before)


def test_norms_that_are_finite_but_overflow_in_sum_are_no_fault():
    parameters = start()
    optimizer = StackedAdam(parameters, max_grad_norm=0.5)
    optimizer.step(torch.full((S, P), 6e18), learning_rate=0.1)
    assert optimizer.skipped.tolist() == [0, 0, 0]
    torch.testing.assert_close(parameters, start() - 0.1, rtol=1e-4, atol=1e-5)  # the first step of Adam has length lr


@pytest.mark.parametrize("kind", OPTIMIZERS.values())
def test_moments_of_what_has_no_gradient_any_more_become_zero(kind):
    parameters = start()
    optimizer = kind(parameters, epsilon=1e-5)
    for gradient in gradients(3):
        optimizer.step(gradient, learning_rate=1e-3)
    for _ in range(10_000):  # 0.9 to the power of 1000 underflows in 32 bits, 0.99 to the power of 10 000
        optimizer.step(torch.zeros(S, P), learning_rate=1e-3)
    moments = optimizer.state_dict()
    assert not moments["first" if "first" in moments else "second"].any()
    assert parameters.isfinite().all()


@pytest.mark.parametrize("flushing", [False, True])
def test_a_step_leaves_the_arithmetic_of_small_numbers_as_it_was(flushing):
    optimizer, smallest = StackedAdam(start()), 5e-324
    torch.set_flush_denormal(flushing)
    try:
        optimizer.step(torch.ones(S, P), learning_rate=1e-3)
        assert (smallest * 1.0 == 0.0) == flushing
        optimizer._update = lambda *_: 1 / 0
        with pytest.raises(ZeroDivisionError):
            optimizer.step(torch.ones(S, P), learning_rate=1e-3)
        assert (smallest * 1.0 == 0.0) == flushing
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_a_seed_is_clipped_alone_as_it_is_among_others(limit):
    together, alone = start(), start()
    optimizer = StackedAdam(together, max_grad_norm=limit)
    others = [StackedAdam(alone[seed : seed + 1], max_grad_norm=limit) for seed in range(S)]
    for gradient in gradients(20):
        optimizer.step(gradient.clone(), learning_rate=1e-2)
        for seed, other in enumerate(others):
            other.step(gradient[seed : seed + 1].clone(), learning_rate=1e-2)
    assert torch.equal(together, alone)


def test_the_state_resumes_where_it_stopped():
    batches = gradients(20)
    whole, part = start(), start()
    uninterrupted = StackedAdam(whole, max_grad_norm=0.5)
    first = StackedAdam(part, max_grad_norm=0.5)
    for gradient in batches[:10]:
        uninterrupted.step(gradient.clone(), learning_rate=1e-2)
        first.step(gradient.clone(), learning_rate=1e-2)
    bad = torch.full((S, P), float("nan"))
    uninterrupted.step(bad.clone(), learning_rate=1e-2)
    first.step(bad, learning_rate=1e-2)
    second = StackedAdam(part, max_grad_norm=0.5)
    second.load_state_dict(first.state_dict())
    for gradient in batches[10:]:
        uninterrupted.step(gradient.clone(), learning_rate=1e-2)
        second.step(gradient.clone(), learning_rate=1e-2)
    assert torch.equal(whole, part)
    assert second.skipped.tolist() == [1, 1, 1]
    assert all(torch.equal(second.state_dict()[name], value) for name, value in uninterrupted.state_dict().items())


def test_a_state_of_another_shape_is_rejected():
    optimizer = StackedAdam(start())
    with pytest.raises(ValueError, match=r"'first' has shape \(3, 7\) but \(3, 6\) is needed"):
        optimizer.load_state_dict(StackedAdam(torch.zeros(S, P + 1)).state_dict())


@pytest.mark.parametrize("norm", [0.0, -1.0])
def test_an_invalid_gradient_norm_is_rejected(norm):
    with pytest.raises(ValueError, match=rf"max_grad_norm must be positive, or None for no clipping, got {norm}"):
        StackedAdam(start(), max_grad_norm=norm)


# RMSProp


def slow_rmsprop(start, batches, max_grad_norm, *, learning_rate=1e-2, decay=0.99, epsilon=1e-5):
    """Compute equations 8 and 9 of the supplement of Mnih et al. 2016 in float64, one seed at a time."""
    rows = []
    for seed in range(S):
        theta, second = start[seed].double(), torch.ones(P, dtype=torch.float64)
        for gradient in batches[:, seed].double():
            norm = gradient.norm()
            if not norm.isfinite():
                continue
            clipped = gradient if max_grad_norm is None else gradient * min(1.0, max_grad_norm / (float(norm) + 1e-6))
            second = decay * second + (1 - decay) * clipped**2
            theta = theta - learning_rate * clipped / (second + epsilon).sqrt()
        rows.append(theta)
    return torch.stack(rows).float()


@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_every_seed_is_stepped_by_the_rmsprop_of_the_paper(max_grad_norm):
    parameters, batches = start(), gradients(60)
    optimizer = StackedRMSprop(parameters, max_grad_norm=max_grad_norm)
    for gradient in batches:
        norm = optimizer.step(gradient.clone(), learning_rate=1e-2)
        torch.testing.assert_close(norm, gradient.norm(dim=1))
    torch.testing.assert_close(parameters, slow_rmsprop(start(), batches, max_grad_norm), rtol=1e-4, atol=1e-5)
    assert optimizer.steps.tolist() == [60, 60, 60]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("place", range(S))
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_long_gradient_is_clipped_wherever_the_bad_one_stands(name, place, bad):
    batches = gradients(8, scale=100.0)
    batches[:, place, 0] = bad
    others = [seed for seed in range(S) if seed != place]
    together, apart = start(), start()[others]
    optimizers = [OPTIMIZERS[name](parameters, epsilon=1e-2, max_grad_norm=0.5) for parameters in (together, apart)]
    for gradient in batches:
        optimizers[0].step(gradient.clone(), learning_rate=1e-2)
        optimizers[1].step(gradient[others], learning_rate=1e-2)
    torch.testing.assert_close(together[others], apart)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rmsprop_leaves_out_a_seed_with_a_bad_gradient(bad):
    parameters, batches = start(), gradients(20)
    batches[5:8, 1, 2] = bad
    optimizer = StackedRMSprop(parameters, max_grad_norm=0.5)
    for gradient in batches:
        optimizer.step(gradient.clone(), learning_rate=1e-2)
    torch.testing.assert_close(parameters, slow_rmsprop(start(), batches, 0.5), rtol=1e-4, atol=1e-5)
    assert optimizer.skipped.tolist() == [0, 3, 0]
    assert optimizer.steps.tolist() == [20, 17, 20]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_one_parameter_vector_may_share_their_moments(name):
    whole, shared = start(), start()
    alone = OPTIMIZERS[name](whole, epsilon=1e-5)
    first, second = (OPTIMIZERS[name](shared, epsilon=1e-5) for _ in range(2))
    second.adopt(first.state_dict())
    for turn, gradient in enumerate(gradients(10)):
        alone.step(gradient.clone(), learning_rate=1e-2)
        (first, second)[turn % 2].step(gradient.clone(), learning_rate=1e-2)
    assert torch.equal(whole, shared)
    assert all(torch.equal(first.state_dict()[key], value) for key, value in alone.state_dict().items())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_every_optimizer_resumes_where_it_stopped(name):
    whole, part, batches = start(), start(), gradients(10)
    uninterrupted, first, second = (OPTIMIZERS[name](tensor, epsilon=1e-5) for tensor in (whole, part, part))
    for gradient in batches:
        uninterrupted.step(gradient.clone(), learning_rate=1e-2)
    for gradient in batches[:5]:
        first.step(gradient.clone(), learning_rate=1e-2)
    second.load_state_dict(first.state_dict())
    for gradient in batches[5:]:
        second.step(gradient.clone(), learning_rate=1e-2)
    assert torch.equal(whole, part)


def laprop(parameters, gradients, *, sizes, clip, learning_rate, epsilon, betas):
    """Compute LaProp and adaptive clipping in loops over seeds and tensors, in float64."""
    result = []
    for row, steps in zip(parameters.double(), gradients.double().unbind(1), strict=True):
        theta, first, second = row.clone(), torch.zeros(P).double(), torch.zeros(P).double()
        for t, step in enumerate(steps, 1):
            clipped, start = step.clone(), 0
            for size in sizes:
                part = slice(start, start + size)
                limit = clip * max(float(theta[part].norm()), 1e-3)
                if float(step[part].norm()) > limit:
                    clipped[part] *= limit / float(step[part].norm())
                start += size
            second = betas[1] * second + (1 - betas[1]) * clipped**2
            scaled = clipped / ((second / (1 - betas[1] ** t)).sqrt() + epsilon)
            first = betas[0] * first + (1 - betas[0]) * scaled
            theta = theta - learning_rate * first / (1 - betas[0] ** t)
        result.append(theta)
    return torch.stack(result)


def test_laprop_against_loops():
    parameters, steps = start(), gradients(20)
    settings = {"clip": 0.3, "learning_rate": 1e-2, "epsilon": 1e-20, "betas": (0.9, 0.99)}
    expected = laprop(parameters, steps, sizes=[4, 2], **settings)
    optimizer = StackedLaProp(parameters, sizes=[4, 2])
    for gradient in steps:
        torch.testing.assert_close(optimizer.step(gradient.clone(), learning_rate=1e-2), gradient.norm(dim=1))
    torch.testing.assert_close(parameters.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_first_step_of_laprop_by_hand():
    """After bias correction both moments are those of the one gradient: the step is its sign."""
    parameters = torch.tensor([[1.0, -2.0, 3.0]])
    StackedLaProp(parameters, sizes=[3], clip=None).step(torch.tensor([[0.5, -4.0, 1e-3]]), learning_rate=0.1)
    torch.testing.assert_close(parameters, torch.tensor([[0.9, -1.9, 2.9]]))


def test_laprop_steps_a_seed_as_if_the_others_were_not_there():
    whole, alone = start(), start()[1:2]
    optimizer, own = StackedLaProp(whole, sizes=[6]), StackedLaProp(alone, sizes=[6])
    before = whole.clone()
    for t, gradient in enumerate(gradients(5)):
        gradient[0] = torch.nan if t == 3 else gradient[0]
        gradient[2] = torch.nan
        optimizer.step(gradient.clone(), learning_rate=1e-2)
        own.step(gradient[1:2].clone(), learning_rate=1e-2)
    torch.testing.assert_close(whole[1:2], alone)
    assert torch.equal(whole[2], before[2])
    assert optimizer.counts.tolist() == [[5, 5, 5], [1, 0, 5]]
    assert optimizer.steps.tolist() == [4, 5, 0]


def test_the_tensors_of_laprop_are_all_parameters():
    with pytest.raises(ValueError, match="sizes must sum to the 6 parameters of a seed, got 5"):
        StackedLaProp(start(), sizes=[3, 2])


def test_weight_decay_is_that_of_adamw():
    parameters = start()
    rows = [torch.nn.Parameter(row.clone()) for row in parameters]
    adams = [torch.optim.AdamW([row], lr=1e-2, weight_decay=0.1) for row in rows]
    optimizer = StackedAdam(parameters, weight_decay=0.1)
    for gradient in gradients(20):
        for row, adam, own in zip(rows, adams, gradient, strict=True):
            row.grad = own.clone()
            adam.step()
        optimizer.step(gradient.clone(), learning_rate=1e-2)
    torch.testing.assert_close(parameters, torch.stack([row.detach() for row in rows]), rtol=1e-5, atol=1e-6)
