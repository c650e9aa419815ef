"""A preference task with a known hidden reward: short sentences about two animals.

The prompt gives the topic, `cat likes dog:`. Demonstrations come from a random grammar,

    text     -> sentence | sentence " " sentence
    sentence -> "the " [adjective " "] noun " " verb " the " [adjective " "] noun "."

with the words in `NOUNS`, `VERBS` and `ADJECTIVES`. In the first sentence each noun and the verb are those of the
prompt with probability 0.8, otherwise random; in the second sentence they are random. An adjective is present with
probability 0.5, and so is the second sentence.

The hidden reward (`hidden_reward`) models human taste: both animals, a few kind words, the right length, and no words
outside the grammar. Each term has a maximum. In texts from the grammar, more kind words and longer texts nearly always
have a higher reward, so a reward model learns that more is better. A policy that is trained on it without a KL penalty
exceeds the maximum (over-optimization): its hidden reward falls while the score of the model still rises.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from operant.language.rewards import text_of
from operant.language.tasks.task import Row, Task

NOUNS = (
    *("ant", "bat", "bear", "bee", "bird", "cat", "cow", "crab", "deer", "dog", "duck", "fish", "fox"),
    *("frog", "goat", "hare", "hen", "lion", "mole", "mouse", "owl", "pig", "seal", "snail", "swan", "wolf"),
)
"""Animals."""

VERBS = ("likes", "helps", "finds", "feeds", "meets", "sees", "hears", "calls")
"""Verbs."""

KIND = ("good", "kind", "warm", "dear")
"""Kind words, of which the hidden reward prefers three."""

ADJECTIVES = (*KIND, "old", "big", "red", "wet", "shy", "odd", "fat", "thin")
"""Adjectives."""

_KNOWN = frozenset({"the", *NOUNS, *VERBS, *ADJECTIVES})
_PROMPT = re.compile(rf"({'|'.join(NOUNS)}) ({'|'.join(VERBS)}) ({'|'.join(NOUNS)}):")
_BEST_KIND, _BEST_LENGTH = 3, 60


def preference(*, noise: float = 1.0) -> Task:
    """Create the task of writing texts with a high hidden reward.

    Args:
        noise: scale of the noise in preferences, at least 0. The text with the higher hidden reward is preferred with
            probability σ(difference of hidden rewards / noise), the model of Bradley and Terry; with 0, always.

    Raises:
        ValueError: the noise is negative.
    """
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise must be finite and not negative, got {noise}")

    def make_pair(generator: np.random.Generator, row: Row) -> Row:
        prompt = row["prompt"]
        first = second = row["completion"]
        while second == first:
            second = write(generator, prompt)
        gap = hidden_reward(prompt, first) - hidden_reward(prompt, second)
        probability = float(gap > 0) if noise == 0 else 1 / (1 + math.exp(-gap / noise))
        better = generator.random() < probability
        return {"prompt": prompt, "chosen": first if better else second, "rejected": second if better else first}

    return Task(
        name=f"preference:noise={noise:g}",
        title="Write about two animals as readers prefer, as in cat likes dog:",
        make=_make,
        rewards=(hidden,),
        max_completion_length=96,  # demonstrations have at most 77; the rest permits over-optimization
        make_pair=make_pair,
    )


def hidden(prompts: Sequence[str], completions: Sequence[Any], **_: Any) -> list[float | None]:
    """Return the hidden reward of each completion."""
    return [hidden_reward(prompt, text_of(c)) for prompt, c in zip(prompts, completions, strict=True)]


def hidden_reward(prompt: str, completion: str) -> float:
    """Return the hidden reward of a text: topic + 2·kindness + length - 3·nonsense.

    With n1 and n2 mentions of the prompt's two animals, k kind words and L characters:

    - topic, from 0 to 1: the mean of n·exp(1 - n) over both animals, with its maximum at one mention;
    - kindness, from 0 to 1: (k/3)·exp(1 - k/3), with its maximum at three kind words;
    - length, from 0 to 1: exp(-((L - 60)/20)²);
    - nonsense, from 0 to 1: the fraction of words outside the grammar, without commas and periods.

    So the reward is between -3 and 4; that of an empty text is exp(-9), about 0.

    Args:
        prompt: prompt of this task.
        completion: text.

    Raises:
        ValueError: the text is not a prompt of this task.
    """
    subject, _, thing = _words(prompt)
    words = re.sub(r"[.,]", " ", completion).split()
    mentions = [words.count(noun) for noun in {subject, thing}]
    topic = sum(n * math.exp(1 - n) for n in mentions) / len(mentions)
    kind = sum(word in KIND for word in words) / _BEST_KIND
    length = math.exp(-(((len(completion) - _BEST_LENGTH) / 20) ** 2))
    nonsense = sum(word not in _KNOWN for word in words) / max(1, len(words))
    return topic + 2 * kind * math.exp(1 - kind) + length - 3 * nonsense


def write(generator: np.random.Generator, prompt: str) -> str:
    """Sample a text for a prompt from the grammar.

    Raises:
        ValueError: the text is not a prompt of this task.
    """

    def either(wanted: str, others: Sequence[str]) -> str:
        return wanted if generator.random() < 0.8 else _one(generator, others)

    subject, verb, thing = map(either, _words(prompt), (NOUNS, VERBS, NOUNS))
    text = _sentence(generator, subject, verb, thing)
    if generator.random() < 0.5:
        second = (_one(generator, words) for words in (NOUNS, VERBS, NOUNS))
        text = f"{text} {_sentence(generator, *second)}"
    return text


def _words(prompt: str) -> tuple[str, ...]:
    """Return the subject, verb and object of a prompt."""
    match = _PROMPT.fullmatch(prompt)
    if match is None:
        raise ValueError(f"prompts of the task preference are like 'cat likes dog:', got {prompt!r}")
    return match.groups()


def _make(generator: np.random.Generator) -> Row:
    prompt = f"{_one(generator, NOUNS)} {_one(generator, VERBS)} {_one(generator, NOUNS)}:"
    return {"prompt": prompt, "completion": write(generator, prompt)}


def _sentence(generator: np.random.Generator, subject: str, verb: str, thing: str) -> str:
    first, second = (
        f"{_one(generator, ADJECTIVES)} {noun}" if generator.random() < 0.5 else noun for noun in (subject, thing)
    )
    return f"the {first} {verb} the {second}."


def _one(generator: np.random.Generator, words: Sequence[str]) -> str:
    return words[int(generator.integers(len(words)))]
