"""Models of several sessions, trained and sampled request by request: `Service`."""

import itertools
import json
import secrets
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from operant import streams
from operant.language.configs import ModelOptions
from operant.language.engines.protocol import Completion, Sampling
from operant.language.huggingface import merged
from operant.language.models import LanguageModel, finish, load
from operant.language.pretrained import fingerprint
from operant.runtime.files import write_durably
from operant.scale.batches import check_prompt
from operant.scale.saved_states import checked_name, folder_of, read_state, write_state
from operant.scale.trainer import LocalTrainer, Sampler
from operant.state import State

STATES, SAMPLERS, SNAPSHOTS = "weights", "sampler_weights", "snapshots"
"""Kinds of data of a model: states to continue from, weights for sampling, and such weights without a name."""
MODEL = "model.json"
"""File with the rank of a model's adapter, and the name and the digest of its base."""
SCHEME = "tinker://"
MOST_RESULTS = 10_000
"""Maximum results kept for clients that have not fetched them, besides those of unfinished computations."""
MOST_FETCHED = 256
"""Maximum results kept after a client has fetched them, for clients that lost the answer."""
MOST_SNAPSHOTS = 8
"""Maximum snapshots without a name per model; they are only in memory, and the oldest is dropped first."""
MOST_LOADED = 4
"""Maximum named weights for sampling in memory; others are read from disk when needed."""


class UnknownError(LookupError):
    """A model, session or request does not exist."""


@dataclass(frozen=True)
class Answer:
    """Result of a request for samples.

    Attributes:
        completions: completions of the prompt.
        prompt_log_probs: log-probabilities of all prompt tokens except the first; None: not requested.
    """

    completions: list[Completion]
    prompt_log_probs: Tensor | None


@dataclass(frozen=True)
class Model:
    """A model of a session.

    Attributes:
        trainer: trainer of the model.
        rank: rank of its adapter; 0: all weights are trained.
        snapshots: weights for sampling without a name, by address.
    """

    trainer: LocalTrainer
    rank: int
    snapshots: dict[str, State] = field(default_factory=dict[str, State])


class Service:
    """Training of adapters on one base model, for any number of sessions.

    All computation runs in one thread, in the order of requests, so results do not depend on timing.

    Args:
        options: the base model.
        folder: folder of saved states and the tokenizer.
        seed: seed of samples without their own seed.
        device: device of the computation.

    Attributes:
        name: name of the base model.
        models: models by name, also used by the thread of the computation.
        context: maximum tokens of a prompt with its completion; None: unlimited.
        tokenizer_path: folder of the tokenizer.
    """

    def __init__(self, options: ModelOptions, folder: Path, *, seed: int = 0, device: str = "cpu") -> None:
        self.options, self.folder, self.seed, self.device = options, folder, seed, device
        self.name = options.init or options.model
        self.models: dict[str, Model] = {}
        self._loaded: dict[str, State] = {}
        self._samplers: dict[int, Sampler] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="service")
        self._results: dict[str, Future[Any]] = {}
        self._fetched: dict[str, Future[Any]] = {}
        self._numbers = itertools.count()
        base = load(options, seed=seed, device=device)
        self._digest = fingerprint(base.network, adapters=True)[:16]
        self.context, self._vocabulary = base.context, base.vocabulary
        self.tokenizer_path = folder / "tokenizer"
        base.tokenizer.save_pretrained(self.tokenizer_path)
        self._tokenizer = base.tokenizer

    def submit(self, work: Callable[..., Any], *args: Any, **options: Any) -> str:
        """Schedule a computation, and return the name of the request."""
        request = secrets.token_hex(8)
        self._results[request] = self._pool.submit(work, *args, **options)
        excess = len(self._results) - MOST_RESULTS
        if excess > 0:
            for name in [name for name, found in self._results.items() if found.done()][:excess]:
                del self._results[name]
        return request

    def result(self, request: str) -> Future[Any]:
        """Return the future of a request.

        Raises:
            UnknownError: there is none.
        """
        found = self._results.get(request) or self._fetched.get(request)
        if found is None:
            raise UnknownError(
                f"there is no request {request!r}: the service keeps the last {MOST_FETCHED} results that were fetched "
                f"and the last {MOST_RESULTS} that were not; fetch results sooner, or send the request again"
            )
        return found

    def mark_fetched(self, request: str) -> None:
        """Record that a client has fetched a result, which is kept a while in case the answer was lost.

        Args:
            request: name of the request.
        """
        if request in self._results:
            self._fetched[request] = self._results.pop(request)
        _keep_last(MOST_FETCHED, self._fetched)

    def model(self, name: str) -> Model:
        """Return a model.

        Raises:
            UnknownError: there is none.
        """
        try:
            return self.models[name]
        except KeyError:
            raise UnknownError(f"there is no model {name!r}; create one first") from None

    def trainer(self, model: str) -> LocalTrainer:
        """Return the trainer of a model; see `model`."""
        return self.model(model).trainer

    def create(self, model: str, *, base: str, rank: int, seed: int = 0) -> None:
        """Create a model: the base with a new adapter of a given rank; 0 trains all weights.

        Raises:
            ValueError: `base` is not the served model.
        """
        self.require_base(base)
        self._add(model, self._new(model, rank, seed), rank)

    def create_from(self, model: str, address: str, *, optimizer: bool) -> None:
        """Create a model from a saved state. If that fails, there is no such model.

        Args:
            model: name of the model.
            address: result of `save`.
            optimizer: whether to restore the state of the optimizer, too.

        Raises:
            UnknownError: the state belongs to no model of this service.
            ValueError: there is no such state, or it belongs to another base.
        """
        path, rank = self._state(address), self.rank_of(address)
        trainer = self._new(model, rank)
        trainer.load_state(path, optimizer=optimizer)
        self._add(model, trainer, rank)

    def require_base(self, base: str | None) -> None:
        """Raise an error if a base model is not the served one.

        Raises:
            ValueError: it is another one.
        """
        if base != self.name:
            raise ValueError(f"{base!r} is not served here; {self.name!r} is")

    def save(self, model: str, name: str, *, overwrite: bool = False) -> str:
        """Save the state of a model, and return its address.

        Args:
            model: name of the model.
            name: name of the state.
            overwrite: whether to replace an earlier state of this name.

        Raises:
            UnknownError: there is no such model.
            ValueError: the name is not valid, or already exists and `overwrite` is false.
        """
        self.trainer(model).save_state(name, overwrite=overwrite)
        return f"{SCHEME}{model}/{STATES}/{name}"

    def load(self, model: str, address: str, *, optimizer: bool) -> None:
        """Continue a model from a saved state; see `create_from`."""
        self.trainer(model).load_state(self._state(address), optimizer=optimizer)

    def rank_of(self, address: str) -> int:
        """Return the rank of the adapter of a saved state, or of named weights for sampling.

        Args:
            address: result of `save` or `publish`.

        Raises:
            UnknownError: there is no such model.
            ValueError: it has another base than this service.
        """
        owner, _ = self._parts(address, STATES, SAMPLERS)
        file = self._folder(owner) / MODEL
        if not file.is_file():
            raise UnknownError(f"{address} belongs to no model of this service")
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["digest"] != self._digest:
            raise ValueError(
                f"{address} belongs to the base model {found['base']!r} with weights {found['digest']}, but the served "
                f"one is {self.name!r} with weights {self._digest}; serve the former to use it"
            )
        return found["rank"]

    def publish(self, model: str, name: str | None = None) -> str:
        """Publish the current weights of a model for sampling, and return their address.

        Args:
            model: name of the model.
            name: name of weights in the folder of states, which replace earlier ones of this name; None: a snapshot in
                memory, of which a model has the last `MOST_SNAPSHOTS`.

        Raises:
            UnknownError: there is no such model.
            ValueError: the name is not valid.
        """
        found = self.model(model)
        weights = found.trainer.weights()
        if name is not None:
            address = f"{SCHEME}{model}/{SAMPLERS}/{checked_name(name)}"
            write_state(self._folder(model) / SAMPLERS / name, {"model": weights}, overwrite=True)
            self._loaded.pop(address, None)
            return address
        address = f"{SCHEME}{model}/{SNAPSHOTS}/{secrets.token_hex(8)}"
        found.snapshots[address] = weights
        _keep_last(MOST_SNAPSHOTS, found.snapshots)
        return address

    def forget(self, model: str) -> None:
        """Release a model and its snapshots; its saved data is kept."""
        self.models.pop(model, None)

    def forget_session(self, session: str) -> None:
        """Release the models of a session. As a submitted computation, it includes those created by earlier ones."""
        for model in [name for name in self.models if name.startswith(f"{session}:")]:
            self.forget(model)

    def require_weights(self, address: str) -> None:
        """Raise an error if there are no weights to sample from.

        Args:
            address: result of `publish`.

        Raises:
            UnknownError: there are none; the message contains the reason.
            ValueError: they belong to another base than that of this service.
        """
        try:
            owner, name = self._parts(address, SAMPLERS, SNAPSHOTS)
        except ValueError:
            owner, name = "", ""
        model = self.models.get(owner)
        if model is not None and address in model.snapshots:
            return
        if owner and f"/{SNAPSHOTS}/" in address:
            raise UnknownError(
                f"the snapshot {address!r} was dropped: the service keeps the last {MOST_SNAPSHOTS} snapshots of a "
                "model until the end of its session; create a new sampling client, or save named weights with "
                "save_weights_for_sampler, which remain"
            )
        if not owner or not folder_of(self._folder(owner) / SAMPLERS / name).is_dir():
            raise UnknownError(f"there are no weights {address!r}; save them for a sampler first")
        self.rank_of(address)

    def sample(
        self,
        address: str | None,
        prompt: Sequence[int],
        count: int,
        sampling: Sampling,
        *,
        stop: Sequence[str] | Sequence[int] = (),
        seed: int | None = None,
        score_prompt: bool = False,
    ) -> Answer:
        """Sample from published weights; without an address, from the base model.

        Args:
            address: result of `publish`.
            prompt: token ids.
            count: completions.
            sampling: length, temperature, cuts.
            stop: strings or ids after which a completion ends.
            seed: seed of the random numbers; None: a different one each time.
            score_prompt: whether to return the log-probabilities of the prompt.

        Raises:
            UnknownError: there are no such weights.
            ValueError: the weights belong to another base, or the prompt is empty, exceeds the model's context
                together with the completion, or has an id outside of the vocabulary.
        """
        check_prompt(prompt, sampling.max_tokens, self._vocabulary, self.context, of="the prompt")
        sampler = self._sampler(address)
        generator = (
            streams.torch_generator(self.seed, "samples", next(self._numbers))
            if seed is None
            else streams.torch_generator(seed, "samples")
        )
        found = sampler.sample(prompt, count, sampling, generator)
        cut = [shortened(completion, stop, self._tokenizer) for completion in found]
        return Answer(cut, sampler.log_probs(prompt) if score_prompt else None)

    def close(self) -> None:
        """Cancel pending computations."""
        self._pool.shutdown(cancel_futures=True)

    def _sampler(self, address: str | None) -> Sampler:
        """Return the sampler of some weights; there is one copy of the model per rank of adapters."""
        if address is None:
            return self._sampler_of(-1)
        self.require_weights(address)
        owner, name = self._parts(address, SAMPLERS, SNAPSHOTS)
        model = self.models.get(owner)
        weights = None if model is None else model.snapshots.get(address)
        if weights is None:
            if address not in self._loaded:
                self._loaded[address] = read_state(self._folder(owner) / SAMPLERS / name)["model"]
            weights = self._loaded[address]
            _keep_last(MOST_LOADED, self._loaded)
        sampler = self._sampler_of(self.rank_of(address) if model is None else model.rank)
        sampler.use(weights)
        return sampler

    def _sampler_of(self, rank: int) -> Sampler:
        """Return the sampler of adapters of a rank; -1: of the base model."""
        if rank not in self._samplers:
            self._samplers[rank] = Sampler(self._model(max(0, rank), seed=0))
        return self._samplers[rank]

    def _model(self, rank: int, seed: int) -> LanguageModel:
        """Return the base with a new adapter of a rank, initialized from a seed; the base is the same for all seeds."""
        base = load(self.options, seed=self.seed, device=self.device)
        if not rank:
            return base
        return finish(merged(base.network), base.tokenizer, replace(self.options, lora_r=rank), seed=seed)

    def _new(self, model: str, rank: int, seed: int = 0) -> LocalTrainer:
        return LocalTrainer(self._model(rank, seed), self._folder(model) / STATES, seed=self.seed)

    def _add(self, model: str, trainer: LocalTrainer, rank: int) -> None:
        self._folder(model).mkdir(parents=True)
        facts = {"rank": rank, "base": self.name, "digest": self._digest}
        write_durably(self._folder(model) / MODEL, json.dumps(facts).encode())
        self.models[model] = Model(trainer, rank)

    def _state(self, address: str) -> str:
        """Return the path of a saved state of this base."""
        owner, name = self._parts(address, STATES)
        self.rank_of(address)
        return str(self._folder(owner) / STATES / name)

    def _folder(self, model: str) -> Path:
        return self.folder / checked_name(model.replace(":", "-"))

    def _parts(self, address: str, *kinds: str) -> tuple[str, str]:
        owner, _, rest = address.removeprefix(SCHEME).partition("/")
        found, _, name = rest.partition("/")
        if not address.startswith(SCHEME) or found not in kinds or not owner:
            raise ValueError(f"{address!r} is not an address of saved {' or '.join(kinds)}; save_state returns one")
        checked_name(owner.replace(":", "-"))
        return owner, checked_name(name)


def _keep_last(count: int, found: dict[str, Any]) -> None:
    """Remove the oldest entries beyond a number."""
    while len(found) > count:
        del found[next(iter(found))]


def shortened(completion: Completion, stop: Sequence[str] | Sequence[int], tokenizer: Any) -> Completion:
    """Return a completion up to the end of the first stop sequence in it."""
    texts = [each for each in stop if isinstance(each, str)]

    def ended(end: int) -> bool:
        text = tokenizer.decode(completion.ids[:end], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return any(each in text for each in texts)

    count = len(completion.ids)
    ends = [end for end, token in enumerate(completion.ids, 1) if token in stop][:1]
    if texts and ended(count):
        ends.append(1 + bisect_left(range(1, count + 1), True, key=ended))
    if not ends:
        return completion
    ids, log_probs = completion.ids[: min(ends)], completion.log_probs[: min(ends)]
    return completion._replace(ids=ids, log_probs=log_probs, truncated=False)
