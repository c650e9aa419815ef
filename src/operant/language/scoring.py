"""Inference with trained reward models: `Scorer`, `load_scorer`, `load_step_rewards`.

A score is the output of a linear head on the hidden state of a token: the last token of an answer (EOS) for outcome
supervision, the last token of each step for process supervision, for which the head may also use the log-probabilities
of the step's tokens. Scores are computed from the sampled tokens; answers are tokenized again only if the policy has
another tokenizer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from operant.language.classifiers import Classifier, load_classifier
from operant.language.configs import ModelOptions
from operant.language.context import Context
from operant.language.encoding import UnknownCharacterError
from operant.language.engines.protocol import Completion
from operant.language.examples import Prompt
from operant.language.huggingface import Tokenizer, is_path
from operant.language.model_files import is_run
from operant.language.models import LanguageModel, ScalarHead
from operant.language.packing import Packed, Sample, micro_batches, pack, take
from operant.language.process_rewards import StepRewards, Steps, last_tokens, table
from operant.language.processes import loaded, placed
from operant.language.rewards import text_of
from operant.language.runs import trained_state
from operant.language.sources import TEMPLATE
from operant.language.templates import inputs_of
from operant.language.tokenizer import decode, encode_pair, encode_prompt
from operant.runtime.weights import opened
from operant.state import State, copy_named
from operant.tensors import floats, integers, split

TOKENS = 16_384
"""Default maximum number of tokens per forward pass."""


class Places(NamedTuple):
    """The steps of a batch of B answers; for outcome supervision each answer is one step.

    Attributes:
        ends: index of the last token of each step in the batch, `[p]`.
        lengths: number of predicted tokens of each step, `[p]`.
        steps: number of steps of each answer, `[B]`.
    """

    ends: Tensor
    lengths: Tensor
    steps: Sequence[int]


class Scorer:
    """A language model with a scalar head that scores answers.

    Args:
        model: model that computes the hidden states; its output layer is used only for features of the head.
        head: scalar head on the hidden states. Default: a head with scores 0.

    Attributes:
        model: model.
        head: scalar head.
    """

    def __init__(self, model: LanguageModel, head: ScalarHead | None = None):
        self.model = model
        self.head = ScalarHead(model.width, model.device) if head is None else head

    def read(self, batch: Packed, places: Places) -> Tensor:
        """Compute the scores `[p]` of the steps of a batch, with gradients."""
        return self.score(self.model.read(batch), batch, places)

    def score(self, hidden: Tensor, batch: Packed, places: Places) -> Tensor:
        """Compute the scores `[p]` of the steps of a batch from its hidden states `[n, H]`."""
        ends = hidden.index_select(0, places.ends)
        if self.head.features is None:
            return self.head(ends)
        with torch.no_grad():  # no gradient, so that the model is not trained to make wrong steps improbable
            log_probs, _ = self.model.token_log_probs(hidden.index_select(0, batch.before), batch.targets)
        return self.head(ends, lowest_log_probs(log_probs, places))

    @torch.no_grad()
    def scores(self, samples: Sequence[Sample], *, tokens: int = TOKENS) -> Tensor:
        """Compute the score of each answer at its last token, `[B]`.

        Args:
            samples: prompts with answers.
            tokens: maximum number of tokens per forward pass.
        """
        found: list[Tensor] = []
        for part in micro_batches(samples, tokens=tokens):
            packed = pack(take(samples, part), device=self.model.device)
            found.append(self.read(packed, Places(packed.last, packed.lengths, [1] * len(part))))
        return torch.cat(found)

    @torch.no_grad()
    def step_scores(
        self, samples: Sequence[Sample], ends: Sequence[Sequence[int]], *, tokens: int = TOKENS
    ) -> list[Tensor]:
        """Compute the scores of the steps of each answer, `[K]` each.

        Args:
            samples: prompts with answers.
            ends: index of the last token of each step in the completion, for each answer.
            tokens: maximum number of tokens per forward pass.
        """
        found: list[Tensor] = []
        for part in micro_batches(samples, tokens=tokens):
            chosen, own = take(samples, part), [ends[i] for i in part]
            packed = pack(chosen, device=self.model.device)
            places = step_places(packed, chosen, own)
            found += split(self.read(packed, places), places.steps)
        return found

    def body(self) -> dict[str, torch.nn.Parameter]:
        """Return the trained parameters on which scores depend, which excludes the output layer."""
        network = self.model.network
        shared = {id(value) for value in network.get_input_embeddings().parameters()}
        unused = {id(value) for value in network.get_output_embeddings().parameters()} - shared
        return {name: value for name, value in self.model.trained().items() if id(value) not in unused}


def step_places(batch: Packed, samples: Sequence[Sample], ends: Sequence[Sequence[int]]) -> Places:
    """Find the steps of answers in a batch.

    Args:
        batch: packed samples.
        samples: B samples without masks.
        ends: indices of the last tokens of the steps in the completion of each sample, ascending; the last step ends
            the completion.
    """
    before, last = integers(batch.before), integers(batch.last)
    places, lengths, start = list[int](), list[int](), 0
    for i, (sample, row) in enumerate(zip(samples, ends, strict=True)):
        skipped = 0 if sample.prompt else 1  # the first token of a sequence is not predicted
        following = start - skipped + 1
        places += [before[following + end] for end in row[:-1]] + [last[i]]
        reached = [max(0, end + 1 - skipped) for end in row]
        lengths += [one - other for one, other in zip(reached, [0, *reached], strict=False)]
        start += len(sample.completion) - skipped
    found = torch.tensor([places, lengths], dtype=torch.int64, device=batch.last.device)
    return Places(found[0], found[1], [len(row) for row in ends])


def lowest_log_probs(log_probs: Tensor, places: Places) -> Tensor:
    """Compute for each step the lowest log-probability of its tokens, and of all tokens up to its end, `[p, 2]`.

    Args:
        log_probs: log-probabilities of the tokens of the answers, `[m]`.
        places: steps of the answers.
    """
    in_step = torch.segment_reduce(log_probs.float(), "min", lengths=places.lengths).clamp(max=0)  # of no token: 0
    so_far = torch.cat([torch.cummin(row, 0).values for row in split(in_step, places.steps)])
    return torch.stack([in_step, so_far], dim=1)


class RewardModelFunction:
    """A reward model as a reward function, `f(prompts, completions, completion_ids, **columns)`.

    The reward of an outcome model is its score. That of a process model is the probability that all steps are correct,
    the product over the steps (Lightman et al. 2023, arXiv:2305.20050, section 2.2).

    Args:
        scorer: model with head.
        process: whether it is a process reward model.
        separator: separator between steps.
        tokenizer: tokenizer of the policy. If its vocabulary differs from the reward model's, answers are tokenized
            again.
        tokens: maximum number of tokens per forward pass.
        whole: whether conversations are scored at the last token of the chat template's text instead of at EOS.

    Attributes:
        scorer: model with head.
        process: whether it is a process reward model.
        same_vocabulary: whether policy and reward model have the same vocabulary.
    """

    __name__ = "reward_model"

    def __init__(
        self,
        scorer: Scorer,
        *,
        process: bool,
        separator: str,
        tokenizer: Tokenizer | None = None,
        tokens: int = TOKENS,
        whole: bool = False,
    ):
        self.scorer, self.process, self.separator, self.tokens = scorer, process, separator, tokens
        self.whole, self._context = whole, Context(scorer.model)
        own = scorer.model.tokenizer
        self.same_vocabulary = tokenizer is None or tokenizer is own or tokenizer.get_vocab() == own.get_vocab()

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        *,
        prompt_ids: Sequence[Sequence[int]] | None = None,
        truncated: Sequence[bool] | None = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Compute the rewards of n answers; None for texts with a character that the reward model's tokenizer lacks.

        Args:
            prompts: strings or messages.
            completions: strings or messages.
            completion_ids: token ids of the answers; empty if only texts are known.
            prompt_ids: token ids of the prompts; None if only texts are known.
            truncated: mask of the truncated answers, to which no EOS is added; None: none.
            **columns: other columns of the examples; `tools` and `chat_template_kwargs` are inputs of the template.
        """
        cut = [False] * len(prompts) if truncated is None else truncated
        samples: list[Sample | None]
        written = self.whole and not all(isinstance(prompt, str) for prompt in prompts)
        if self.same_vocabulary and not written and prompt_ids is not None and all(map(len, completion_ids)):
            samples = [Sample(p, c) for p, c in zip(prompt_ids, completion_ids, strict=True)]
        else:
            given = [{name: columns[name][i] for name in TEMPLATE if name in columns} for i in range(len(prompts))]
            samples = [self._encoded(*row) for row in zip(prompts, completions, cut, given, strict=True)]
        found = iter(self._rewards([sample for sample in samples if sample is not None]))
        return [None if sample is None else next(found) for sample in samples]

    def _rewards(self, samples: Sequence[Sample]) -> list[float]:
        if not samples:
            return []
        if not self.process:
            return [*floats(self.scorer.scores(samples, tokens=self.tokens))]
        ends = [step_ends(self.scorer.model.tokenizer, s.completion, self.separator) for s in samples]
        found = self.scorer.step_scores(samples, ends, tokens=self.tokens)
        return [float(row.sigmoid().prod()) for row in found]

    def for_tokenizer(self, tokenizer: Tokenizer) -> "RewardModelFunction":
        """Return this reward model for the answers of a policy with another tokenizer."""
        own: dict[str, Any] = {"process": self.process, "separator": self.separator, "whole": self.whole}
        return RewardModelFunction(self.scorer, tokenizer=tokenizer, tokens=self.tokens, **own)

    def _encoded(self, prompt: Any, completion: Any, truncated: bool, row: Mapping[str, Any]) -> Sample | None:
        """Return a tokenized answer; None if a character of it has no token, unlike those of the prompt."""
        model = self.scorer.model
        given = inputs_of(model.tokenizer, row)
        if isinstance(prompt, str) != isinstance(completion, str):
            text = text_of(completion)
            completion = text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        try:
            whole = self.whole and not truncated
            first, second = encode_pair(model.tokenizer, prompt, completion, eos_ids=model.stop, whole=whole, **given)
        except UnknownCharacterError:
            encode_prompt(model.tokenizer, prompt, **given)  # that of a prompt is an error of the data
            return None
        return self._context.fit(first, second[:-1] if truncated and len(second) > 1 else second)


def step_ends(tokenizer: Tokenizer, ids: Sequence[int], separator: str) -> list[int]:
    """Return the index of the last token of each step of a completion.

    A step ends with the separator, the last step with the completion, including EOS. If only EOS follows the last
    separator, it belongs to the step before it.

    Args:
        tokenizer: tokenizer of the ids.
        ids: token ids of the completion.
        separator: separator between steps.
    """
    text, characters, place = decode(tokenizer, ids), list[int](), 0
    while (found := text.find(separator, place)) >= 0:
        place = found + len(separator)
        characters.append(place)
    ends = [*dict.fromkeys(end for end in last_tokens(tokenizer, ids, characters) if end is not None)]
    if ends and place == len(text):
        ends.pop()
    return [*ends, len(ids) - 1]


def load_scorer(
    run: str,
    *,
    device: torch.device | str = "cpu",
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
    remote_code: bool = False,
    tokens: int = TOKENS,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> RewardModelFunction:
    """Load a reward model as a reward function named `reward_model`.

    Args:
        run: folder of a run of `reward-model` or `process-reward-model`; `RUN/best` for its best weights. Or a folder
            or Hub name of a sequence classifier of transformers with one label (`operant.language.classifiers`).
        device: device of the model.
        tokenizer: tokenizer of the policy; None: the reward model's.
        seed: seed of the run; if the run lacks it, its first seed is used.
        remote_code: whether to allow Python code that comes with its model, if the run needs it.
        tokens: maximum number of tokens per forward pass.
        dtype: precision of a classifier.

    Raises:
        RunError: there is no run, it has no best weights, or its model's code is not allowed.
        ValueError: the run has another algorithm, or no checkpoint; or the classifier cannot be loaded.
    """
    if is_classifier(run):
        options = ModelOptions(model=run, dtype=dtype, remote_code=remote_code)
        found = _classifier(options, seed=seed, device=device, frozen=True)
        own: dict[str, Any] = {"process": False, "separator": "\n", "whole": found.whole}
        return RewardModelFunction(_frozen(Scorer(found.model, found.head)), tokenizer=tokenizer, tokens=tokens, **own)
    scorer, config = _load(run, device, seed, remote_code)
    own = {"process": config.supervision == "process", "separator": config.step_separator}
    return RewardModelFunction(scorer, tokenizer=tokenizer, tokens=tokens, **own)


def load_step_rewards(
    run: str,
    *,
    device: torch.device | str = "cpu",
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
    remote_code: bool = False,
    tokens: int = TOKENS,
) -> StepRewards:
    """Load the process reward model of a run as step reward function, for GRPO with process supervision.

    The reward of a step is the probability that it is correct.

    Args:
        run: folder of a run of `process-reward-model`; `RUN/best` for its best weights.
        device: device of the model.
        tokenizer: tokenizer of the policy; None: the reward model's. Rewards belong to tokens, so both must be equal.
        seed: seed of the run; if the run lacks it, its first seed is used.
        remote_code: whether to allow Python code that comes with its model, if the run needs it.
        tokens: maximum number of tokens per forward pass.

    Raises:
        RunError: there is no run, it has no best weights, or its model's code is not allowed.
        ValueError: the run has another algorithm, an outcome model, no checkpoint, or another vocabulary than the
            policy.
    """
    if is_classifier(run):
        raise ValueError(
            f"{run} is not a run, but --supervision process needs one of `operant train process-reward-model`"
        )
    scorer, config = _load(run, device, seed, remote_code)
    own = scorer.model.tokenizer
    if config.supervision != "process":
        raise ValueError(
            f"{run} is an outcome reward model, but --supervision process needs a process reward model: train one with "
            "`operant train process-reward-model`, or leave out --supervision process"
        )
    if tokenizer is not None and tokenizer.get_vocab() != own.get_vocab():
        raise ValueError(
            f"the process reward model of {run} has another vocabulary than the policy, so its rewards cannot be "
            "assigned to the policy's tokens: train it with the policy's --model or --init"
        )

    def step_rewards(prompts: Sequence[Prompt], completions: Sequence[Completion]) -> Steps:
        samples = [Sample(p.prompt, c.ids) for p, c in zip(prompts, completions, strict=True)]
        ends = [step_ends(own, sample.completion, config.step_separator) for sample in samples]
        right = [floats(row.sigmoid()) for row in scorer.step_scores(samples, ends, tokens=tokens)]
        return table([list(zip(row, places_, strict=True)) for row, places_ in zip(right, ends, strict=True)])

    return step_rewards


def starting_head(init: str, model: LanguageModel, *, seed: int) -> ScalarHead | None:
    """Return the head of the run that a reward model starts from; None if that has none.

    Args:
        init: folder of the run; empty: none.
        model: of the new reward model.
        seed: seed of the run; if the run lacks it, its first seed is used.
    """
    if not init or opened(init)[0].entry.family != "reward":
        return None
    return _trained_head(init, model, seed)


def _trained_head(run: str, model: LanguageModel, seed: int) -> ScalarHead:
    """Load the head of a run."""
    return _head_of(trained_state(run, "head", seed=seed)[1], model)


def _head_of(state: State, model: LanguageModel) -> ScalarHead:
    """Return the head with a saved state."""
    head = ScalarHead(model.width, model.device, features=len(state.get("features", ())))
    copy_named(dict(head.named_parameters()), state, of="head")
    return head


def is_classifier(name: str) -> bool:
    """Return whether the name of a reward model can only be that of a classifier, and not of a run."""
    return not is_run(name) and (Path(name).expanduser().is_dir() or not is_path(name))


def _classifier(options: ModelOptions, *, seed: int, device: torch.device | str, frozen: bool = False) -> Classifier:
    """Load a classifier of transformers, and shard its model if processes share it."""
    found: list[Classifier] = []

    def make(device: torch.device | str) -> LanguageModel:
        found.append(load_classifier(options, seed=seed, device=device))
        return found[0].model

    model = placed(make, device=device, frozen=frozen)
    return Classifier(model, found[0].head.to(model.device), found[0].whole)


def load_trainable(
    name: str, options: ModelOptions, *, seed: int, device: torch.device | str
) -> tuple[LanguageModel, ScalarHead]:
    """Load a reward model and its head for further training, as of a critic.

    Args:
        name: folder of a run, or a classifier, as for `load_scorer`.
        options: trained parameters and precision.
        seed: seed of the run, and random seed of adapters.
        device: device of the model.

    Raises:
        RunError: there is no run.
        ValueError: the run has another algorithm, or the classifier cannot be loaded.
    """
    if is_classifier(name):
        found = _classifier(replace(options, model=name, init=""), seed=seed, device=device)
        return found.model, found.head
    _, state = trained_state(name, "head", seed=seed)  # an error for other algorithms, before the model is loaded
    model = loaded(replace(options, init=name), seed=seed, device=device)
    return model, _head_of(state, model)


def _frozen(scorer: Scorer) -> Scorer:
    scorer.model.network.requires_grad_(False)
    scorer.head.requires_grad_(False)
    return scorer


def _load(run: str, device: torch.device | str, seed: int, remote_code: bool) -> tuple[Scorer, Any]:
    """Load the scorer of a run and its configuration."""
    folder, _ = opened(run)
    entry = folder.entry
    if entry.family != "reward":
        raise ValueError(
            f"{run} is a run of {entry.name}, which trains no reward model: use a run of `operant train reward-model`"
        )
    config = folder.config(entry.config_class)
    model = loaded(ModelOptions(init=run, remote_code=remote_code), seed=seed, device=device, frozen=True)
    return _frozen(Scorer(model, _trained_head(run, model, seed))), config
