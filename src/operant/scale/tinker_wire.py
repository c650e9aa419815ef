"""The Tinker API's protocol buffer messages: batches, losses and samples (extra: `tinker`)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tinker.proto import tinker_public_pb2 as messages
from torch import Tensor

from operant.language.engines.protocol import Completion
from operant.scale.batches import Datum, require_loss, require_used
from operant.scale.trainer import Forward

CONTENT_TYPE = "application/x-protobuf"
_NUMBERS: Mapping[int, Any] = {
    messages.DTYPE_FLOAT32: np.float32,
    messages.DTYPE_INT64: np.int64,
    messages.DTYPE_INT32: np.int32,
}


def read_batch(body: bytes) -> tuple[str, list[Datum], str, dict[str, float], bool]:
    """Return the model, the data, the loss with its settings, and whether to skip the gradient.

    Args:
        body: serialized message.

    Raises:
        ValueError: the message is of another kind, the loss is unknown, or the contents are not supported, such as
            inputs that the loss ignores.
    """
    try:
        request = messages.ForwardBackwardRequest.FromString(body)
    except Exception as error:  # the error's type depends on the implementation of protobuf
        raise ValueError(f"the body is no ForwardBackwardRequest: {error}") from error
    require_loss(request.loss_fn)
    if texts := [name for name, value in request.loss_fn_config_v2.items() if value.HasField("text")]:
        raise ValueError(f"{request.loss_fn} has no setting {texts[0]!r} here")
    config = {name: value.number for name, value in request.loss_fn_config_v2.items()} or dict(request.loss_fn_config)
    for index, datum in enumerate(request.data):
        require_used(datum.loss_fn_inputs, request.loss_fn, index)
    data = [_datum(datum) for datum in request.data]
    return request.model_id, data, request.loss_fn, config, request.forward_only


def _datum(message: Any) -> Datum:
    tokens: list[int] = []
    for chunk in message.model_input:
        if not chunk.HasField("encoded_text"):
            raise ValueError("only text is supported here; remove images and sound")
        tokens += np.frombuffer(chunk.encoded_text.tokens, dtype=np.int32).tolist()
    inputs = {name: _numbers(tensor, name) for name, tensor in message.loss_fn_inputs.items()}
    return Datum(tokens, [int(token) for token in inputs.pop("target_tokens", [])], **inputs)


def _numbers(tensor: Any, name: str) -> list[Any]:
    if tensor.HasField("sparse_csr") or len(tensor.shape) > 1:
        raise ValueError(f"{name} must be one number a token here, got a tensor of shape {tuple(tensor.shape)}")
    return np.frombuffer(tensor.dense, dtype=_NUMBERS[tensor.dtype]).tolist()


def loss_message(found: Forward) -> bytes:
    """Return the result of a pass over a batch, as a ForwardBackwardOutput."""
    output = messages.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    output.metrics["loss:sum"] = found.loss
    record = output.loss_fn_outputs.add(num_datums=len(found.logprobs))
    column = record.fields["logprobs"]
    column.dtype = messages.DTYPE_FLOAT32
    sizes = [0, *(4 * len(numbers) for numbers in found.logprobs)]
    column.offsets = np.cumsum(sizes, dtype=np.int64).tobytes()
    column.data = torch.cat(found.logprobs).cpu().float().numpy().tobytes()
    return output.SerializeToString()


def sample_message(completions: Sequence[Completion], prompt_log_probs: Tensor | None) -> bytes:
    """Return completions, and the log-probabilities of all prompt tokens except the first, as a SampleResponse."""
    response = messages.SampleResponse()
    for completion in completions:
        response.sequences.add(
            stop_reason=messages.STOP_REASON_LENGTH if completion.truncated else messages.STOP_REASON_STOP,
            tokens=np.asarray(completion.ids, dtype=np.int32).tobytes(),
            logprobs=np.asarray(completion.log_probs, dtype=np.float32).tobytes(),
        )
    if prompt_log_probs is not None:
        numbers = np.concatenate(([np.nan], prompt_log_probs.cpu().float().numpy())).astype(np.float32)
        response.prompt_logprobs = numbers.tobytes()
    return response.SerializeToString()


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics without NaN and Inf, which JSON does not have."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
