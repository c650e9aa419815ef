"""The critic of token-level reinforcement learning: values of the states in which tokens are chosen."""

from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from operant.language.configs import ModelOptions, SamplingConfig
from operant.language.huggingface import Tokenizer
from operant.language.models import LanguageModel, ScalarHead
from operant.language.packing import Packed
from operant.language.runs import load_trained, trained_state
from operant.runtime.bounds import NonNegativeInt, PositiveFloat, UnitFloat
from operant.state import State, copy_named
from operant.tensors import split

TRUNK, HEAD = "trunk.", "head."


@dataclass(frozen=True, kw_only=True)
class CriticConfig(SamplingConfig):
    """Options of values and advantage estimates."""

    critic: Literal["auto", "copy", "reward-model", "shared"] = "auto"
    """Initial critic: a copy of the policy with values of 0, the reward model with its scores, or a head on the
    policy's trunk. auto: the reward model if there is one, else a copy."""
    critic_learning_rate: PositiveFloat | None = None
    """Step size of AdamW for the critic (InstructGPT: 9e-6); None: that of the policy."""
    critic_warmup: NonNegativeInt = 0
    """Initial batches that train only the critic, by regression on the returns (λ = 1)."""
    gamma: UnitFloat = 1.0
    """Discount per token."""
    gae_lambda: UnitFloat = 0.95
    """λ of the advantage estimates: 0 trusts the critic, 1 the score."""
    bootstrap_truncated: bool = False
    """Whether to bootstrap truncated answers from the critic's value after their last token; else their value is 0, as
    if they had ended, as in other implementations."""
    vf_coef: PositiveFloat = 0.1
    """Weight of the value loss. It matters if policy and critic share a trunk, or its gradient is clipped."""
    clip_range_vf: PositiveFloat | None = 0.2
    """Clip range of a value in an update, in units of reward; None: no clipping."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if self.critic == "reward-model" and not self.reward_model:
            raise ValueError("critic=reward-model needs a reward model (--reward-model RUN); or use --critic copy")


class Values(NamedTuple):
    """Values of the states of a batch of B samples with m trained tokens.

    Attributes:
        before: `[m]` values of the state in which each trained token was chosen.
        after: `[B]` values of the state after the last token of each sample. Used only for truncated samples: after an
            end of sequence there is no state.
    """

    before: Tensor
    after: Tensor


class Critic:
    """A critic: maps hidden states to values.

    Args:
        head: from hidden states to values.
        trunk: a separate model; None: use the policy's hidden states.
    """

    def __init__(self, head: ScalarHead, trunk: LanguageModel | None = None):
        self.head, self.trunk = head, trunk

    @classmethod
    def copy_of(cls, model: LanguageModel) -> "Critic":
        """Return a critic from a copy of a policy, with values of 0, that trains the same parameters as the policy."""
        trunk = model.frozen()
        copied = dict(trunk.network.named_parameters())
        for name in model.trained():
            copied[name].requires_grad_(True)
        return cls(ScalarHead(model.width, model.device), _without_output(trunk))

    @classmethod
    def sharing(cls, model: LanguageModel) -> "Critic":
        """Return a head on a policy's hidden states, with values of 0."""
        return cls(ScalarHead(model.width, model.device))

    @classmethod
    def from_reward_model(
        cls, run: str, options: ModelOptions, *, tokenizer: Tokenizer, seed: int, device: torch.device | str = "cpu"
    ) -> "Critic":
        """Return a critic from a reward model: its value of a state is the model's score.

        Args:
            run: folder of a run of `reward-model`.
            options: trained parameters and precision, as of the policy.
            tokenizer: of the policy.
            seed: of the run, and of adapters.
            device: of the critic.

        Raises:
            RunError: there is no run.
            ValueError: it is a run of another algorithm, or its model has another vocabulary than the policy.
        """
        _, state = trained_state(run, "head", seed=seed)
        wanted: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(ModelOptions)} | {
            "init": run
        }
        trunk = load_trained(ModelOptions(**wanted), seed=seed, device=device)
        if trunk.tokenizer.get_vocab() != tokenizer.get_vocab():
            raise ValueError(
                f"the reward model of {run} has another vocabulary than the policy, so it cannot become its critic: "
                "use --critic copy"
            )
        head = ScalarHead(trunk.width, device)
        copy_named(dict(head.named_parameters()), state, of="head")
        return cls(head, _without_output(trunk))

    def __call__(self, batch: Packed, hidden: Tensor | None = None) -> Values:
        """Return the values of a batch.

        Args:
            batch: the sequences.
            hidden: `[n, H]` hidden states of the policy, for a critic without a trunk.
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
            ValueError: it belongs to another critic.
        """
        copy_named(self.trained(), state, of="critic", options="--critic and --lora-r")


def starting_critic(
    config: CriticConfig, model: LanguageModel, *, outcome: bool, seed: int, device: torch.device | str = "cpu"
) -> Critic:
    """Return the critic of a configuration.

    Args:
        config: the options.
        model: the policy.
        outcome: whether there is a reward model of whole answers. Scores of a process reward model are no values.
        seed: of the learner.
        device: of a reward model.

    Raises:
        RunError: there is no run of the reward model.
        ValueError: the reward model cannot become a critic.
    """
    if config.critic == "reward-model" and not outcome:
        raise ValueError(
            f"critic=reward-model needs a model that scores whole answers, but {config.reward_model} scores steps: "
            "use --critic copy"
        )
    if config.critic == "shared":
        return Critic.sharing(model)
    if config.critic == "copy" or not outcome:
        return Critic.copy_of(model)
    return Critic.from_reward_model(config.reward_model, config, tokenizer=model.tokenizer, seed=seed, device=device)


def _without_output(trunk: LanguageModel) -> LanguageModel:
    """Freeze the parameters that no value depends on, such as a separate output embedding."""
    network = trunk.network
    causal = network.get_base_model() if hasattr(network, "get_base_model") else network
    used = {id(parameter) for parameter in causal.base_model.parameters()}
    for parameter in causal.parameters():
        if id(parameter) not in used:
            parameter.requires_grad_(False)
    return trunk
