"""Chat with language models of the folder of runs, and scores of their answers by a reward model.

A call names everything that an answer depends on, and gets as much of it as there is after a moment; a page asks again
until it is complete, and cancels by not asking. A process that has lost an answer samples it again, with the same
random numbers.
"""

import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from operant.language.chat import ChatModel, Conversation, find_chat_model, score
from operant.language.engines.protocol import Sampling
from operant.language.inputs import MODEL
from operant.language.scoring import RewardModelFunction, load_scorer
from operant.runtime.run import Run
from operant.web.folders import folder_of
from operant.web.models import FILES, LANGUAGE, algorithm_of
from operant.web.workers import NotFoundError

MOMENT = 0.2
"""Seconds of sampling of a call."""
MOST_TOKENS = 1024
"""Maximum tokens of an answer."""
MOST_CHARACTERS = 20_000
"""Maximum characters of a prompt with the conversation before it."""
MOST_OPEN = 8
"""Answers that are remembered: those of two models to the latest prompts."""


class _Writing:
    """An answer that is being written."""

    def __init__(self, speaker: ChatModel, conversation: Conversation, prompt: str) -> None:
        self.speaker, self.conversation = speaker, conversation
        self._pieces = conversation.answer(prompt)
        self.text, self.complete = "", False

    def write(self, seconds: float) -> None:
        """Sample for a while."""
        end = time.monotonic() + seconds
        for piece in self._pieces:
            self.text += piece
            if time.monotonic() >= end:
                return
        self.complete = True


_open: OrderedDict[str, _Writing] = OrderedDict()


def answer(  # noqa: PLR0917 - by name, from JSON
    runs: Path,
    model: str,
    prompt: str,
    before: list[dict[str, str]],
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_tokens: int = 256,
    seed: int = 0,
    seed_index: int = 0,
    reward_model: str = "",
) -> dict[str, Any]:
    """Return an answer so far: `text`, `complete`, `tokens`, `truncated`, `reward`, and `in_turns` of the model.

    Args:
        runs: the folder of runs.
        model: name of a run or of a saved model.
        prompt: to answer.
        before: earlier turns, `{"prompt", "answer"}` each.
        temperature: of the sampler.
        top_p: of the sampler.
        max_tokens: of the answer.
        seed: of the random numbers.
        seed_index: position of the seed in a run.
        reward_model: name of a run of a reward model, which scores the answer if it is complete; empty: none.

    Raises:
        NotFoundError: there is no such model.
        ValueError: a value is out of its range, or the prompt cannot be tokenized.
    """
    judging = _reward_run(runs, reward_model) if reward_model else None
    sampling = _sampling(temperature, top_p, max_tokens)
    _check(prompt, before, seed, seed_index)
    key = json.dumps([model, seed_index, prompt, before, temperature, top_p, max_tokens, seed])
    writing = _open.get(key)
    if writing is None:
        path = _model(runs, model)
        speaker = _speaker(path, seed_index, *_stamps(path))
        conversation = Conversation(speaker, sampling, seed=seed, messages=_messages(before))
        writing = _Writing(speaker, conversation, prompt)
    if not writing.complete:
        writing.write(MOMENT)  # what raises is not kept
    _open[key] = writing
    _open.move_to_end(key)
    while len(_open) > MOST_OPEN:
        _open.popitem(last=False)
    last = writing.conversation.last if writing.complete else None
    return {
        "text": writing.text,
        "complete": writing.complete,
        "tokens": len(last.ids) if last else None,
        "truncated": last.truncated if last else None,
        "reward": score(_judge(judging, *_stamps(judging)), last, writing.speaker) if judging and last else None,
        "in_turns": writing.speaker.in_turns,
    }


def _sampling(temperature: Any, top_p: Any, max_tokens: Any) -> Sampling:
    for name, value in (("temperature", temperature), ("top_p", top_p)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} must be a number, got {value!r}")
    if type(max_tokens) is not int or not 1 <= max_tokens <= MOST_TOKENS:
        raise ValueError(f"max_tokens must be from 1 to {MOST_TOKENS} in a page, got {max_tokens!r}")
    return Sampling(max_tokens, float(temperature), top_p=float(top_p))


def _check(prompt: Any, before: Any, seed: Any, seed_index: Any) -> None:
    for name, value in (("seed", seed), ("seed_index", seed_index)):
        if type(value) is not int or not 0 <= value < 1 << 53:
            raise ValueError(f"{name} must be a whole number of at least 0, got {value!r}")
    turns = cast(list[Any], before) if isinstance(before, list) else [None]
    sides: list[Mapping[str, Any]] = [
        cast(Mapping[str, Any], turn) if isinstance(turn, Mapping) else {} for turn in turns
    ]
    texts: list[Any] = [prompt, *(turn.get(name) for turn in sides for name in _SIDES)]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("the prompt, and prompt and answer of each turn before it, must be texts")
    if not prompt:
        raise ValueError("the prompt is empty: write something")
    length = sum(map(len, texts))
    if length > MOST_CHARACTERS:
        raise ValueError(
            f"the conversation has {length} characters, at most {MOST_CHARACTERS} in a page: begin another one"
        )


_SIDES = ("prompt", "answer")


def _messages(before: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    roles = (("user", "prompt"), ("assistant", "answer"))
    return [{"role": role, "content": turn[name]} for turn in before for role, name in roles]


def _model(runs: Path, name: str) -> Path:
    """Return the folder of a policy.

    Raises:
        NotFoundError: there is none of that name.
        ValueError: it is a run of something else.
    """
    try:
        path = folder_of(runs, name)
    except NotFoundError:
        return folder_of(runs, name, FILES)
    entry = LANGUAGE.get(algorithm_of(path))
    if entry is None or entry.family == "reward":
        raise ValueError(f"{name} is a run of {algorithm_of(path)}, which trains no policy that writes")
    return path


def _reward_run(runs: Path, name: str) -> Path:
    """Return the folder of a run of a reward model.

    Raises:
        NotFoundError: there is none of that name.
        ValueError: it is a run of something else.
    """
    path = folder_of(runs, name)
    entry = LANGUAGE.get(algorithm_of(path))
    if entry is None or entry.family != "reward":
        raise ValueError(f"{name} is a run of {algorithm_of(path)}, which trains no reward model")
    return path


def _stamps(path: Path) -> tuple[int, ...]:
    """Return when weights of a run or of a model were written: a training that continues has new ones."""
    found: list[int] = []
    for file in (path, path / "checkpoints"):
        try:
            found.append(file.stat().st_mtime_ns)
        except OSError:
            found.append(0)
    return tuple(found)


@lru_cache(maxsize=2)
def _speaker(path: Path, index: int, *_: int) -> ChatModel:
    if (path / "config.toml").exists():
        Run.open(path).require_inputs(MODEL)
    return find_chat_model(str(path), index=index)


@lru_cache(maxsize=1)
def _judge(path: Path, *_: int) -> RewardModelFunction:
    Run.open(path).require_inputs(MODEL)
    return load_scorer(str(path))
