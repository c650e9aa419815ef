"""Chat with trained models: `find_chat_model`, `Conversation`, `score`; and their export: `write_model`."""

import json
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
from operant.language.pretrained import PROVENANCE, fingerprint, is_adapter, provenance
from operant.language.runs import model_options
from operant.language.scoring import RewardModelFunction
from operant.language.sources import read
from operant.language.tokenizer import Message, Text, decode, encode_prompt
from operant.runtime.generations import latest_samples
from operant.runtime.run import Run

_TEXTS = ("prompt", "messages", "chosen")
_UNFINISHED = "\ufffd"
"""Decoding of an incomplete character."""


@dataclass(frozen=True)
class ChatModel:
    """A model to chat with.

    Attributes:
        model: generates answers.
        in_turns: whether it was trained on conversations (its chat template applies) or on plain prompts.
        example: a prompt of its training; empty if unknown.
    """

    model: LanguageModel
    in_turns: bool
    example: str = ""


class Answer(NamedTuple):
    """An answer, token by token.

    Attributes:
        prompt: what the model was given: a text, or the turns of the conversation that had room.
        prompt_ids: its tokens.
        text: the answer.
        ids: its tokens, including the end of sequence if it was sampled.
        truncated: whether it has no end of sequence.
    """

    prompt: Text
    prompt_ids: list[int]
    text: str
    ids: list[int]
    truncated: bool


class Conversation:
    """A conversation so far. The answer to the i-th text draws from the stream `(seed, "chat", i)`.

    Args:
        speaker: the model.
        sampling: of answers.
        seed: of the random numbers.
        messages: of both sides, so far.

    Attributes:
        messages: of both sides; the model sees earlier ones only if it chats in turns.
        last: the latest answer; None before the first one.
    """

    def __init__(self, speaker: ChatModel, sampling: Sampling, *, seed: int, messages: Sequence[Message] = ()):
        self.speaker, self.sampling, self.messages = speaker, sampling, list(messages)
        self.last: Answer | None = None
        self._engine, self._seed = NativeEngine(speaker.model), seed

    def answer(self, text: str) -> Generator[str, None, None]:
        """Yield the answer to a text piece by piece; closing early keeps the answer so far.

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
        """Add a message; return the model's input, without the oldest turns if need be, and the tokens left."""
        tokenizer = self.speaker.model.tokenizer
        limit = _most_tokens(self.speaker.model)
        kept = [*self.messages, message] if self.speaker.in_turns else [message]
        while True:
            prompt = kept if self.speaker.in_turns else message["content"]
            ids = encode_prompt(tokenizer, prompt)
            if len(ids) + self.sampling.max_tokens <= limit or len(kept) == 1:
                break
            kept = kept[2:]
        if len(ids) >= limit:
            raise ValueError(f"the prompt has {len(ids)} tokens, but the model takes {limit} at most; shorten it")
        self.messages.append(message)
        return prompt, ids, limit - len(ids)


def score(judge: RewardModelFunction, answer: Answer, speaker: ChatModel) -> float | None:
    """Return the score of an answer by a reward model.

    Args:
        judge: the reward model.
        answer: to score.
        speaker: who gave it.

    Raises:
        ValueError: the answer cannot be tokenized by the reward model, or is too long for it.
    """
    limit, length = _most_tokens(judge.scorer.model), len(answer.prompt_ids) + len(answer.ids)
    if length > limit:
        raise ValueError(f"prompt and answer have {length} tokens, but the reward model takes {limit} at most")
    own = judge.for_tokenizer(speaker.model.tokenizer)
    ids, cut = [answer.prompt_ids], [answer.truncated]
    return own([answer.prompt], [answer.text], [answer.ids], prompt_ids=ids, truncated=cut)[0]


def _most_tokens(model: LanguageModel) -> int:
    """Return the longest input of a model, in tokens."""
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
    """Return the model called `name`: of a run, of a folder, of the Hugging Face hub, or built-in.

    Args:
        name: a folder or a name.
        index: position of the seed in a run.
        device: of the model.
        remote_code: whether a model's own code may run.
        in_turns: whether to use the chat template. Default: whether the model was trained on conversations, if known;
            otherwise whether it has a template.
        best: whether to use the weights with the highest score in the run's evaluations, not the latest ones.

    Raises:
        ValueError: there is no such model, `best` is given without a run, the model generates nothing, or it needs a
            chat template and has none.
        RunError: the run is unreadable, or its model's code is not allowed.
    """
    if not name:
        raise ValueError("name a run or a model, got ''")
    path = Path(name).expanduser()
    example = ""
    if (path / "config.toml").exists():
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
            raise ValueError(f"there is neither a run nor a model in {name}")
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
    """Return the trained model of one seed of a run.

    Args:
        run: the run.
        seed: of the run.
        device: of the model.
        remote_code: whether the model's own code may run, if the run needs it.
        best: whether to use the weights with the highest score in its evaluations, not the latest ones.

    Raises:
        RunError: the model's code is not allowed, or there are no best weights.
        ValueError: the run has no generating model, no checkpoint yet, or no such seed.
    """
    entry, seeds = run.entry, run.settings.seeds
    if entry.package != "language" or entry.family == "reward":
        raise ValueError(f"{run.path} is a run of {entry.name}, which trains no generating model; name another run")
    if seed not in seeds:
        raise ValueError(f"{run.path} has no seed {seed}; it has {', '.join(map(str, seeds))}")
    own = model_options(run)
    init = str(run.path / "best" if best else run.path)
    return load(ModelOptions(init=init, dtype=own.dtype, remote_code=remote_code), seed=seed, device=device)


def converses(run: Run) -> bool:
    """Return whether a run was trained on conversations, from its samples or else its data set."""
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


def write_model(
    run: Run, folder: Path, *, seed: int, merge: bool = False, remote_code: bool = False, best: bool = False
) -> None:
    """Write a trained model in transformers' format, or only its adapter in peft's.

    Args:
        run: the run.
        folder: output folder; new or empty.
        seed: of the model.
        merge: whether to add an adapter to the weights and write the whole model.
        remote_code: as for `trained_model`.
        best: as for `trained_model`.

    Raises:
        RunError: as of `trained_model`.
        ValueError: as of `trained_model`; or the base model of an adapter is not in a folder of its own.
        OSError: writing fails.
    """
    model = trained_model(run, seed, remote_code=remote_code, best=best)
    own = model_options(run)
    adapted = hasattr(model.network, "peft_config")
    facts = {"run": run.path.name, "algorithm": run.settings.algorithm, "task": run.settings.task, "seed": seed}
    if adapted and not merge and (own.init or own.model in BUILT_IN or (own.lora_r and is_adapter(own.model))):
        raise ValueError(
            f"the adapter of {run.path} belongs to {own.init or own.model}, which is no folder or hub model to "
            "load; write the whole model with --merge"
        )
    if adapted and merge:
        model = LanguageModel(model.network.merge_and_unload(), model.tokenizer, stop=model.stop)
    elif adapted:
        facts["base_fingerprint"] = fingerprint(model.network)
        for adapter in model.network.peft_config.values():
            if Path(adapter.base_model_name_or_path).exists():
                adapter.base_model_name_or_path = str(Path(adapter.base_model_name_or_path).resolve())
    model.save(folder)
    facts |= {"best": True} if best else {}
    (folder / PROVENANCE).write_text(json.dumps(facts | {"in_turns": converses(run)}, indent=1) + "\n")


def _example(run: Run) -> str:
    samples = latest_samples(run)
    return samples[0]["prompt"] if samples and isinstance(samples[0]["prompt"], str) else ""
