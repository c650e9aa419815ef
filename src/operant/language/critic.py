"""Critic of token-level reinforcement learning, which estimates the value of the state before each token."""

import logging
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from operant.language.configs import ModelOptions, SamplingConfig
from operant.language.huggingface import Tokenizer, base_of
from operant.language.models import LanguageModel, ScalarHead
from operant.language.packing import Packed
from operant.language.scoring import load_trainable
from operant.runtime.bounds import NonNegativeInt, PositiveFloat, UnitFloat
from operant.state import State, copy_named
from operant.tensors import split

logger = logging.getLogger(__name__)

TRUNK, HEAD = "trunk.", "head."


@dataclass(frozen=True, kw_only=True)
class CriticConfig(SamplingConfig):
    """Options of the critic and of advantage estimation."""

    critic: Literal["auto", "copy", "reward-model", "shared"] = "auto"
    """Initialization of the critic: a copy of the policy with a value head of 0 (copy), the reward model with its head
    (reward-model), or a value head on the policy (shared). auto: the reward model if there is one with the policy's
    vocabulary, else a copy."""
    critic_learning_rate: PositiveFloat | None = None
    """Learning rate of AdamW for the critic (InstructGPT: 9e-6); None: the policy's."""
    critic_warmup: NonNegativeInt = 0
    """Number of initial batches that train only the critic, by regression on the returns (λ = 1)."""
    gamma: UnitFloat = 1.0
    """Discount factor per token."""
    gae_lambda: UnitFloat = 0.95
    """λ of generalized advantage estimation: 0 relies on the critic (bias), 1 on the score (variance)."""
    bootstrap_truncated: bool = False
    """Bootstrap truncated answers from the critic's value after their last token; otherwise that value is 0, as in
    other implementations."""
    vf_coef: PositiveFloat = 0.1
    """Coefficient of the value loss. It has an effect if policy and critic share parameters, or gradients are
    clipped."""
    clip_range_vf: PositiveFloat | None = 0.2
    """Clip range of the change of a value in an update, in units of reward; None: no clipping."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if self.critic == "reward-model" and not self.reward_model:
            raise ValueError("critic=reward-model needs a reward model: add --reward-model RUN, or use --critic copy")


class Values(NamedTuple):
    """Values of a batch of B samples with m trained tokens.

    Attributes:
        before: value of the state before each trained token, `[m]`.
        after: value of the state after the last token of each sample, `[B]`; used only for truncated samples, since
            there is no state after EOS.
    """

    before: Tensor
    after: Tensor


class Critic:
    """Critic that maps hidden states to values.

    Args:
        head: value head on hidden states.
        trunk: separate model that computes the hidden states; None: use the policy's.
    """

    def __init__(self, head: ScalarHead, trunk: LanguageModel | None = None):
        self.head, self.trunk = head, trunk

    @classmethod
    def copy_of(cls, model: LanguageModel) -> "Critic":
        """Create a critic from a copy of a policy, with initial values 0 and the same trained parameters."""
        trunk = model.frozen()
        copied = trunk.named()
        for name in model.trained():
            copied[name].requires_grad_(True)
        return cls(ScalarHead(model.width, model.device), _without_output(trunk))

    @classmethod
    def sharing(cls, model: LanguageModel) -> "Critic":
        """Create a critic with a value head on a policy's hidden states, with initial values 0."""
        return cls(ScalarHead(model.width, model.device))

    @classmethod
    def from_reward_model(
        cls, run: str, options: ModelOptions, *, tokenizer: Tokenizer, seed: int, device: torch.device | str = "cpu"
    ) -> "Critic":
        """Create a critic from a reward model, whose scores are the initial values.

        Args:
            run: folder of a run of `reward-model`, or of a classifier.
            options: trained parameters and precision, as for the policy.
            tokenizer: tokenizer of the policy.
            seed: seed of the run, and random seed of adapters.
            device: device of the critic.

        Raises:
            RunError: there is no run.
            ValueError: the reward model cannot be loaded, or it has another vocabulary than the policy.
        """
        wanted: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(ModelOptions)}
        trunk, head = load_trainable(run, ModelOptions(**wanted), seed=seed, device=device)
        if trunk.tokenizer.get_vocab() != tokenizer.get_vocab():
            raise ValueError(
                f"the reward model of {run} has another vocabulary than the policy, so it cannot become its critic: "
                "use --critic copy"
            )
        return cls(head, _without_output(trunk))

    def __call__(self, batch: Packed, hidden: Tensor | None = None) -> Values:
        """Compute the values of a batch.

        Args:
            batch: packed sequences.
            hidden: hidden states of the policy, `[n, H]`, for a critic without a trunk.
        """
        if self.trunk is not None:
            hidden = self.trunk.read(batch)
        if hidden is None:
            raise ValueError("a critic without a trunk needs the hidden states of the policy")
        rows = hidden.index_select(0, torch.cat([batch.before, batch.last]))
        return Values(*split(self.head(rows), [len(batch.before), len(batch.last)]))

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters, by name."""
        own = {HEAD + name: value for name, value in self.head.named_parameters()}
        if self.trunk is not None:
            own |= {TRUNK + name: value for name, value in self.trunk.trained().items()}
        return own

    def state_dict(self) -> State:
        """Return the trained parameters."""
        return {name: value.detach() for name, value in self.trained().items()}

    def load_state_dict(self, state: State) -> None:
        """Load the parameters of a state.

        Raises:
            ValueError: the state belongs to another critic.
        """
        copy_named(self.trained(), state, of="critic", options="--critic and --lora-r")


def starting_critic(
    config: CriticConfig,
    model: LanguageModel,
    *,
    outcome: bool,
    same_vocabulary: bool = True,
    seed: int,
    device: torch.device | str = "cpu",
) -> Critic:
    """Create the critic of a configuration.

    Args:
        config: options.
        model: policy.
        outcome: whether there is an outcome reward model; scores of a process reward model are not values.
        same_vocabulary: whether it has the vocabulary of the policy, without which auto chooses a copy.
        seed: seed of the learner.
        device: device of a reward model.

    Raises:
        RunError: the run of the reward model does not exist.
        ValueError: the reward model cannot initialize a critic.
    """
    if config.critic == "reward-model" and not outcome:
        raise ValueError(
            f"critic=reward-model needs a model that scores whole answers, but {config.reward_model} scores steps: "
            "use --critic copy"
        )
    if config.critic == "shared":
        return Critic.sharing(model)
    if config.critic == "copy" or not outcome or (config.critic == "auto" and not same_vocabulary):
        return Critic.copy_of(model)
    return Critic.from_reward_model(config.reward_model, config, tokenizer=model.tokenizer, seed=seed, device=device)


def warn_of_warmup(config: CriticConfig, *, batch: int, budget: int) -> None:
    """Warn that a run ends before its policy is trained.

    Args:
        config: options, of which `critic_warmup` is the number of batches that train only the critic.
        batch: number of prompts per batch.
        budget: number of training prompts.
    """
    if budget <= config.critic_warmup * batch:
        logger.warning(
            "The policy is not trained: the budget of %d prompts ends within critic_warmup=%d batches of %d prompts; "
            "raise --budget, or lower --critic-warmup or --prompts-per-batch",
            *(budget, config.critic_warmup, batch),
        )


def _without_output(trunk: LanguageModel) -> LanguageModel:
    """Freeze the parameters on which values do not depend, such as a separate output embedding."""
    causal = base_of(trunk.network)
    used = {id(parameter) for parameter in causal.base_model.parameters()}
    for parameter in causal.parameters():
        if id(parameter) not in used:
            parameter.requires_grad_(False)
    return trunk
