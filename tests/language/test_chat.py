import json

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import operant
from operant import streams
from operant.language.chat import (
    Answer,
    ChatModel,
    Conversation,
    converses,
    find_chat_model,
    score,
    trained_model,
)
from operant.language.configs import ModelOptions
from operant.language.engines import NativeEngine, Sampling
from operant.language.exporting import write_model
from operant.language.models import LanguageModel, load
from operant.language.packing import Sample
from operant.language.scoring import RewardModelFunction, Scorer
from operant.language.tokenizer import decode, encode_prompt

TINY = {"train_examples": 32, "held_out": 4, "batch_size": 16, "budget": 32, "evaluate_every": 32, "progress": "silent"}
MESSAGES = [{"role": "user", "content": "1+1="}]


@pytest.fixture(scope="module")
def tiny():
    return load(ModelOptions(), seed=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speaking") / "run"
    return operant.train("sft", "arithmetic", seeds=(3, 4), run=folder, **TINY).run


def chance(turn=0, seed=0):
    return streams.torch_generator(seed, "chat", turn)


def expected(model, ids, sampling, generator):
    ((completion,),) = NativeEngine(model).generate([ids], 1, sampling, generator=generator)
    return decode(model.tokenizer, completion.ids)


def weights(model):
    return {name: value.detach() for name, value in model.network.named_parameters()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_an_answer_comes_piece_by_piece_and_is_that_of_the_engine(tiny):
    conversation = Conversation(ChatModel(tiny, in_turns=False), Sampling(20), seed=0)
    pieces = list(conversation.answer("12+34="))
    assert len(pieces) > 2
    assert "".join(pieces) == expected(tiny, encode_prompt(tiny.tokenizer, "12+34="), Sampling(20), chance(0))
    second = expected(tiny, encode_prompt(tiny.tokenizer, "x"), Sampling(20), chance(1))
    assert "".join(conversation.answer("x")) == second, "plain prompts have no turns"


def test_turns_are_remembered(tiny):
    conversation = Conversation(ChatModel(tiny, in_turns=True), Sampling(12), seed=0)
    first = "".join(conversation.answer("Hi"))
    second = "".join(conversation.answer("And?"))
    said = [("user", "Hi"), ("assistant", first), ("user", "And?"), ("assistant", second)]
    assert [(m["role"], m["content"]) for m in conversation.messages] == said
    ids = encode_prompt(tiny.tokenizer, conversation.messages[:3])
    assert second == expected(tiny, ids, Sampling(12), chance(1))
    later = Conversation(ChatModel(tiny, in_turns=True), Sampling(12), seed=0, messages=conversation.messages[:2])
    assert "".join(later.answer("And?")) == second, "a turn is identified by its position, not by the object"


def test_the_most_likely_tokens_alone_are_sampled(tiny):
    narrow = Conversation(ChatModel(tiny, in_turns=False), Sampling(20, top_p=1e-6), seed=3)
    greedy = Conversation(ChatModel(tiny, in_turns=False), Sampling(20, temperature=0), seed=4)
    assert list(narrow.answer("12+34=")) == list(greedy.answer("12+34="))


def test_a_stopped_answer_is_the_text_so_far(tiny):
    conversation = Conversation(ChatModel(tiny, in_turns=True), Sampling(50, temperature=0), seed=0)
    pieces = conversation.answer("Hi")
    said = next(pieces) + next(pieces) + next(pieces)
    pieces.close()
    assert [m["content"] for m in conversation.messages] == ["Hi", said[: len(conversation.messages[1]["content"])]]
    assert len(conversation.messages[1]["content"]) >= 2


def test_the_oldest_turns_are_forgotten_when_there_is_no_room(tiny):
    speaker = ChatModel(tiny, in_turns=True)
    conversation = Conversation(speaker, Sampling(8, temperature=0), seed=0)
    conversation.messages = [{"role": "user", "content": "a" * 1500}, {"role": "assistant", "content": "b" * 600}]
    answer = "".join(conversation.answer("1+1="))
    ids = encode_prompt(tiny.tokenizer, MESSAGES)
    assert answer == expected(tiny, ids, Sampling(8, temperature=0), chance())
    assert conversation.last.prompt == MESSAGES
    assert conversation.last.prompt_ids == ids


def test_long_answers_leave_room_for_earlier_turns(tiny):
    conversation = Conversation(ChatModel(tiny, in_turns=True), Sampling(4000, temperature=0), seed=0)
    conversation.messages = [{"role": "user", "content": "a" * 40}, {"role": "assistant", "content": "b"}]
    pieces = conversation.answer("1+1=")
    next(pieces)
    pieces.close()
    assert [len(message["content"]) for message in conversation.last.prompt] == [40, 1, 4]


@pytest.mark.parametrize(("text", "message"), [("é", "no token for 'é'"), ("a" * 3000, "accepts at most 2048")])
def test_an_invalid_prompt_is_rejected_and_forgotten(tiny, text, message):
    conversation = Conversation(ChatModel(tiny, in_turns=True), Sampling(8), seed=0)
    with pytest.raises(ValueError, match=message):
        list(conversation.answer(text))
    assert conversation.messages == []


def test_no_answer_is_longer_than_there_is_room(tiny):
    conversation = Conversation(ChatModel(tiny, in_turns=False), Sampling(9000, temperature=0), seed=0)
    assert len("".join(conversation.answer("a" * 2040))) <= 2048 - 2041


@pytest.mark.parametrize("in_turns", [False, True])
def test_the_score_is_that_of_the_tokens_of_the_answer(tiny, words, in_turns):
    scorer = Scorer(load(ModelOptions(), seed=1))
    with torch.no_grad():
        scorer.head.weight.copy_(torch.linspace(-1, 1, scorer.head.weight.numel()))
    reward_model = RewardModelFunction(scorer, process=False, separator="\n", tokenizer=words)
    speaker = ChatModel(tiny, in_turns=in_turns)
    conversation = Conversation(speaker, Sampling(6), seed=0)
    assert conversation.last is None
    text = "".join(conversation.answer("1+1="))
    prompt = encode_prompt(tiny.tokenizer, MESSAGES if in_turns else "1+1=")
    found = conversation.last
    assert (found.text, found.prompt_ids, found.truncated) == (text, prompt, found.ids[-1] != 2)
    (expected,) = scorer.scores([Sample(prompt, found.ids)]).tolist()
    assert score(reward_model, found, speaker) == expected != 0


def test_too_long_answers_are_not_scored(tiny):
    reward_model = RewardModelFunction(Scorer(tiny), process=False, separator="\n")
    answer = Answer("1", [1] * 2000, "2", [5] * 49, truncated=True)
    with pytest.raises(ValueError, match="have 2049 tokens, but the reward model accepts at most 2048"):
        score(reward_model, answer, ChatModel(tiny, in_turns=False))


def test_characters_of_several_tokens_appear_whole(words):
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    network = AutoModelForCausalLM.from_config(config)
    ids = words.encode("é字", add_special_tokens=False)
    assert len(ids) == 5, "every byte is a token"
    model = LanguageModel(network, words, stop=frozenset({2}))
    conversation = Conversation(ChatModel(model, in_turns=False), Sampling(5), seed=0)
    conversation._engine.stream = lambda *args, **options: iter([[i] for i in ids])
    assert [piece for piece in conversation.answer("the cat") if piece] == ["é", "字"]


def test_the_models_of_a_run(run, tmp_path):
    learners = operant.load(run.path).experiment.learner.learners
    for seed, learner in zip((3, 4), learners, strict=True):
        assert same(weights(trained_model(run, seed)), weights(learner.model))
    speaker = find_chat_model(str(run.path), index=1)
    assert same(weights(speaker.model), weights(learners[1].model))
    assert (speaker.in_turns, speaker.example.endswith("=")) == (False, True)
    with pytest.raises(ValueError, match="has no seed 0; it has 3, 4"):
        trained_model(run, 0)
    with pytest.raises(ValueError, match="the index must be below 2; got 2"):
        find_chat_model(str(run.path), index=2)


def test_a_run_on_conversations_is_prompted_in_turns(tmp_path):
    talks = [[{"role": "user", "content": f"{i}+1="}, {"role": "assistant", "content": f"{i + 1}"}] for i in range(10)]
    data = tmp_path / "talks.jsonl"
    data.write_text("".join(f"{json.dumps({'messages': talk})}\n" for talk in talks))
    run = operant.train("sft", str(data), run=tmp_path / "run", **TINY).run
    assert converses(run)
    assert find_chat_model(str(run.path)).in_turns
    write_model(run, tmp_path / "model", seed=0)
    assert find_chat_model(str(tmp_path / "model")).in_turns
    data.unlink()
    assert not converses(run), "the data are missing"


@pytest.mark.parametrize("name", ["./nothing", "runs/nothing"])
def test_a_place_where_nothing_is(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"{name} contains neither a run nor a model"):
        find_chat_model(name)


def test_built_in_models_are_plain_unless_asked():
    assert not find_chat_model("tiny").in_turns


def test_a_run_of_a_policy_in_an_environment_does_not_speak(tmp_path):
    run = operant.train("random", "CliffWalking-v1", run=tmp_path / "run", budget=10, progress="silent").run
    with pytest.raises(ValueError, match="a run of random, which trains no generative model"):
        find_chat_model(str(run.path))
