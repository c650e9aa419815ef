"""MuZero: tree search in a learned latent model (Schrittwieser et al. 2020, arXiv:1911.08265).

Every action is selected by a tree search in a model of three networks, which encode an observation as a latent state,
predict the next latent state and reward, and predict policy and value. Training unrolls the model along real actions
for a few steps, with search policies, returns and rewards as targets. Latent states have no other target.

What differs from the paper: sizes are for two cores; the search is that of Gumbel MuZero by default (Danihelka et al.
2022, ICLR), and pUCT as in the paper by choice; perceptrons replace residual networks, and all seeds are one program;
stored positions are searched again (Reanalyse, appendix H), and values bootstrap from the current network, because from
a target network or stored values they propagate only a few steps per refresh. For one player, returns are those of
V-trace (Espeholt et al. 2018, arXiv:1802.01561), because the replay buffer contains actions of worse policies, whose
values plain n-step returns estimate. Values are scaled by the range of returns, not by that of the values in a node,
which would exaggerate small differences between actions, so that the policy would follow errors of the values. The
gradient of a latent state is halved before prediction, too, not only before the dynamics (appendix G).
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import torch
from torch import Tensor

from operant import ops, streams
from operant.control.agent import require_rows
from operant.control.compatibility import require_suitable
from operant.envs import BatchEnv, Tree, learned, start
from operant.envs.spaces import discrete
from operant.envs.tensor.board_games import Positions, Symmetries
from operant.envs.worlds.self_play import SelfPlay, observed
from operant.nets import Activation, StackedAdam, compilable
from operant.runtime.bounds import Interval, NonNegativeFloat, PositiveFloat, PositiveInt, UnitFloat, require
from operant.runtime.budget import FixedRollouts, iterations, remaining, require_budget, scheduled
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import CLIPPED, DROPPED, EPISODES, update_metrics
from operant.runtime.priorities import Priorities
from operant.runtime.replay import EXTRAS, Replay
from operant.runtime.rollouts import Collector, Rollout
from operant.runtime.transitions import Sequences
from operant.runtime.weights import Weights
from operant.worlds.board_game_player import LEAST_RATE, BoardGamePlayer, rules_for_self_play
from operant.worlds.clipping import Clipping
from operant.worlds.latent_model import LatentShape
from operant.worlds.replay_learner import ReplayLearner, insert_windows, require_sequence
from operant.worlds.search import Expansion, Found, Planner, States, search
from operant.worlds.unrolling import Unroll, returns_of, turned, unrolled, unrolled_losses


@dataclass(frozen=True)
class MuZeroConfig(FixedRollouts):
    """Hyperparameters of MuZero, for vectors and small boards."""

    num_envs: PositiveInt = 8
    """Number of environments or games per seed, N."""
    num_steps: PositiveInt = 32
    """Number of steps per environment and batch."""
    simulations: PositiveInt = 16
    """Number of simulations per search. More find better actions, in proportionally more time."""
    max_considered_actions: PositiveInt = 16
    """Number of actions considered at the root."""
    search: Literal["gumbel", "puct"] = "gumbel"
    """Action selection in a tree: with Gumbel noise and sequential halving, or by pUCT with Dirichlet noise."""
    value_scale: PositiveFloat = 1.0
    """c_scale: weight of values relative to the prior."""
    dirichlet_alpha: Annotated[float, Interval("(0, inf)")] = 0.3
    """Concentration of the Dirichlet noise of pUCT."""
    gamma: UnitFloat = 0.997
    """Discount factor; two-player games are not discounted."""
    unroll_steps: PositiveInt = 5
    """Number of unroll steps of the model in training."""
    td_steps: PositiveInt = 10
    """Number of rewards after the last unroll step before bootstrapping."""
    td_lambda: UnitFloat = 1.0
    """λ of the returns: 1 uses all rewards of the window, 0 the value one step later."""
    reanalyze_ratio: NonNegativeFloat = 4.0
    """Stored steps that are searched again per environment step."""
    random_openings: UnitFloat = 0.8
    """Share of two-player games that begin with random moves, at most as many as the board has cells."""
    symmetries: bool = True
    """Reflect or rotate each sample of a board game at random, by the symmetries of the board."""
    buffer_size: PositiveInt = 100_000
    """Capacity of the replay buffer in steps per seed."""
    per_alpha: UnitFloat = 0.0
    """Exponent α of prioritized replay: 0 samples uniformly, 1 in proportion to the last value error."""
    per_beta: UnitFloat = 0.4
    """Exponent β of the importance weights of prioritized replay."""
    batch_size: PositiveInt = 128
    """Minibatch size in windows."""
    gradient_steps: PositiveInt = 64
    """Gradient steps per batch."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of Adam."""
    lr_schedule: Literal["constant", "linear"] = "linear"
    """Schedule of the learning rate: constant, or linear to a twentieth over the budget."""
    vf_coef: NonNegativeFloat = 0.25
    """Weight of the value loss relative to those of policy and rewards."""
    max_grad_norm: PositiveFloat | None = 5.0
    """Maximum gradient norm per seed; None: no clipping."""
    latent_size: PositiveInt = 64
    """Size of a latent state."""
    hidden_sizes: tuple[PositiveInt, ...] = (128,)
    """Sizes of the hidden layers of each of the three networks."""
    activation: Activation = "relu"
    """Activation function of the hidden layers."""
    support_size: PositiveInt = 20
    """Number of atoms of values and rewards on each side of 0; n atoms cover values up to about n² + 2 n. Unused in
    board games, whose atoms are their outcomes -1, 0 and 1."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self)
        if self.buffer_size < self.num_envs * self.window:
            raise ValueError(
                f"buffer_size must hold num_envs * (unroll_steps + td_steps + 1) = {self.num_envs * self.window} "
                f"steps, got {self.buffer_size}"
            )

    @property
    def window(self) -> int:
        """Number of consecutive steps of a sample."""
        return self.unroll_steps + self.td_steps + 1


SPREAD_SHARE = 0.1
"""Minimum weight of the last batch in the moving range of returns."""

LEAST_SPREAD = 1e-3
"""Minimum range of returns, against division by 0."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {},
    "CartPole-v1": {"reanalyze_ratio": 16.0},
    "operant/TicTacToe-v0": {
        "value_scale": 0.1,
        "num_envs": 16,
        "gradient_steps": 128,
        "buffer_size": 16_384,
        "hidden_sizes": (256, 256),
    },
    "operant/ConnectFour-v0": {"value_scale": 0.1},
}
"""Presets: by task, selected automatically, or by name. Other fields keep their defaults."""


class MuZero(BoardGamePlayer, ReplayLearner):
    """Learner that trains `S` seeds as one program.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments with the same seeds. Board games are trained by self-play on
            tensors and evaluated in the environment; the search does not use the rules.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps (moves in games) per seed, over which the learning rate decays.
        algorithm: name in the catalog, for messages.

    Attributes:
        consumed: environment steps per seed.
        game: the rules of a board game, else None.
        collector: collector of the environments.
        replay: replay buffer of steps with search results.
        parameters: `[S, P]`.
        symmetries: symmetries of the board; None if samples are not reflected and rotated.
        spread: `[S, 1]` range of returns between percentiles, the scale of values; 1 in board games.

    Raises:
        ValueError: if spaces are unsupported, the number of environments is wrong, or the budget is too small.
    """

    STATE = ("consumed", "parameters", "optimizer", "collector", "replay", "priorities", "spread", "streams")

    def __init__(
        self, config: MuZeroConfig, env: BatchEnv, *, seeds: Sequence[int], budget: int, algorithm: str = "muzero"
    ) -> None:
        require_suitable(env, algorithm)
        require_budget(budget, unit="step")
        require_sequence(budget, config.window, "unroll_steps, td_steps", rows=config.num_envs, steps=config.num_steps)
        require_rows(env, seeds, config.num_envs)
        self.config, self.seeds, self.budget, self.device = config, list(seeds), budget, env.device
        self.game = rules_for_self_play(env)
        self.close = env.close
        if self.game is None:
            start(env, seeds)
        else:
            env = SelfPlay(self.game, env, seeds=seeds, rows=config.num_envs, random_openings=config.random_openings)
        self.collector = Collector(env, seeds=len(seeds))
        choices = discrete(env.action_space)
        self.features, self.first_action = self.collector.features, int(choices.start)
        self.shape = LatentShape(
            inputs=self.features.shape[0],
            actions=int(choices.n),
            latent=config.latent_size,
            hidden=config.hidden_sizes,
            activation=config.activation,
            support_size=config.support_size if self.game is None else 1,
            squashed=self.game is None,
        )
        self.clipping = Clipping(self.shape)
        self.parameters = self.shape.initial(streams.of_seeds(seeds, "networks")).to(env.device)
        self.model = self.shape.bind(self.parameters)
        self.optimizer = StackedAdam(self.parameters, max_grad_norm=config.max_grad_norm)
        self.replay = Replay(seeds=len(seeds), rows=config.num_envs, capacity=config.buffer_size, device=env.device)
        self.priorities: Priorities | None = None
        if config.per_alpha:
            capacity = self.replay.length * config.num_envs
            self.priorities = Priorities(seeds=len(seeds), capacity=capacity, alpha=config.per_alpha, device=env.device)
        self.streams = streams.of_seeds(seeds, "muzero", device=env.device)
        self.rollout_steps = config.rollout_steps
        self.planner = Planner.of(config, actions=self.shape.actions, value_range=self._value_range)
        self.spread = torch.ones(len(seeds), 1, device=env.device)
        self.symmetries: Symmetries | None = None
        if self.game is not None and config.symmetries:
            self.symmetries = Symmetries(*(part.to(env.device) for part in self.game.symmetries))
        self.consumed = 0

    @property
    def _value_range(self) -> tuple[float, float] | None:
        """Range of the values in a search; None for pUCT, which uses the values of each node."""
        if self.game is not None:
            return -1.0, 1.0
        return (0.0, 1.0) if self.config.search == "gumbel" else None

    @property
    def turn(self) -> float:
        """Sign of the next step's value: -1 if the other player moves."""
        return 1.0 if self.game is None else -1.0

    @property
    def gamma(self) -> float:
        """Discount factor."""
        return self.config.gamma if self.game is None else 1.0

    @property
    def learned(self) -> Weights:
        """The weights of networks and wrappers, and the ranges of returns."""
        return {"parameters": self.parameters, "spread": self.spread, **learned(self.collector.env)}

    @property
    def gradient_steps(self) -> int:
        """Number of gradient steps of the run."""
        return (iterations(self.budget, self.rollout_steps) - self._untrained) * self.config.gradient_steps

    @property
    def _untrained(self) -> int:
        """Number of first iterations without training, because the replay buffer holds no window yet."""
        return iterations(self.config.window, self.config.num_steps) - 1

    def iterate(self) -> Metrics:
        """Collect a batch of steps, search some stored steps again, and train on samples."""
        metrics = self.collect()
        self.consumed += self.rollout_steps
        if self.replay.filled < self.config.window:
            return metrics
        self.reanalyze()
        return {**metrics, **self.train()}

    @torch.no_grad()
    def collect(self) -> Metrics:
        """Take `num_steps` steps in every environment, each selected by a search, and store them."""

        def act(obs: Tensor, t: int) -> tuple[tuple[Tensor, ...], Tensor]:
            result = self.search(obs, self._drawn(obs.shape[1]))
            kept = tuple(
                torch.unflatten(part, 0, obs.shape[:2]) for part in (result.actions, result.policy, result.value)
            )
            return kept, kept[0] + self.first_action

        rollout = self.collector.collect(self.config.num_steps, act)
        dropped = self._remember(rollout)
        _, policies, values = rollout.kept
        report = rollout.metrics if self.game is None else {"rollout/games": rollout.metrics[EPISODES].float()}
        return {
            **report,
            DROPPED: dropped,
            "search/policy_entropy": ops.categorical_entropy(policies.clamp(min=1e-12).log()).mean((0, 2)),
            "search/root_value": values.mean((0, 2)) if self.game is None else values.abs().mean((0, 2)),
        }

    def _remember(self, rollout: Rollout) -> Tensor:
        """Store steps, their search policies, and the behavior probabilities of their actions.

        Returns:
            `[S]` number of dropped transitions.
        """
        actions, policy, _ = rollout.kept
        behavior = policy.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        dropped = self.replay.add(replace(rollout, extras={"policy": policy, "behavior": behavior}), actions)
        if self.priorities is not None:
            insert_windows(self.priorities, self.replay, steps=len(actions), window=self.config.window)
        return dropped

    @torch.no_grad()
    def reanalyze(self) -> None:
        """Search again from sampled stored steps with the current networks, and store the policies."""
        config, replay = self.config, self.replay
        count = round(config.reanalyze_ratio * config.num_steps * config.num_envs)
        if not count:
            return
        index = replay.draw(count, self.streams)
        obs = replay.read("obs", index)
        result = self.search(obs, self._drawn(count))
        policy = torch.unflatten(result.policy, 0, index.shape)
        # Invalid steps have no actions, from which a search would return NaN.
        valid = replay.read("valid", index).unsqueeze(-1)
        replay.amend(index, {"policy": torch.where(valid, policy, replay.read(f"{EXTRAS}policy", index))})

    def _drawn(self, rows: int) -> Tensor:
        """Return the noise `[S * M, A]` of a search."""
        return streams.draw(self.streams, lambda s: self.planner.noise((rows, self.shape.actions), s)).flatten(0, 1)

    def search(self, obs: Tensor, noise: Tensor | None) -> Found:
        """Search from observations `[S, M, D]`, with the networks of each seed; results are `[S * M]`.

        In the tree, values are divided by the range of returns.
        """
        latent = self.model.represent(obs)
        logits, value = self.model.predict(latent)
        if masked := self.features.masked:
            logits = logits.masked_fill(obs[..., -masked:] == 0, -torch.inf)
        scaled = (self.model.number(value) / self.spread).flatten()
        nothing = torch.zeros_like(scaled)
        root = Expansion((latent.flatten(0, 1),), logits.flatten(0, 1), scaled, nothing, nothing)
        result = search(self.planner, root, self._model, noise)
        unit = self.spread.expand(obs.shape[:2]).flatten()
        return result._replace(value=result.value * unit, prior_value=result.prior_value * unit)

    def _model(self, states: States, actions: Tensor) -> Expansion:
        """Evaluate the networks; after the end of an episode they have learned to predict 0."""
        seeds = len(self.parameters)
        latent, logits, value, reward = self.predict_next(
            torch.unflatten(states[0], 0, (seeds, -1)), actions.view(seeds, -1)
        )
        discount = torch.full_like(value, self.gamma * self.turn)
        parts = (part.flatten(0, 1) for part in (logits, value / self.spread, reward / self.spread, discount))
        return Expansion((latent.flatten(0, 1),), *parts)

    @compilable
    def predict_next(self, latent: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the latent states after actions, with policy logits, values, and rewards."""
        after, reward = self.model.follow(latent, actions)
        logits, value = self.model.predict(after)
        return after, logits, self.model.number(value), self.model.number(reward)

    def train(self) -> Metrics:
        """Take gradient steps on windows sampled from the replay buffer."""
        config, counts = self.config, self.optimizer.counts
        left = remaining(self.consumed, self.budget)
        learning_rate = scheduled(config.learning_rate, config.lr_schedule, left, least=LEAST_RATE)
        metrics: dict[str, Tensor | float] = {}
        clipped = torch.zeros_like(counts[0])
        for step in range(config.gradient_steps):
            batch, index = self.sample()
            if self.game is None:
                clipped += self.clipping.count(batch)
                if not step:
                    self._rescale(batch.returns[0])
            metrics = self.update(batch, index, learning_rate)
        metrics["schedule/learning_rate"] = learning_rate
        metrics |= update_metrics(self.optimizer.counts - counts)
        return metrics if self.game is not None else metrics | {CLIPPED: self.clipping.reported(clipped)}

    def _rescale(self, returns: Tensor) -> None:
        """Update the range of returns by samples `[S, M]`: a mean at first, then a moving average."""
        share = max(SPREAD_SHARE, 1 / (self.consumed // self.rollout_steps - self._untrained))
        self.spread.lerp_(ops.percentile_range(returns).unsqueeze(1).clamp(min=LEAST_SPREAD), share)

    def sample(self) -> tuple[Unroll, Tensor]:
        """Return training samples, and their start indices `[S, M]` in the replay buffer."""
        config, replay = self.config, self.replay
        if self.priorities is None:
            index = replay.draw_sequences(config.batch_size, config.window, self.streams)
            weights = torch.ones(index.shape, device=self.device)
        else:
            index, chance = self.priorities.draw(config.batch_size, self.streams, otherwise=replay.oldest)
            weights = (replay.size * chance).clamp(min=1e-30).pow(-config.per_beta).float()
            weights = weights / weights.amax(1, keepdim=True)
        return self.unroll(replay.take_sequences(index, config.window), weights), index

    @torch.no_grad()
    def unroll(self, steps: Sequences, weights: Tensor) -> Unroll:
        """Return windows `[window, S, M]` as samples, with values of the current network."""
        k, actions, lam = self.config.unroll_steps, self.shape.actions, self.config.td_lambda
        off_policy = self.game is None
        first = 0 if off_policy or lam < 1 else len(steps.obs) - 1  # with λ = 1, the other values cancel
        observations = steps.obs[first:].movedim(0, 1)
        predicted = self.model.number(self.model.predict(self.model.represent(observations.flatten(1, 2)))[1])
        values = predicted.view(observations.shape[:3]).movedim(1, 0)
        values = torch.nn.functional.pad(values, (0, 0, 0, 0, first, 0))
        returns = returns_of(steps, values, off_policy=off_policy, turn=self.turn, gamma=self.gamma, lam=lam)
        batch = unrolled(steps, returns, weights, k=k, actions=actions, generators=self.streams)
        if self.symmetries is None:
            return batch
        count, shape = len(self.symmetries.cells), weights.shape[1:]
        turns = streams.draw(self.streams, lambda s: torch.randint(count, shape, generator=s, device=self.device))
        return turned(batch, self.symmetries, turns)

    def update(self, batch: Unroll, index: Tensor, learning_rate: float) -> dict[str, Tensor | float]:
        """Take one gradient step, and update the priorities of the windows at `index`."""
        gradient, losses, errors = self.gradient(batch)
        norm = self.optimizer.step(gradient, learning_rate=learning_rate)
        if self.priorities is not None:
            self.priorities.update(index, errors)
        names = ("losses/policy", "losses/value", "losses/reward")
        return {**dict(zip(names, losses, strict=True)), "losses/gradient_norm": norm}

    @compilable
    def gradient(self, batch: Unroll) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """Return the gradient `[S, P]`, the losses `[S]` of policy, value and reward, and errors of values `[S, M]`."""
        parameters = self.parameters.detach().requires_grad_()
        losses, values = unrolled_losses(self.shape.bind(parameters), batch, self.features.masked)
        policy, value, reward = losses
        (gradient,) = torch.autograd.grad((policy + self.config.vf_coef * value + reward).sum(), parameters)
        return gradient, tuple(loss.detach() for loss in losses), values.detach() - batch.returns[0]

    @torch.no_grad()
    def act(self, obs: Tree, hidden_state: Tree | None, noise: Tensor | None) -> tuple[Tensor, Tree | None]:
        """Select actions for observations `[S, N, ...]` by a search (see `runtime.Policy`)."""
        inputs = self.features.by_seed(obs)
        result = self.search(inputs, None if noise is None else noise.flatten(0, 1))
        return result.actions.view(inputs.shape[:2]) + self.first_action, None

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Sample the noise of one action for each of `rows` environments of one seed."""
        return self.planner.noise((rows, self.shape.actions), generator)

    def moves(self, positions: Positions) -> Tensor:
        """Return the best actions `[S * M]` by search in positions that have not ended."""
        assert self.game is not None  # noqa: S101 - only called for board games
        inputs = self.features.encode(observed(self.game, positions))
        return self.search(torch.unflatten(inputs, 0, (len(self.parameters), -1)), None).actions

    def for_seed(self, seed: int) -> Self:
        """Return a player of a single seed."""
        twin = copy(self)
        twin.parameters = self.parameters[seed : seed + 1]
        twin.model, twin.spread = self.shape.bind(twin.parameters), self.spread[seed : seed + 1]
        vars(twin).pop("predict_next", None)  # compiled for the networks of all seeds
        return twin
