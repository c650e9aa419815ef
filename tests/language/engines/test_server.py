import json
import os
import socket
import sys
import time
from pathlib import Path

import pytest

from operant.language.engines.connection import KEY, Connection, ServerError
from operant.language.engines.server import PYTHON, serving

# Replacement of vLLM: the same arguments, and a child process.
PROGRAM = """#!{python}
import json, os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
facts = {{"arguments": sys.argv[1:], "pids": [os.getpid(), child.pid], "environment": dict(os.environ)}}
print("starting", flush=True)
{action}

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(facts).encode())

    def log_message(self, *arguments):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def make_program(tmp_path):
    def make(action=""):
        program = tmp_path / "program"
        program.write_text(PROGRAM.format(python=sys.executable, action=action))
        program.chmod(0o755)
        return str(program)

    return make


def ask(address):
    return Connection(address, seconds=10).get("/health")


def alive(pid):
    """Return whether a process is still running; one that has ended but was not waited for is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def assert_gone(pids):
    deadline = time.monotonic() + 10
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, "it is still running"
        time.sleep(0.02)


def test_a_server_runs_for_as_long_as_the_block(make_program):
    with serving("folder", python=make_program()) as address:
        facts = ask(address)
        assert all(map(alive, facts["pids"]))
    assert_gone(facts["pids"])
    assert facts["arguments"][:6] == [
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        "folder",
        "--host",
        "127.0.0.1",
    ]
    assert facts["environment"]["VLLM_SERVER_DEV_MODE"] == "1"


def test_every_server_has_a_new_key_on_every_path(make_program, monkeypatch):
    monkeypatch.delenv(KEY, raising=False)
    action = "import operant_gate; facts['gate'] = operant_gate.Gate(None)._wanted.decode()"
    with serving("folder", python=make_program(action)) as address:
        facts, key = ask(address), os.environ[KEY]
        assert Connection(address)._headers["Authorization"] == f"Bearer {key}" == facts["gate"]
    assert len(key) >= 32
    assert KEY not in os.environ
    place = facts["arguments"].index("--middleware")
    assert facts["arguments"][place + 1] == "operant_gate.Gate"
    assert key not in " ".join(facts["arguments"]), "other users can read arguments"
    with serving("folder", python=make_program(action)) as address:
        assert os.environ[KEY] != key


def test_a_key_that_is_set_is_kept(make_program, monkeypatch):
    monkeypatch.setenv(KEY, "mine")
    with serving("folder", python=make_program()) as address:
        assert ask(address)["environment"][KEY] == "mine"
    assert os.environ[KEY] == "mine"
    with (
        pytest.raises(ValueError, match="options contain --api-key"),
        serving("x", python="p", options=["--api-key=a"]),
    ):
        pass


def test_an_error_in_the_block_ends_it_too(make_program):
    pids = []

    def fail():
        with serving("folder", python=make_program()) as address:
            pids.extend(ask(address)["pids"])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert len(pids) == 2
    assert_gone(pids)


def test_one_that_does_not_listen_to_reason_is_killed(make_program, monkeypatch):
    monkeypatch.setattr("operant.language.engines.server._PATIENCE", 0.2)
    action = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    with serving("folder", python=make_program(action)) as address:
        pids = ask(address)["pids"]
    assert_gone(pids)


def test_a_model_is_saved_for_it(make_program, make_model):
    action = "facts['files'] = sorted(os.listdir(sys.argv[sys.argv.index('--model') + 1]))"
    with serving(make_model(), python=make_program(action), options=["--seed", "1"]) as address:
        facts = ask(address)
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(facts["files"])
        assert facts["arguments"][-4:] == ["--dtype", "float32", "--seed", "1"]
    assert not Path(facts["arguments"][3]).exists()


def test_the_python_comes_from_the_environment(make_program, monkeypatch):
    monkeypatch.delenv(PYTHON, raising=False)
    with pytest.raises(ValueError, match="set VLLM_PYTHON=/path/to/bin/python"), serving("folder"):
        pass
    monkeypatch.setenv(PYTHON, make_program())
    with serving("folder") as address:
        assert ask(address)["pids"]


def test_one_that_ends_while_it_starts_shows_its_last_lines(make_program):
    action = "child.kill(); [print('line', i) for i in range(40)]; sys.exit('no such model')"
    with (
        pytest.raises(ServerError, match="ended with exit code 1") as caught,
        serving("x", python=make_program(action)),
    ):
        pass
    text = str(caught.value)
    assert text.endswith("no such model")
    assert "line 39" in text
    assert "line 10" not in text


def test_one_that_takes_too_long_is_ended(make_program, tmp_path):
    pids = tmp_path / "pids"
    action = f"open({str(pids)!r}, 'w').write(json.dumps(facts['pids'])); import time; time.sleep(100)"
    with (
        pytest.raises(ServerError, match=r"not ready in time; use a larger serving\(..., seconds=...\):\nstarting"),
        serving("folder", python=make_program(action), seconds=2),
    ):
        pass
    assert_gone(json.loads(pids.read_text()))


def test_a_port_in_use_is_rejected(make_program):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} cannot be used"), serving("x", python="python", port=port):
            pass


def test_no_such_python(tmp_path):
    with (
        pytest.raises(ServerError, match=r"cannot be started with .*nothing"),
        serving("x", python=str(tmp_path / "nothing")),
    ):
        pass
