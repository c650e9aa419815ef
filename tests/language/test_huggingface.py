import hashlib
import http.server
import inspect
import json
import re
import shutil
import threading

import pytest
import torch
import transformers

from operant.language import huggingface
from operant.language.configs import ModelOptions
from operant.language.models import build, load
from operant.language.tokenizer import character_tokenizer

COMMIT = "0" * 40


def test_a_tokenizer_has_every_declared_member():
    functions = dict(inspect.getmembers(huggingface.Tokenizer, inspect.isfunction))
    methods = {name for name, function in functions.items() if function.__module__ == huggingface.__name__}
    declared = {*inspect.get_annotations(huggingface.Tokenizer), *methods, "all_special_tokens"}
    assert {"encode", "decode", "chat_template", "get_vocab", "__len__"} <= declared
    tokenizer = character_tokenizer()
    assert [name for name in declared if not hasattr(tokenizer, name)] == []


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft looks up old names in transformers
def test_an_adapter_gets_other_values():
    peft = pytest.importorskip("peft")
    network = huggingface.wrapped_network(build("tiny", seed=0), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    state = huggingface.adapter_state(network)
    assert state
    assert all("lora" in name for name in state)
    huggingface.set_adapter_state(network, {name: torch.full_like(value, 3.0) for name, value in state.items()})
    assert all(bool((value == 3.0).all()) for value in huggingface.adapter_state(network).values())


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_adapter_is_recognized_and_merged():
    peft = pytest.importorskip("peft")
    plain = build("tiny", seed=0)
    assert not huggingface.is_adapted(plain)
    assert huggingface.base_of(plain) is huggingface.merged(plain) is plain
    network = huggingface.wrapped_network(plain, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    assert huggingface.is_adapted(network)
    assert huggingface.base_of(network) is plain
    assert huggingface.merged(network) is plain
    assert not huggingface.is_adapted(plain)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Serve the files of `tmp_path / "hub"` as the model owner/name on a local hub, and return its requests."""
    asked, files = [], tmp_path / "hub"
    files.mkdir()

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            self.answer(body=True)

        def answer(self, *, body):
            asked.append(self.path)
            facts = {"id": "owner/name", "sha": COMMIT, "tags": [], "siblings": []}
            told = json.dumps([] if "/tree/" in self.path else facts).encode()
            file = files / re.sub(f"^/owner/name/resolve/(main|{COMMIT})/", "", self.path)
            found = file.read_bytes() if file.is_file() else b""
            content = told if self.path.startswith("/api/models/owner/name") else found
            self.send_response(200 if content else 404)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            if not content:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        # The client of transformers is created once, with the address at that time.
        monkeypatch.setattr(transformers.utils.hub.hf_api(), "endpoint", address)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        huggingface._hub_problem.cache_clear()
        yield files, asked, server
        server.shutdown()
    huggingface._hub_problem.cache_clear()


def test_a_model_of_the_hub_is_loaded_and_later_from_the_cache_without_the_hub(hub, model_folder, caplog):
    files, asked, server = hub
    shutil.copytree(model_folder, files, dirs_exist_ok=True)
    expected = load(ModelOptions(model=str(model_folder)), seed=0).network.state_dict()
    for gone in (False, True):
        if gone:
            server.shutdown()
            server.server_close()
            huggingface._hub_problem.cache_clear()
        loaded = load(ModelOptions(model="owner/name"), seed=0).network.state_dict()
        torch.testing.assert_close(loaded, expected)
    assert any(path.endswith("/config.json") for path in asked)
    with pytest.raises(ValueError, match=r"model owner/other cannot be loaded: .*Hub cannot be reached \(.*refused"):
        load(ModelOptions(model="owner/other"), seed=0)
    assert "Retrying" not in caplog.text


def test_a_name_that_can_only_be_a_folder_is_not_looked_for_on_the_hub(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "file").touch()
    for name in ("./missing", "models/missing", "/nowhere/at/all", "~/missing", "a/b/c", r"C:\models\missing"):
        with pytest.raises(ValueError, match="cannot be loaded: there is no such folder; use a folder"):
            load(ModelOptions(model=name), seed=0)
    with pytest.raises(ValueError, match="cannot be loaded: it is a file, not the folder of a model"):
        load(ModelOptions(model="./file"), seed=0)
    assert hub[1] == []
