"""Reward models in Hugging Face's format: `load_classifier`, `save_classifier`.

Reward models of TRL, and most of those on the Hub, are sequence classifiers with one label
(`AutoModelForSequenceClassification`): the layers of a causal language model, and a linear layer `score`, whose output
at the last token of a conversation is the reward.
"""

import copy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from operant.language.configs import ModelOptions
from operant.language.huggingface import at_home, causal_network, classifier_of, load_classifier_network
from operant.language.model_files import Source
from operant.language.models import DTYPES, LanguageModel, ScalarHead, finish
from operant.language.pretrained import is_adapter, provenance
from operant.tensors import fork_rng

BIAS = "score_bias"
"""Name of the bias of a saved head in the provenance, since most classifiers of transformers have none."""

_KINDS = (
    "the folder of a run of `operant train reward-model`, or a folder or a Hub model of a sequence classifier with one "
    "label (config.json, safetensors weights and a tokenizer)"
)


class Classifier(NamedTuple):
    """A reward model in Hugging Face's format.

    Attributes:
        model: its layers; the output layer of a causal language model, which scores do not use, is that of the input
            embeddings.
        head: its layer `score`.
        whole: whether a conversation is scored at its last token, as by TRL; otherwise at EOS, as by this package. They
            differ if the chat template writes something after EOS, such as a newline.
    """

    model: LanguageModel
    head: ScalarHead
    whole: bool


def load_classifier(options: ModelOptions, *, seed: int, device: torch.device | str = "cpu") -> Classifier:
    """Load a reward model from a sequence classifier of transformers with one label.

    Args:
        options: options, of which `model` is a folder or Hub name.
        seed: random seed of a new adapter.
        device: device of the model.

    Raises:
        ValueError: there is no such model, it is no classifier with one label, it is an adapter, or its architecture
            has no causal language model.
    """
    options = replace(options, model=at_home(options.model))
    source = Source(options, option="--reward-model", kinds=_KINDS, load=load_classifier_network)
    source.require_folder()
    if is_adapter(options.model):
        raise ValueError(f"{source.named} is an adapter: merge it into its model with peft, and use the merged model")
    network = source.network()
    if network.config.num_labels != 1:
        raise source.error(ValueError(f"it has {network.config.num_labels} labels"))
    layer = getattr(network.to(device=device, dtype=DTYPES[options.dtype]), "score", None)
    if not isinstance(layer, nn.Linear):
        raise source.error(ValueError(f"{type(network).__name__} has no linear layer `score` on the last token"))
    facts, shift = provenance(options.model), getattr(layer, "bias", None)
    model = finish(_causal(source, network), source.tokenizer(), options, seed=seed)
    head = ScalarHead(model.width, device)
    with torch.no_grad():
        head.weight.copy_(layer.weight.squeeze(0))
        head.bias.fill_(facts.get(BIAS, 0.0) + (0.0 if shift is None else float(shift)))
    return Classifier(model, head, whole=BIAS not in facts)


def _causal(source: Source, classifier: Any) -> Any:
    """Return a causal language model with the layers of a classifier, without more memory.

    Raises:
        ValueError: there is none of this architecture, such as an encoder.
    """
    options, layers = source.options, classifier.base_model
    try:
        with fork_rng(devices=[]):
            network = causal_network(classifier.config, trust_remote_code=options.remote_code)
        kept = getattr(network, network.base_model_prefix)
    except (ValueError, AttributeError) as error:
        raise source.error(ValueError(f"there is no causal language model like {type(classifier).__name__}")) from error
    if type(kept) is not type(layers):
        raise source.error(ValueError(f"{type(classifier).__name__} is no decoder"))
    setattr(network, network.base_model_prefix, layers)
    embeddings = network.get_input_embeddings().weight
    output = nn.Linear(*reversed(embeddings.shape), bias=False, device="meta")
    output.weight = embeddings
    network.set_output_embeddings(output)
    return network


def save_classifier(model: LanguageModel, head: ScalarHead, folder: Any) -> None:
    """Save a reward model as a sequence classifier of transformers with one label, with its tokenizer.

    The bias of the head is not saved. Classifiers skip padding at the end by `pad_token_id`; if the tokenizer pads with
    EOS, whose token is scored, none is saved, and sequences are to be scored one by one.

    Args:
        model: model without adapter.
        head: head without features.
        folder: output folder.

    Raises:
        ValueError: transformers has no classifier for the architecture.
    """
    config, padding = copy.deepcopy(model.config), getattr(model.tokenizer, "pad_token_id", None)
    config.num_labels, config.pad_token_id = 1, None if padding in model.stop else padding
    try:
        with fork_rng(devices=[]):
            network = classifier_of(config)
    except ValueError as error:
        raise ValueError(
            f"transformers has no sequence classifier for {type(model.network).__name__}, so its scores cannot be "
            "exported"
        ) from error
    setattr(network, network.base_model_prefix, model.network.base_model)
    layer = nn.Linear(model.width, 1, bias=False, device="meta")
    layer.weight = nn.Parameter(head.weight.detach().unsqueeze(0).to(model.dtype))
    network.score = layer
    network.save_pretrained(folder, safe_serialization=True)
    model.tokenizer.save_pretrained(folder)
