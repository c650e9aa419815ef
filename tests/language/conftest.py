"""Fixtures for language models: tokenizers of characters and of words, with chat templates, and small networks."""

import copy

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from operant.language.tokenizer import character_tokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>", "<s>"]  # ids 0, 1, 2, 3


@pytest.fixture(scope="session")
def trained_words():
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=310, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator(["the cat sat on the mat. the answer is yes, is no"] * 5, trainer)
    return words


@pytest.fixture
def make_words(trained_words):
    """Return a function that creates a tokenizer of words with a chat template, with or without a BOS token."""

    def make(*, bos=False, eos="<|im_end|>", template=CHATML):
        words = copy.deepcopy(trained_words)
        if bos:
            words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
        return PreTrainedTokenizerFast(
            tokenizer_object=words, chat_template=template, **{"bos_token": "<s>", "eos_token": eos, "pad_token": eos}
        )

    return make


@pytest.fixture
def words(make_words):
    """Return a tokenizer of words without a BOS token, which pads with its EOS token."""
    return make_words()


@pytest.fixture(scope="session")
def characters():
    return character_tokenizer()


SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
GPT2_SIZES = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
KINDS = {
    "llama": ("LlamaConfig", {}),
    "llama-tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {}),
    "mistral": ("MistralConfig", {"sliding_window": 4}),
    "gpt2": ("GPT2Config", GPT2_SIZES | {"tie_word_embeddings": True, "scale_attn_by_inverse_layer_idx": True}),
    "gemma2": ("Gemma2Config", {"sliding_window": 4, "attn_logit_softcapping": None, "final_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
    "phi": ("PhiConfig", {"partial_rotary_factor": 0.5, "resid_pdrop": 0.1}),  # its head has a bias
    "cohere": ("CohereConfig", {"logit_scale": 0.25}),
    "granite": ("GraniteConfig", {"logits_scaling": 4.0}),
}


@pytest.fixture(scope="session")
def make_network():
    """Return a function that creates a small network of transformers, with weights that make tokens distinguishable."""
    import torch
    import transformers

    def make(kind="llama", *, seed=0, **changes):
        name, values = KINDS[kind]
        config = getattr(transformers, name)(**(SIZES | values | changes))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            network = transformers.AutoModelForCausalLM.from_config(config)
        generator = torch.Generator().manual_seed(seed)
        for parameter in network.parameters():
            scale = 0.2 if parameter.ndim >= 2 else 0.05
            parameter.data += scale * torch.randn(parameter.shape, generator=generator)
        return network

    return make


@pytest.fixture
def make_model(make_network, characters):
    """Return a function that creates a small language model of characters."""
    from operant.language.models import LanguageModel

    def make(kind="llama", *, seed=0, dtype=None, **changes):
        network = make_network(kind, seed=seed, **changes)
        return LanguageModel(network.to(dtype), characters, stop=frozenset({2}))

    return make


@pytest.fixture
def model_folder(make_network, characters, tmp_path):
    """Return the folder of a small model of characters, saved by transformers."""
    make_network().save_pretrained(tmp_path / "model")
    characters.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")
