"""Chat with language models in the folder of runs, with scores by a reward model.

A call contains everything that an answer depends on, and returns the part sampled after a short time. The page repeats
the call until the answer is complete, and cancels by not repeating it. A process that does not have the answer in
memory samples it again with the same random numbers.
"""

import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from operant.language.chat import ChatModel, Conversation, find_chat_model, score
from operant.language.engines.protocol import Sampling
from operant.language.inputs import MODEL
from operant.language.scoring import RewardModelFunction, load_scorer
from operant.runtime.run import Run
from operant.runtime.run_paths import is_run, location
from operant.runtime.weights import opened
from operant.web.folders import folder_of
from operant.web.models import FILES, LANGUAGE, algorithm_of
from operant.web.workers import NotFoundError

MOMENT = 0.2
"""Time of sampling per call, in seconds."""
MOST_TOKENS = 1024
"""Maximum number of tokens of an answer."""
MOST_CHARACTERS = 20_000
"""Maximum number of characters of a conversation with its prompt."""
MOST_SEED = 2**53 - 1
"""Maximum seed, the largest integer that JavaScript represents exactly."""
MOST_OPEN = 8
"""Number of answers in memory: those of two models to the latest prompts."""
MOST_MODELS = 2
"""Number of models in memory."""


class _Writing:
    """A partially sampled answer."""

    def __init__(self, speaker: ChatModel, conversation: Conversation, prompt: str) -> None:
        self.speaker, self.conversation = speaker, conversation
        self._pieces = conversation.answer(prompt)
        self.text, self.complete = "", False

    def write(self, seconds: float) -> None:
        """Sample for a limited time."""
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
    """Return the answer so far: `text`, `complete`, `tokens`, `truncated`, `reward`, and `in_turns` of the model.

    Args:
        runs: folder of runs.
        model: name of a run or saved model.
        prompt: the prompt.
        before: earlier turns, each `{"prompt", "answer"}`.
        temperature: temperature of sampling.
        top_p: probability mass of nucleus sampling.
        max_tokens: maximum number of tokens of the answer.
        seed: seed of the random numbers.
        seed_index: index of the seed in the run.
        reward_model: name of a run of a reward model that scores complete answers. Default: no score.

    Raises:
        NotFoundError: the model does not exist.
        ValueError: a value is out of range, or the prompt cannot be tokenized.
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
        try:
            writing.write(MOMENT)
        except BaseException:
            _open.pop(key, None)  # its iterator has ended, so that the answer would seem complete
            raise
    _open[key] = writing
    _open.move_to_end(key)
    _forget()
    last = writing.conversation.last if writing.complete else None
    return {
        "text": writing.text,
        "complete": writing.complete,
        "tokens": len(last.ids) if last else None,
        "truncated": last.truncated if last else None,
        "reward": score(_judge(judging, *_stamps(judging)), last, writing.speaker) if judging and last else None,
        "in_turns": writing.speaker.in_turns,
    }


def _forget() -> None:
    """Drop the oldest answers, and those of all but the two latest models, which would stay in memory."""
    while len(_open) > MOST_OPEN:
        _open.popitem(last=False)
    latest = list(dict.fromkeys(id(writing.speaker) for writing in reversed(_open.values())))[:MOST_MODELS]
    for key in [key for key, writing in _open.items() if id(writing.speaker) not in latest]:
        del _open[key]


def _sampling(temperature: float, top_p: float, max_tokens: int) -> Sampling:
    if not 1 <= max_tokens <= MOST_TOKENS:
        raise ValueError(f"max_tokens must be from 1 to {MOST_TOKENS}, got {max_tokens}")
    return Sampling(max_tokens, float(temperature), top_p=float(top_p))


def _check(prompt: str, before: Sequence[Mapping[str, str]], seed: int, seed_index: int) -> None:
    for name, value in (("seed", seed), ("seed_index", seed_index)):
        if not 0 <= value <= MOST_SEED:
            raise ValueError(f"{name} must be an integer from 0 to {MOST_SEED}, got {value}")
    if not all(turn.keys() >= set(_SIDES) for turn in before):
        raise ValueError("every earlier turn must have a prompt and an answer")
    texts = [prompt, *(turn[name] for turn in before for name in _SIDES)]
    if not prompt:
        raise ValueError("the prompt is empty")
    length = sum(map(len, texts))
    if length > MOST_CHARACTERS:
        raise ValueError(
            f"the conversation must have at most {MOST_CHARACTERS} characters, got {length}: start a new one"
        )


_SIDES = ("prompt", "answer")


def _messages(before: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    roles = (("user", "prompt"), ("assistant", "answer"))
    return [{"role": role, "content": turn[name]} for turn in before for role, name in roles]


def _model(runs: Path, name: str) -> Path:
    """Return the folder of a policy.

    Raises:
        NotFoundError: the name does not exist.
        ValueError: the run trained something else.
    """
    try:
        path = folder_of(runs, name)
    except NotFoundError:
        return folder_of(runs, name, FILES)
    entry = LANGUAGE.get(algorithm_of(path))
    if entry is None or entry.family == "reward":
        raise ValueError(f"{name} is a run of {algorithm_of(path)}, which does not train a language model")
    _require_own_code(path)
    return path


def _reward_run(runs: Path, name: str) -> Path:
    """Return the folder of a run of a reward model.

    Raises:
        NotFoundError: the name does not exist.
        ValueError: the run trained something else.
    """
    path = folder_of(runs, name)
    entry = LANGUAGE.get(algorithm_of(path))
    if entry is None or entry.family != "reward":
        raise ValueError(f"{name} is a run of {algorithm_of(path)}, which does not train a reward model")
    _require_own_code(path)
    return path


def _require_own_code(path: Path) -> None:
    """Check that a run and those that it started from, which are opened, too, have algorithms of operant.

    Raises:
        RunError: one of them cannot be read.
        ValueError: one of them has a custom algorithm, whose code would be imported, or started from itself.
    """
    seen: list[Path] = []
    run = Run.open(path)
    while True:
        entry = LANGUAGE.get(run.settings.algorithm)
        if entry is None:
            raise ValueError(
                f"{path.name} starts from {run.path}, a run of {run.settings.algorithm}, which is custom code or "
                "trains no language model, so the web app does not use it; on the command line, "
                f"`operant chat {location(path)}`"
            )
        seen.append(run.path)
        init = run.config(entry.config_class).init
        if not init:
            return
        run, _ = opened(init)
        if run.path in seen:
            raise ValueError(f"{path.name} starts from {run.path}, which starts from itself: correct its config.toml")


def _stamps(path: Path) -> tuple[int, ...]:
    """Return modification times of the weights of a run or model, which change while training continues."""
    found: list[int] = []
    for file in (path, path / "checkpoints"):
        try:
            found.append(file.stat().st_mtime_ns)
        except OSError:
            found.append(0)
    return tuple(found)


@lru_cache(maxsize=MOST_MODELS)
def _speaker(path: Path, index: int, *_: int) -> ChatModel:
    if is_run(path):
        Run.open(path).require_inputs(MODEL)
    return find_chat_model(str(path), index=index)


@lru_cache(maxsize=1)
def _judge(path: Path, *_: int) -> RewardModelFunction:
    Run.open(path).require_inputs(MODEL)
    return load_scorer(str(path))
