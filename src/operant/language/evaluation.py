"""Evaluation of policies on held-out prompts, by greedy answers and by several sampled ones."""

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
from operant.language.rewards import RewardFunctions, Rewards
from operant.language.rollouts import Answers, ask, asked, compute_rewards
from operant.runtime.statistics import stratified_bootstrap
from operant.tensors import floats, integers

SHOWN = 16
"""Number of prompts per evaluation and seed whose answers are saved, for inspection and labeling."""
DRAWN = 2
"""Number of additional saved answers to each of these prompts, sampled at temperature 1."""


@dataclass(frozen=True)
class Sampled:
    """Statistics of k sampled answers to each of P prompts.

    Attributes:
        average: avg@k, the mean over prompts of the mean reward of their rewarded answers; NaN if no answer has a
            reward.
        interval: 95 % bootstrap interval of `average` over the prompts.
        passes: pass@k by k, the unbiased estimate of the probability that at least one of k answers is correct (its
            reward by the function `pass_reward` is at least 1), over prompts with at least k rewarded answers; NaN if
            there is none.
        samples: number of answers per prompt, n.
        missing: number of answers without a reward.
        pass_reward: name of the reward function that determines whether an answer is correct.
    """

    average: float
    interval: tuple[float, float]
    passes: dict[int, float]
    samples: int
    missing: int = 0
    pass_reward: str = ""


class Scored(NamedTuple):
    """Evaluation of one seed.

    Attributes:
        scores: score of each held-out example.
        samples: some answers, for inspection.
        metrics: other metrics, by name.
    """

    scores: list[float]
    samples: Sequence[dict[str, Any]] = ()
    metrics: Mapping[str, float] = MappingProxyType({})


def greedy(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    rewards: RewardFunctions,
    *,
    max_tokens: int,
    rows: int = ROWS,
    interrupted: Callable[[], bool] = lambda: False,
    trained_on: RewardFunctions | None = None,
    state: Mapping[str, float] | None = None,
    start: Start | None = None,
    tokens: int = 16_384,
    version: int | None = None,
) -> Scored:
    """Evaluate a policy by its greedy answers.

    Args:
        model: policy.
        prompts: held-out prompts.
        rewards: reward functions; an answer without a reward scores NaN.
        max_tokens: maximum number of tokens of an answer.
        rows: number of answers generated in parallel.
        interrupted: function called before every token; if it returns True, the evaluation stops.
        trained_on: training reward functions, if they differ from `rewards`, for additional metrics.
        state: trainer state of the reward functions. Default: `operant.language.rewards.START`.
        start: initial policy, to measure the KL divergence from it.
        tokens: maximum number of tokens per forward pass of that measurement.
        version: version of the policy's weights, to be saved with the answers; None: it has none.

    Raises:
        StoppedError: `interrupted` returned True.

    Returns:
        The reward of each prompt; answers to the first prompts, the greedy one (`temperature` 0) followed by sampled
        ones; and metrics.
    """
    engine, tokenizer = NativeEngine(model, rows=rows, interrupted=interrupted), model.tokenizer
    sampling = Sampling(max_tokens=max_tokens, temperature=0)
    answers = ask(engine, prompts, 1, sampling, tokenizer=tokenizer, generator=torch.Generator())
    judged = compute_rewards(rewards, answers, state)
    scores = floats(judged.total)
    sampling, generator = Sampling(max_tokens=max_tokens), streams.torch_generator(0, "shown answers")
    drawn = ask(engine, prompts[:SHOWN], DRAWN, sampling, tokenizer=tokenizer, generator=generator)
    others = compute_rewards(rewards, drawn, state)
    metrics = {} if trained_on is None else _rewarded(trained_on, answers, state)
    if start is not None:
        metrics |= start.kl(model, drawn.samples(), tokens=tokens)
    shown = [*_shown(answers, judged, 0.0)[:SHOWN], *_shown(drawn, others, 1.0)]
    return Scored(scores, shown if version is None else [{**one, "version": version} for one in shown], metrics)


def _rewarded(rewards: RewardFunctions, answers: Answers, state: Mapping[str, float] | None) -> dict[str, float]:
    """Return the mean training rewards of the greedy answers, in total and by function."""
    found = compute_rewards(rewards, answers, state)
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
    rewards: RewardFunctions,
    *,
    max_tokens: int,
    count: int,
    seed: int,
    rows: int = ROWS,
    decides: str = "",
    state: Mapping[str, float] | None = None,
) -> Sampled:
    """Evaluate a policy by `count` answers per prompt, sampled at temperature 1.

    Args:
        model: policy.
        prompts: held-out prompts.
        rewards: reward functions.
        max_tokens: maximum number of tokens of an answer.
        count: number of answers per prompt.
        seed: random seed of sampling.
        rows: number of answers generated in parallel.
        decides: name of the reward function that determines whether an answer is correct (reward at least 1); empty:
            the first one.
        state: trainer state of the reward functions. Default: `operant.language.rewards.START`.

    Raises:
        ValueError: there is no reward function with that name.
    """
    generator = streams.torch_generator(seed, "evaluation")
    engine, sampling = NativeEngine(model, rows=rows), Sampling(max_tokens=max_tokens)
    answers = ask(engine, prompts, count, sampling, tokenizer=model.tokenizer, generator=generator)
    judged = compute_rewards(rewards, answers, state)
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
        pass_reward=name,
    )


def deciding(name: str, names: Sequence[str]) -> str:
    """Return the name of the reward function that determines whether an answer is correct.

    Args:
        name: value of `pass_reward`; empty: the first function.
        names: names of the reward functions, at least one.

    Raises:
        ValueError: there is no reward function with that name.
    """
    if name and name not in names:
        raise ValueError(f"pass_reward is {name!r}, expected a reward function of the run: {', '.join(names)}")
    return name or names[0]


def _passes(rewards: Tensor) -> dict[int, float]:
    """Compute pass@k for every k from the rewards `[P, n]` of one function, NaN where missing."""
    count = rewards.shape[1]
    totals, found = (~rewards.isnan()).sum(1), dict[int, float]()
    for k in (k for k in (1, 2, 4, 8, 16, 32, 64) if k <= count):
        enough = [row[~row.isnan()] for row, total in zip(rewards, integers(totals), strict=True) if total >= k]
        chances = [ops.pass_at_k((row >= 1).sum(), total=len(row), k=k) for row in enough]
        found[k] = float(torch.stack(chances).mean()) if chances else math.nan
    return found
