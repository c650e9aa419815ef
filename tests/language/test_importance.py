import math

import pytest
import torch

from operant.language.importance import GAPS, check_start, corrections, mismatch_metrics

RATIOS = torch.tensor([0.2, 0.5, 1.0, 1.5, 2.0, 7.0])
BEHAVIOR = torch.tensor([-1.0, -2.0, -0.5, -3.0, -1.5, -4.0])
TRAINER = BEHAVIOR + RATIOS.log()


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("none", [1, 1, 1, 1, 1, 1]),
        ("truncate", [0.2, 0.5, 1, 1.5, 2, 2]),
        ("mask", [0, 0.5, 1, 1.5, 2, 0]),
    ],
)
def test_weights_by_hand(how, expected):
    # A margin, so that rounding does not decide on which side of a bound a ratio falls.
    weights = corrections(TRAINER, BEHAVIOR, how, torch.tensor([2, 4]), cap=2.00001, low=0.49999)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float32), atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("how", "cap", "expected"),
    [
        # The ratios of the sequences are 0.2 * 0.5 = 0.1, 1 * 1.5 * 2 = 3 and 7.
        ("sequence-truncate", 2.0, [0.1, 0.1, 2, 2, 2, 2]),
        ("sequence-truncate", 4.0, [0.1, 0.1, 3, 3, 3, 4]),
        ("sequence-mask", 2.0, [0.1, 0.1, 0, 0, 0, 0]),
        ("sequence-mask", 4.0, [0.1, 0.1, 3, 3, 3, 0]),
        ("sequence-truncate", None, [0.1, 0.1, 3, 3, 3, 3]),  # 3 as in TRL
        ("truncate", None, [0.2, 0.5, 1, 1.5, 2, 2]),
    ],
)
def test_weights_of_sequences_by_hand(how, cap, expected):
    weights = corrections(TRAINER, BEHAVIOR, how, torch.tensor([2, 3, 1]), cap=cap)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float32), atol=2e-5, rtol=0)


def test_a_sequence_at_the_cap_is_kept_and_one_beyond_it_is_masked():
    ratio = torch.tensor([1.5, 2.0]).log()
    for room, kept in ((1e-5, 3.0), (-1e-5, 0.0)):
        weights = corrections(ratio, torch.zeros(2), "sequence-mask", torch.tensor([2]), cap=3.0 + room)
        torch.testing.assert_close(weights, torch.full((2,), kept))


@pytest.mark.parametrize("how", ["none", "truncate", "mask", "sequence-truncate", "sequence-mask"])
def test_policies_that_agree_need_no_correction_and_no_gradient_passes(how):
    trainer = BEHAVIOR.clone().requires_grad_()
    weights = corrections(trainer, BEHAVIOR, how, torch.tensor([4, 2]), cap=2.0)
    assert weights.tolist() == [1.0] * 6
    assert not weights.requires_grad


def test_the_size_of_the_gap():
    found = mismatch_metrics(TRAINER, BEHAVIOR, RATIOS)
    gaps = RATIOS.log().abs()
    assert found["sampling/sampling_logp_difference/mean"] == pytest.approx(float(gaps.mean()), rel=1e-5)
    assert found["sampling/sampling_logp_difference/max"] == pytest.approx(math.log(7), rel=1e-5)
    assert found["sampling/importance_sampling_ratio/min"] == pytest.approx(0.2)
    assert found["sampling/importance_sampling_ratio/mean"] == pytest.approx(float(RATIOS.mean()))
    assert found["sampling/importance_sampling_ratio/max"] == 7


def test_a_right_start_passes():
    near = BEHAVIOR + torch.tensor([1, -1, 1, -1, 1, -1]) * 1e-4
    check_start(near.clone().requires_grad_(), near, BEHAVIOR, dtype=torch.float32)


def test_a_ratio_that_is_not_1_is_named():
    with pytest.raises(ValueError, match=r"ratio should be exactly 1, but a log-probability is .* off.*dropout"):
        check_start(BEHAVIOR + 1e-6, BEHAVIOR, BEHAVIOR, dtype=torch.float32)


@pytest.mark.parametrize("dtype", list(GAPS))
def test_an_engine_that_disagrees_is_named(dtype):
    allowed = BEHAVIOR + 0.9 * GAPS[dtype]
    check_start(allowed, allowed, BEHAVIOR, dtype=dtype)
    off = BEHAVIOR + 1.1 * GAPS[dtype]
    with pytest.raises(ValueError, match="other weights, another temperature or another precision"):
        check_start(off, off, BEHAVIOR, dtype=dtype)


def test_an_engine_without_numbers_is_named():
    broken = torch.full_like(BEHAVIOR, math.nan)
    with pytest.raises(ValueError, match="nan nats off"):
        check_start(BEHAVIOR, BEHAVIOR, broken, dtype=torch.float32)
