"""`operant chat` (extra: `language`)."""

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from operant.cli.answers import visible
from operant.cli.arguments import parse
from operant.cli.output import require_extra, say
from operant.runtime.run_paths import is_run

if TYPE_CHECKING:
    from operant.language.chat import ChatModel, Conversation
    from operant.language.scoring import RewardModelFunction

LAYOUT = "\n\t"
"""Control characters allowed in answers."""


@dataclass(frozen=True)
class ChatOptions:
    """Chat with one or two language models: each line is a prompt, and the answer is displayed while it is sampled.

    Ctrl-C stops an answer, Ctrl-D quits. Without a terminal, prompts are read from standard input, one per line.
    """

    models: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN|MODEL")]
    """Folder of a run, folder of a model in Hugging Face's format, or model name on the Hugging Face Hub. Two models
    answer the same prompts in separate conversations."""

    prompt: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT"), tyro.conf.UseAppendAction] = ()
    """Prompt to answer instead of typed lines. May be repeated."""

    reward_model: Annotated[str | None, tyro.conf.arg(metavar="RUN")] = None
    """Run of reward-model or process-reward-model that scores each answer; or a sequence classifier of transformers
    with one label: a folder, or a name on the Hugging Face Hub."""

    temperature: float = 1.0
    """Sampling temperature: below 1 favors likely tokens; 0 selects the most probable token."""

    top_p: float = 1.0
    """Nucleus sampling: sample from the smallest set of tokens with at least this total probability."""

    max_tokens: int = 256
    """Maximum length of an answer in tokens."""

    seed: int = 0
    """Random seed of the sampler."""

    seed_index: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = (0,)
    """Index of the seed of a run that answers, from 0. For two runs: one index for both, or one each."""

    best: tyro.conf.FlagCreatePairsOff[bool] = False
    """Use the weights with the best evaluation during training instead of the latest ones."""

    format: Literal["auto", "chat", "plain"] = "auto"
    """Format of prompts: turns of a conversation with the model's chat template (chat), or texts to continue (plain).
    auto: the format of the run's training; for other models chat if they have a template."""

    device: str = "auto"
    """Device: cpu, cuda, cuda:1, mps, or auto (a GPU if available)."""

    remote_code: tyro.conf.FlagCreatePairsOff[bool] = False
    """Allow Python code that comes with the model. The code is not restricted: only for authors you trust."""

    accept_changes: tyro.conf.FlagCreatePairsOff[bool] = False
    """Continue even if the initial model of a run has changed."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.models) <= 2:
            raise ValueError(f"give one or two runs or models, got {len(self.models)}")
        if len(self.seed_index) not in (1, len(self.models)):
            raise ValueError(f"--seed-index takes one index for each model, got {len(self.seed_index)}")
        if self.max_tokens < 1 or self.seed < 0:
            raise ValueError(f"max_tokens must be at least 1 and seed at least 0, got {self.max_tokens}, {self.seed}")
        if not 0 <= self.temperature < float("inf") or not 0 < self.top_p <= 1:
            raise ValueError(
                f"temperature must be at least 0 and finite, and top_p in (0, 1], got {self.temperature}, {self.top_p}"
            )


def chat(arguments: list[str]) -> int:
    """Chat with language models."""
    options = parse(ChatOptions, arguments, "chat")
    require_extra("language", "a language model", ["transformers", "tokenizers", "peft"])

    from operant.language.chat import Conversation
    from operant.language.engines.protocol import Sampling
    from operant.language.scoring import load_scorer
    from operant.runtime.machine import chosen_device

    device = str(chosen_device(options.device))
    indices = options.seed_index if len(options.seed_index) > 1 else options.seed_index * len(options.models)
    speakers = [_load_model(options, *pair, device) for pair in zip(options.models, indices, strict=True)]
    scorer = None
    if options.reward_model is not None:
        scorer = load_scorer(options.reward_model, device=device, remote_code=options.remote_code)
    sampling = Sampling(options.max_tokens, options.temperature, top_p=options.top_p)
    room = _Room([Conversation(speaker, sampling, seed=options.seed) for speaker in speakers], options.models, scorer)
    interactive = sys.stdin.isatty() and not options.prompt
    if interactive:
        say(_greeting(speakers[0]))
    lines = options.prompt or (_typed() if interactive else _piped())
    missed = [line for line in lines if not room.answer(line, interactive=interactive)]
    return 1 if missed and not interactive else 0


def _load_model(options: ChatOptions, name: str, index: int, device: str) -> "ChatModel":
    """Load a model to chat with."""
    from operant.language.chat import find_chat_model
    from operant.language.inputs import MODEL
    from operant.runtime.run import Run

    folder, best = Path(name).expanduser(), options.best
    if folder.name == "best" and is_run(folder.parent):
        name, folder, best = str(folder.parent), folder.parent, True
    if is_run(folder):
        Run.open(folder).require_inputs(MODEL, accept=options.accept_changes)
    in_turns = {"auto": None, "chat": True, "plain": False}[options.format]
    try:
        return find_chat_model(
            name, index=index, device=device, remote_code=options.remote_code, in_turns=in_turns, best=best
        )
    except ValueError as error:  # it names the flag of training
        raise ValueError(str(error).removeprefix("--model ")) from error


def _greeting(speaker: "ChatModel") -> str:
    prompt_kind = "a turn of one conversation" if speaker.in_turns else "a separate prompt to continue"
    example = f", such as {visible(speaker.example)}" if speaker.example else ""
    return f"Each line is {prompt_kind}{example}. Ctrl-C stops an answer, Ctrl-D quits."


@dataclass(frozen=True)
class _Room:
    """Conversations with the models, and the reward model that scores their answers."""

    conversations: "Sequence[Conversation]"
    names: Sequence[str]
    scorer: "RewardModelFunction | None"

    def answer(self, line: str, *, interactive: bool) -> bool:
        """Answer a prompt with every model, and return whether all succeeded."""
        answered = [
            self._one(conversation, f"[{name}] " if len(self.names) > 1 else "", line, interactive=interactive)
            for conversation, name in zip(self.conversations, self.names, strict=True)
        ]
        return all(answered)

    def _one(self, conversation: "Conversation", label: str, line: str, *, interactive: bool) -> bool:
        from operant.language.chat import score

        try:
            with contextlib.closing(conversation.answer(line)) as chunks:
                for position, chunk in enumerate(chunks):
                    print(("" if position else label) + visible(chunk, keep=LAYOUT), end="", flush=True)
        except ValueError as error:
            say(f"operant: {label}{error}")
            return False
        except KeyboardInterrupt:
            if not interactive:
                raise
            print(flush=True)
            return True
        print(flush=True)
        if self.scorer is None or conversation.last is None:
            return True
        try:
            reward = score(self.scorer, conversation.last, conversation.speaker)
        except ValueError as error:
            say(f"operant: {label}{error}")
            return False
        print(f"{label}reward: {'none' if reward is None else f'{reward:.6g}'}", flush=True)
        return True


def _piped() -> Iterator[str]:
    """Yield the non-empty lines of standard input."""
    for line in sys.stdin:
        if line.strip():
            yield line.rstrip("\r\n")


def _typed() -> Iterator[str]:
    """Yield typed lines until the end of input."""
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # enables line editing and history
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if line.strip():
            yield line
