import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers.utils import logging

from operant.language.configs import ModelOptions
from operant.language.engines.connection import Connection, ServerError
from operant.language.engines.handover import folder_of_weights, send, write
from operant.language.models import finish


def test_weights_have_the_names_of_transformers(make_model, tmp_path):
    model = make_model()
    write(model, tmp_path / "new")
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert found.keys() == model.network.state_dict().keys()
    assert all(torch.equal(value, found[name]) for name, value in model.network.state_dict().items())


def test_tied_weights_are_written_once(make_model, tmp_path):
    write(make_model("llama-tied"), tmp_path / "new")
    assert "lm_head.weight" not in load_file(tmp_path / "new" / "model.safetensors")


def test_an_adapter_is_merged_into_a_copy(make_model, tmp_path):
    plain = make_model()
    before = {name: value.clone() for name, value in plain.network.state_dict().items()}
    model = finish(plain.network, plain.tokenizer, ModelOptions(lora_r=2, lora_alpha=4), seed=0)
    trained = model.trained()
    for value in trained.values():
        value.data.fill_(0.1)
    write(model, tmp_path / "new")
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert found.keys() == before.keys()
    name = "model.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(found[name], before[name] + 2 * 2 * 0.1 * 0.1)  # scale * rank * B * A
    assert all(value.requires_grad for value in model.trained().values())
    assert model.trained().keys() == trained.keys()


def test_others_may_read_them(make_model, tmp_path):
    before = os.umask(0o077)
    try:
        with folder_of_weights(tmp_path) as name:
            write(make_model(), Path(name) / "new")
            assert Path(name).stat().st_mode & 0o055 == 0o011
            assert (Path(name) / "new").stat().st_mode & 0o055 == 0o055
            assert all(path.stat().st_mode & 0o044 == 0o044 for path in (Path(name) / "new").iterdir())
    finally:
        os.umask(before)


def test_no_progress_bar_is_shown(make_model, tmp_path, capfd):
    shown = logging.is_progress_bar_enabled()
    write(make_model(), tmp_path / "new")
    assert "shards" not in capfd.readouterr().err
    assert logging.is_progress_bar_enabled() == shown


def test_weights_are_complete_when_the_server_reads_them_and_removed_afterwards(make_server, make_model, tmp_path):
    server, model = make_server(make_model(seed=2)), make_model(seed=1)
    send(Connection(server.address), model, tmp_path / "new")
    ours, theirs = (m.network.state_dict() for m in (model, server.model))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert [path for path, _ in server.requests] == ["/collective_rpc", "/reset_prefix_cache"]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_the_server_does_not_see(listen, make_model, tmp_path, monkeypatch):
    monkeypatch.setattr("operant.language.engines.connection.PAUSE", 0.0)
    address = listen(lambda path, body, headers: (500, {"error": {"message": "no such folder"}}))
    with pytest.raises(ServerError, match=f"no such folder; the server must see the folder {tmp_path}") as caught:
        send(Connection(address), make_model(), tmp_path / "new")
    assert caught.value.status == 500
    assert list(tmp_path.iterdir()) == []
