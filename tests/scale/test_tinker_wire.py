"""Messages of the Tinker API, read and written by the SDK's own conversions."""

import numpy as np
import pytest
import torch

pytest.importorskip("tinker")

from tinker import types
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import deserialize_forward_backward_output, deserialize_sample_response

from operant.language.engines.protocol import Completion
from operant.scale.batches import Datum
from operant.scale.tinker_wire import finite, loss_message, read_batch, sample_message
from operant.scale.trainer import Forward


def body(inputs, loss="ppo", **options):
    data = [types.Datum(model_input=types.ModelInput.from_ints([3, 4]), loss_fn_inputs=inputs)]
    given = types.ForwardBackwardInput(data=data, loss_fn=loss, **options)
    request = types.ForwardBackwardRequest(forward_backward_input=given, model_id="m", seq_id=1)
    return forward_backward_request_to_proto(request).SerializeToString()


def test_a_batch_is_read_as_it_was_written():
    found = read_batch(body({"target_tokens": [4, 5], "logprobs": [-1.0, -0.5], "advantages": [0.0, 1.0]}))
    assert found == ("m", [Datum([3, 4], [4, 5], None, [-1.0, -0.5], [0.0, 1.0])], "ppo", {}, False)
    config = {"clip_low_threshold": 0.5}
    assert read_batch(body({"target_tokens": [4, 5]}, loss_fn_config=config))[3] == config


def test_unsupported_requests_are_named():
    with pytest.raises(ValueError, match="no ForwardBackwardRequest"):
        read_batch(b"\xff\xff")
    with pytest.raises(ValueError, match="target_tokens must be one number a token"):
        read_batch(body({"target_tokens": np.zeros((2, 3), dtype=np.int64)}))
    with pytest.raises(ValueError, match="no setting 'kind'"):
        read_batch(body({"target_tokens": [4, 5]}, loss_fn_config={"kind": "x"}))


@pytest.mark.parametrize("name", ["weights", "clip_low_threshold", "clip_high_threshold", "sequence_ratio_mask"])
def test_inputs_that_the_loss_does_not_use_are_errors(name):
    with pytest.raises(ValueError, match=f"datum 0 has {name}, which is not supported for ppo"):
        read_batch(body({"target_tokens": [4, 5], name: [0.5, 0.5]}))


def test_the_name_of_the_loss_is_checked_first():
    inputs = {"target_tokens": [4, 5], "tokens": np.array([3, 4])}
    with pytest.raises(ValueError, match="there is no loss 'dro'; there are cross_entropy"):
        read_batch(body(inputs, loss="dro"))
    with pytest.raises(ValueError, match="datum 0 has tokens, which is not supported for ppo"):
        read_batch(body(inputs))


def test_losses_are_read_by_the_sdk():
    found = deserialize_forward_backward_output(
        loss_message(Forward(2.5, [torch.tensor([-1.0, -2.0]), torch.tensor([-3.0])]))
    )
    assert found.metrics == {"loss:sum": 2.5}
    assert [each["logprobs"].tolist() for each in found.loss_fn_outputs] == [[-1.0, -2.0], [-3.0]]


def test_samples_are_read_by_the_sdk():
    completions = [Completion([5, 6], [-1.0, -2.0], True), Completion([7], [-3.0], False)]
    found = deserialize_sample_response(sample_message(completions, torch.tensor([-4.0])))
    assert [s.tokens for s in found.sequences] == [[5, 6], [7]]
    assert [s.logprobs for s in found.sequences] == [[-1.0, -2.0], [-3.0]]
    assert [s.stop_reason for s in found.sequences] == ["length", "stop"]
    assert found.prompt_logprobs == [None, -4.0]
    assert deserialize_sample_response(sample_message(completions, None)).prompt_logprobs is None


def test_metrics_that_are_not_finite_are_left_out():
    assert finite({"gradient_norm": float("nan"), "loss": float("inf"), "skipped": 1.0}) == {"skipped": 1.0}
