"""HTTP server of the Tinker API, for existing training loops: `serve`, `make_app` (extras: `tinker`, `web`).

A request for a computation returns a request id immediately, with which the client fetches the result. Sessions, models
and samplers have the names that the SDK expects. Every request needs the key. Functions of the API beyond the four
verbs (other optimizers, images, custom losses on the server, projects, billing) return an error.
"""

import asyncio
import json
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from operant.runtime.http_server import Server, listen
from operant.scale.service import Answer, Service, UnknownError
from operant.scale.tinker_requests import read_body, read_sampling, require_absent
from operant.scale.tinker_wire import CONTENT_TYPE, finite, loss_message, read_batch, sample_message
from operant.scale.trainer import Adam, Forward

logger = logging.getLogger(__name__)

PREFIX = "tml-"
"""Prefix of keys, which the SDK requires."""
WAIT = 20.0
"""Seconds after which a request for an unfinished result is answered with `try_again`."""
MOST_ANSWERS = 10_000
"""Maximum requests whose answers are kept, for clients that lost the answer and send the request again."""
MOST_SAMPLERS = 10_000
"""Maximum sampling sessions; the one whose last use was earliest is dropped first."""
MOST_SAMPLES = 4096
"""Maximum number of completions of a request."""
SILENCE = 24 * 3600.0
"""Seconds without a heartbeat after which the models of a session are released, when another session starts or sends
one; the SDK sends one every few seconds."""

NOT_SAMPLED = (
    "topk_prompt_logprobs",
    "topk_sample_logprobs",
    "target_prompt_logprobs",
    "prompt_alt_tokens_k",
    "prompt_logprobs_last_n",
    "record_stability_info",
)
"""Fields of sampling requests that are not supported."""
NOT_SAVED = ("ttl_seconds", "user_metadata")
"""Fields of requests to save weights that are not supported: saved weights remain until their folder is deleted."""

Handler = Callable[[Mapping[str, Any]], Any]


def new_key() -> str:
    """Return a random key."""
    return PREFIX + secrets.token_urlsafe(32)


class Api:
    """Routes of the API.

    Args:
        service: models and their queue of work.
        key: key that every request needs.
    """

    def __init__(self, service: Service, key: str) -> None:
        self._service, self._key = service, key
        self._sessions: dict[str, float] = {}
        self._answers: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._samplers: OrderedDict[str, str | None] = OrderedDict()  # both threads change it, by atomic methods

    def routes(self) -> list[Route]:
        """Return all routes."""
        handlers: Mapping[str, Handler] = {
            "client/config": lambda _: {"parallel_fwdbwd_chunks": False, "use_pyqwest_transport": False},
            "client/dynamic_config": lambda _: {},
            "telemetry": lambda _: {"status": "accepted"},
            "create_session": self._create_session,
            "session_heartbeat": self._heartbeat,
            "create_model": self._create_model,
            "get_info": self._info,
            "unload_model": self._unload,
            "optim_step": self._step,
            "save_weights": self._save,
            "load_weights": self._load,
            "save_weights_for_sampler": self._publish,
            "create_sampling_session": self._create_sampler,
            "asample": self._sample,
            "weights_info": self._weights_info,
        }
        posts = [Route(f"/api/v1/{path}", self._json(handler), methods=["POST"]) for path, handler in handlers.items()]
        return [
            *posts,
            Route("/api/v1/forward_backward", self._guarded(self._forward_backward), methods=["POST"]),
            Route("/api/v1/sessions/{session}/finish", self._guarded(self._finish), methods=["POST"]),
            Route("/api/v1/samplers/{sampler}", self._guarded(self._sampler_info), methods=["GET"]),
            Route("/api/v1/retrieve_future", self._guarded(self._retrieve), methods=["POST"]),
            Route("/api/v1/healthz", self._guarded(self._health), methods=["GET"]),
            Route("/api/v1/get_server_capabilities", self._guarded(self._capabilities), methods=["GET"]),
        ]

    # Requests and responses.

    def _guarded(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Wrap a handler: check the key, and convert errors to responses."""

        async def answer(request: Request) -> Response:
            given = request.headers.get("x-api-key", "")
            if not secrets.compare_digest(given.encode(), self._key.encode()):
                return _error(401, "the key is missing or wrong: set TINKER_API_KEY to the one that was printed")
            try:
                return await handler(request)
            except UnknownError as error:
                return _error(404, str(error))
            except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
                return _error(422, f"{type(error).__name__}: {error}")

        return answer

    def _json(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            body: Any = json.loads(await read_body(request))
            if not hasattr(body, "keys"):
                raise ValueError("the body must be a JSON object")
            return self._once(request, lambda: handler(body))

        return self._guarded(answer)

    def _once(self, request: Request, work: Callable[[], Any]) -> Response:
        """Return the answer to a request, or the earlier one if the client sends the request again."""
        key = request.headers.get("x-idempotency-key")
        if key is None:
            return JSONResponse(work())
        name = request.url.path, key
        if name not in self._answers:
            self._answers[name] = work()
        while len(self._answers) > MOST_ANSWERS:
            self._answers.popitem(last=False)
        return JSONResponse(self._answers[name])

    # Sessions and models.

    def _create_session(self, body: Mapping[str, Any]) -> Any:
        del body
        self._release_silent()
        session = secrets.token_hex(8)
        self._sessions[session] = time.monotonic()
        return {"type": "create_session", "session_id": session}

    def _heartbeat(self, body: Mapping[str, Any]) -> Any:
        self._require_session(body["session_id"])
        self._release_silent()
        return {"type": "session_heartbeat"}

    async def _finish(self, request: Request) -> Response:
        """End a session and release its models; saved weights are kept."""
        session = request.path_params["session"]
        self._require_session(session)
        self._release(session)
        return Response(status_code=204)

    def _release(self, session: str) -> None:
        del self._sessions[session]
        self._service.submit(self._service.forget_session, session)

    def _release_silent(self) -> None:
        for silent in [name for name, heard in self._sessions.items() if time.monotonic() - heard > SILENCE]:
            self._release(silent)

    def _require_session(self, session: str) -> None:
        if session not in self._sessions:
            raise UnknownError(f"there is no session {session!r}; it has ended, or the service has restarted since")
        self._sessions[session] = time.monotonic()

    def _model_of(self, body: Mapping[str, Any]) -> str:
        self._require_session(body["session_id"])
        return f"{body['session_id']}:train:{int(body['model_seq_id'])}"

    def _require_served(self, body: Mapping[str, Any]) -> None:
        """Raise an error if a request names another base model or optimizer than those of the service."""
        if body.get("base_model") is not None:
            self._service.require_base(body["base_model"])
        optimizer: dict[str, Any] = body.get("optimizer_config") or {}
        kind = optimizer.get("type", "adamw")
        if kind != "adamw":
            raise ValueError(f"there is no optimizer {kind!r} here; adamw is")

    def _create_model(self, body: Mapping[str, Any]) -> Any:
        model = self._model_of(body)
        lora: dict[str, Any] = body.get("lora_config") or {}
        self._require_served(body)
        if skipped := [name for name in ("train_attn", "train_mlp") if lora.get(name) is False]:
            raise ValueError(
                f"{skipped[0]}=False is not supported here: an adapter has all linear layers except the output layer; "
                f"leave {skipped[0]} out"
            )
        base, rank, seed = body["base_model"], int(lora.get("rank", 32)), int(lora.get("seed") or 0)

        def work() -> Any:
            self._service.create(model, base=base, rank=rank, seed=seed)
            return {"type": "create_model", "model_id": model}

        return self._promise(work, model)

    def _info(self, body: Mapping[str, Any]) -> Any:
        model, service = body["model_id"], self._service
        rank = service.model(model).rank
        facts = {"arch": "causal", "model_name": service.name, "tokenizer_id": str(service.tokenizer_path.resolve())}
        return {
            "type": "get_info",
            "model_id": model,
            "model_name": service.name,
            "model_data": facts,
            "is_lora": rank > 0,
            "lora_rank": rank,
        }

    def _unload(self, body: Mapping[str, Any]) -> Any:
        model = body["model_id"]

        def work() -> Any:
            self._service.forget(model)
            return {"type": "unload_model", "model_id": model}

        return self._promise(work, model)

    def _weights_info(self, body: Mapping[str, Any]) -> Any:
        rank = self._service.rank_of(body["tinker_path"])
        return {"base_model": self._service.name, "is_lora": rank > 0, "lora_rank": rank}

    async def _sampler_info(self, request: Request) -> Response:
        name = request.path_params["sampler"]
        address = self._sampler(name)
        return JSONResponse({"sampler_id": name, "base_model": self._service.name, "model_path": address})

    # The verbs.

    async def _forward_backward(self, request: Request) -> Response:
        model, data, loss, config, forward_only = read_batch(await read_body(request))
        trainer = self._service.trainer(model)
        verb: Any = trainer.forward if forward_only else trainer.forward_backward
        return self._once(request, lambda: self._promise(lambda: verb(data, loss, config), model))

    def _step(self, body: Mapping[str, Any]) -> Any:
        model = body["model_id"]
        if "adam_params" not in body:
            raise ValueError("adam_params is missing; adamw is the only optimizer here")
        trainer, adam = self._service.trainer(model), Adam(**body["adam_params"])
        return self._promise(lambda: {"metrics": finite(trainer.optim_step(adam))}, model)

    def _save(self, body: Mapping[str, Any]) -> Any:
        require_absent(body, NOT_SAVED)
        model, name = body["model_id"], body.get("path") or secrets.token_hex(4)
        overwrite = bool(body.get("overwrite"))

        def work() -> Any:
            return {"type": "save_weights", "path": self._service.save(model, name, overwrite=overwrite)}

        return self._promise(work, model)

    def _load(self, body: Mapping[str, Any]) -> Any:
        self._require_served(body)
        address, optimizer = body["path"], bool(body["optimizer"])
        model = body.get("model_id") or self._model_of(body)
        load = self._service.load if body.get("model_id") else self._service.create_from

        def work() -> Any:
            load(model, address, optimizer=optimizer)
            return {"type": "load_weights", "path": address, "model_id": model}

        return self._promise(work, model)

    def _publish(self, body: Mapping[str, Any]) -> Any:
        require_absent(body, NOT_SAVED)
        model, name = body["model_id"], body.get("path")

        def work() -> Any:
            address = self._service.publish(model, name or None)
            if name:
                return {"type": "save_weights_for_sampler", "path": address}
            return {"type": "save_weights_for_sampler", "sampling_session_id": self._new_sampler(address)}

        return self._promise(work, model)

    def _create_sampler(self, body: Mapping[str, Any]) -> Any:
        self._require_served(body)
        address = body.get("model_path") or None
        if address:
            self._service.require_weights(address)
        else:
            self._service.require_base(body.get("base_model"))
        return {"type": "create_sampling_session", "sampling_session_id": self._new_sampler(address)}

    def _new_sampler(self, address: str | None) -> str:
        name = f"sampler-{secrets.token_hex(8)}"
        self._samplers[name] = address
        while len(self._samplers) > MOST_SAMPLERS:
            self._samplers.popitem(last=False)
        return name

    def _sampler(self, name: str) -> str | None:
        """Return the address of the weights of a sampling session; None: the base model."""
        try:
            self._samplers.move_to_end(name)
            return self._samplers[name]
        except KeyError:
            raise UnknownError(
                f"there is no sampling session {name!r}: the service keeps the last {MOST_SAMPLERS} that were used; "
                "create a new sampling client"
            ) from None

    def _sample(self, body: Mapping[str, Any]) -> Any:
        session = body.get("sampling_session_id")
        self._require_served(body)
        address = body.get("model_path") if session is None else self._sampler(session)
        require_absent(body, NOT_SAMPLED)
        count = int(body.get("num_samples", 1))
        if not 1 <= count <= MOST_SAMPLES:
            raise ValueError(f"num_samples must be from 1 to {MOST_SAMPLES}, got {count}")
        prompt = [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]
        context = self._service.context
        room = None if context is None else context - len(prompt)
        sampling, stop, seed = read_sampling(body["sampling_params"], room)
        promise = self._promise(
            lambda: self._service.sample(
                address,
                prompt,
                count,
                sampling,
                stop=stop,
                seed=seed,
                score_prompt=bool(body.get("prompt_logprobs")),
            ),
            None,
        )
        return {**promise, "sample_sequence_ids": [f"{promise['request_id']}-{i}" for i in range(count)]}

    # Results.

    def _promise(self, work: Callable[[], Any], model: str | None) -> dict[str, Any]:
        return {"request_id": self._service.submit(work), "model_id": model}

    async def _retrieve(self, request: Request) -> Response:
        name = json.loads(await read_body(request))["request_id"]
        found: Future[Any] = self._service.result(name)
        with suppress(Exception):  # those of the computation, such as TimeoutError, follow below
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(found)), WAIT)
        if not found.done():
            return JSONResponse({"type": "try_again", "request_id": name, "queue_state": "active"})
        self._service.mark_fetched(name)
        try:
            result = found.result()
        except (LookupError, TypeError, ValueError) as error:
            return JSONResponse({"error": f"{type(error).__name__}: {error}", "category": "user"})
        except Exception as error:  # an error of a model must not end the service
            logger.exception("a request failed")
            return JSONResponse({"error": f"{type(error).__name__}: {error}", "category": "server"})
        if isinstance(result, Forward):
            return Response(loss_message(result), media_type=CONTENT_TYPE)
        if isinstance(result, Answer):
            return Response(sample_message(result.completions, result.prompt_log_probs), media_type=CONTENT_TYPE)
        return JSONResponse(result)

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _capabilities(self, _: Request) -> Response:
        model = {"model_name": self._service.name, "max_context_length": self._service.context}
        return JSONResponse({"supported_models": [{**model, "trainable": True, "sampleable": True}]})


def make_app(service: Service, key: str) -> Starlette:
    """Create the ASGI application of a service.

    Args:
        service: models and their queue of work.
        key: key that every request needs; starts with `tml-`.
    """
    return Starlette(routes=Api(service, key).routes())


def serve(service: Service, *, host: str, port: int, key: str, announce: Callable[[str], None]) -> None:
    """Serve a service until Ctrl-C or SIGTERM, and close it.

    Args:
        service: models and their queue of work.
        host: address to listen on.
        port: port; 0: any free one.
        key: key that every request needs.
        announce: function called with the address of the server when it accepts connections.

    Raises:
        ValueError: the port is in use or not permitted, or the host is not an address of this machine.
    """
    with closing(service), listen(host, port) as listening:
        shown = f"[{host}]" if ":" in host else host
        config = uvicorn.Config(
            make_app(service, key), access_log=False, log_level="warning", server_header=False, ws="none"
        )
        announce(f"http://{shown}:{listening.getsockname()[1]}")
        asyncio.run(Server(config).serve(sockets=[listening]))


def _error(status: int, text: str) -> Response:
    return JSONResponse({"error": text, "detail": text}, status)
