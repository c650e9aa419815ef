import json
import subprocess
import sys

import pytest

CODE = """
import importlib.util, json, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "starlette" else real(name, *rest)
from operant.cli import main
print(json.dumps(main(["serve", "--no-browser"])))
"""


def test_without_the_extra_the_error_tells_how_to_install_it():
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == 2
    assert "the web app needs starlette" in result.stderr
    assert 'pip install "operant[web]"' in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runs", "nowhere"], "there is no folder nowhere"),
        (["--port", "many"], "invalid int value"),
        (["--prot", "3"], "unknown flag --prot"),
        (["--device", "cuda"], "--device is that of --train"),
        (["--states", "here"], "--states is for --train"),
        (["--train", "tiny", "--runs", "."], "--runs is for the web app"),
        (["--train", "tiny", "--docs", "site"], "--docs is for the web app"),
        (["--train", "tiny", "--no-browser"], "--no-browser is for the web app"),
        (["--runs", "~/nowhere"], "there is no folder /"),
        (["--no-browser", "--port", "0", "--docs", "~/docs"], "such as site/ of `make docs`; got /"),
        (["--train", "tiny", "--device", "cuda:99"], "device 'cuda:99' is not on this machine"),
        (["--train", "./nowhere"], "--train ./nowhere cannot be loaded"),
        (["--no-browser", "--host", ""], "'' is not an address of this machine"),
        (["--no-browser", "--port", "0", "--docs", "docs"], "such as site/ of `make docs`; got docs"),
    ],
)
def test_errors_are_reported(cli, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = cli("serve", *arguments)
    assert status == 2
    assert out == ""
    assert message in err
