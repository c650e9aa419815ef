"""Evaluation of policies on held-out prompts: greedy answers, and many sampled ones."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from operant import ops, streams
from operant.language.divergence import Start
from operant.language.engines.native import ROWS, NativeEngine
from operant.language.engines.protocol import Sampling
from operant.language.examples import Prompt
from operant.language.models import LanguageModel
from operant.language.rewards import Rewards
from operant.language.rollouts import Answers, Judge, ask, asked, judge
from operant.runtime.statistics import stratified_bootstrap
from operant.tensors import floats, integers

SHOWN = 16
"""Prompts in an evaluation of one seed whose answers are saved, for inspection and labels."""
DRAWN = 2
"""Additional answers to each of them, sampled at temperature 1."""


@dataclass(frozen=True)
class Sampled:
    """Statistics of k sampled answers to each of P prompts.

    Attributes:
        average: avg@k, the mean over prompts of the mean reward of their answers, without unrewarded ones. NaN if no
            answer has a reward.
        interval: 95 % bootstrap interval of it over the prompts.
        passes: by k, the probability that at least one of k answers is correct (reward 1 or more of the deciding
            function), estimated without bias over the prompts with k rewarded answers; NaN if there is none.
        samples: answers per prompt, n.
        missing: unrewarded answers, of all prompts.
        judge: name of the reward function that decides whether an answer is correct.
    """

    average: float
    interval: tuple[float, float]
    passes: dict[int, float]
    samples: int
    missing: int = 0
    judge: str = ""


class Scored(NamedTuple):
    """Evaluation of one seed.

    Attributes:
        scores: of each held-out example.
        samples: some of the answers, for inspection.
        metrics: other metrics, by name.
    """

    scores: list[float]
    samples: Sequence[dict[str, Any]] = ()
    metrics: Mapping[str, float] = MappingProxyType({})


def greedy(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    rewards: Judge,
    *,
    max_tokens: int,
    rows: int = ROWS,
    interrupted: Callable[[], bool] = lambda: False,
    trained_on: Judge | None = None,
    start: Start | None = None,
    tokens: int = 16_384,
) -> Scored:
    """Score the greedy answers.

    Args:
        model: the policy.
        prompts: held-out ones.
        rewards: reward functions; an answer without a reward, or with a failed one, scores NaN.
        max_tokens: longest answer.
        rows: answers generated in parallel.
        interrupted: polled before every token; if it returns true, the evaluation stops.
        trained_on: reward functions of training, if others: their rewards of the greedy answers are metrics, too.
        start: measures the KL divergence from the initial policy.
        tokens: maximum tokens per forward pass for that.

    Raises:
        StoppedError: it was interrupted.

    Returns:
        The reward of each prompt; the answers to the first few: the greedy answer to each (`temperature` 0), then
        sampled ones; and metrics of these answers.
    """
    engine, tokenizer = NativeEngine(model, rows=rows, interrupted=interrupted), model.tokenizer
    sampling = Sampling(max_tokens=max_tokens, temperature=0)
    answers = ask(engine, prompts, 1, sampling, tokenizer=tokenizer, generator=torch.Generator())
    judged = judge(rewards, answers)
    scores = floats(judged.total)
    sampling, generator = Sampling(max_tokens=max_tokens), streams.torch_generator(0, "shown answers")
    drawn = ask(engine, prompts[:SHOWN], DRAWN, sampling, tokenizer=tokenizer, generator=generator)
    others = judge(rewards, drawn)
    metrics = {} if trained_on is None else _rewarded(trained_on, answers)
    if start is not None:
        metrics |= start.kl(model, drawn.samples(), tokens=tokens)
    return Scored(scores, [*_shown(answers, judged, 0.0)[:SHOWN], *_shown(drawn, others, 1.0)], metrics)


def _rewarded(rewards: Judge, answers: Answers) -> dict[str, float]:
    """Mean rewards of training of the greedy answers: in total and by function."""
    found = judge(rewards, answers)
    means = dict(zip(found.names, floats(found.table.nanmean(0)), strict=True))
    own = {f"eval/rewards/{name}/mean": mean for name, mean in means.items()}
    return {"eval/reward": float(found.total.nanmean()), **own}


def _shown(answers: Answers, judged: Rewards, temperature: float) -> list[dict[str, Any]]:
    """Return answers as records of `eval/samples.jsonl`."""
    return [
        {
            **{name: values[place] for name, values in judged.extra.items()},
            "prompt": asked(prompt.row),
            "completion": text,
            "reward": None if math.isnan(score) else score,
            "truncated": completion.truncated,
            "temperature": temperature,
        }
        for place, (prompt, text, completion, score) in enumerate(
            zip(answers.prompts, answers.texts, answers.completions, floats(judged.total), strict=True)
        )
    ]


def sampled(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    rewards: Judge,
    *,
    max_tokens: int,
    count: int,
    seed: int,
    rows: int = ROWS,
    decides: str = "",
) -> Sampled:
    """Score `count` answers to each prompt, sampled at temperature 1.

    Args:
        model: the policy.
        prompts: held-out ones.
        rewards: reward functions.
        max_tokens: longest answer.
        count: answers per prompt.
        seed: of sampling.
        rows: answers generated in parallel.
        decides: name of the reward function whose reward of 1 or more makes an answer correct; empty: the first one.

    Raises:
        ValueError: there is no reward function with that name.
    """
    generator = streams.torch_generator(seed, "evaluation")
    engine, sampling = NativeEngine(model, rows=rows), Sampling(max_tokens=max_tokens)
    answers = ask(engine, prompts, count, sampling, tokenizer=model.tokenizer, generator=generator)
    judged = judge(rewards, answers)
    name = deciding(decides, judged.names)
    means = judged.total.view(-1, count).double().nanmean(1)
    means = means[~means.isnan()]
    nothing = (math.nan, math.nan)
    return Sampled(
        average=float(means.mean()),
        interval=stratified_bootstrap(means.numpy(), lambda d: d.mean(-1)) if len(means) else nothing,
        passes=_passes(judged.table[:, judged.names.index(name)].view(-1, count)),
        samples=count,
        missing=int((~judged.valid).sum()),
        judge=name,
    )


def deciding(name: str, names: Sequence[str]) -> str:
    """Return the name of the reward function that decides whether an answer is correct.

    Args:
        name: value of `pass_reward`; empty: the first one.
        names: of the reward functions, at least one.

    Raises:
        ValueError: there is no reward function with that name.
    """
    if name and name not in names:
        raise ValueError(f"pass_reward is {name!r}, expected one of the reward functions: {', '.join(names)}")
    return name or names[0]


def _passes(rewards: Tensor) -> dict[int, float]:
    """Return pass@k by k from the rewards `[P, n]` of one function, NaN if there is none."""
    count = rewards.shape[1]
    totals, found = (~rewards.isnan()).sum(1), dict[int, float]()
    for k in (k for k in (1, 2, 4, 8, 16, 32, 64) if k <= count):
        enough = [row[~row.isnan()] for row, total in zip(rewards, integers(totals), strict=True) if total >= k]
        chances = [ops.pass_at_k((row >= 1).sum(), total=len(row), k=k) for row in enough]
        found[k] = float(torch.stack(chances).mean()) if chances else math.nan
    return found
