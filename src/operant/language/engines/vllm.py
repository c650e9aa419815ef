"""Sampling from a vLLM server (Kwon et al. 2023, arXiv:2309.06180) over HTTP: `VLLMEngine`.

Requests contain token ids, responses contain token ids and log-probabilities. New weights are written to a folder that
the server loads. After every update the server's log-probabilities of fixed sequences are compared with the trainer's,
and before the first sample the definition of its log-probabilities is tested.
"""

import math
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from operant.language.engines import handover
from operant.language.engines.connection import Connection, ServerError
from operant.language.engines.native import NativeEngine
from operant.language.engines.protocol import Completion, Sampling
from operant.language.importance import GAPS
from operant.language.models import LanguageModel
from operant.language.packing import Sample, pack
from operant.tensors import floats, integers

PROBES, PROBE_TOKENS = 4, 16
"""Number of probe sequences, sampled from the model at the start, and their maximum number of tokens."""
CONNECTIONS = 64
"""Default maximum number of parallel requests; a request is for all completions of a prompt."""

START = "Start one with `VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER --logprobs-mode processed_logprobs`."
"""Hint if no server is found."""

_SEEDS = 1 << 62
_CERTAIN = 1e-3
_ALIKE = 0.5
_HOLDERS: "weakref.WeakValueDictionary[str, VLLMEngine]" = weakref.WeakValueDictionary()
"""Engine whose weights each server has, by URL: learners of one process can share a server."""


class Request(NamedTuple):
    """A prompt and the seed of its completions."""

    prompt: Sequence[int]
    seed: int


def requests_of(prompts: Sequence[Sequence[int]], count: int, generator: torch.Generator) -> list[Request]:
    """Return a request for each prompt, with seeds drawn from a generator.

    Raises:
        ValueError: a prompt is empty, or `count` is not positive.
    """
    if count < 1 or not all(prompts):
        raise ValueError("every prompt must have at least one token, and count must be at least 1")
    return list(map(Request, prompts, integers(torch.randint(_SEEDS, (len(prompts),), generator=generator))))


def _log_probs(choice: Mapping[str, Any]) -> list[float] | None:
    """Return the log-probabilities of the tokens of a response; None without them."""
    given: Mapping[str, list[float] | None] = choice.get("logprobs") or {}
    return given.get("token_logprobs")


class VLLMEngine:
    """Engine that samples from a vLLM server with the weights of a model.

    Each prompt has a seed drawn from the generator, so samples are reproducible as far as the server's arithmetic is.
    Adapters are merged into the base model before sending. The engine connects when first needed, so runs can be
    inspected without a server.

    Args:
        address: URL of the server, such as `http://127.0.0.1:8000`, started with `VLLM_SERVER_DEV_MODE=1` and any model
            of the same architecture.
        model: model to sample from.
        seconds: timeout of one request.
        connections: maximum number of parallel requests.
        folder: folder for the weights; the server must see it under the same path. Default: a temporary folder, for a
            server on this machine.

    Attributes:
        version: version of the weights; see `Engine`.

    Raises:
        ValueError: the address is invalid, or `connections` is not positive.
    """

    def __init__(
        self,
        address: str,
        model: LanguageModel,
        *,
        seconds: float = 600.0,
        connections: int = CONNECTIONS,
        folder: str | Path | None = None,
    ):
        if connections < 1:
            raise ValueError(f"connections must be at least 1, got {connections}")
        self.model, self.connections, self.version = model, connections, 0
        self._server = Connection(address, seconds=seconds)
        self._parent = None if folder is None else Path(folder).resolve()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def reach(self) -> None:
        """Check that the server is running, without sending weights.

        Raises:
            ServerError: the server is unreachable, or not a vLLM server; the message explains how to start one.
        """
        _served(self._server)

    @property
    def address(self) -> str:
        """URL of the server."""
        return self._server.address

    def connect(self, folder: Path | None = None) -> None:
        """Send the weights to the server, and check its features; called by `generate` if needed.

        Args:
            folder: folder with the current weights (`handover.written`). Default: write them for this server.

        Raises:
            ValueError: the server has another dtype or vocabulary than the model.
            ServerError: the server is unreachable, or does not accept weights.
        """
        self.close()
        self._name, self._limit = _served(self._server)
        self._probes = _probes(self.model)
        self._folder = handover.folder_of_weights(self._parent)
        try:
            self._hand_over(folder)
            self._processed = self._reports_what_it_draws_from()
        except BaseException:
            self.close()
            raise

    def generate(
        self, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling, *, generator: torch.Generator
    ) -> list[list[Completion]]:
        """Sample completions; see `Engine`.

        Raises:
            ValueError: a prompt is empty, `count` is not positive, sequences are too long for the server, its
                log-probabilities have another definition, or its weights are not the model's.
            ServerError: the response is invalid.
        """
        requests = requests_of(prompts, count, generator)
        if not requests:
            return []
        self.prepare(sampling, max(map(len, prompts)))
        with ThreadPoolExecutor(min(self.connections, len(requests))) as pool:
            return list(pool.map(partial(self.complete, count=count, sampling=sampling), requests))

    def prepare(self, sampling: Sampling, longest: int) -> None:
        """Check that the server has the weights of the last update and supports the sampling options.

        Args:
            sampling: sampling options.
            longest: number of tokens of the longest prompt.
        """
        if self._sent:
            self._verify()
        else:
            self.send_weights()
        self._check(sampling, longest)

    def send_weights(self) -> None:
        """Send the current weights to the server unless it has them; see `AheadEngine`.

        Raises:
            ValueError: as for `connect`, or the server does not return the model's log-probabilities.
            ServerError: the server is unreachable, or does not accept weights.
        """
        if self._folder is None:
            self.connect()
        elif not self._sent:
            self._hand_over()

    def complete(self, request: "Request", count: int, sampling: Sampling) -> list[Completion]:
        """Sample `count` completions of one prompt, after `prepare`; thread-safe."""
        cut = {"top_k": sampling.top_k, "top_p": sampling.top_p} if sampling.temperature else {}
        choices = self._ask(
            prompt=list(request.prompt),
            n=count,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=request.seed,
            **cut,
        )
        if len(choices) != count:
            raise ServerError(f"{self.address} returned {len(choices)} completions, expected {count}")
        return [self._whole(request.prompt, self._read(choice), sampling) for choice in choices]

    def update(self, model: LanguageModel, folder: Path | None = None) -> None:
        """Send the current weights of `model` to the server.

        Args:
            model: model with the weights.
            folder: folder with these weights (`handover.written`). Default: write them for this server.

        Raises:
            ValueError: the server does not return the model's log-probabilities after the update.
            ServerError: the server does not accept the weights.
        """
        self.model = model
        self.version += 1
        if self._folder is not None:
            self._hand_over(folder)

    def close(self) -> None:
        """Remove the folder of weights. The server keeps running."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @property
    def _sent(self) -> bool:
        """Whether the server has this engine's weights."""
        return self._folder is not None and _HOLDERS.get(self.address) is self

    def _check(self, sampling: Sampling, longest: int) -> None:
        """Check that the server supports the sampling options."""
        if self._limit is not None and longest + sampling.max_tokens > self._limit:
            raise ValueError(
                f"a prompt of {longest} tokens and a completion of {sampling.max_tokens} are more than the "
                f"{self._limit} that the server allows: start it with a larger --max-model-len, or shorten "
                f"max_prompt_length "
                "or max_completion_length"
            )
        if not sampling.temperature:
            return
        if self._processed and (sampling.top_k or sampling.top_p < 1):
            raise ValueError(
                "the server gives log-probabilities after the cut by top_k and top_p, but those before it are needed: "
                "sample without a cut, or start it with --logprobs-mode raw_logprobs and sample at temperature 1"
            )
        if not self._processed and sampling.temperature != 1:
            raise ValueError(
                f"the server gives log-probabilities at temperature 1, but those at {sampling.temperature:g} are "
                "needed: start it with --logprobs-mode processed_logprobs"
            )

    def _ask(self, **fields: Any) -> list[Any]:
        """Return the completions of a request in order; options with defaults in the server are all set."""
        body = {
            **{"model": self._name, "logprobs": 0, "return_token_ids": True},
            **{"ignore_eos": True, "stop_token_ids": sorted(self.model.stop), "min_tokens": 0},
            **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
            **{"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
        }
        answer = self._server.post("/v1/completions", body | fields)
        try:
            return sorted(answer["choices"], key=lambda choice: choice["index"])
        except (KeyError, TypeError) as error:
            raise ServerError(f"{self.address} returned no completions: {str(answer)[:200]}") from error

    def _read(self, choice: Mapping[str, Any]) -> Completion:
        """Return a completion, without the last log-probability if the server omits the stop token."""
        ids, reason, stop = choice.get("token_ids"), choice.get("finish_reason"), choice.get("stop_reason")
        log_probs = _log_probs(choice)
        if ids is None or log_probs is None:
            raise ServerError(
                f"{self.address} returned no token ids or no log-probabilities: use a newer vLLM (0.32 works)"
            )
        ids = list(ids)
        if reason == "stop" and stop in self.model.stop and ids[-1:] != [stop]:
            ids.append(stop)
        ended = bool(ids) and ids[-1] in self.model.stop
        if (reason, ended) not in (("stop", True), ("length", False)):
            raise ServerError(
                f"{self.address} ended a completion with {reason!r} at the token {ids[-1] if ids else None} "
                f"({stop=}), although the tokens that end one are {sorted(self.model.stop)}: start it with "
                "--generation-config vllm, which adds no others"
            )
        if len(ids) - len(log_probs) not in ((0, 1) if ended else (0,)):
            raise ServerError(f"{self.address} returned {len(log_probs)} log-probabilities for {len(ids)} tokens")
        size = self.model.network.get_output_embeddings().weight.shape[0]
        if max(ids) >= size:
            raise ValueError(
                f"the server sampled token {max(ids)}, but the vocabulary has size {size}: the server has another model"
            )
        return Completion(ids, list(map(float, log_probs)), not ended, self.version)

    def _whole(self, prompt: Sequence[int], completion: Completion, sampling: Sampling) -> Completion:
        """Add the trainer's log-probability of a stop token if the server omits it."""
        ids, log_probs = completion.ids, completion.log_probs
        if len(log_probs) == len(ids):
            return completion
        packed = pack([Sample([*prompt, *ids[:-1]], ids[-1:])], device=self.model.device)
        with torch.no_grad():
            last, _ = self.model.log_probs(packed, temperature=sampling.temperature or 1.0)
        return completion._replace(log_probs=[*log_probs, float(last)])

    def _hand_over(self, folder: Path | None = None) -> None:
        """Send the current weights to the server, and verify them."""
        if folder is not None:
            handover.load(self._server, folder)
        elif self._folder is not None:
            handover.send(self._server, self.model, Path(self._folder.name) / f"version-{self.version}")
        _HOLDERS[self.address] = self
        log_probs = self.model.completion_log_probs(self._probes, tokens=PROBES * (PROBE_TOKENS + 1))
        self._expected = floats(torch.cat(log_probs))
        self._verify()

    def _verify(self) -> None:
        """Compare the server's log-probabilities of the probes with the model's at the last update."""
        choices = self._ask(prompt=[[*p.prompt, *p.completion] for p in self._probes], max_tokens=1, prompt_logprobs=0)
        try:
            found = [
                choice["prompt_logprobs"][i + 1][str(token)]["logprob"]
                for choice, probe in zip(choices, self._probes, strict=True)
                for i, token in enumerate(probe.completion)
            ]
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise ServerError(f"{self.address} returned no log-probabilities of prompts") from error
        gap = math.fsum(abs(a - b) for a, b in zip(found, self._expected, strict=True)) / len(found)
        if not gap <= GAPS[self.model.dtype]:
            dtype = str(self.model.dtype).removeprefix("torch.")
            raise ValueError(
                f"the server's log-probabilities are {gap:.2g} nats off the trainer's after update {self.version} (at "
                f"most {GAPS[self.model.dtype]:g} can be rounding): it computes in another precision (start it with "
                f"--dtype {dtype}), kept earlier weights, was restarted, or got others from another process"
            )

    @torch.no_grad()
    def _reports_what_it_draws_from(self) -> bool:
        """Return whether log-probabilities are those after temperature and cuts, instead of the model's.

        The least probable token is forced: its log-probability is 0 after the cut, and low before the cut.
        """
        prompt = list(self._probes[0].prompt)
        packed = pack([Sample(prompt, [0])], device=self.model.device)
        log_probs = self.model.logits(self.model.read(packed).index_select(0, packed.before)).log_softmax(-1).squeeze(0)
        token = int(log_probs.argmin())
        (choice,) = self._ask(prompt=prompt, max_tokens=1, temperature=2.0, allowed_token_ids=[token])
        (value,) = _log_probs(choice) or [math.nan]
        if abs(value) < _CERTAIN:
            return True
        if abs(value - float(log_probs[token])) < _ALIKE:
            return False
        raise ValueError(
            f"the server returned {value:g} as a log-probability, expected 0 or {float(log_probs[token]):.3g}: start "
            "it with --logprobs-mode processed_logprobs"
        )


def _served(server: Connection) -> tuple[str, int | None]:
    """Return the model name of a server, and its maximum sequence length."""
    try:
        found = server.get("/v1/models")["data"]
        card = next(card for card in found if not card.get("parent"))
        return card["id"], card.get("max_model_len")
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise ServerError(f"{server.address} does not list a model: is it a vLLM server?") from error
    except ServerError as error:
        raise ServerError(f"{error} {START}", error.status) from error


def _probes(model: LanguageModel) -> list[Sample]:
    """Return sequences sampled from the model as probes."""
    start, generator = [min(model.stop)], torch.Generator().manual_seed(0)
    (found,) = NativeEngine(model).generate([start], PROBES, Sampling(PROBE_TOKENS), generator=generator)
    return [Sample(start, completion.ids) for completion in found]
