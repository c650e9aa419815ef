"""Sampling of answers and computation of their rewards, for on-policy algorithms: `Sampler`.

The order of the prompts is a permutation that depends on the epoch and the seed. A `Rollout` contains prompts, answers
and rewards; answers to the same prompt are consecutive.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from operant import streams
from operant.language.data import Row, compare, order
from operant.language.engines.native import chances
from operant.language.engines.protocol import Completion, Engine, Sampling, generate_shards
from operant.language.examples import Prompt
from operant.language.huggingface import Tokenizer
from operant.language.in_step import InStep
from operant.language.models import LanguageModel
from operant.language.packing import Sample
from operant.language.process_rewards import StepRewards, Steps, join_steps
from operant.language.rewards import TRAINER, RewardFunctions, Rewards, mean_by_name
from operant.language.tokenizer import decode
from operant.runtime.shards import Shards
from operant.state import DeclaredState, State
from operant.tensors import floats


@dataclass(frozen=True)
class Answers:
    """Completions of prompts, in order.

    Attributes:
        prompts: prompt of each answer.
        completions: sampled completions.
        texts: texts of the completions, without special tokens.
    """

    prompts: list[Prompt]
    completions: list[Completion]
    texts: list[str]

    def samples(self) -> list[Sample]:
        """Return the answers as sequences whose completions are trained."""
        return [Sample(p.prompt, c.ids) for p, c in zip(self.prompts, self.completions, strict=True)]


@dataclass(frozen=True)
class Rollout:
    """Answers to P prompts, G to each, with their rewards.

    Attributes:
        answers: `P * G` answers, consecutive per prompt.
        judged: rewards of the answers.
        group: number of answers per prompt, G.
        steps: rewards of the steps of the answers, if any.
    """

    answers: Answers
    judged: Rewards
    group: int
    steps: Steps | None = None

    def __len__(self) -> int:
        """Return the number of prompts."""
        return len(self.answers.prompts) // self.group

    def rewards(self) -> Tensor:
        """Return the rewards `[P, G]`; NaN if missing."""
        return self.judged.total.view(-1, self.group)

    def valid(self) -> Tensor:
        """Return a mask of the answers with a reward, `[P, G]`."""
        return self.judged.valid.view(-1, self.group)

    def step_rewards(self) -> list[Tensor]:
        """Return rewards, indices of last tokens, and mask of existing steps, `[P, G, K]` each.

        Raises:
            ValueError: the steps were not rewarded.
        """
        if self.steps is None:
            raise ValueError("the steps of these answers have no rewards: pass `steps` when sampling")
        return [table.view(-1, self.group, table.shape[-1]) for table in self.steps]

    def state_dict(self) -> State:
        """Return the state without the prompts."""
        completions, judged = self.answers.completions, self.judged
        return {
            "ids": torch.tensor([token for c in completions for token in c.ids]),
            "log_probs": torch.tensor([value for c in completions for value in c.log_probs], dtype=torch.float64),
            "lengths": [len(c.ids) for c in completions],
            "truncated": [c.truncated for c in completions],
            "versions": [c.version for c in completions],
            "texts": self.answers.texts,
            "judged": [judged.table, judged.total, judged.valid],
            "names": judged.names,
            "metrics": judged.metrics,
            "group": self.group,
            "steps": self.steps,
        }

    @staticmethod
    def of(state: State, prompts: Sequence[Prompt]) -> "Rollout":
        """Create a rollout from a state of `state_dict` and the prompt of each answer."""
        ids, logs = (state[name].split(state["lengths"]) for name in ("ids", "log_probs"))
        rows = zip(ids, logs, state["truncated"], state["versions"], strict=True)
        completions = [Completion(own.tolist(), log_probs.tolist(), *rest) for own, log_probs, *rest in rows]
        table, total, valid = state["judged"]
        judged = Rewards(table, total, valid, tuple(state["names"]), state["metrics"])
        steps = None if state["steps"] is None else join_steps([tuple(state["steps"])])
        return Rollout(Answers(list(prompts), completions, state["texts"]), judged, state["group"], steps)

    def take(self, prompts: Sequence[int]) -> "Rollout":
        """Return the rollout of the prompts with the given indices, without the metrics, which are of all prompts."""
        at = [p * self.group + i for p in prompts for i in range(self.group)]
        index, old = torch.tensor(at, dtype=torch.int64), self.answers
        answers = Answers([old.prompts[i] for i in at], [old.completions[i] for i in at], [old.texts[i] for i in at])
        judged = self.judged
        judged = Rewards(judged.table[index], judged.total[index], judged.valid[index], judged.names)
        steps = None if self.steps is None else join_steps([tuple(table[index] for table in self.steps)])
        return Rollout(answers, judged, self.group, steps)

    @staticmethod
    def join(parts: Sequence["Rollout"]) -> "Rollout":
        """Concatenate rollouts with the same reward functions."""
        answers = Answers(
            *(
                [item for part in parts for item in getattr(part.answers, name)]
                for name in ("prompts", "completions", "texts")
            )
        )
        judged = [part.judged for part in parts]
        table, total, valid = (torch.cat(columns) for columns in list(zip(*judged, strict=True))[:3])
        steps = [part.steps for part in parts if part.steps is not None]
        logged = ((name, value, len(part.total)) for part in judged for name, value in part.metrics.items())
        rewards = Rewards(table, total, valid, judged[0].names, mean_by_name(logged))
        return Rollout(answers, rewards, parts[0].group, join_steps(steps) if len(steps) == len(parts) else None)


class Sampler(DeclaredState):
    """Sampler of answers to training prompts, with their rewards.

    Args:
        engine: sampling engine.
        prompts: training prompts.
        rewards: reward functions.
        tokenizer: tokenizer of the model, to decode completions.
        sampling: sampling parameters.
        seed: random seed of the prompt order and of sampling.
        budget: total number of prompts, for the trainer state of reward functions.
        prompts_per_batch: number of prompts of a batch, for the same.
        shards: shards of the prompts, which are sampled and rewarded separately.
        max_staleness: maximum age of the weights that sampled an answer, in updates.

    Attributes:
        asked: number of prompts used so far.
        version: version of the weights, the number of updates.
    """

    STATE = ("asked", ("chance", "_chance"))

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[Prompt],
        rewards: RewardFunctions,
        tokenizer: Tokenizer,
        sampling: Sampling,
        *,
        seed: int,
        budget: int = 0,
        prompts_per_batch: int = 1,
        shards: Shards | None = None,
        max_staleness: int = 0,
    ):
        if not prompts:
            raise ValueError("there are no training prompts")
        self.engine, self.prompts, self.rewards, self.tokenizer = engine, prompts, rewards, tokenizer
        self.sampling, self.seed, self.budget, self.asked = sampling, seed, budget, 0
        self.prompts_per_batch = prompts_per_batch
        self.shards, self.max_staleness, self.version = shards or Shards(), max_staleness, 0
        self._chance = streams.torch_generator(seed, "sampling")

    def draw(self, count: int, group: int, *, steps: StepRewards | None = None) -> Rollout:
        """Sample answers to the next `count` prompts, `group` each.

        Args:
            count: number of prompts.
            group: number of answers per prompt.
            steps: reward function of the steps of answers.

        Raises:
            ValueError: weights older than `max_staleness` updates sampled an answer.
        """
        state = self.trainer_state()

        def rewarded(answers: Answers) -> Rollout:
            self._require_recent(answers.completions)
            found = None if steps is None else steps(answers.prompts, answers.completions)
            return Rollout(answers, compute_rewards(self.rewards, answers, state), group, found)

        if self.shards.count > 1:
            return self._draw_by_shard(count, group, rewarded)
        answers = self.answers(count, group)
        self.asked += count
        return rewarded(answers)

    def _draw_by_shard(self, count: int, group: int, rewarded: Callable[[Answers], Rollout]) -> Rollout:
        """Sample the answers of each shard separately, and concatenate them."""
        prompts, start = self.next_prompts(count), self.asked
        self.asked += count
        parts = [prompts[self.shards.rows(number, count)] for number in range(self.shards.count)]
        chances = self._chances(start, [len(part) * group for part in parts])
        mine = [(parts[k], chances[k]) for k in self.shards.mine]
        # Even without prompts, since processes may need to sample together.
        answers = self._ask_shards(mine, group)
        with self.shards.uneven() if isinstance(self.shards, InStep) else nullcontext():  # reward models may be sharded
            own = [rewarded(each).state_dict() if each.prompts else {} for each in answers]
        found = zip(self.shards.gather(own), parts, strict=True)
        return Rollout.join([Rollout.of(s, [p for p in part for _ in range(group)]) for s, part in found if part])

    def _require_recent(self, completions: Sequence[Completion]) -> None:
        """Check the versions of completions."""
        for version in {completion.version for completion in completions}:
            if not 0 <= self.version - version <= self.max_staleness:
                raise ValueError(
                    f"weights of version {version} sampled a completion, expected at most max_staleness="
                    f"{self.max_staleness} updates before the current version {self.version}: the engine must sample "
                    "with the weights of its last update, and return their version"
                )

    def _chances(self, start: int, sizes: Sequence[int]) -> list[torch.Generator]:
        """Return the random generator of each shard; with sharded models all use the stream of one process.

        Args:
            start: number of prompts used before.
            sizes: number of sequences of each shard.
        """
        if not isinstance(self.shards, InStep):
            return [streams.torch_generator(self.seed, "sampling", start, k) for k in range(self.shards.count)]
        found = list[torch.Generator]()
        for size in sizes:
            found.append(self._chance.clone_state())
            chances(size, self.sampling, self._chance)
        return found

    def _ask_shards(self, shards: Sequence[tuple[list[Prompt], torch.Generator]], group: int) -> list[Answers]:
        """Sample answers to the prompts of each shard, `group` each."""
        ids, chances = [[p.prompt for p in prompts] for prompts, _ in shards], [chance for _, chance in shards]
        found = generate_shards(self.engine, ids, group, self.sampling, generators=chances)
        answers = zip(shards, map(flat, found), strict=True)
        return [answers_of(prompts, own, tokenizer=self.tokenizer) for (prompts, _), own in answers]

    def answers(self, count: int, group: int) -> Answers:
        """Sample answers to the next `count` prompts, `group` each, without advancing to later prompts."""
        prompts = self.next_prompts(count)
        return ask(self.engine, prompts, group, self.sampling, tokenizer=self.tokenizer, generator=self._chance)

    def next_prompts(self, count: int) -> list[Prompt]:
        """Return the next `count` prompts."""
        return [self.prompts[i] for i in shuffled(len(self.prompts), self.asked, count, seed=self.seed)]

    def begin(self, count: int, group: int) -> None:
        """Announce the next `draw` before an update, for samplers that run during updates."""

    def metrics(self) -> dict[str, float]:
        """Return metrics of the answers since the last update."""
        return {}

    def update(self, model: LanguageModel, version: int) -> None:
        """Update the engine to the current weights of `model`, which are those after `version` updates."""
        self.engine.version = version - 1
        self.engine.update(model)
        self.version = version

    def trainer_state(self) -> dict[str, float]:
        """Return the progress of training after the last update, as TRL's state; a batch may have several draws."""
        size = len(self.prompts)
        return {
            "global_step": self.version,
            "max_steps": -(-self.budget // self.prompts_per_batch),
            "epoch": self.asked / size,
            "num_train_epochs": self.budget / size,
        }


def ask(
    engine: Engine,
    prompts: Sequence[Prompt],
    count: int,
    sampling: Sampling,
    *,
    tokenizer: Tokenizer,
    generator: torch.Generator,
) -> Answers:
    """Sample `count` answers to each prompt; answers to the same prompt are consecutive.

    Args:
        engine: sampling engine.
        prompts: prompts.
        count: number of answers per prompt.
        sampling: sampling parameters.
        tokenizer: tokenizer of the model, to decode completions.
        generator: random generator on the CPU.
    """
    found = engine.generate([prompt.prompt for prompt in prompts], count, sampling, generator=generator)
    return answers_of(prompts, flat(found), tokenizer=tokenizer)


def flat(found: Sequence[Sequence[Completion]]) -> list[Completion]:
    """Return the completions of all prompts in one list."""
    return [completion for completions in found for completion in completions]


def answers_of(prompts: Sequence[Prompt], completions: list[Completion], *, tokenizer: Tokenizer) -> Answers:
    """Return completions, with equal numbers per prompt, as answers."""
    count = len(completions) // max(len(prompts), 1)
    texts = {ids: decode(tokenizer, ids) for ids in {tuple(completion.ids) for completion in completions}}
    answered = [prompt for prompt in prompts for _ in range(count)]
    return Answers(answered, completions, [texts[tuple(completion.ids)] for completion in completions])


def compute_rewards(rewards: RewardFunctions, answers: Answers, state: Mapping[str, float] | None = None) -> Rewards:
    """Compute the rewards of answers.

    Answers to conversations are passed as lists with one assistant message, answers to texts as texts. In addition to
    the columns of the examples, functions receive `prompt_ids` and `truncated`, with one entry per completion.

    Args:
        rewards: reward functions.
        answers: answers.
        state: trainer state. Default: `operant.language.rewards.START`.
    """
    rows = [prompt.row for prompt in answers.prompts]
    names = dict.fromkeys(name for row in rows for name in row if name not in OWN_COLUMNS)
    prompts = [asked(row) for row in rows]
    return rewards(
        prompts=prompts,
        completions=[
            text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
            for prompt, text in zip(prompts, answers.texts, strict=True)
        ],
        completion_ids=[completion.ids for completion in answers.completions],
        prompt_ids=[prompt.prompt for prompt in answers.prompts],
        truncated=[completion.truncated for completion in answers.completions],
        trainer_state=state,
        **{name: [row.get(name) for row in rows] for name in names},
    )


def asked(row: Row) -> Any:
    """Return the prompt of an example, a string or messages; that of a preference example may be implicit."""
    return compare(row).prompt if row.get("chosen") is not None and row.get("rejected") is not None else row["prompt"]


OWN_COLUMNS = ("prompt", "prompts", "completion", "completions", "completion_ids", "prompt_ids", "truncated", *TRAINER)
"""Columns that are not passed to reward functions, which get the actual prompts and answers."""


def shuffled(size: int, start: int, count: int, *, seed: int) -> list[int]:
    """Return the next `count` indices of an infinite sequence of shuffled epochs over `size` elements.

    Args:
        size: number of elements.
        start: number of elements used before.
        count: number of indices.
        seed: random seed of the orders.
    """
    found: list[int] = []
    while len(found) < count:
        epoch, offset = divmod(start + len(found), size)
        found += order(size, epoch, seed)[offset : offset + count - len(found)].tolist()
    return found


def length_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """Compute statistics of the lengths of completions in tokens, under TRL's names."""
    lengths = [len(completion.ids) for completion in completions]
    ended = [len(completion.ids) for completion in completions if not completion.truncated]
    return {
        "completions/mean_length": sum(lengths) / len(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/mean_terminated_length": sum(ended) / len(ended) if ended else float("nan"),
        "completions/clipped_ratio": 1 - len(ended) / len(lengths),
    }


def reward_metrics(rollout: Rollout) -> dict[str, float]:
    """Compute means and standard deviations of rewards, under TRL's names, and the means that functions have logged."""
    judged, groups = rollout.judged, zip(rollout.rewards(), rollout.valid(), strict=True)
    spreads = [rewards[valid].std() for rewards, valid in groups if valid.sum() > 1]
    means = floats(judged.table.nanmean(0))
    return {
        **judged.metrics,  # first, since a function may log under a name below
        "reward": float(judged.total.nanmean()),
        **({"reward_std": float(torch.stack(spreads).mean())} if spreads else {}),  # undefined for single answers
        "health/missing_rewards": float((~judged.valid).sum()),
        **{f"rewards/{name}/mean": mean for name, mean in zip(judged.names, means, strict=True)},
    }
