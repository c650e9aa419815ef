"""Proximal policy optimization with recurrent networks, for partially observable tasks.

Policy and value share dense layers and a gated recurrent unit (Cho et al. 2014, arXiv:1406.1078); `act` takes and
returns its hidden state, which is reset at the start of an episode. A rollout starts with the last hidden state of the
previous one. Updates train on whole sequences, so gradients flow through all steps of the rollout, but not into the
previous one (as in Mnih et al. 2016, arXiv:1602.01783, supplement 8, for A3C with an LSTM). Advantage estimates and the
objective are those of `operant.control.ppo`, which lists the differences from its paper.

What differs from other implementations (Ni et al. 2022, arXiv:2110.05038, compare many): sequences are neither split at
the ends of episodes nor padded, because a flag at every step resets the hidden state. The initial hidden state of a
sequence comes from the policy that collected it, and is not recomputed between epochs. Value targets use the hidden
states of the rollout, as does the divergence that adapts a penalty's β.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from operant import streams
from operant.control.agent import Agent
from operant.control.ppo import PPO, PPOConfig
from operant.envs import BatchEnv, Tree, begins_anew
from operant.nets import Recurrence, Spec, StackedGRU
from operant.runtime.bounds import PositiveInt
from operant.runtime.rollouts import Rollout
from operant.state import State


@dataclass(frozen=True)
class RecurrentPPOConfig(PPOConfig):
    """Hyperparameters of recurrent PPO. Gradients flow through `num_steps`."""

    num_envs: PositiveInt = 32
    """Number of environments per seed, N, a multiple of `num_minibatches`. More give more sequences per update."""
    num_steps: PositiveInt = 64
    """Number of steps per environment and rollout, T, through which gradients flow. More learn longer dependencies."""
    num_epochs: PositiveInt = 4
    """Number of passes over each rollout. More use the data better until the policy overfits (monitor approx_kl)."""
    num_minibatches: PositiveInt = 4
    """Number of minibatches of sequences per rollout, one gradient step each."""
    share_features: bool = True
    """Must be true: policy and value function share the layers and the hidden state."""
    rnn_hidden_size: PositiveInt = 64
    """Size of the hidden state."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if not self.share_features:
            raise ValueError("share_features must be true: policy and value share the hidden state")
        if self.use_sde:
            raise ValueError("use_sde must be false: recurrent policies have no state-dependent noise; ppo has it")
        if self.num_envs % self.num_minibatches:
            raise ValueError(
                f"num_minibatches ({self.num_minibatches}) must divide the {self.num_envs} environments: "
                "a minibatch consists of whole sequences"
            )

    @property
    def spec(self) -> Spec:
        """The sizes of the networks."""
        return replace(super().spec, recurrence=Recurrence(units=self.rnn_hidden_size, steps=self.num_steps))


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "operant/HiddenCartPole-v0": {
        "num_envs": 16,
        "num_steps": 32,
        "learning_rate": 3e-3,
        "lr_schedule": "linear",
        "clip_range_schedule": "linear",
        "hidden_sizes": (32,),
        "rnn_hidden_size": 32,
        "normalize_reward": True,
    },
}
"""Presets by task, selected automatically. Other fields keep their defaults."""


class RecurrentAgent(Agent):
    """An agent with recurrent networks, whose input is observation, start flag, and hidden state.

    Attributes:
        hidden_state: `[S, N, H]`; zero at the start of an episode.
        starts: start flags `[S, N]`, bool.
    """

    STATE = (*Agent.STATE, ("memory", "hidden_state"), "starts")

    def __init__(self, env: BatchEnv, **options: Any) -> None:
        """Initialize with zero hidden states; for the arguments see `Agent`."""
        super().__init__(env, **options)
        self.network = cast(StackedGRU, self.networks.shape.mlp)
        shape = (len(self.seeds), self.rows)
        self.hidden_state = torch.zeros(*shape, self.network.units, device=self.device)
        self.starts = torch.ones(shape, dtype=torch.bool, device=self.device)

    @torch.no_grad()
    def collect(self, steps: int) -> Rollout:
        """Collect a rollout of `steps` steps; its observations are the inputs of the networks."""
        noise = streams.draw(self.streams, lambda stream: self.head.noise((steps, self.rows), stream), dim=1)
        drawn = noise.unbind(0)
        inputs: list[Tensor] = []
        hidden_states: list[Tensor] = []

        def act(obs: Tensor, t: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
            if t:
                self.forget()
            inputs.append(self.pack(obs, self.starts, self.hidden_state))
            outputs, self.hidden_state = self.step(inputs[-1])
            hidden_states.append(self.hidden_state)
            actions = self.head.sample(outputs, self.networks.free, drawn[t])
            return (actions, outputs), self.head.to_env(actions)

        rollout = self.collector.collect(steps, act)
        self.forget()
        goes_on = torch.zeros_like(rollout.terminated)
        return replace(
            rollout,
            obs=torch.stack(inputs),
            last_obs=self.pack(rollout.last_obs, self.starts, self.hidden_state),
            final_obs=self.pack(rollout.final_obs, goes_on, torch.stack(hidden_states)),
        )

    def pack(self, obs: Tensor, starts: Tensor, hidden_state: Tensor) -> Tensor:
        """Concatenate the inputs of a step into `[..., D + 1 + H]`; a mask of actions stays at the end."""
        masked = self.networks.shape.masked
        values, mask = obs.split_with_sizes([obs.shape[-1] - masked, masked], dim=-1)
        return torch.cat((values, starts.unsqueeze(-1).to(obs.dtype), hidden_state, mask), dim=-1)

    def step(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the head's outputs `[S, N, outputs]` and the next hidden state `[S, N, H]`.

        NaN in the hidden state is replaced by 0, so that it does not affect the rest of the episode.
        """
        shape = self.networks.shape
        outputs, hidden_state = self.network.step(self.networks.actor, shape.encode(inputs))
        return shape.allowed(outputs[..., : self.head.outputs], inputs), hidden_state.nan_to_num()

    def forget(self) -> None:
        """Reset the hidden states of environments whose episode has ended."""
        if self.collector.result is None:
            raise RuntimeError("there is no hidden state to reset before the first step")
        self.starts = self.collector.starts()
        self.hidden_state = self.hidden_state.masked_fill(self.starts.unsqueeze(-1), 0.0)

    @torch.no_grad()
    def act(self, obs: Tree, hidden_state: Tree | None, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Select actions for observations `[S, N, ...]` and hidden states `[S, N, H]` (see `runtime.Policy`)."""
        outputs, after = self.step(self._inputs(obs, hidden_state))
        free = self.networks.free
        actions = self.head.mode(outputs, free) if noise is None else self.head.sample(outputs, free, noise)
        return self.head.to_env(actions), after

    @torch.no_grad()
    def describe(self, obs: Tree, hidden_state: Tree | None) -> Mapping[str, Tensor]:
        """Return the outputs of policy and critic, with hidden states `[S, N, H]` (see `Agent.describe`)."""
        inputs = self._inputs(obs, hidden_state)
        return self.described(self.step(inputs)[0], inputs)

    def _inputs(self, obs: Tree, hidden_state: Tree | None) -> Tensor:
        """Return the inputs of a step within an episode; None: hidden states of zeros."""
        rows = self.read(obs)
        if hidden_state is None:
            hidden_state = rows.new_zeros(*rows.shape[:2], self.network.units)
        starts = torch.zeros(rows.shape[:2], dtype=torch.bool, device=rows.device)
        return self.pack(rows, starts, cast(Tensor, hidden_state))

    def order(self, samples: int, parts: int, stream: torch.Generator) -> Tensor:
        """Return a random permutation `[M]` of the samples of one seed, in equal parts of whole sequences."""
        rows = torch.randperm(self.rows, generator=stream, device=self.device).view(parts, 1, -1)
        times = torch.arange(samples // self.rows, device=self.device).view(1, -1, 1)
        return (times * self.rows + rows).flatten()

    def load_state_dict(self, state: State) -> None:
        """Restore a state exactly."""
        super().load_state_dict(state)
        if begins_anew(self.collector.env):
            self.hidden_state.zero_()
            self.starts.fill_(True)


class RecurrentPPO(PPO):
    """PPO with a recurrent agent; see `operant.control.ppo.PPO`."""

    AGENT: ClassVar[type[Agent]] = RecurrentAgent

    config: RecurrentPPOConfig

    def __init__(
        self,
        config: RecurrentPPOConfig,
        env: BatchEnv,
        *,
        seeds: Sequence[int],
        budget: int,
        algorithm: str = "recurrent-ppo",
    ) -> None:
        """Initialize with zero hidden states; for the arguments see `PPO`. Shards are not supported."""
        super().__init__(config, env, seeds=seeds, budget=budget, algorithm=algorithm)
