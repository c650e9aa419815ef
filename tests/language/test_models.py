import copy
import json
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from operant import ops
from operant.language.configs import ModelOptions
from operant.language.models import BUILT_IN, LanguageModel, Reference, ScalarHead, build, finish, load, random_network
from operant.language.packing import Sample, pack
from operant.language.pretrained import with_adapter

SAMPLES = [Sample([1, 40, 41], [50, 51, 2]), Sample([1, 40, 41], [60, 2]), Sample([1], [70, 71, 72, 2])]
BATCH = pack(SAMPLES)


def train(model, steps=3, rate=0.05):
    """Take a few steps of plain gradient descent."""
    for _ in range(steps):
        model.network.zero_grad()
        (-model.log_probs(BATCH)[0].mean()).backward()
        with torch.no_grad():
            for value in model.trained().values():
                if value.grad is not None:
                    value.sub_(rate * value.grad)


def values(model):
    return {name: value.detach().clone() for name, value in model.network.named_parameters()}


def log_probs(model):
    with torch.no_grad():
        return model.log_probs(BATCH)[0]


@pytest.fixture
def folder(make_network, characters, tmp_path):
    """Return the folder of a model that transformers saved."""
    make_network().save_pretrained(tmp_path / "model")
    characters.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def adapted(folder, *, seed=0, **options):
    return load(ModelOptions(model=str(folder), lora_r=2, **options), seed=seed)


# Built-in models


@pytest.mark.parametrize("name", ["tiny", "tiny-qwen3"])
def test_a_built_in_model_belongs_to_its_seed(name):
    state = torch.random.get_rng_state()
    one, twin, other = (load(ModelOptions(model=name), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator is unchanged"
    assert torch.equal(log_probs(one), log_probs(twin))
    assert not torch.equal(log_probs(one), log_probs(other))
    assert one.stop == {2}
    assert one.width == BUILT_IN[name][1]
    assert one.dtype == torch.float32
    assert one.device == torch.device("cpu")


def test_logits_of_a_built_in_model_begin_with_unit_deviation():
    model = load(ModelOptions(), seed=0)
    assert float(model.logits(model.read(BATCH)).detach().std()) == pytest.approx(1, rel=0.15)
    _, entropies = model.log_probs(BATCH)
    assert (entropies > 3.8).all(), "log 99 is 4.6, and logits of unit deviation reduce it by half a nat"


# Log-probabilities


def test_entropies_and_temperature_are_those_of_the_logits(make_model):
    model = make_model("gemma2")
    hidden = model.read(BATCH)
    logits = model.logits(hidden[BATCH.before]) / 0.7
    found, entropies = model.log_probs(BATCH, temperature=0.7)
    expected = logits.log_softmax(-1)
    torch.testing.assert_close(found, expected[torch.arange(len(found)), BATCH.targets], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, -(expected.exp() * expected).sum(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tokens", [1, 6, 1000])
def test_log_probabilities_of_each_sample(make_model, tokens):
    model = make_model()
    rows = model.completion_log_probs(SAMPLES, tokens=tokens)
    assert [len(row) for row in rows] == [3, 2, 4]
    torch.testing.assert_close(torch.cat(rows), log_probs(model))
    assert not rows[0].requires_grad


def test_dropout_is_off_in_training_too(make_network, characters):
    network = make_network("phi", resid_pdrop=0.5, attention_dropout=0.5, embd_pdrop=0.5)
    before = {type(module).__name__ for module in network.modules() if isinstance(module, nn.Dropout)}
    assert before
    model = LanguageModel(network, characters, stop=frozenset({2}))
    assert model.network.training
    assert torch.equal(log_probs(model), log_probs(model))
    model.check()


def test_dropout_that_is_no_module_is_off_too(characters):
    from transformers import AutoModelForCausalLM, OPTConfig

    config = OPTConfig(
        vocab_size=99, hidden_size=16, num_hidden_layers=1, ffn_dim=16, num_attention_heads=2, word_embed_proj_dim=16,
        dropout=0.5, attention_dropout=0.5, layerdrop=0.5,
    )  # fmt: skip
    network = AutoModelForCausalLM.from_config(config)
    assert [name for module in network.modules() for name, value in vars(module).items() if "drop" in name and value]
    LanguageModel(network, characters, stop=frozenset({2}))
    assert not [name for m in network.modules() for name, value in vars(m).items() if "drop" in name and value]


def test_gradient_checkpointing_gives_the_same_gradients(make_network, characters):
    found = []
    for checkpointing in (False, True):
        options = ModelOptions(gradient_checkpointing=checkpointing)
        model = finish(make_network(), characters, options, seed=0)
        assert model.network.is_activation_checkpointing is checkpointing
        (-model.log_probs(BATCH)[0].mean()).backward()
        found.append({name: value.grad for name, value in model.trained().items()})
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, atol=1e-7, rtol=1e-5)


def test_gradient_checkpointing_reaches_an_adapter(folder):
    found = []
    for checkpointing in (False, True):
        model = adapted(folder, gradient_checkpointing=checkpointing)
        train(model, 1)
        (-model.log_probs(BATCH)[0].mean()).backward()
        found.append({name: value.grad for name, value in model.trained().items()})
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, atol=1e-7, rtol=1e-5)
    assert any(gradient.abs().max() > 0 for gradient in found[1].values())


def test_a_model_of_16_bits_computes_and_learns(folder):
    model = load(ModelOptions(model=str(folder), dtype="bfloat16"), seed=0)
    assert model.dtype == torch.bfloat16
    exact = load(ModelOptions(model=str(folder)), seed=0)
    assert (log_probs(model) - log_probs(exact)).abs().max() < 0.2
    before = log_probs(model).mean()
    train(model, 10)
    assert log_probs(model).mean() > before + 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_factors_of_16_bits_are_not_rounded_to_them(make_model, dtype):
    model = make_model(dtype=dtype)
    weight = model.network.get_output_embeddings().weight
    hidden = torch.randn(5, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = hidden.double() @ weight.double().T
    with torch.no_grad():
        found = model.logits(hidden)
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 1e-2 * (exact.to(dtype) - exact).abs().max()


def test_the_logits_of_16_bits_are_those_of_training(folder):
    """A common shift of the logits, which changes no probability, would make the rounding errors of 16 bits large."""
    model = load(ModelOptions(model=str(folder), dtype="bfloat16"), seed=0)
    packed = pack([Sample([1, 2, 3], [4, 5, 6, 7])])
    with torch.no_grad():
        hidden = model.read(packed).index_select(0, packed.before)
        to_one = torch.linalg.lstsq(hidden.float(), torch.ones(len(hidden), 1)).solution.squeeze()
        weight = model.network.get_output_embeddings().weight
        weight.copy_(weight.float() - 100 * to_one)
        hidden = model.read(packed).index_select(0, packed.before)
        logits = model.logits(hidden)
        assert logits.dtype == torch.float32
        assert logits.mean() < -50
        found = ops.categorical_log_prob(logits, packed.targets)
        torch.testing.assert_close(found, model.log_probs(packed)[0], atol=2e-3, rtol=0)
    model.check()


# Errors


class Leaky(nn.Module):
    """Layer that adds the mean of all tokens to every token."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, hidden, *args, **options):
        return self.inner(hidden, *args, **options) + 0.1 * hidden.mean(1, keepdim=True)


def test_a_model_that_mixes_tokens_is_rejected(make_network, characters):
    network = make_network()
    network.model.layers[0].mlp = Leaky(network.model.layers[0].mlp)
    with pytest.raises(ValueError, match=r"LlamaModel gives log-probabilities that differ by .* nats between"):
        finish(network, characters, ModelOptions(), seed=0)


def test_a_model_that_changes_its_logits_is_rejected(make_network, characters):
    network = make_network()
    network.lm_head.register_forward_hook(lambda module, given, logits: logits * 2)
    with pytest.raises(ValueError, match="modifies its logits"):
        finish(network, characters, ModelOptions(), seed=0)


def test_weights_that_are_nan_are_named(make_network, characters):
    network = make_network()
    network.model.layers[0].mlp.up_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(
        ValueError, match=r"NaN: its weights contain NaN or Inf, first in model\.layers\.0\.mlp\.up_proj"
    ):
        finish(network, characters, ModelOptions(), seed=0)


def test_a_tokenizer_of_another_model_is_rejected(make_network, characters):
    network = make_network()
    network.resize_token_embeddings(50)
    with pytest.raises(ValueError, match=r"token ids up to 98, but the model has 50 embeddings: use both"):
        finish(network, characters, ModelOptions(), seed=0)


def test_added_tokens_without_an_embedding_are_no_mistake(make_network, characters):
    characters = copy.deepcopy(characters)
    characters.add_special_tokens({"pad_token": "[PAD]"})  # as users do for other libraries, without a new embedding
    assert finish(make_network(), characters, ModelOptions(), seed=0).stop == {2}


def test_weights_that_are_cut_off_are_named(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"cannot be loaded: its safetensors are damaged \(.*download them again"):
        load(ModelOptions(model=str(folder)), seed=0)


def test_a_model_without_a_tokenizer_is_rejected(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(ModelOptions(model=str(folder)), seed=0)


def test_gpt2_without_a_tokenizer_is_rejected(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=99, n_positions=64, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)  # for which transformers creates an empty tokenizer
    with pytest.raises(ValueError, match="cannot be loaded: the files of its tokenizer are missing"):
        load(ModelOptions(model=str(tmp_path)), seed=0)


def test_pickled_weights_are_rejected(folder):
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"model cannot be loaded: .*safetensors weights and a tokenizer"):
        load(ModelOptions(model=str(folder)), seed=0)


def test_code_of_others_does_not_run_unless_it_is_asked_for(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    (folder / "theirs.py").write_text(
        "from transformers import LlamaForCausalLM\nfrom .settings import Settings\n"
        "class Theirs(LlamaForCausalLM):\n    config_class = Settings\n"
        "    def __init__(self, config):\n        super().__init__(config)\n"
        "        self.was_here = True\n"
    )
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "theirs", "auto_map": {"AutoModelForCausalLM": "theirs.Theirs"}}
    config["auto_map"]["AutoConfig"] = "settings.Settings"
    (folder / "settings.py").write_text(
        "from transformers import LlamaConfig\nclass Settings(LlamaConfig):\n    model_type = 'theirs'\n"
    )
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"cannot be loaded: it needs its own Python code.*--remote-code"):
        load(ModelOptions(model=str(folder)), seed=0)
    model = load(ModelOptions(model=str(folder), remote_code=True), seed=0)
    assert model.network.was_here


@pytest.mark.parametrize("name", ["no/such/folder", "tinny"])
def test_a_model_that_is_not_there(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=rf"--model {name} cannot be loaded: .*built-in one: tiny, "):
        load(ModelOptions(model=name), seed=0)


def test_an_adapter_on_the_last_layer_is_rejected():
    with pytest.raises(ValueError, match="lora_target_modules must not contain lm_head"):
        load(ModelOptions(lora_r=2, lora_target_modules=("lm_head",)), seed=0)


@pytest.mark.parametrize(("kind", "name"), [("llama-tied", "embed_tokens"), ("gpt2", "wte"), ("gpt2", "lm_head")])
def test_an_adapter_on_embeddings_that_are_the_last_layer_is_rejected(make_network, kind, name):
    with pytest.raises(ValueError, match=f"lora_target_modules must not contain {name}, whose weights are "):
        with_adapter(make_network(kind), ModelOptions(lora_r=2, lora_target_modules=("q_proj", name)), seed=0)
    untied = with_adapter(make_network(), ModelOptions(lora_r=2, lora_target_modules=("embed_tokens",)), seed=0)
    assert {name.split(".")[-3] for name, _ in untied.named_parameters() if "lora_" in name} == {"embed_tokens"}


def test_all_linear_layers_are_the_default_of_an_adapter(make_network):
    names = [
        [name for name, _ in with_adapter(make_network("llama-tied"), options, seed=0).named_parameters()]
        for options in (ModelOptions(lora_r=2), ModelOptions(lora_r=2, lora_target_modules=("all-linear",)))
    ]
    assert names[0] == names[1]
    assert sum("lora_A" in name for name in names[0]) == 14  # 7 in each of two layers
    with pytest.raises(ValueError, match="must be all-linear alone, or names of layers, got q_proj, all-linear"):
        with_adapter(make_network(), ModelOptions(lora_r=2, lora_target_modules=("q_proj", "all-linear")), seed=0)


# Saved models


def test_a_saved_model_comes_back(folder, tmp_path):
    model = load(ModelOptions(model=str(folder)), seed=0)
    train(model)
    model.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "model.safetensors").exists()
    again = load(ModelOptions(model=str(tmp_path / "saved")), seed=1)
    assert torch.equal(log_probs(again), log_probs(model))
    assert again.stop == model.stop
    assert again.tokenizer.encode("12+3=") == model.tokenizer.encode("12+3=")


def test_a_built_in_model_is_saved_as_any_other(tmp_path):
    model = load(ModelOptions(), seed=3)
    model.save(tmp_path)
    again = load(ModelOptions(model=str(tmp_path)), seed=0)
    assert torch.equal(log_probs(again), log_probs(model))


def test_a_state_comes_back(make_model):
    model, other = make_model(), make_model(seed=1)
    other.load_state_dict(model.state_dict())
    assert torch.equal(log_probs(other), log_probs(model))
    train(other)
    assert not torch.equal(log_probs(other), log_probs(model))


def test_tied_embeddings_are_kept_once(make_model):
    model, other = make_model("llama-tied"), make_model("llama-tied", seed=1)
    state = model.state_dict()
    assert "model.embed_tokens.weight" in state
    assert not [name for name in state if "lm_head" in name]
    other.load_state_dict(state)
    assert torch.equal(log_probs(other), log_probs(model))
    inside, outside = other.network.get_input_embeddings(), other.network.get_output_embeddings()
    assert inside.weight is outside.weight
    (-other.log_probs(BATCH)[0].mean()).backward()
    assert inside.weight.grad[3].abs().max() > 0, "the gradient of the output layer: 3 is not in the batch"


def test_a_state_of_another_model_is_rejected(make_model, folder):
    model = make_model()
    with pytest.raises(ValueError, match=r"differ in trained parameters, first in '.*': load it with the --model"):
        model.load_state_dict(adapted(folder).state_dict())
    with pytest.raises(ValueError, match="has shape"):
        model.load_state_dict(make_model(vocab_size=50).state_dict())


def test_a_frozen_copy_stays(make_model):
    model = make_model()
    model.log_probs(BATCH)[0].mean().backward()
    copy, before = model.frozen(), log_probs(model)
    assert copy.trained() == {}
    assert all(value.grad is None for value in copy.network.parameters())
    train(model)
    assert torch.equal(log_probs(copy), before)


# Adapters


def test_an_adapter_begins_at_zero_and_belongs_to_its_seed(folder):
    base = load(ModelOptions(model=str(folder)), seed=0)
    one, twin, other = (adapted(folder, seed=seed) for seed in (0, 0, 1))
    torch.testing.assert_close(log_probs(one), log_probs(base), atol=1e-6, rtol=0)
    assert one.fresh_adapter
    assert all("lora_" in name for name in one.trained())
    assert not any("lm_head" in name for name in one.trained())
    states = [model.state_dict() for model in (one, twin, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_an_adapter_of_embeddings_belongs_to_its_seed_alone():
    def made(state, seed):
        with torch.random.fork_rng():
            torch.manual_seed(state)
            options = ModelOptions(lora_r=2, lora_target_modules=("embed_tokens", "q_proj"))
            return load(options, seed=seed).state_dict()

    one, same, other = made(1, 0), made(2, 0), made(1, 1)
    assert all(torch.equal(one[name], same[name]) for name in one)
    (name,) = [name for name in one if "lora_embedding_B" in name]
    assert not torch.equal(one[name], other[name])


def test_an_adapter_learns_and_the_rest_stays(folder):
    model = adapted(folder)
    before, likelihood = values(model), log_probs(model).mean()
    train(model, 20, rate=0.5)
    after = values(model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == set(model.trained())
    assert log_probs(model).mean() > likelihood + 0.05


def test_an_adapter_is_saved_as_one(folder, tmp_path):
    model = adapted(folder)
    train(model)
    model.save(tmp_path / "adapter")
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert saved
    assert all("lora_" in name for name in saved)
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["r"] == 2
    assert config["lora_alpha"] == 4
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft looks up old names in transformers
        network = PeftModel.from_pretrained(base, tmp_path / "adapter")
    again = LanguageModel(network, model.tokenizer, stop=model.stop)
    torch.testing.assert_close(log_probs(again), log_probs(model), atol=1e-6, rtol=0)


def test_adapters_of_some_layers(folder):
    model = adapted(folder, lora_target_modules=("q_proj", "v_proj"), lora_alpha=7)
    assert {name.split(".lora_")[0].split(".")[-1] for name in model.trained()} == {"q_proj", "v_proj"}


def test_an_adapter_under_16_bits_is_trained_in_32(folder):
    model = adapted(folder, dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    assert {value.dtype for value in model.trained().values()} == {torch.float32}
    train(model)


# References


@pytest.mark.parametrize("lora", [False, True])
def test_a_reference_stays_where_training_began(folder, lora):
    model = adapted(folder) if lora else load(ModelOptions(model=str(folder)), seed=0)
    reference, before = Reference(model), log_probs(model)
    torch.testing.assert_close(reference.log_probs(BATCH), before, atol=1e-6, rtol=0)
    assert (reference._copy is None) is lora, "an adapter that began at zero is switched off, and no weights are copied"
    train(model)
    torch.testing.assert_close(reference.log_probs(BATCH), before, atol=1e-6, rtol=0)
    assert not torch.allclose(log_probs(model), before, atol=1e-3)
    reference.reset()
    now = log_probs(model)
    assert torch.equal(reference.log_probs(BATCH), now)
    train(model)
    assert torch.equal(reference.log_probs(BATCH), now)
    reference.reset()
    assert torch.equal(reference.log_probs(BATCH), log_probs(model))


def test_an_adapter_that_did_not_begin_at_zero_is_copied(folder):
    model = adapted(folder)
    train(model)
    model.fresh_adapter = False
    reference, before = Reference(model), log_probs(model)
    train(model)
    assert torch.equal(reference.log_probs(BATCH), before)


def test_asking_the_reference_leaves_the_adapter_learning(folder):
    gradients = []
    for ask in (False, True):
        model = adapted(folder)
        train(model, 1)
        model.network.zero_grad()
        reference = Reference(model)
        loss = -model.log_probs(BATCH)[0].mean()
        if ask:
            reference.log_probs(BATCH)
        loss.backward()
        gradients.append({name: value.grad.clone() for name, value in model.trained().items()})
    assert gradients[0]
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


def test_a_reference_uses_the_temperature(make_model):
    model = make_model()
    reference = Reference(model)
    expected, _ = model.log_probs(BATCH, temperature=0.5)
    assert torch.equal(reference.log_probs(BATCH, temperature=0.5), expected.detach())


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("lora", [False, True])
def test_the_state_of_a_reference_comes_back(folder, lora, reset):
    model = adapted(folder) if lora else load(ModelOptions(model=str(folder)), seed=0)
    reference = Reference(model)
    train(model)
    if reset:
        reference.reset()
        train(model)
    again = adapted(folder, seed=4) if lora else load(ModelOptions(model=str(folder)), seed=0)
    with torch.no_grad():
        for value in again.trained().values():
            value.add_(0.01)
    other = Reference(again)
    again.load_state_dict(model.state_dict())
    other.load_state_dict(reference.state_dict())
    torch.testing.assert_close(other.log_probs(BATCH), reference.log_probs(BATCH), atol=1e-6, rtol=0)


def test_a_state_from_before_a_reset_brings_back_the_first_reference(folder):
    model = adapted(folder)
    reference = Reference(model)
    state, first = reference.state_dict(), reference.log_probs(BATCH)
    train(model)
    reference.reset()
    assert not torch.equal(reference.log_probs(BATCH), first)
    reference.load_state_dict(state)
    assert torch.equal(reference.log_probs(BATCH), first)


def test_a_scalar_head_begins_at_zero():
    head = ScalarHead(4)
    hidden = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    assert head(hidden.bfloat16()).tolist() == [0, 0, 0]
    assert head(hidden.bfloat16()).dtype == torch.float32
    with torch.no_grad():
        head.weight.copy_(torch.tensor([1.0, 0, 0, 2.0]))
        head.bias.fill_(0.5)
    torch.testing.assert_close(head(hidden), hidden[:, 0] + 2 * hidden[:, 3] + 0.5)


def test_weights_of_a_hub_that_are_16_bits_are_widened(folder):
    path = folder / "model.safetensors"
    save_file({name: value.bfloat16() for name, value in load_file(path).items()}, path, {"format": "pt"})
    model = load(ModelOptions(model=str(folder)), seed=0)
    assert model.dtype == torch.float32


def test_all_built_in_models_can_be_built():
    for name, (_, width, layers, _) in BUILT_IN.items():
        network = build(name, seed=0)
        assert network.config.hidden_size == width
        assert network.config.num_hidden_layers == layers


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_random_weights_belong_to_the_seed(kind):
    def draw(seed):
        before = torch.get_rng_state()
        network = random_network(kind, 32, 2, 4, inner=40, seed=seed)
        assert torch.equal(torch.get_rng_state(), before), "the global generator is unchanged"
        return network

    first, again, other = draw(1), draw(1), draw(2)
    assert first.config.intermediate_size == 40
    matrices = {name: value for name, value in first.named_parameters() if value.ndim >= 2}
    for name, value in matrices.items():
        assert torch.equal(value, again.get_parameter(name))
        assert not torch.equal(value, other.get_parameter(name))
        assert float(value.detach().std()) == pytest.approx(value.shape[1] ** -0.5, rel=0.1)
