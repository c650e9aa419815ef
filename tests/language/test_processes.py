import pytest
from tests.runtime.teams import Rank

import operant
from operant import catalog
from operant.build import assemble, resolve
from operant.language.processes import shards_of
from operant.runtime.configuration import learner_kind
from operant.runtime.settings import Settings
from operant.runtime.shards import within

REFUSED = {
    "the natural gradient": ("rlhf", {"step": "trpo"}, {}, "step=trpo needs the full model: use another step"),
    "shards": ("sft", {}, {"shards": 2}, "--fsdp shards the model, --shards 2 the batches"),
    "an adapter": ("sft", {"lora_r": 4}, {}, "does not support adapters .--lora-r 4."),
    "a server": ("grpo", {"engine": "http://127.0.0.1:8000"}, {}, "needs the full model"),
    "a small batch": ("sft", {"batch_size": 1}, {}, "batch_size is 1, less than the 2 processes"),
}


class Sharing(Rank):
    sharded = True


@pytest.mark.parametrize("name", REFUSED)
def test_options_without_support_for_shared_models_are_rejected_early(name):
    algorithm, values, settings, message = REFUSED[name]
    entry = catalog.find(algorithm)
    config = operant.configure(algorithm, "preference", **values)
    with within(Sharing(0, 2, [], None)), pytest.raises(ValueError, match=message):
        shards_of(learner_kind(entry, config), entry, Settings(algorithm, "preference", **settings), config, "cpu")


def test_algorithms_without_a_language_model_are_rejected():
    entry, settings = catalog.find("ppo"), Settings("ppo", "CartPole-v1")
    config = operant.configure("ppo", "CartPole-v1")
    with within(Sharing(0, 2, [], None)), pytest.raises(ValueError, match="ppo trains none: leave it out"):
        assemble(entry, settings, config, resolve(entry, settings, config))
