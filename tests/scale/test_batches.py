"""Validation of batches for custom training loops."""

import pytest

from operant.scale.batches import Datum, check, check_ids, check_prompt, check_tokens, thresholds_of


def test_inputs_that_the_loss_does_not_use_are_errors():
    datum = Datum([1], [2], weights=[1.0], logprobs=[0.0], advantages=[1.0])
    with pytest.raises(
        ValueError, match="datum 0 has weights, which is not supported for ppo: it uses target_tokens, "
    ):
        check([datum], "ppo")
    with pytest.raises(ValueError, match="datum 0 has advantages, which is not supported for cross_entropy"):
        check([datum], "cross_entropy")
    check([datum._replace(weights=None)], "cispo")


@pytest.mark.parametrize("wrong", [-1, 10])
def test_ids_outside_of_the_vocabulary_are_named(wrong):
    good = Datum([1, 9], [9, 0])
    with pytest.raises(ValueError, match=rf"datum 1 in target_tokens has the id {wrong}, expected 0 to 9"):
        check_tokens([good, Datum([1, 2], [3, wrong])], 10, None)
    with pytest.raises(ValueError, match="datum 0 in tokens has the id"):
        check_tokens([Datum([wrong], [3])], 10, None)
    check_tokens([good], 10, 3)
    check_ids([], 10, of="the prompt")


def test_sequences_fit_into_the_context():
    with pytest.raises(ValueError, match="datum 0 has 3 tokens with its last target, expected at most the 2"):
        check_tokens([Datum([1, 2], [2, 3])], 10, 2)


def test_a_prompt_and_its_completion_fit_into_the_context():
    check_prompt([1, 2], 3, 10, 5, of="the prompt")
    check_prompt([1, 2], 1000, 10, None, of="the prompt")
    with pytest.raises(ValueError, match="the prompt has 2 tokens and its completion up to 4, expected at most 5 tog"):
        check_prompt([1, 2], 4, 10, 5, of="the prompt")
    with pytest.raises(ValueError, match="the prompt has the id 10, expected 0 to 9"):
        check_prompt([10], 4, 10, 5, of="the prompt")


def test_thresholds_are_validated():
    assert thresholds_of("cross_entropy", {}) == {}
    assert thresholds_of("ppo", {}) == {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    assert thresholds_of("cispo", {"clip_low_threshold": 0.5})["clip_low_threshold"] == 0.5
    for loss, config in (
        ("ppo", {"clip_low_threshold": 1.1}),
        ("ppo", {"clip_high_threshold": 0.9}),
        ("cispo", {"clip_low_threshold": 2.0}),
        ("cispo", {"clip_high_threshold": float("nan")}),
    ):
        with pytest.raises(ValueError, match="expected 0 <= low"):
            thresholds_of(loss, config)
    with pytest.raises(ValueError, match=r"clip_high_threshold 0\.0, expected 0 <= low <= high and high > 0"):
        thresholds_of("cispo", {"clip_high_threshold": 0.0})
