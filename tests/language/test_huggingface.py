import inspect

import pytest
import torch

from operant.language import huggingface
from operant.language.models import build
from operant.language.tokenizer import character_tokenizer


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
