"""`operant chat` (extra: `language`)."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from operant.cli.answers import visible
from operant.cli.arguments import parse
from operant.cli.output import require_extra, say

if TYPE_CHECKING:
    from operant.language.chat import ChatModel, Conversation

LAYOUT = "\n\t"
"""Control characters allowed in answers."""


@dataclass(frozen=True)
class ChatOptions:
    """Chat with a language model: each line is a prompt, and the answer appears as it is sampled.

    Ctrl-C stops an answer, Ctrl-D ends. Without a terminal, prompts come from standard input, one per line.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|MODEL")]
    """Folder of a run or of a model in Hugging Face's format, or a name on its hub."""

    temperature: float = 1.0
    """Of the sampler: below 1 favors likely tokens; 0 takes the most probable ones."""

    max_tokens: int = 256
    """Longest answer, in tokens."""

    seed: int = 0
    """Of chance."""

    seed_index: int = 0
    """Which seed of a run answers: its index in the run, from 0."""

    best: tyro.conf.FlagCreatePairsOff[bool] = False
    """Use the weights of a run with the best evaluation in training, not the latest ones."""

    format: Literal["auto", "chat", "plain"] = "auto"
    """Whether a prompt is a turn in a conversation, with the model's chat template (chat), or a text to continue
    (plain). Auto: as in the run's training, else a conversation if the model has a template."""

    device: str = "auto"
    """Device: cpu, cuda, cuda:1, mps, or auto: a GPU if there is one."""

    remote_code: tyro.conf.FlagCreatePairsOff[bool] = False
    """Allow Python code of the model to run. It can do anything; only for authors you trust."""

    accept_changes: tyro.conf.FlagCreatePairsOff[bool] = False
    """Continue even if the initial model of a run has changed."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.seed < 0:
            raise ValueError(f"max_tokens must be at least 1 and seed at least 0, got {self.max_tokens}, {self.seed}")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be at least 0 and finite, got {self.temperature}")


def chat(arguments: list[str]) -> int:
    """Chat with a language model."""
    options = parse(ChatOptions, arguments, "chat")
    require_extra("language", "a language model", ["transformers", "tokenizers", "peft"])

    from operant import streams
    from operant.language.chat import Conversation, find_chat_model
    from operant.language.engines.protocol import Sampling
    from operant.language.inputs import MODEL
    from operant.runtime.machine import chosen_device
    from operant.runtime.run import Run

    folder = Path(options.model).expanduser()
    if (folder / "config.toml").exists():
        Run.open(folder).require_inputs(MODEL, accept=options.accept_changes)
    in_turns = {"auto": None, "chat": True, "plain": False}[options.format]
    speaker = find_chat_model(
        options.model,
        index=options.seed_index,
        device=chosen_device(options.device),
        remote_code=options.remote_code,
        in_turns=in_turns,
        best=options.best,
    )
    sampling = Sampling(options.max_tokens, options.temperature)
    conversation = Conversation(speaker, sampling, generator=streams.torch_generator(options.seed, "chat"))
    interactive = sys.stdin.isatty()
    if interactive:
        say(_greeting(speaker))
    return _talk(conversation, interactive)


def _greeting(speaker: "ChatModel") -> str:
    kind = "a turn of one conversation" if speaker.in_turns else "a separate prompt to continue"
    example = f", such as {visible(speaker.example)}" if speaker.example else ""
    return f"Each line is {kind}{example}. Ctrl-C stops an answer, Ctrl-D ends."


def _talk(conversation: "Conversation", interactive: bool) -> int:
    """Answer line by line; return 1 if a line could not be answered, which matters to scripts."""
    status = 0
    for line in _typed() if interactive else _piped():
        try:
            with contextlib.closing(conversation.answer(line)) as pieces:
                for piece in pieces:
                    print(visible(piece, keep=LAYOUT), end="", flush=True)
        except ValueError as error:
            say(f"operant: {error}")
            status = 0 if interactive else 1
            continue
        except KeyboardInterrupt:
            if not interactive:
                raise
        print(flush=True)
    return status


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
