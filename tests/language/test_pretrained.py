import json
import shutil
import sys
import types
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

import operant
from operant.language.chat import find_chat_model, trained_model
from operant.language.configs import ModelOptions
from operant.language.exporting import write_model
from operant.language.models import Reference, load
from operant.language.packing import Sample, pack
from operant.language.pretrained import fingerprint, is_adapter, provenance
from operant.runtime.run import RunError

BATCH = pack([Sample([1, 40, 41], [50, 51, 2]), Sample([1], [70, 71, 72, 2])])
TINY = {"train_examples": 20, "held_out": 5, "batch_size": 8, "budget": 16, "progress": "silent", "learning_rate": 0.1}


def log_probs(model):
    with torch.no_grad():
        return model.log_probs(BATCH)[0]


def changed(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.fixture
def adapter(model_folder, tmp_path):
    """Return the folder of a trained adapter, as peft saves it, and its log-probabilities."""
    model = load(ModelOptions(model=model_folder, lora_r=2), seed=0)
    generator = torch.Generator().manual_seed(1)
    for value in model.trained().values():
        value.data += 0.3 * torch.randn(value.shape, generator=generator)
    model.save(tmp_path / "adapter")
    return tmp_path / "adapter", log_probs(model)


# Adapters


def test_an_adapter_is_loaded_onto_its_base_and_trained_further(adapter, model_folder):
    folder, expected = adapter
    model = load(ModelOptions(model=str(folder)), seed=0)
    torch.testing.assert_close(log_probs(model), expected, atol=1e-5, rtol=0)
    assert (log_probs(load(ModelOptions(model=model_folder), seed=0)) - expected).abs().max() > 0.01
    assert model.trained()
    assert all("lora_" in name for name in model.trained())
    assert not model.fresh_adapter
    torch.testing.assert_close(Reference(model).log_probs(BATCH), expected, atol=1e-5, rtol=0)


def test_a_folder_may_be_named_from_the_home_folder(adapter, model_folder, monkeypatch):
    folder, expected = adapter
    monkeypatch.setenv("HOME", str(folder.parent))
    torch.testing.assert_close(log_probs(load(ModelOptions(model=f"~/{folder.name}"), seed=0)), expected)
    monkeypatch.setenv("HOME", model_folder)
    assert load(ModelOptions(model="~"), seed=0).vocabulary == load(ModelOptions(model=model_folder), seed=0).vocabulary


def test_a_new_adapter_stands_on_the_merged_old_one(adapter):
    folder, expected = adapter
    model = load(ModelOptions(model=str(folder), lora_r=3), seed=0)
    torch.testing.assert_close(log_probs(model), expected, atol=1e-5, rtol=0)
    assert {min(value.shape) for value in model.trained().values()} == {3}
    assert model.fresh_adapter


def test_an_adapter_under_16_bits_stays_in_32(adapter):
    model = load(ModelOptions(model=str(adapter[0]), dtype="bfloat16"), seed=0)
    assert model.dtype == torch.bfloat16
    assert {value.dtype for value in model.trained().values()} == {torch.float32}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "whole", [False, True]
)  # whether the file has the weights of the embeddings, as peft writes it
def test_an_adapter_of_embeddings_is_loaded_onto_its_base(model_folder, tmp_path, dtype, whole):
    options = ModelOptions(model=model_folder, lora_r=2, lora_target_modules=("embed_tokens", "q_proj"))
    model, folder = load(options, seed=0), tmp_path / "adapter"
    for value in model.trained().values():
        value.data += 0.1
    model.save(folder)
    if whole:
        model.network.save_pretrained(folder, save_embedding_layers=True)
    again = load(ModelOptions(model=str(folder), dtype=dtype), seed=0)
    bound = {"float32": 1e-5, "bfloat16": 0.3}[dtype]
    torch.testing.assert_close(log_probs(again), log_probs(model), atol=bound, rtol=0)


@pytest.mark.parametrize("targets", [("q_prj",), ("q_proj", "q_prj"), ("q_prj", "model"), ("proj",)])
def test_layers_that_a_model_lacks_are_named_with_those_that_it_has(model_folder, targets):
    wrong = ", ".join(target for target in targets if target != "q_proj")
    with pytest.raises(ValueError, match=rf"has {wrong}, but .* no such layer: .* o_proj, q_proj, ") as error:
        load(ModelOptions(model=model_folder, lora_r=2, lora_target_modules=targets), seed=0)
    assert "embed" not in str(error.value)
    assert str(error.value).endswith("or all-linear")


def test_an_adapter_with_embeddings_of_another_base_is_rejected(model_folder, tmp_path):
    options = ModelOptions(model=model_folder, lora_r=2, lora_target_modules=("embed_tokens", "q_proj"))
    model, folder = load(options, seed=0), tmp_path / "adapter"
    model.network.get_input_embeddings().base_layer.weight.data += 1
    model.network.save_pretrained(folder, save_embedding_layers=True)
    with pytest.raises(ValueError, match=r"does not fit its base model .* 1 tensor \(.*embed_tokens.base_layer.weight"):
        load(ModelOptions(model=str(folder)), seed=0)


def test_a_run_from_an_adapter_is_exported_with_and_without_its_base(adapter, tmp_path):
    trained = operant.train("sft", "reverse", model=str(adapter[0]), run=tmp_path / "run", **TINY)
    wanted = log_probs(trained.experiment.members[0].learner.model)
    assert (wanted - adapter[1]).abs().max() > 0.01
    torch.testing.assert_close(log_probs(trained_model(trained.run, 0)), wanted, atol=1e-5, rtol=0)
    for name, merge in (("whole", True), ("part", False)):
        write_model(trained.run, tmp_path / name, seed=0, merge=merge)
        torch.testing.assert_close(log_probs(find_chat_model(str(tmp_path / name)).model), wanted, atol=1e-5, rtol=0)
    assert (tmp_path / "whole" / "model.safetensors").exists()
    assert is_adapter(str(tmp_path / "part"))
    assert not is_adapter(str(tmp_path / "whole"))


def test_an_adapter_on_an_adapter_is_written_merged(adapter, tmp_path):
    run = operant.train("sft", "reverse", model=str(adapter[0]), lora_r=2, run=tmp_path / "run", **TINY).run
    with pytest.raises(ValueError, match="write the full model with --merge"):
        write_model(run, tmp_path / "part", seed=0)
    write_model(run, tmp_path / "whole", seed=0, merge=True)
    wanted = log_probs(trained_model(run, 0))
    torch.testing.assert_close(log_probs(load(ModelOptions(model=str(tmp_path / "whole")), seed=0)), wanted)


def test_an_adapter_whose_recorded_base_is_itself_an_adapter(adapter, tmp_path):
    folder, _ = adapter
    shutil.copytree(folder, tmp_path / "upper")
    changed(tmp_path / "upper" / "adapter_config.json", base_model_name_or_path=str(folder))
    below = load(ModelOptions(model=str(folder)), seed=0).network.merge_and_unload()
    upper = load(ModelOptions(model=str(tmp_path / "upper")), seed=0)
    assert fingerprint(upper.network) == fingerprint(below)
    assert fingerprint(upper.network, adapters=True) != fingerprint(below, adapters=True)


def test_a_base_that_lies_relative_to_the_adapter(adapter):
    folder, expected = adapter
    changed(folder / "adapter_config.json", base_model_name_or_path="../model")
    torch.testing.assert_close(log_probs(load(ModelOptions(model=str(folder)), seed=0)), expected, atol=1e-5, rtol=0)


def test_a_tokenizer_of_the_base_serves_an_adapter_without_one(adapter):
    folder, _ = adapter
    for path in folder.glob("tokenizer*"):
        path.unlink()
    assert load(ModelOptions(model=str(folder)), seed=0).tokenizer.eos_token_id == 2


@pytest.mark.parametrize("change", [{"hidden_size": 64}, {"num_hidden_layers": 1}])
def test_an_adapter_of_another_base_is_rejected(adapter, make_network, tmp_path, change):
    folder, _ = adapter
    make_network(**change).save_pretrained(tmp_path / "other")
    changed(folder / "adapter_config.json", base_model_name_or_path=str(tmp_path / "other"))
    with pytest.raises(ValueError, match=r"adapter is an adapter that does not fit .*other: they differ in 14 "):
        load(ModelOptions(model=str(folder)), seed=0)


def test_a_base_whose_weights_were_exchanged_is_rejected(model_folder, make_network, tmp_path):
    run = operant.train("sft", "reverse", model=model_folder, lora_r=2, run=tmp_path / "run", **TINY).run
    write_model(run, tmp_path / "part", seed=0)
    load(ModelOptions(model=str(tmp_path / "part"), dtype="bfloat16"), seed=0)
    assert len(provenance(tmp_path / "part")["base_fingerprint"]) == 64
    make_network(seed=5).save_pretrained(model_folder)
    with pytest.raises(ValueError, match=r"part is an adapter of another model: the weights in .*model differ"):
        load(ModelOptions(model=str(tmp_path / "part")), seed=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"base_model_name_or_path": "/no/such/place"}, "is an adapter of /no/such/place, which does not exist"),
        ({"base_model_name_or_path": None}, "is an adapter without a base model"),
        ({"peft_type": "PROMPT_TUNING"}, "of type PROMPT_TUNING, expected LORA"),
        ({"r": "much"}, "adapter"),
    ],
)
def test_adapters_that_cannot_be_loaded(adapter, values, message):
    changed(adapter[0] / "adapter_config.json", **values)
    with pytest.raises(ValueError, match=message):
        load(ModelOptions(model=str(adapter[0])), seed=0)


def test_an_adapter_is_read_from_safetensors_alone(adapter):
    folder, _ = adapter
    torch.save(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").write_bytes(b"short")
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors is damaged"):
        load(ModelOptions(model=str(folder)), seed=0)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"without adapter_model\.safetensors"):
        load(ModelOptions(model=str(folder)), seed=0)


def test_an_adapter_of_the_last_layer_is_rejected_unless_it_is_merged(model_folder, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = AutoModelForCausalLM.from_pretrained(model_folder)
        config = LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False, task_type="CAUSAL_LM")
        get_peft_model(base, config).save_pretrained(tmp_path / "last", save_embedding_layers=False)
    with pytest.raises(ValueError, match="an adapter of the output layer"):
        load(ModelOptions(model=str(tmp_path / "last")), seed=0)


def test_an_adapter_of_tied_embeddings_is_rejected_unless_it_is_merged(make_network, characters, tmp_path):
    from peft import LoraConfig, get_peft_model

    base = make_network("llama-tied")
    for saved in (base, characters):
        saved.save_pretrained(tmp_path / "base")
    base.name_or_path = str(tmp_path / "base")
    config = LoraConfig(r=2, target_modules=["embed_tokens"], init_lora_weights=False, task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns, too
        get_peft_model(base, config).save_pretrained(tmp_path / "first", save_embedding_layers=False)
        with pytest.raises(
            ValueError, match="an adapter of embeddings whose weights are also those of the output layer"
        ):
            load(ModelOptions(model=str(tmp_path / "first")), seed=0)


def test_a_run_is_no_model_and_a_model_no_run(model_folder, tmp_path):
    run = tmp_path / "run"
    (run / "best").mkdir(parents=True)
    (run / "config.toml").write_text("")
    for folder in (run, run / "best"):
        with pytest.raises(ValueError, match=rf"the folder of a run, whose trained model is that of --init {folder}"):
            load(ModelOptions(model=str(folder)), seed=0)
    with pytest.raises(RunError, match=r"it contains a model and no run: train from it with --model"):
        load(ModelOptions(init=str(model_folder)), seed=0)


# Weights


def test_a_missing_weight_is_rejected(model_folder, tmp_path):
    path = f"{model_folder}/model.safetensors"
    tensors = load_file(path)
    gone = ["lm_head.weight", "model.layers.1.mlp.up_proj.weight"]
    save_file({name: value for name, value in tensors.items() if name not in gone}, path, {"format": "pt"})
    with pytest.raises(ValueError, match=r"lack 2 tensors \(lm_head\.weight, model\.layers\.1\.mlp\.up_proj\.weight\)"):
        load(ModelOptions(model=model_folder), seed=0)


def test_a_tied_last_layer_is_not_missing(make_network, characters, tmp_path):
    make_network("llama-tied").save_pretrained(tmp_path / "tied")
    characters.save_pretrained(tmp_path / "tied")
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / "model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(ModelOptions(model=str(tmp_path / "tied")), seed=0)


def test_tensors_without_a_place_are_named(model_folder):
    path = f"{model_folder}/model.safetensors"
    save_file(load_file(path) | {"score.weight": torch.zeros(1, 32)}, path, {"format": "pt"})
    with pytest.warns(RuntimeWarning, match=r"contain 1 tensor \(score\.weight\), which its architecture does not use"):
        load(ModelOptions(model=model_folder), seed=0)


def test_weights_of_another_shape_are_rejected(model_folder):
    path = f"{model_folder}/model.safetensors"
    save_file(load_file(path) | {"model.norm.weight": torch.zeros(7)}, path, {"format": "pt"})
    with pytest.raises(ValueError, match=r"model cannot be loaded: .*model\.norm\.weight"):
        load(ModelOptions(model=model_folder), seed=0)


# Untrusted files


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_configuration_loads_no_kernel(model_folder, key, monkeypatch, tmp_path):
    from pathlib import Path

    fetched = []
    package = types.ModuleType("kernels")
    vars(package)["get_kernel"] = lambda *names, **_: fetched.append(names)
    monkeypatch.setitem(sys.modules, "kernels", package)
    monkeypatch.setattr(
        "transformers.modeling_utils.lazy_import_flash_attention", lambda *names, **_: fetched.append(names)
    )
    changed(Path(model_folder) / "config.json", **{key: "somebody/kernel"})
    load(ModelOptions(model=model_folder), seed=0)
    assert not fetched
