import math

import pytest
import torch
from torch import nn

from operant.language.configs import LanguageConfig
from operant.language.optimizer import OptimizerStep, backward, scheduled
from operant.runtime.shards import Alone, Shards
from runtime.teams import team

SHAPES = {"matrix": (3, 4), "vector": (4,), "tensor": (2, 3, 2)}


def parameters(*, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for name, shape in SHAPES.items()}


def loss(values, target):
    return sum(((value.float() - target) ** 2).sum() for value in values.values())


def config(**values):
    return LanguageConfig(**{"learning_rate": 0.1, "max_grad_norm": 1e9} | values)


@pytest.mark.parametrize("values", [{}, {"weight_decay": 0.1, "betas": (0.5, 0.9)}, {"max_grad_norm": 0.5}])
def test_steps_are_those_of_adamw(values):
    settings = config(**values)
    own, theirs = parameters(), parameters()
    stepper = OptimizerStep(own, settings)
    decayed, rest = ([v for v in theirs.values() if (v.ndim >= 2) is matrix] for matrix in (True, False))
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.1, betas=settings.betas, fused=False, foreach=False)
    for target in (0.3, -1.0, 2.0):
        loss(own, target).backward()
        norm, skipped = stepper.step(0.5)
        reference.zero_grad()
        loss(theirs, target).backward()
        expected = nn.utils.clip_grad_norm_(theirs.values(), settings.max_grad_norm)
        reference.step()
        assert skipped == 0
        torch.testing.assert_close(norm, expected)
    assert stepper.steps == 3
    for name, value in own.items():
        torch.testing.assert_close(value, theirs[name], atol=1e-6, rtol=1e-5)


def test_the_first_step_by_hand():
    value = nn.Parameter(torch.tensor([1.0, -2.0]))
    stepper = OptimizerStep({"value": value}, config(learning_rate=0.01))
    (3 * value[0] - 0.5 * value[1]).backward()
    norm, _ = stepper.step(0.0)
    assert norm == pytest.approx(math.sqrt(9.25))
    torch.testing.assert_close(value.detach(), torch.tensor([0.99, -1.99]))  # Adam's first step is the sign
    assert value.grad is None


def test_a_separate_learning_rate():
    value = nn.Parameter(torch.tensor([1.0]))
    stepper = OptimizerStep({"value": value}, config(), learning_rate=0.25)
    value.sum().backward()
    stepper.step(0.0)
    torch.testing.assert_close(value.detach(), torch.tensor([0.75]))


def test_a_long_gradient_is_scaled_down():
    taken = []
    for scale in (1.0, 100.0):
        values = parameters()
        stepper = OptimizerStep(values, config(max_grad_norm=0.1, betas=(0.0, 0.0)))
        (scale * loss(values, 0.5)).backward()
        stepper.step(0.0)
        taken.append(values)
    for name in SHAPES:
        torch.testing.assert_close(taken[0][name], taken[1][name], atol=1e-5, rtol=1e-5)
    short = nn.Parameter(torch.tensor([0.0, 0.0]))
    stepper = OptimizerStep({"short": short}, config(max_grad_norm=1.0))
    (torch.tensor([3.0, 4.0]) * short).sum().backward()
    stepper.step(0.0)
    moments = stepper.state_dict()["moments"]["short"]
    torch.testing.assert_close(moments["exp_avg"], 0.1 * torch.tensor([0.6, 0.8]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_that_is_not_finite_changes_nothing(bad, dtype):
    values = parameters(dtype=dtype)
    stepper = OptimizerStep(values, config())
    loss(values, 1.0).backward()
    stepper.step(0.0)
    before = {name: value.detach().clone() for name, value in values.items()}
    moments = {name: own["exp_avg"].clone() for name, own in stepper.state_dict()["moments"].items()}
    (loss(values, 1.0) + bad * values["vector"][0]).backward()
    norm, skipped = stepper.step(0.0)
    assert not norm.isfinite()
    assert skipped == 1
    assert stepper.steps == 1
    assert all(torch.equal(values[name], before[name]) for name in SHAPES)
    assert all(torch.equal(stepper.state_dict()["moments"][name]["exp_avg"], moments[name]) for name in SHAPES)
    loss(values, 1.0).backward()
    norm, skipped = stepper.step(0.0)
    assert norm.isfinite()
    assert skipped == 0
    assert not torch.equal(values["matrix"], before["matrix"])


def test_without_gradients_nothing_happens():
    values = parameters()
    before = {name: value.detach().clone() for name, value in values.items()}
    stepper = OptimizerStep(values, config(weight_decay=0.5))
    assert stepper.step(0.0) == (0.0, 0.0)
    assert stepper.steps == 0
    assert all(torch.equal(values[name], before[name]) for name in SHAPES)


def test_small_steps_are_not_lost_in_half_precision():
    value = nn.Parameter(torch.full((4,), 0.1, dtype=torch.bfloat16))
    start = value.detach().clone()
    stepper = OptimizerStep({"value": value}, config(learning_rate=1e-6))
    for _ in range(100):
        value.float().sum().backward()
        stepper.step(0.0)
    master = stepper.state_dict()["masters"]["value"]
    torch.testing.assert_close(master, start.float() - 100e-6, atol=1e-6, rtol=0)
    assert torch.equal(value, start), "the sum of the steps is still below half a bfloat16"
    for _ in range(400):
        value.float().sum().backward()
        stepper.step(0.0)
    assert (value < start).all()


def test_small_gradients_are_not_lost_in_half_precision():
    value = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    stepper = OptimizerStep({"value": value}, config())
    for _ in range(1000):
        value.sum().backward()
    norm, _ = stepper.step(0.0)
    assert norm == pytest.approx(1000 * math.sqrt(3))


def test_double_precision_stays_double():
    value = nn.Parameter(torch.ones(2, dtype=torch.float64))
    stepper = OptimizerStep({"value": value}, config(learning_rate=1e-12))
    value.sum().backward()
    stepper.step(0.0)
    torch.testing.assert_close(1 - value.detach(), torch.full((2,), 1e-12, dtype=torch.float64), rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_state_resumes_bit_for_bit(dtype):
    def go_on(values, stepper):
        for target in (0.5, -2.0):
            loss(values, target).backward()
            stepper.step(0.3)

    values = parameters(dtype=dtype)
    stepper = OptimizerStep(values, config())
    for target in (0.3, -1.0):
        loss(values, target).backward()
        stepper.step(0.1)
    twin_values = {name: nn.Parameter(value.detach().clone()) for name, value in values.items()}
    twin = OptimizerStep(twin_values, config())
    twin.load_state_dict(stepper.state_dict())
    go_on(values, stepper)
    go_on(twin_values, twin)
    assert twin.steps == stepper.steps == 4
    for name, value in values.items():
        assert torch.equal(value, twin_values[name])
    for name, own in stepper.state_dict()["moments"].items():
        for key, moment in own.items():
            assert torch.equal(moment, twin.state_dict()["moments"][name][key])


def test_a_state_before_the_first_step():
    values = parameters()
    stepper = OptimizerStep(values, config())
    state = stepper.state_dict()
    loss(values, 1.0).backward()
    stepper.step(0.0)
    stepper.load_state_dict(state)
    assert stepper.steps == 0
    assert stepper.state_dict()["moments"] == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_reset_forgets_the_moments_and_keeps_the_parameters(dtype):
    values = parameters(dtype=dtype)
    stepper = OptimizerStep(values, config())
    for _ in range(3):
        loss(values, 1.0).backward()
        stepper.step(0.0)
    before = {name: value.detach().clone() for name, value in values.items()}
    stepper.reset()
    assert stepper.state_dict()["moments"] == {}
    assert all(torch.equal(values[name], before[name]) for name in SHAPES)
    (values["vector"].float() * torch.tensor([1e-3, -5.0, 2.0, 1.0])).sum().backward()
    stepper.step(0.0)
    moved = before["vector"].float() - values["vector"].detach().float()
    expected = 0.1 * torch.tensor([1.0, -1.0, 1.0, 1.0])
    torch.testing.assert_close(moved, expected, atol=1e-4 if dtype == torch.float32 else 0.02, rtol=0)


def test_a_refresh_takes_what_was_loaded():
    values = parameters(dtype=torch.bfloat16)
    stepper = OptimizerStep(values, config(learning_rate=1e-4))
    with torch.no_grad():
        values["vector"].fill_(3.0)
    stepper.refresh()
    loss(values, 0.0).backward()
    stepper.step(0.0)
    torch.testing.assert_close(stepper.state_dict()["masters"]["vector"], torch.full((4,), 3.0 - 1e-4))


@pytest.mark.parametrize(
    ("values", "progress", "expected"),
    [
        ({}, 0.0, 1.0),
        ({}, 0.7, 1.0),
        ({"warmup_ratio": 0.2}, 0.0, 0.0),
        ({"warmup_ratio": 0.2}, 0.05, 0.25),
        ({"warmup_ratio": 0.2}, 0.2, 1.0),
        ({"warmup_ratio": 0.2}, 0.9, 1.0),
        ({"lr_schedule": "linear"}, 0.0, 1.0),
        ({"lr_schedule": "linear"}, 0.25, 0.75),
        ({"lr_schedule": "linear"}, 1.0, 0.0),
        ({"lr_schedule": "linear"}, 1.3, 0.0),
        ({"lr_schedule": "linear", "warmup_ratio": 0.5}, 0.75, 0.5),
        ({"lr_schedule": "cosine"}, 0.5, 0.5),
        ({"lr_schedule": "cosine"}, 1 / 3, 0.75),
        ({"lr_schedule": "cosine"}, 1.0, 0.0),
        ({"lr_schedule": "cosine", "warmup_ratio": 0.1}, 0.55, 0.5),
        ({"lr_schedule": "linear", "warmup_ratio": 1.0}, 0.5, 0.5),
        ({"lr_schedule": "linear", "warmup_ratio": 1.0}, 1.0, 1.0),
    ],
)
def test_the_schedule_by_hand(values, progress, expected):
    assert scheduled(config(**values), progress) == pytest.approx(expected)


def test_the_schedule_scales_the_step():
    value = nn.Parameter(torch.tensor([1.0]))
    stepper = OptimizerStep({"value": value}, config(lr_schedule="linear"))
    value.sum().backward()
    stepper.step(0.75)
    torch.testing.assert_close(value.detach(), torch.tensor([0.975]))


def accumulated(shards, *, parts, dtype=torch.float32):
    """Return gradients and records of losses that leave out some parameters."""
    own = parameters(dtype=dtype)
    steppers = [OptimizerStep({n: own[n] for n in names}, config()) for names in (("matrix", "vector"), ("tensor",))]

    def differentiate(target):
        value = ((own["matrix"].float() - target) ** 3).sum() + (own["tensor"].float() * target).sum()
        value.backward()
        return value.detach()

    records = backward(steppers, parts, differentiate, shards)
    return {n: m.grad for s in steppers for n, m in s._masters.items()}, records


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("parts", [[0.1, -0.7, 1.3, 0.2, 5.1], [0.5, 0.25]], ids=["5 parts", "fewer than shards"])
def test_gradients_of_shards_add_up_alike_in_any_number_of_processes(parts, dtype):
    whole, records = accumulated(Shards(1, Alone()), parts=parts, dtype=dtype)
    alone = accumulated(Shards(4, Alone()), parts=parts, dtype=dtype)
    for name in ("matrix", "tensor"):
        torch.testing.assert_close(alone[0][name], whole[name])
    assert whole["vector"] is None
    assert alone[0]["vector"] is None, "AdamW leaves a parameter without a gradient as it is"
    for size in (1, 2, 3, 4):
        for gradients, found in team(size, lambda rank: accumulated(Shards(4, rank), parts=parts, dtype=dtype)):
            assert torch.equal(gradients["matrix"], alone[0]["matrix"])
            assert torch.equal(gradients["tensor"], alone[0]["tensor"])
            assert gradients["vector"] is None
            assert torch.equal(torch.stack(found), torch.stack(records))


def test_the_gradient_of_shards_by_hand():
    # In float32 1e8 + 1 is 1e8: from left to right the sum would be 1, in pairs of shards it is 0.
    value = nn.Parameter(torch.zeros(1))
    stepper = OptimizerStep({"value": value}, config())

    def differentiate(slope):
        (slope * value).sum().backward()

    backward([stepper], [1e8, 1.0, -1e8, 1.0], differentiate, Shards(4, Alone()))
    assert value.grad.tolist() == [0.0]
