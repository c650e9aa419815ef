r"""Reward models: scores of answers, learned from preferences between answers.

With the Bradley-Terry model, P(w ≻ l) = σ(r_w - r_l), the loss is -log σ(r_w - r_l) (Christiano et al. 2017,
arXiv:1706.03741, section 2.2.3; Ouyang et al. 2022, arXiv:2203.02155, equation 1), with a margin if the data have one
(Touvron et al. 2023, arXiv:2307.09288, equation 2). A linear head, which replaces the output layer, gives the score at
the last token of the answer. A ranking of K answers is trained as all its C(K, 2) pairs, of weight 1/C(K, 2) each, in
one batch; or as one Plackett-Luce likelihood.

With `supervision="process"` each step of an answer has a score at its last token, whose sigmoid is the probability that
the step is correct. The loss is the binary cross-entropy with the labels of the steps (Uesato et al. 2022,
arXiv:2211.14275; Lightman et al. 2023, arXiv:2305.20050).

What differs from the papers: the head is initialized to 0, so the first loss is log 2 for every model. It can use the
log-probabilities of the tokens of a step (`step_log_probs`), which indicate whether the step is correct if the language
model is good (Yuan et al. 2024, arXiv:2412.01981, use only these). Only differences of scores of the same prompt are
learned; the remaining constant is set at the end, so that scores of the training set have mean 0 (Huang et al. 2024,
arXiv:2403.17031, do so on demonstrations).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from operant import ops
from operant.language.configs import LanguageConfig
from operant.language.examples import Pair, Ranking, Stepwise
from operant.language.models import LanguageModel, ScalarHead
from operant.language.optimizer import OptimizerStep, backward
from operant.language.packing import Packed, Sample, group_batches, pack
from operant.language.rollouts import shuffled
from operant.language.scoring import Places, RewardModelFunction, Scorer, load_scorer, load_step_rewards, step_places
from operant.runtime.bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from operant.runtime.learner import Metrics
from operant.runtime.shards import Shards
from operant.state import DeclaredState
from operant.tensors import backpropagate, floats, integers, split

__all__ = [
    "PRESETS",
    "RewardModel",
    "RewardModelConfig",
    "RewardModelFunction",
    "Scorer",
    "load_scorer",
    "load_step_rewards",
]

PRESETS: dict[str, dict[str, Any]] = {}
"""There are no presets."""


@dataclass(frozen=True, kw_only=True)
class RewardModelConfig(LanguageConfig):
    """Hyperparameters."""

    learning_rate: PositiveFloat = 1e-4
    """Learning rate of AdamW (TRL: 1e-4)."""
    batch_size: PositiveInt = 32
    """Number of examples per optimizer step: pairs, rankings, or solutions with step labels."""
    supervision: Literal["outcome", "process"] = "outcome"
    """Score whole answers (outcome), or each of their steps (process)."""
    ranking_loss: Literal["pairs", "plackett-luce"] = "pairs"
    """Loss of a ranking of K answers: mean over its pairs, or Plackett-Luce likelihood of the order; equal for K =
    2."""
    centering_examples: NonNegativeInt = 256
    """Number of training answers whose mean score is shifted to 0 at the end; 0: no shift."""
    lm_coef: NonNegativeFloat = 0.0
    """Coefficient of an auxiliary language-modeling loss (nats per token) on correct steps, or on the best answer: a
    model that predicts the next token can compare the prediction with the text (Cobbe et al. 2021, arXiv:2110.14168,
    section 4.2: 1). It also trains the output layer."""
    step_log_probs: bool = False
    """Use the lowest log-probability in the step, and up to its end, as additional inputs of the head: a small model
    that has computed the next token has no layer left to compare it with the text. Needs process supervision and
    `lm_coef`, which trains the model to write correct steps."""
    step_separator: str = "\n"
    """Separator between steps (same as TRL's)."""
    steps_finished: bool = True
    """Append EOS to the last step; false for data that stop at the first mistake."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if self.step_log_probs and (self.supervision != "process" or not self.lm_coef):
            raise ValueError(
                "step_log_probs needs supervision=process and an lm_coef above 0, got "
                f"supervision={self.supervision} and lm_coef={self.lm_coef:g}: set lm_coef=1, or step_log_probs=False"
            )
        if not self.step_separator:
            raise ValueError("step_separator must not be empty; use a line break, for example")


class Example(NamedTuple):
    """A training example: K answers to a prompt, or one answer with K steps.

    Attributes:
        samples: answers.
        ends: indices of the scored tokens in the completion of each answer, K in all.
        labels: label of each score: rank of an answer, lower is better, or correctness of a step in [0, 1].
        margin: minimum difference of the scores of a pair.
        imitated: for each answer a mask of the tokens for the language-modeling loss: correct steps, or the best
            answer.
    """

    samples: list[Sample]
    ends: list[list[int]]
    labels: list[float]
    margin: float
    imitated: list[list[bool]]


def example(row: Pair | Ranking | Stepwise) -> Example:
    """Convert a pair, a ranking or a solution with step labels to a training example."""
    if isinstance(row, Stepwise):
        completion = [token for step in row.steps for token in step]
        ends = [sum(map(len, row.steps[: k + 1])) - 1 for k in range(len(row.steps))]
        right = [label > 0.5 for step, label in zip(row.steps, row.labels, strict=True) for _ in step]
        return Example([Sample(row.prompt, completion)], [ends], row.labels, 0.0, [right])
    if isinstance(row, Pair):
        completions, ranks, margin = [row.chosen, row.rejected], [1.0, 2.0], row.margin
    else:
        completions, ranks, margin = row.completions, row.ranks, 0.0
    best = [[rank == min(ranks)] * len(c) for c, rank in zip(completions, ranks, strict=True)]
    samples = [Sample(row.prompt, c) for c in completions]
    return Example(samples, [[len(c) - 1] for c in completions], ranks, margin, best)


class Pairs(NamedTuple):
    """All C pairs of answers with different ranks in some examples.

    Attributes:
        better, worse: indices of the scores of both sides, `[C]`.
        weights: one over the number of pairs of the example, `[C]`.
        margins: minimum differences, `[C]`.
        owner: index of the example, `[C]`.
    """

    better: Tensor
    worse: Tensor
    weights: Tensor
    margins: Tensor
    owner: Tensor


def pairs_of(examples: Sequence[Example], device: torch.device) -> Pairs:
    """Return the pairs of some examples, without ties."""
    found: list[tuple[int, int, float, float, int]] = []
    start = 0
    for index, e in enumerate(examples):
        ranks, margin = e.labels, e.margin
        own = [(i, j) for i, j in permutations(range(len(ranks)), 2) if ranks[i] < ranks[j]]
        found += [(start + i, start + j, 1 / len(own), margin, index) for i, j in own]
        start += len(ranks)
    better, worse, weights, margins, owner = zip(*found, strict=True)
    index = [torch.tensor(column, dtype=torch.int64, device=device) for column in (better, worse, owner)]
    number = [torch.tensor(column, dtype=torch.float32, device=device) for column in (weights, margins)]
    return Pairs(index[0], index[1], number[0], number[1], index[2])


def _paired(scores: Tensor, examples: Sequence[Example], pairs: Pairs) -> Tensor:
    losses = ops.bradley_terry(scores[pairs.better], scores[pairs.worse], margin=pairs.margins)
    return ops.segment_sum(pairs.weights * losses, pairs.owner, len(examples))


def _ranked(scores: Tensor, examples: Sequence[Example], _: Pairs) -> Tensor:
    parts = split(scores, [len(e.labels) for e in examples])
    orders = [torch.tensor(e.labels, device=scores.device).argsort() for e in examples]
    return torch.stack([ops.plackett_luce(part, order) for part, order in zip(parts, orders, strict=True)])


LOSSES: Mapping[str, Callable[[Tensor, Sequence[Example], Pairs], Tensor]] = {
    "pairs": _paired,
    "plackett-luce": _ranked,
}
"""Ranking losses by name: functions from scores, examples and their pairs to the loss of each example, `[B]`."""


class ScoredBatch(NamedTuple):
    """Losses and accuracies of the scores of B examples.

    Attributes:
        losses: loss of each example, summed over its steps, `[B]`.
        right: fraction of correct pairs, or number of correct steps, `[B]`; equal scores count half.
        margins: mean score difference of the pairs of each example, `[B]`; 0 for steps.
    """

    losses: Tensor
    right: Tensor
    margins: Tensor


class RewardModel(DeclaredState):
    """Learner of reward models.

    Args:
        config: hyperparameters.
        model: model to train; its output layer is neither used nor trained.
        rows: training set: pairs or rankings; solutions with step labels for process supervision.
        seed: random seed of the order of the examples.
        budget: number of training examples, including repetitions.
        head: initial head; None: a head with scores 0.
        shards: shards of each optimizer step. Default: one.

    Attributes:
        consumed: number of examples used so far.
        model: model.
        scorer: model with head.

    Raises:
        ValueError: an example is incompatible with the supervision or the loss.
    """

    STATE = ("model", "head", ("optimizer", "stepper"), "consumed")

    def __init__(
        self,
        config: RewardModelConfig,
        model: LanguageModel,
        rows: Sequence[Pair | Ranking | Stepwise],
        *,
        seed: int,
        budget: int,
        head: ScalarHead | None = None,
        shards: Shards | None = None,
    ):
        self.shards = shards or Shards()
        self.config, self.model, self.seed, self.budget = config, model, seed, budget
        self.process = config.supervision == "process"
        self.examples = self.prepared(rows)
        if head is None:
            head = ScalarHead(model.width, model.device, features=2 if config.step_log_probs else 0)
        self.scorer = Scorer(model, head)
        learned = dict(self.scorer.head.named_parameters())
        if not self.process:
            del learned["bias"]  # comparisons do not depend on it, and Adam would amplify rounding errors
        body = model.trained() if config.lm_coef else self.scorer.body()
        self.stepper = OptimizerStep(body | {f"head.{name}": value for name, value in learned.items()}, config)
        self.consumed = 0

    def prepared(self, rows: Sequence[Pair | Ranking | Stepwise]) -> list[Example]:
        """Convert and validate training examples.

        Raises:
            ValueError: an example is incompatible with the supervision or the loss.
        """
        for number, row in enumerate(rows, 1):
            if isinstance(row, Stepwise) != self.process:
                raise ValueError(
                    f"row {number} is a {type(row).__name__}, but supervision={self.config.supervision} needs "
                    f"{'solutions with step labels' if self.process else 'pairs and rankings'}: use other data, or "
                    f"set supervision={'outcome' if self.process else 'process'}"
                )
        examples = [example(row) for row in rows]
        if self.config.ranking_loss == "plackett-luce" and not self.process:
            for number, one in enumerate(examples, 1):
                ranks, margin = one.labels, one.margin
                if len(set(ranks)) < len(ranks) or margin:
                    what = "a margin" if margin else f"ties (ranks {ranks})"
                    raise ValueError(
                        f"row {number} has {what}, which the Plackett-Luce likelihood does not support: set "
                        "ranking_loss=pairs"
                    )
        return examples

    def iterate(self) -> Metrics:
        """Take one optimizer step on the next examples; after the last one, center the scores."""
        count = min(self.config.batch_size, len(self.examples))
        order = shuffled(len(self.examples), self.consumed, count, seed=self.seed)
        metrics = self.update([self.examples[i] for i in order])
        self.consumed += count
        if self.consumed >= self.budget and not self.process:
            self.center()
        return metrics

    def update(self, batch: Sequence[Example]) -> dict[str, Any]:
        """Take one optimizer step on a batch, accumulating gradients over micro-batches."""
        total, imitated = self._units(batch), max(1, sum(sum(mask) for e in batch for mask in e.imitated))

        def differentiate(part: Sequence[Example]) -> tuple[Tensor, ...]:
            if self.config.lm_coef:
                found, nats = self._imitated(part)
            else:
                found, nats = self.scorer.read(*self._packed(part)), torch.zeros(())
            fitted = self._fit(found, part)
            backpropagate(fitted.losses.sum() / total + self.config.lm_coef * nats / imitated)
            return found.detach(), nats.detach().cpu() / imitated, *(field.detach() for field in fitted)

        records = backward([self.stepper], self._parts(batch), differentiate, self.shards)
        scores, shares, *reports = zip(*records, strict=True)
        imitation = sum(shares, torch.zeros(()))
        norm, skipped = self.stepper.step(self.consumed / self.budget)
        every = torch.cat(scores)
        losses, right, margins = map(torch.cat, reports)
        metrics = {
            "losses/reward": losses.sum() / total,
            "losses/gradient_norm": norm,
            "accuracy": right.sum() / total,
            "min_reward": every.min(),
            "mean_reward": every.mean(),
            "max_reward": every.max(),
            "num_tokens": float(sum(len(s.completion) for e in batch for s in e.samples)),
            "health/updates": 1.0,
            "health/skipped_updates": skipped,
        }
        if self.config.lm_coef:
            metrics["losses/lm"] = imitation
        return metrics if self.process else metrics | {"margin": margins.mean()}

    def score(self, batch: Sequence[Example]) -> tuple[Tensor, ScoredBatch]:
        """Compute the scores `[p]` of a micro-batch, with gradients, and their losses and accuracies."""
        scores = self.scorer.read(*self._packed(batch))
        return scores, self._fit(scores, batch)

    def _imitated(self, batch: Sequence[Example]) -> tuple[Tensor, Tensor]:
        """Compute the scores `[p]` of a micro-batch and its language-modeling loss in one forward pass."""
        packed, where = self._packed(batch)
        hidden = self.model.read(packed)
        rows = zip((row for e in batch for row in e.imitated), integers(packed.lengths), strict=True)
        mask = torch.tensor([m for row, trained in rows for m in row[-trained:]], device=hidden.device)
        log_probs, _ = self.model.token_log_probs(hidden.index_select(0, packed.before[mask]), packed.targets[mask])
        return self.scorer.score(hidden, packed, where), -log_probs.sum()

    def _fit(self, scores: Tensor, batch: Sequence[Example]) -> ScoredBatch:
        """Compute the losses and accuracies of the scores `[p]` of a micro-batch."""
        if self.process:
            labels = torch.tensor([label for e in batch for label in e.labels], device=scores.device)
            owner = torch.arange(len(batch)).repeat_interleave(torch.tensor([len(e.labels) for e in batch]))
            owner = owner.to(scores.device)
            losses = binary_cross_entropy_with_logits(scores, labels, reduction="none")
            right = (2 * labels - 1).sign() * scores.detach().sign()
            sums = [ops.segment_sum(values, owner, len(batch)) for values in (losses, (1 + right) / 2)]
            return ScoredBatch(sums[0], sums[1], torch.zeros_like(sums[1]))
        pairs = pairs_of(batch, scores.device)
        gaps = (scores[pairs.better] - scores[pairs.worse]).detach()
        right, margins = (
            ops.segment_sum(pairs.weights * values, pairs.owner, len(batch)) for values in ((1 + gaps.sign()) / 2, gaps)
        )
        return ScoredBatch(LOSSES[self.config.ranking_loss](scores, batch, pairs), right, margins)

    @torch.no_grad()
    def accuracies(self, rows: Sequence[Pair | Ranking | Stepwise]) -> list[float]:
        """Return the fraction of correct pairs, or steps, of each example; equal scores count half."""
        examples = self.prepared(rows)
        right = floats(torch.cat([self.score(part)[1].right for part in self._parts(examples)]))
        return [share / self._units([e]) for share, e in zip(right, examples, strict=True)]

    def center(self) -> None:
        """Shift the scores to mean 0 over answers of the training set."""
        self.scorer.head.bias.data.copy_(self._shifted_bias())

    def centered_bias(self) -> Tensor:
        """Return the bias of the head, a scalar; during training the one that would center the scores."""
        finished = self.process or self.consumed >= self.budget
        return self.scorer.head.bias.detach() if finished else self._shifted_bias()

    def _shifted_bias(self) -> Tensor:
        """Return the bias of the head with which the scores have mean 0 over answers of the training set."""
        bias = self.scorer.head.bias.detach()
        samples = [sample for e in self.examples[: self.config.centering_examples] for sample in e.samples][
            : self.config.centering_examples
        ]
        if not samples:
            return bias
        return bias - self.scorer.scores(samples, tokens=self.config.micro_batch_tokens).mean()

    def _units(self, examples: Sequence[Example]) -> int:
        """Return the denominator of a mean: the number of examples, or of steps."""
        return sum(len(e.labels) for e in examples) if self.process else len(examples)

    def _parts(self, batch: Sequence[Example]) -> list[list[Example]]:
        size = {"tokens": self.config.micro_batch_tokens, "shards": self.shards.count}
        parts = group_batches([e.samples for e in batch], **size)
        return [[batch[i] for i in part] for part in parts]

    def _packed(self, batch: Sequence[Example]) -> tuple[Packed, Places]:
        samples = [sample for e in batch for sample in e.samples]
        packed = pack(samples, device=self.model.device)
        return packed, step_places(packed, samples, [row for e in batch for row in e.ends])

    @property
    def head(self) -> dict[str, Tensor]:
        """The parameters of the head, by name."""
        return {name: value.detach() for name, value in self.scorer.head.named_parameters()}
