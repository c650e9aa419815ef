"""Folders of networks: what is loaded, and errors that name the option, the value and the fix."""

import json
from dataclasses import replace

import pytest
import torch

from operant.language.configs import ModelOptions
from operant.language.model_files import Source, is_run, kinds_of, listed


def test_network_and_tokenizer_of_a_folder(model_folder, make_network, characters):
    source = Source(ModelOptions(model=model_folder))
    source.require_folder()
    expected = make_network().state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in source.network().state_dict().items())
    assert source.tokenizer().get_vocab() == characters.get_vocab()


def test_errors_name_the_option_the_value_and_what_is_expected(model_folder, tmp_path):
    (tmp_path / "file").touch()
    for name, fault in (("nothing", "there is no such folder"), ("file", "it is a file, not the folder of a model")):
        source = Source(ModelOptions(model=str(tmp_path / name)), option="--other", kinds=kinds_of(["tiny", "small"]))
        with pytest.raises(ValueError, match=rf"--other .*{name} cannot be loaded: {fault}; use a .*: tiny, small"):
            source.require_folder()
    source = Source(ModelOptions(model=model_folder), option="--other")
    for path in (tmp_path / "model").glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ValueError, match=r"--other .*model cannot be loaded: "):
        source.tokenizer()


@pytest.mark.parametrize("changes", [{"num_hidden_layers": 3}, {"hidden_size": 64, "head_dim": 16}])
def test_files_that_lack_a_weight_or_have_other_shapes_are_rejected(model_folder, changes, tmp_path):
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    fault = "lack 9 tensors" if "num_hidden_layers" in changes else "differ in the shape of"
    with pytest.raises(ValueError, match=rf"--other .*model cannot be loaded: its .*{fault}"):
        Source(ModelOptions(model=model_folder), option="--other").network()


def test_a_run_is_told_apart_from_a_model(model_folder, tmp_path):
    (tmp_path / "run" / "best").mkdir(parents=True)
    (tmp_path / "run" / "config.toml").touch()
    assert is_run(str(tmp_path / "run"))
    assert is_run(str(tmp_path / "run" / "best"))
    assert not is_run(model_folder)
    source = Source(ModelOptions(model=str(tmp_path / "run")))
    with pytest.raises(ValueError, match=r"it is the folder of a run, whose trained model is that of --init .*run;"):
        source.network()
    assert source.named == f"--model {tmp_path / 'run'}"
    assert replace(source, option="--other").named == f"--other {tmp_path / 'run'}"


def test_a_message_shows_the_first_of_many_tensors():
    assert listed(["a"]) == "1 tensor (a)"
    assert listed(["a", "b", "c", "d"]) == "4 tensors (a, b, c, ...)"
