"""Chat with trained models: `find_chat_model`, `Conversation`, `score`."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from operant import streams
from operant.language.configs import ModelOptions
from operant.language.datasets import source_of
from operant.language.engines.native import NativeEngine
from operant.language.engines.protocol import Sampling
from operant.language.huggingface import is_path
from operant.language.models import BUILT_IN, LanguageModel, load
from operant.language.pretrained import provenance
from operant.language.runs import model_options
from operant.language.scoring import RewardModelFunction
from operant.language.sources import read
from operant.language.tokenizer import Message, Text, decode, encode_prompt
from operant.runtime.generations import latest_samples
from operant.runtime.run import Run
from operant.runtime.run_paths import is_run

_TEXTS = ("prompt", "messages", "chosen")
_UNFINISHED = "\ufffd"
"""Decoded text of an incomplete character."""


@dataclass(frozen=True)
class ChatModel:
    """A model to chat with.

    Attributes:
        model: language model.
        in_turns: whether prompts are formatted by the chat template, as conversations, or used as plain text.
        example: example of a training prompt; empty if unknown.
    """

    model: LanguageModel
    in_turns: bool
    example: str = ""


class Answer(NamedTuple):
    """An answer with its tokens.

    Attributes:
        prompt: input of the model: a text, or the turns of the conversation that fit into the context.
        prompt_ids: token ids of the prompt.
        text: text of the answer.
        ids: token ids of the answer, including EOS if it was sampled.
        truncated: whether the answer has no EOS.
    """

    prompt: Text
    prompt_ids: list[int]
    text: str
    ids: list[int]
    truncated: bool


class Conversation:
    """A conversation with a model. The i-th answer uses the random stream `(seed, "chat", i)`.

    Args:
        speaker: model to chat with.
        sampling: sampling parameters of answers.
        seed: random seed.
        messages: previous messages of user and assistant.

    Attributes:
        messages: messages of user and assistant; earlier ones are part of the prompt only with a chat template.
        last: last answer; None before the first one.
    """

    def __init__(self, speaker: ChatModel, sampling: Sampling, *, seed: int, messages: Sequence[Message] = ()):
        self.speaker, self.sampling, self.messages = speaker, sampling, list(messages)
        self.last: Answer | None = None
        self._engine, self._seed = NativeEngine(speaker.model), seed

    def answer(self, text: str) -> Generator[str, None, None]:
        """Yield the answer to a text in chunks; closing the generator early keeps the answer so far.

        Raises:
            ValueError: the text cannot be tokenized, or is too long.
        """
        turn = sum(message["role"] == "user" for message in self.messages)
        prompt, prompt_ids, room = self._prompt({"role": "user", "content": text})
        sampling = replace(self.sampling, max_tokens=min(self.sampling.max_tokens, room))
        generator = streams.torch_generator(self._seed, "chat", turn)
        model = self.speaker.model
        ids: list[int] = []
        written = ""
        try:
            for new in self._engine.stream(prompt_ids, sampling, generator=generator):
                ids += new
                whole = decode(model.tokenizer, ids)
                if not whole.endswith(_UNFINISHED):
                    yield whole[len(written) :]
                    written = whole
            whole = decode(model.tokenizer, ids)
            yield whole[len(written) :]
            written = whole
        finally:
            self.messages.append({"role": "assistant", "content": written})
            self.last = Answer(prompt, prompt_ids, written, ids, not ids or ids[-1] not in model.stop)

    def _prompt(self, message: Message) -> tuple[Text, list[int], int]:
        """Return the prompt with a new message, its ids, and the tokens left.

        The oldest turns are dropped if they leave too little room for the answer: its maximum, or half of the context.
        """
        tokenizer = self.speaker.model.tokenizer
        limit = _most_tokens(self.speaker.model)
        room = min(self.sampling.max_tokens, limit // 2)
        kept = [*self.messages, message] if self.speaker.in_turns else [message]
        while True:
            prompt = kept if self.speaker.in_turns else message["content"]
            ids = encode_prompt(tokenizer, prompt)
            if len(ids) + room <= limit or len(kept) == 1:
                break
            kept = kept[2:]
        if len(ids) >= limit:
            raise ValueError(f"the prompt has {len(ids)} tokens, but the model accepts at most {limit}: shorten it")
        self.messages.append(message)
        return prompt, ids, limit - len(ids)


def score(reward_model: RewardModelFunction, answer: Answer, speaker: ChatModel) -> float | None:
    """Score an answer with a reward model; None if its tokenizer lacks a character of the answer.

    Args:
        reward_model: reward model.
        answer: answer to score.
        speaker: model that sampled the answer.

    Raises:
        ValueError: the reward model cannot tokenize the prompt, or its context is too short.
    """
    limit, length = _most_tokens(reward_model.scorer.model), len(answer.prompt_ids) + len(answer.ids)
    if length > limit:
        raise ValueError(f"prompt and answer have {length} tokens, but the reward model accepts at most {limit}")
    own = reward_model.for_tokenizer(speaker.model.tokenizer)
    ids, cut = [answer.prompt_ids], [answer.truncated]
    return own([answer.prompt], [answer.text], [answer.ids], prompt_ids=ids, truncated=cut)[0]


def _most_tokens(model: LanguageModel) -> int:
    """Return the maximum number of input tokens of a model."""
    return getattr(model.config, "max_position_embeddings", None) or 1 << 30


def find_chat_model(
    name: str,
    *,
    index: int = 0,
    device: str = "cpu",
    remote_code: bool = False,
    in_turns: bool | None = None,
    best: bool = False,
) -> ChatModel:
    """Load a model of a run, a folder or the Hugging Face Hub, or a built-in model.

    Args:
        name: folder or name.
        index: index of the seed in a run.
        device: device of the model.
        remote_code: whether to allow Python code that comes with the model.
        in_turns: whether to use the chat template. Default: whether the model was trained on conversations, if known;
            otherwise whether it has a template.
        best: whether to use the weights with the highest evaluation score instead of the latest ones.

    Raises:
        ValueError: there is no such model, `best` is given without a run, the model does not generate text, or
            `in_turns` is true and it has no chat template.
        RunError: the run is unreadable, or its model's code is not allowed.
    """
    if not name:
        raise ValueError("name a run or a model, got ''")
    path = Path(name).expanduser()
    example = ""
    if is_run(path):
        run = Run.open(path)
        seeds = run.settings.seeds
        if not 0 <= index < len(seeds):
            raise ValueError(f"the run has {len(seeds)} seeds, so the index must be below {len(seeds)}; got {index}")
        model = trained_model(run, seeds[index], device=device, remote_code=remote_code, best=best)
        trained_so, example = converses(run), _example(run)
    else:
        if best:
            raise ValueError(f"--best needs a run, got {name}; leave it out")
        if (is_path(name) or path.parts[0] == "runs") and not path.exists():
            raise ValueError(f"{name} contains neither a run nor a model")
        options = ModelOptions(model=str(path) if path.exists() else name, remote_code=remote_code)
        model = load(options, seed=0, device=device)
        trained_so = provenance(path).get("in_turns", name not in BUILT_IN and bool(model.tokenizer.chat_template))
    chosen = trained_so if in_turns is None else in_turns
    if chosen and not model.tokenizer.chat_template:
        raise ValueError(f"{name} has no chat template; use plain prompts")
    return ChatModel(model, chosen, example)


def trained_model(
    run: Run, seed: int, *, device: str = "cpu", remote_code: bool = False, best: bool = False
) -> LanguageModel:
    """Load the trained model of one seed of a run.

    Args:
        run: the run.
        seed: seed of the model.
        device: device of the model.
        remote_code: whether to allow Python code that comes with the model, if the run needs it.
        best: whether to use the weights with the highest evaluation score instead of the latest ones.

    Raises:
        RunError: the model's code is not allowed, or there are no best weights.
        ValueError: the run has no generative model, no checkpoint, or no such seed.
    """
    entry, seeds = run.entry, run.settings.seeds
    if entry.package != "language" or entry.family == "reward":
        raise ValueError(f"{run.path} is a run of {entry.name}, which trains no generative model: use another run")
    if seed not in seeds:
        raise ValueError(f"{run.path} has no seed {seed}; it has {', '.join(map(str, seeds))}")
    own = model_options(run)
    init = str(run.path / "best" if best else run.path)
    return load(ModelOptions(init=init, dtype=own.dtype, remote_code=remote_code), seed=seed, device=device)


def converses(run: Run) -> bool:
    """Return whether a run was trained on conversations, according to its samples or its data set."""
    samples = latest_samples(run)
    if samples:
        return not isinstance(samples[0]["prompt"], str)
    entry = run.entry
    config = run.config(entry.config_class)
    source = source_of(config, run.settings.task)
    if not source:
        return False
    try:
        _, row = next(read(source, split="train"))
    except (OSError, ValueError, StopIteration):
        return False
    return any(row.get(name) is not None and not isinstance(row[name], str) for name in _TEXTS)


def _example(run: Run) -> str:
    samples = latest_samples(run)
    return samples[0]["prompt"] if samples and isinstance(samples[0]["prompt"], str) else ""
