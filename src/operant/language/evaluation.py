"""How good a policy is on held-out prompts: greedy answers, and many sampled ones."""

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

SHOWN = 16
"""Prompts of an evaluation of one seed whose answers are kept, to be looked at and labeled."""
DRAWN = 2
"""Answers to each of them that are drawn at temperature 1, beside the likeliest one."""


@dataclass(frozen=True)
class Sampled:
    """What k sampled answers to each of P prompts tell.

    Attributes:
        average: avg@k, the mean over prompts of the mean reward of their answers; answers without a reward are left
            out. NaN where no answer has one.
        interval: 95 % bootstrap interval of it over the prompts.
        passes: by k, the probability that at least one of k answers is right (reward 1 or more of the function that
            decides), estimated without bias over the prompts with k answers that it rewards; NaN where there is none.
        samples: answers per prompt, n.
        missing: answers without a reward, of all prompts.
        judge: name of the reward function that decides what is right.
    """

    average: float
    interval: tuple[float, float]
    passes: dict[int, float]
    samples: int
    missing: int = 0
    judge: str = ""


class Scored(NamedTuple):
    """How one seed was scored.

    Attributes:
        scores: of each held-out example.
        samples: answers to some of them, to be looked at.
        metrics: what else was measured, by name.
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
    """Score the likeliest answers.

    Args:
        model: answers.
        prompts: held-out ones.
        rewards: score; an answer without a reward, or whose reward has failed, scores NaN.
        max_tokens: longest answer.
        rows: answers that are written at once.
        interrupted: asked before every token; after true, the evaluation is given up.
        trained_on: rewards of training, where they are others: what they say of the likeliest answers is measured, too.
        start: measures how far the policy is from where it started.
        tokens: most tokens that go through the model at once for that.

    Raises:
        StoppedError: it was given up.

    Returns:
        The reward of each prompt; what was answered to the first few: the likeliest answer to each (`temperature` 0),
        then others that were drawn; and what was measured of these answers.
    """
    engine, tokenizer = NativeEngine(model, rows=rows, interrupted=interrupted), model.tokenizer
    sampling = Sampling(max_tokens=max_tokens, temperature=0)
    answers = ask(engine, prompts, 1, sampling, tokenizer=tokenizer, generator=torch.Generator())
    judged = judge(rewards, answers)
    scores = judged.total.tolist()
    sampling, generator = Sampling(max_tokens=max_tokens), streams.torch_generator(0, "shown answers")
    drawn = ask(engine, prompts[:SHOWN], DRAWN, sampling, tokenizer=tokenizer, generator=generator)
    others = judge(rewards, drawn)
    metrics = {} if trained_on is None else _rewarded(trained_on, answers)
    if start is not None:
        metrics |= start.kl(model, drawn.samples(), tokens=tokens)
    return Scored(scores, [*_shown(answers, judged, 0.0)[:SHOWN], *_shown(drawn, others, 1.0)], metrics)


def _rewarded(rewards: Judge, answers: Answers) -> dict[str, float]:
    """What the rewards of training say of the likeliest answers, on average: all together and each by itself."""
    found = judge(rewards, answers)
    means = dict(zip(found.names, found.table.nanmean(0).tolist(), strict=True))
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
            zip(answers.prompts, answers.texts, answers.completions, judged.total.tolist(), strict=True)
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
    """Score `count` answers to each prompt, drawn at temperature 1.

    Args:
        model: answers.
        prompts: held-out ones.
        rewards: score.
        max_tokens: longest answer.
        count: answers per prompt.
        seed: of chance.
        rows: answers that are written at once.
        decides: name of the reward function whose reward of 1 or more makes an answer right; empty: the first one.

    Raises:
        ValueError: there is no reward function of that name.
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
    """Return the name of the reward function that decides what is right.

    Args:
        name: the one that `pass_reward` asks for; empty: the first one.
        names: of the reward functions that there are, at least one.

    Raises:
        ValueError: there is no reward function of that name.
    """
    if name and name not in names:
        raise ValueError(f"pass_reward is {name!r}, expected one of the reward functions: {', '.join(names)}")
    return name or names[0]


def _passes(rewards: Tensor) -> dict[int, float]:
    """Return pass@k by k from the rewards `[P, n]` of one function, NaN where there is none."""
    count = rewards.shape[1]
    totals, found = (~rewards.isnan()).sum(1), dict[int, float]()
    for k in (k for k in (1, 2, 4, 8, 16, 32, 64) if k <= count):
        enough = [row[~row.isnan()] for row, total in zip(rewards, totals.tolist(), strict=True) if total >= k]
        chances = [ops.pass_at_k((row >= 1).sum(), total=len(row), k=k) for row in enough]
        found[k] = float(torch.stack(chances).mean()) if chances else math.nan
    return found
