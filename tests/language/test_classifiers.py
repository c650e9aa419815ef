"""Reward models in Hugging Face's format: scores of transformers, training and critics with them, and errors."""

import json

import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification

import operant
from operant.language.classifiers import BIAS, load_classifier, save_classifier
from operant.language.configs import ModelOptions
from operant.language.critic import Critic
from operant.language.models import LanguageModel, ScalarHead, load
from operant.language.packing import Sample, pack
from operant.language.scoring import load_scorer
from operant.language.tokenizer import encode_pair
from operant.runtime.callbacks import Callback

PROMPTS, ANSWERS = ["1+1=", "12+34=", "9+9="], ["2", "46", "1"]
TALKS = [
    [{"role": "user", "content": "is the cat on the mat?"}],
    [{"role": "user", "content": "no"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "the"}],
]
REPLIES = [[{"role": "assistant", "content": "yes"}], [{"role": "assistant", "content": "the answer is no."}]]


@pytest.fixture
def classifier(make_network, characters, tmp_path):
    """Return a function that writes a classifier with random weights, and returns it with its folder."""

    def make(kind="llama", *, labels=1, tokenizer=characters, name="classifier", **changes):
        config = make_network(kind, **changes).config
        config.num_labels = labels
        with torch.random.fork_rng():
            torch.manual_seed(3)
            network = AutoModelForSequenceClassification.from_config(config)
            network.score.weight.data.normal_()
        network.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return network.eval(), str(tmp_path / name)

    return make


def theirs(network, tokenizer, rows):
    """Return the scores of transformers for sequences of ids, padded on the right."""
    longest = max(map(len, rows))
    padding = network.config.pad_token_id
    ids = torch.tensor([row + [padding] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    with torch.no_grad():
        return network(input_ids=ids, attention_mask=mask).logits.squeeze(1)


@pytest.mark.parametrize("kind", ["llama", "llama-tied", "qwen3", "mistral", "gpt2", "gemma2", "phi"])
def test_scores_are_those_of_transformers(classifier, characters, kind):
    network, folder = classifier(kind)
    ids = [encode_pair(characters, p, a, eos_ids={2}) for p, a in zip(PROMPTS, ANSWERS, strict=True)]
    rows = [head + tail for head, tail in ids]
    found = load_scorer(folder, tokenizer=characters)
    wanted = theirs(network, characters, rows)
    assert wanted.std() > 0.01
    torch.testing.assert_close(torch.tensor(found(PROMPTS, ANSWERS, [[]] * 3)), wanted, atol=1e-4, rtol=1e-4)
    sampled = found(PROMPTS, ANSWERS, [tail for _, tail in ids], prompt_ids=[head for head, _ in ids])
    torch.testing.assert_close(torch.tensor(sampled), wanted, atol=1e-4, rtol=1e-4)


def test_conversations_are_scored_at_the_last_token_of_the_template(classifier, words):
    network, folder = classifier(tokenizer=words, vocab_size=len(words))
    texts = [words.apply_chat_template(t + r, tokenize=False) for t, r in zip(TALKS, REPLIES, strict=True)]
    assert all(text.endswith("<|im_end|>\n") for text in texts)
    rows = [words(text, add_special_tokens=False)["input_ids"] for text in texts]
    found = load_scorer(folder, tokenizer=words)
    encoded = [encode_pair(words, t, r, eos_ids={2}) for t, r in zip(TALKS, REPLIES, strict=True)]
    given = {"prompt_ids": [head for head, _ in encoded]}
    scores = torch.tensor(found(TALKS, REPLIES, [tail for _, tail in encoded], **given))
    torch.testing.assert_close(scores, theirs(network, words, rows), atol=1e-4, rtol=1e-4)
    cut = torch.tensor(found(TALKS, REPLIES, [tail for _, tail in encoded], truncated=[True, True], **given))
    rows = [head + tail[:-1] for head, tail in encoded]
    torch.testing.assert_close(cut, theirs(network, words, rows), atol=1e-4, rtol=1e-4)


def test_half_precision(classifier, characters):
    _, folder = classifier()
    single, half = (load_scorer(folder, dtype=dtype)(PROMPTS, ANSWERS, [[]] * 3) for dtype in ("float32", "bfloat16"))
    assert single != half
    torch.testing.assert_close(torch.tensor(single), torch.tensor(half), atol=0.3, rtol=0)


def test_it_needs_no_more_memory_than_the_classifier(classifier):
    network, folder = classifier(tie_word_embeddings=False)
    found = load_classifier(ModelOptions(model=folder), seed=0)
    head = sum(p.numel() for p in network.score.parameters())
    assert (
        sum(p.numel() for p in found.model.network.parameters()) == sum(p.numel() for p in network.parameters()) - head
    )


def test_what_is_saved_is_scored_by_transformers(make_model, characters, tmp_path):
    model, head = make_model("qwen3"), ScalarHead(32)
    head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    head.bias.data.fill_(0.5)
    save_classifier(model, head, tmp_path / "model")
    network = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    assert network.config.num_labels == 1
    rows = [encode_pair(characters, p, a, eos_ids={2}) for p, a in zip(PROMPTS, ANSWERS, strict=True)]
    packed = pack([Sample(*row) for row in rows])
    with torch.no_grad():
        own = head(model.read(packed).index_select(0, packed.last))
    wanted = theirs(network, characters, [first + second for first, second in rows]) + 0.5
    torch.testing.assert_close(own, wanted, atol=1e-4, rtol=1e-4)
    (tmp_path / "model" / "operant.json").write_text(json.dumps({BIAS: 0.5}))
    found = load_classifier(ModelOptions(model=str(tmp_path / "model")), seed=0)
    assert (found.head.bias.item(), found.whole) == (0.5, False)


def test_no_padding_is_saved_if_the_tokenizer_pads_with_eos(make_network, words, tmp_path):
    model = LanguageModel(make_network(vocab_size=len(words)), words, stop=frozenset({2}))
    save_classifier(model, ScalarHead(32), tmp_path)
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path).config.pad_token_id is None


def test_a_critic_begins_with_its_scores_and_trains_all_of_it(classifier, characters):
    network, folder = classifier("llama-tied")
    critic = Critic.from_reward_model(folder, ModelOptions(), tokenizer=characters, seed=0)
    rows = [encode_pair(characters, p, a, eos_ids={2}) for p, a in zip(PROMPTS, ANSWERS, strict=True)]
    values = critic(pack([Sample(*row) for row in rows]))
    wanted = theirs(network, characters, [first + second for first, second in rows])
    torch.testing.assert_close(values.after.detach(), wanted, atol=1e-4, rtol=1e-4)
    values.after.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in critic.trained().values())


class AfterEight(Callback):
    def should_stop(self, consumed):
        return consumed >= 8


@pytest.mark.parametrize("algorithm", ["grpo", "rlhf"])
def test_a_policy_is_trained_with_it_and_resumed(classifier, tmp_path, algorithm):
    _, folder = classifier()
    values = {"train_examples": 8, "held_out": 4, "prompts_per_batch": 4, "progress": "silent", "reward_model": folder}

    def train(name, *callbacks):
        return operant.train(algorithm, "arithmetic", run=tmp_path / name, budget=16, callbacks=callbacks, **values)

    def parameters(trained):
        return trained.experiment.learner.learners[0].model.trained()

    whole = parameters(train("whole"))
    part = train("part", AfterEight())
    assert part.outcome is not None
    assert part.outcome.consumed == 8
    (record,) = [record for record in part.run.facts()["inputs"] if record["name"] == "reward_model"]
    assert record["path"] == folder
    resumed = parameters(operant.resume(tmp_path / "part", progress="silent"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_what_is_no_classifier_with_one_label_is_rejected(classifier, model_folder, characters, tmp_path):
    with pytest.raises(ValueError, match=r"--reward-model .*model cannot be loaded: it is a Llama.*, not a seq"):
        load_scorer(model_folder)
    _, folder = classifier(labels=3, name="three")
    with pytest.raises(ValueError, match=r"three cannot be loaded: it has 3 labels; use the folder of a run"):
        load_scorer(folder)
    _, folder = classifier(name="broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"--reward-model .*broken cannot be loaded: its safetensors are damaged"):
        load_scorer(folder)
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_labels=1
    )
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    characters.save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="BertForSequenceClassification has no linear layer `score` on the last token"):
        load_scorer(str(tmp_path / "bert"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"--reward-model .*empty cannot be loaded: .*; use the folder of a run"):
        load_scorer(str(tmp_path / "empty"))


@pytest.mark.parametrize("kind", ["llama", "llama-tied"])
def test_a_classifier_is_no_policy(classifier, kind):
    _, folder = classifier(kind)
    with pytest.raises(ValueError, match=r"a LlamaForSeq.*, which generates no text; a reward model is that"):
        load(ModelOptions(model=folder), seed=0)


def test_what_needs_a_run_names_it(classifier, tmp_path):
    _, folder = classifier()
    values = {"reward_model": folder, "budget": 8, "run": tmp_path / "run"}
    with pytest.raises(ValueError, match="classifier is not a run, but iterative-grpo trains its reward model further"):
        operant.train("iterative-grpo", "preference", **values)
    with pytest.raises(ValueError, match="classifier is not a run, but --supervision process needs one of"):
        operant.train("grpo", "steps", supervision="process", **values)
    assert not (tmp_path / "run").exists()


def test_an_adapter_is_rejected(classifier, tmp_path):
    _, folder = classifier()
    (tmp_path / "classifier" / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="is an adapter: merge it into its model with peft"):
        load_scorer(folder)


def test_architectures_without_a_classifier_cannot_be_saved(make_model, tmp_path):
    with pytest.raises(ValueError, match="has no sequence classifier for CohereForCausalLM, so its scores"):
        save_classifier(make_model("cohere"), ScalarHead(32), tmp_path)


@pytest.mark.parametrize("name", ["./nothing", "nothing/here/at/all"])
def test_a_path_that_does_not_exist_is_no_run(name):
    with pytest.raises(operant.runtime.run.RunError, match="nothing"):
        load_scorer(name)
