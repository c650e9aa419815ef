"""A small server with vLLM's protocol and a model whose weights it loads from folders."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from operant.language.engines.native import NativeEngine
from operant.language.engines.protocol import Sampling
from operant.language.models import LanguageModel
from operant.language.packing import Sample, pack

NOT_FOUND = 404, {"detail": "Not Found"}


def error_response(status, message):
    return status, {"error": {"message": message, "type": "Error", "param": None, "code": status}}


class Server:
    """Server whose behavior is data, so that a test can change it."""

    def __init__(self, model):
        self.model = model
        self.cards = [{"id": "served", "root": "/models/served", "parent": None, "max_model_len": 64}]
        self.processed = True  # log-probabilities after temperature and truncation, or those of the model
        self.takes_weights = True  # VLLM_SERVER_DEV_MODE
        self.deaf = False  # responds to reload_weights, but keeps its weights
        self.busy = 0  # how many requests to drop its cache fail
        self.faults = []  # (status, response) or a function that changes the response, for the next completions
        self.requests = []
        self.lock = threading.Lock()

    def bodies(self, path):
        return [body for where, body in self.requests if where == path]

    def answer(self, path, body):
        with self.lock:
            self.requests.append((path, body))
            if path == "/v1/models":
                return 200, {"object": "list", "data": self.cards}
            if path == "/v1/completions":
                return self.complete(body)
            if path in ("/collective_rpc", "/reset_prefix_cache") and self.takes_weights:
                return self.reload(body) if path == "/collective_rpc" else self.drop()
            return NOT_FOUND

    def drop(self):
        self.busy -= 1
        return 200, {"success": self.busy < 0}

    def reload(self, body):
        folder = Path(body["kwargs"]["weights_path"])
        if not folder.is_dir():
            return error_response(500, f"Call to collective_rpc method failed: no such folder: {folder}")
        weights = {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
        if self.deaf:
            return 200, {"results": [None]}
        try:
            self.model.network.load_state_dict(weights)
        except RuntimeError as error:
            return error_response(500, f"Call to collective_rpc method failed: {error}")
        return 200, {"results": [None]}

    def complete(self, body):
        fault = self.faults.pop(0) if self.faults and "prompt_logprobs" not in body else None
        if isinstance(fault, tuple):
            return fault
        prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
        choices = [choice for prompt in prompts for choice in self.choices(prompt, body)]
        answer = {"object": "text_completion", "choices": [c | {"index": i} for i, c in enumerate(choices)]}
        answer["choices"].reverse()  # their order is in `index` only
        return 200, fault(answer) or answer if fault else answer

    def choices(self, prompt, body):
        if "prompt_logprobs" in body:
            (log_probs,) = self.model.completion_log_probs([Sample(prompt[:1], prompt[1:])], tokens=1000)
            tokens = zip(prompt[1:], log_probs.tolist(), strict=True)
            return [{"prompt_logprobs": [None, *({token: {"logprob": value}} for token, value in tokens)]}]
        if "allowed_token_ids" in body:
            ids = body["allowed_token_ids"]
            value = (
                0.0 if self.processed else float(self.model.completion_log_probs([Sample(prompt, ids)], tokens=1000)[0])
            )
            return [{"finish_reason": "length", "token_ids": ids, "logprobs": {"token_logprobs": [value]}}]
        sampling = Sampling(body["max_tokens"], body["temperature"], body["top_k"], body["top_p"])
        model = LanguageModel(self.model.network, self.model.tokenizer, stop=frozenset(body["stop_token_ids"]))
        generator = torch.Generator().manual_seed(body["seed"] % 2**32)
        (found,) = NativeEngine(model).generate([prompt], body["n"], sampling, generator=generator)
        return [self.choice(prompt, completion) for completion in found]

    def choice(self, prompt, completion):
        log_probs = completion.log_probs
        if not self.processed:
            packed = pack([Sample(prompt, completion.ids)])
            with torch.no_grad():
                log_probs = self.model.log_probs(packed)[0].tolist()
        return {
            "finish_reason": "length" if completion.truncated else "stop",
            "stop_reason": None if completion.truncated else completion.ids[-1],
            "token_ids": completion.ids,
            "logprobs": {"token_logprobs": log_probs},
        }


@pytest.fixture
def listen():
    """Return a function that serves HTTP by `(path, body, headers) -> (status, answer)` and returns the address.

    An answer of bytes is sent unchanged; None closes the connection.
    """
    servers = []

    def start(answer):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.reply(None)

            def do_POST(self):
                text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.reply(json.loads(text) if text else None)

            def reply(self, body):
                found = answer(self.path, body, self.headers)
                if found is None:
                    return
                status, content = found
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def make_server(listen):
    """Return a function that starts a server with its own model; the address is `server.address`."""

    def make(model):
        server = Server(model)
        server.address = listen(lambda path, body, headers: server.answer(path, body))
        return server

    return make
