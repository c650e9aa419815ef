"""A trainer of a service with the Tinker API, through its SDK: `RemoteTrainer` (extra: `tinker`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import tinker
from tinker import types

from operant import streams
from operant.language.engines.protocol import Completion, Sampling
from operant.scale.batches import Datum, Loss, check
from operant.scale.trainer import Adam, Forward
from operant.tensors import from_numpy

DEFAULT_RANK = 32
"""Default rank of the adapter: the service trains only adapters."""


class RemoteTrainer:
    """A trainer of a service (see `operant.scale.trainer.Trainer`).

    Args:
        address: address of the service, such as `http://127.0.0.1:8421`; None: that of `TINKER_BASE_URL`, or Tinker's
            own.
        model: a name of the service; None: the only model that it serves.
        lora_r: rank of the adapter; 0: 32.
        seed: seed of the adapter's initial weights.
        key: for the service; None: that of `TINKER_API_KEY`.

    Raises:
        ValueError: `model` is None, and the service does not have exactly one model.
    """

    def __init__(
        self, address: str | None, model: str | None, *, lora_r: int = 0, seed: int = 0, key: str | None = None
    ) -> None:
        self._given: dict[str, Any] = {"base_url": address, "api_key": key}
        self._service = tinker.ServiceClient(**self._given)
        self._client = self._service.create_lora_training_client(
            base_model=model or self._only_model(address, key), rank=lora_r or DEFAULT_RANK, seed=seed
        ).result()
        self.tokenizer: Any = self._client.get_tokenizer()
        self._sampler: tinker.SamplingClient | None = None

    def _only_model(self, address: str | None, key: str | None) -> str:
        rest = tinker.RestClient(base_url=address, api_key=key)
        found = [each.model_name for each in rest.get_server_capabilities().result().supported_models]
        if len(found) != 1 or not found[0]:
            raise ValueError(f"the service has {len(found)} models; pass one as model: {found}")
        return found[0]

    def forward(self, data: Sequence[Datum], loss: Loss, config: Mapping[str, float] | None = None) -> Forward:
        """See `Trainer`."""
        data = list(data)
        check(data, loss)
        return _found(self._client.forward(_data(data), loss, dict(config or {})).result())

    def forward_backward(self, data: Sequence[Datum], loss: Loss, config: Mapping[str, float] | None = None) -> Forward:
        """See `Trainer`."""
        data = list(data)
        check(data, loss)
        return _found(self._client.forward_backward(_data(data), loss, dict(config or {})).result())

    def optim_step(self, adam: Adam) -> Mapping[str, float]:
        """See `Trainer`."""
        self._sampler = None
        found = self._client.optim_step(types.AdamParams(**vars(adam))).result().metrics or {}
        return {"gradient_norm": float("nan"), **found}  # JSON has no NaN or Inf, so a service leaves them out

    def sample(
        self, prompts: Sequence[Sequence[int]], num_samples: int, sampling: Sampling, *, seed: int | None = None
    ) -> list[list[Completion]]:
        """See `Trainer`."""
        if self._sampler is None:
            self._sampler = self._client.save_weights_and_get_sampling_client().result()
        waiting = [
            self._sampler.sample(types.ModelInput.from_ints(list(prompt)), num_samples, _params(sampling, seed, index))
            for index, prompt in enumerate(prompts)
        ]
        return [[_completion(found) for found in each.result().sequences] for each in waiting]

    def save_state(self, name: str, *, overwrite: bool = False) -> str:
        """See `Trainer`."""
        return self._client.save_state(name, overwrite=overwrite).result().path

    def load_state(self, path: str, *, optimizer: bool = True) -> None:
        """See `Trainer`.

        The model of the state is new. It has its own session, since the end of a session is what releases a model.
        """
        service = tinker.ServiceClient(**self._given)
        create = (
            service.create_training_client_from_state_with_optimizer
            if optimizer
            else service.create_training_client_from_state
        )
        try:
            client = create(path).result()
        except BaseException:
            service.close("errored").result()
            raise
        self._service.close("success").result()
        self._service, self._client, self._sampler = service, client, None

    def close(self) -> None:
        """See `Trainer`."""
        self._service.close("success").result()


def _data(data: Sequence[Datum]) -> list[types.Datum]:
    return [
        types.Datum(model_input=types.ModelInput.from_ints(list(datum.tokens)), loss_fn_inputs=_inputs(datum))
        for datum in data
    ]


def _inputs(datum: Datum) -> dict[str, Any]:
    columns: dict[str, Any] = datum._asdict()
    return {name: list(values) for name, values in columns.items() if name != "tokens" and values is not None}


def _found(output: types.ForwardBackwardOutput) -> Forward:
    log_probs = [from_numpy(fields["logprobs"].to_numpy()) for fields in output.loss_fn_outputs]
    return Forward(output.metrics.get("loss:sum", float("nan")), log_probs)


def _params(sampling: Sampling, seed: int | None, index: int) -> types.SamplingParams:
    """Return the options of a prompt, with its own seed: a request has one prompt, and equal seeds equal numbers."""
    return types.SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k or -1,
        top_p=sampling.top_p,
        seed=streams.integer(seed, "samples", index) if seed is not None and index else seed,
    )


def _completion(found: types.SampledSequence) -> Completion:
    return Completion(list(found.tokens), list(found.logprobs or []), found.stop_reason == "length")
