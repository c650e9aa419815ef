"""AlphaZero (Silver et al. 2018, Science 362) with the search of Gumbel AlphaZero (Danihelka et al. 2022, ICLR).

Collect games of a network against itself, in which every move is selected by a search with the true rules; estimate the
return of each position from the rest of its game; update the network towards the policy of the search and towards that
return. The improved network guides the next searches.

What differs from the paper: batches and searches are small enough for two cores; the games of all seeds are played
together on tensors; perceptrons replace residual networks, because the boards are small; an unfinished game continues
in the next batch, and the returns of its positions bootstrap from the last search value (λ-returns; λ = 1 uses the
outcome if it is in the batch); a share of the games begins with random moves, so that the network learns about
positions that two good players never reach. Every sampled position is reflected or rotated at random, as in AlphaGo
Zero. There is no weight decay.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import torch
from torch import Tensor

from operant import ops, streams
from operant.control.agent import Agent, Scaling
from operant.envs import BatchEnv, Tree
from operant.envs.tensor.board_games import BoardGame, Positions, Symmetries
from operant.envs.worlds.games import rules_of
from operant.nets import Activation, Pass, Spec, StackedAdam
from operant.runtime.bounds import Interval, NonNegativeFloat, PositiveFloat, PositiveInt, UnitFloat, require
from operant.runtime.budget import FixedRollouts, iterations, remaining, require_budget, scheduled
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import update_metrics
from operant.runtime.weights import Weights
from operant.state import Resumable
from operant.worlds.board_game_player import LEAST_RATE, BoardGamePlayer
from operant.worlds.search import Expansion, Found, Planner, States, search


@dataclass(frozen=True)
class AlphaZeroConfig(FixedRollouts):
    """Hyperparameters of AlphaZero, for boards of up to about twenty cells."""

    num_envs: PositiveInt = 64
    """Number of parallel games per seed."""
    num_steps: PositiveInt = 16
    """Number of moves per game and batch."""
    simulations: PositiveInt = 32
    """Number of simulations per search. More find better moves, in proportionally more time."""
    max_considered_actions: PositiveInt = 16
    """Number of actions considered at the root."""
    search: Literal["gumbel", "puct"] = "gumbel"
    """Action selection in a tree: with Gumbel noise and sequential halving, or as in AlphaZero, by pUCT with
    Dirichlet noise."""
    value_scale: PositiveFloat = 1.0
    """c_scale: weight of values relative to the prior."""
    td_lambda: UnitFloat = 1.0
    """λ of the value targets: 1 is the outcome of the game, 0 the search value one move later."""
    random_openings: UnitFloat = 0.8
    """Share of games that begin with random moves, at most as many as the board has cells."""
    symmetries: bool = True
    """Reflect or rotate each sampled position at random, by the symmetries of the board."""
    buffer_size: PositiveInt = 32_768
    """Capacity of the replay buffer in positions per seed."""
    batch_size: PositiveInt = 256
    """Minibatch size in positions."""
    gradient_steps: PositiveInt = 128
    """Gradient steps per batch of games."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of Adam."""
    lr_schedule: Literal["constant", "linear"] = "linear"
    """Schedule of the learning rate: constant, or linear to a twentieth over the budget."""
    vf_coef: NonNegativeFloat = 1.0
    """Weight of half the squared value error relative to the cross-entropy of the policy; the paper's loss is that of
    2."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Maximum gradient norm per seed; None: no clipping."""
    hidden_sizes: tuple[PositiveInt, ...] = (256, 256)
    """Sizes of the hidden layers, shared by policy and value."""
    activation: Activation = "relu"
    """Activation function of the hidden layers."""
    dirichlet_alpha: Annotated[float, Interval("(0, inf)")] = 0.5
    """Concentration of the Dirichlet noise of pUCT."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self)
        if self.buffer_size < self.rollout_steps:
            raise ValueError(
                f"buffer_size must hold a batch of num_envs * num_steps = {self.rollout_steps} positions, "
                f"got {self.buffer_size}"
            )


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {},
    "operant/ConnectFour-v0": {"num_envs": 512, "gradient_steps": 256, "buffer_size": 131_072},
}
"""Presets: by task, selected automatically, or by name. Other fields keep their defaults."""


class AlphaZero(BoardGamePlayer, Resumable):
    """Learner that trains `S` seeds as one program.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments of a board game with the same seeds, for evaluation; self-play on
            tensors uses its rules.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: moves per seed, over which the learning rate decays.
        algorithm: name in the catalog, for messages.

    Attributes:
        consumed: moves per seed.
        game: the rules.
        symmetries: symmetries of the board.
        own: int64 `[S, N]`, stones of the players to move.
        opponent: int64 `[S, N]`, stones of their opponents.

    Raises:
        ValueError: if the budget is not positive, or the environment is not a board game.
    """

    STATE = (
        "consumed",
        ("parameters", "agent.parameters"),
        "optimizer",
        "own",
        "opponent",
        "streams",
        "boards",
        "policies",
        "returns",
        "stored",
    )

    def __init__(
        self,
        config: AlphaZeroConfig,
        env: BatchEnv,
        *,
        seeds: Sequence[int],
        budget: int,
        algorithm: str = "alphazero",
    ) -> None:
        require_budget(budget, unit="move")
        self.config, self.seeds, self.budget, self.device = config, list(seeds), budget, env.device
        self.agent = Agent(
            env,
            seeds=seeds,
            rows=config.num_envs,
            algorithm=algorithm,
            spec=Spec(config.hidden_sizes, config.activation, shared=True),
            log_std=0.0,
            scaling=Scaling(observations=False, rewards=False, gamma=1.0),
        )
        self.close = self.agent.close
        game = rules_of(env)
        assert game is not None  # noqa: S101 - other tasks have raised before
        self.game: BoardGame = game  # pyright: ignore[reportIncompatibleVariableOverride]
        self.symmetries = Symmetries(*(part.to(env.device) for part in self.game.symmetries))
        self.optimizer = StackedAdam(self.agent.parameters, max_grad_norm=config.max_grad_norm)
        self.streams = streams.of_seeds(seeds, "self-play", device=env.device)
        self.rollout_steps = config.rollout_steps
        self.planner = Planner.of(config, actions=self.game.actions, value_range=(-1.0, 1.0))
        shape = len(seeds), config.num_envs
        begun = self.game.start(len(seeds) * config.num_envs, env.device)
        self.own, self.opponent = (part.reshape(shape).clone() for part in begun)
        places = len(seeds), config.buffer_size
        self.boards = torch.zeros(*places, 2, dtype=torch.int64, device=env.device)
        self.policies = torch.zeros(*places, self.game.actions, device=env.device)
        self.returns = torch.zeros(places, device=env.device)
        self.consumed = self.stored = 0

    @property
    def learned(self) -> Weights:
        """The weights of networks and wrappers."""
        return self.agent.learned

    @property
    def gradient_steps(self) -> int:
        """Number of gradient steps of the run."""
        return iterations(self.budget, self.rollout_steps) * self.config.gradient_steps

    def iterate(self) -> Metrics:
        """Play a batch of moves, compute value targets and train on samples from the replay buffer."""
        metrics = self.collect()
        self.consumed += self.rollout_steps
        return {**metrics, **self.train()}

    @torch.no_grad()
    def collect(self) -> Metrics:
        """Play `num_steps` moves of every game, each selected by a search, and store the positions."""
        columns: list[list[Tensor]] = [[] for _ in range(5)]
        boards, policies, values, rewards, ends = columns
        for _ in range(self.config.num_steps):
            positions = Positions(self.own.flatten(), self.opponent.flatten())
            result = self.search(positions, self._drawn(self.config.num_envs))
            after = self.game.play(positions, result.actions)
            over, value = self.game.outcomes(after)
            boards.append(torch.stack(positions, 1))
            policies.append(result.policy)
            values.append(result.value)
            rewards.append(-value.float())  # the value for the player is minus that for the opponent
            ends.append(over)
            self._go_on(after, over)
        values.append(self.search(Positions(self.own.flatten(), self.opponent.flatten()), None).value)
        returns = self.estimate_returns(torch.stack(values), torch.stack(rewards), torch.stack(ends))
        self._remember(torch.stack(boards), torch.stack(policies), returns)
        ended = torch.stack(ends).view(self.config.num_steps, len(self.seeds), -1).sum((0, 2))
        entropy = ops.categorical_entropy(torch.stack(policies).clamp(min=1e-12).log())
        return {
            "search/policy_entropy": entropy.view(len(policies), len(self.seeds), -1).mean((0, 2)),
            "search/root_value": torch.stack(values[:-1]).abs().view(len(policies), len(self.seeds), -1).mean((0, 2)),
            "rollout/games": ended.float(),
        }

    def estimate_returns(self, values: Tensor, rewards: Tensor, ends: Tensor) -> Tensor:
        """Return the λ-returns `[T, B]` for the players to move.

        The players alternate, so the sign of the values alternates.

        Args:
            values: `[T + 1, B]` values of the searches.
            rewards: `[T, B]` rewards of the moving players.
            ends: `[T, B]` whether the game ended with the move.
        """
        turn = torch.ones_like(rewards)
        turn[1::2] = -1
        targets = ops.lambda_returns(
            turn * rewards,
            -turn * values[1:],
            terminated=ends,
            truncated=torch.zeros_like(ends),
            gamma=1.0,
            lam=self.config.td_lambda,
        )
        return turn * targets

    def _go_on(self, positions: Positions, over: Tensor) -> None:
        """Store the positions after a move, and start new games in place of finished ones."""
        start, still = self._openings(), ~over
        own = torch.where(still, positions.own, start.own)
        self.own, self.opponent = (
            part.view(self.own.shape) for part in (own, torch.where(still, positions.opponent, start.opponent))
        )

    def _openings(self) -> Positions:
        """Return a start position for every game: the empty board, or one after random moves without an end."""
        config, cells = self.config, self.game.rows * self.game.columns
        shape = cells + 1, config.num_envs, self.game.actions
        draws = streams.draw(self.streams, lambda s: torch.rand(shape, generator=s, device=self.device), dim=1)
        return self.game.openings(draws.flatten(1, 2), config.random_openings)

    def _drawn(self, rows: int) -> Tensor:
        """Return the noise `[S * N, A]` of a search."""
        shape = rows, self.game.actions
        return streams.draw(self.streams, lambda stream: self.planner.noise(shape, stream)).flatten(0, 1)

    def search(self, positions: Positions, noise: Tensor | None) -> Found:
        """Search from positions `[S * M]` that have not ended, with the network of each seed."""
        over = torch.zeros_like(positions.own, dtype=torch.bool)
        nothing = torch.zeros(len(over), device=self.device)
        root = self._expanded((*positions, over), nothing, nothing)
        return search(self.planner, root, self._model, noise)

    def moves(self, positions: Positions) -> Tensor:
        """Return the best actions `[S * M]` by search in positions that have not ended."""
        return self.search(positions, None).actions

    def _model(self, states: States, actions: Tensor) -> Expansion:
        """Apply the rules and evaluate the positions with the network; finished games stay finished."""
        own, opponent, was_over = states
        stone = self.game.moves(Positions(own, opponent)).gather(1, actions.unsqueeze(1))[:, 0]
        after = Positions(torch.where(was_over, own, opponent), torch.where(was_over, opponent, own | stone))
        over, value = self.game.outcomes(after)
        reward = -value.float() * ~was_over
        return self._expanded((*after, over | was_over), reward, -(~(over | was_over)).float())

    def _expanded(self, states: States, reward: Tensor, discount: Tensor) -> Expansion:
        own, opponent, over = states
        obs = self._seen(Positions(own, opponent)).view(len(self.agent.parameters), -1, self._inputs)
        forward = Pass(self.agent.networks, obs)  # computes the hidden layers once
        logits = forward.outputs.detach().flatten(0, 1)
        value = forward.values.detach().flatten().tanh()
        return Expansion(
            (own, opponent, over),
            logits.masked_fill(over.unsqueeze(1), 0.0),
            value.masked_fill(over, 0.0),
            reward,
            discount,
        )

    @property
    def _inputs(self) -> int:
        return 2 * self.game.rows * self.game.columns + self.game.actions

    def _seen(self, positions: Positions) -> Tensor:
        """Return network inputs from positions `[B]`: `[B, D]`, with the action mask at the end."""
        return torch.cat([self.game.observe(positions).flatten(1), (self.game.moves(positions) != 0).float()], 1)

    def _remember(self, boards: Tensor, policies: Tensor, returns: Tensor) -> None:
        """Write positions `[T, S * N, ...]` over the oldest ones."""
        steps, seeds = len(boards), len(self.seeds)
        count = steps * self.config.num_envs
        index = (self.stored + torch.arange(count, device=self.device)) % self.config.buffer_size
        for buffer, new in ((self.boards, boards), (self.policies, policies), (self.returns, returns)):
            by_seed = new.view(steps, seeds, self.config.num_envs, *new.shape[2:]).transpose(0, 1)
            buffer[:, index] = by_seed.reshape(seeds, count, *new.shape[2:])
        self.stored += count

    def train(self) -> Metrics:
        """Take gradient steps on positions sampled from the replay buffer."""
        config, counts = self.config, self.optimizer.counts
        size = min(self.stored, config.buffer_size)
        shape = config.gradient_steps, config.batch_size
        chosen = streams.draw(
            self.streams, lambda s: torch.randint(size, shape, generator=s, device=self.device), dim=1
        )
        left = remaining(self.consumed, self.budget)
        learning_rate = scheduled(config.learning_rate, config.lr_schedule, left, least=LEAST_RATE)
        turns = self._turns(shape)
        metrics: dict[str, Tensor | float] = {}
        for index, turn in zip(chosen, turns, strict=True):
            metrics = self.update(index, turn, learning_rate)
        metrics["schedule/learning_rate"] = learning_rate
        return metrics | update_metrics(self.optimizer.counts - counts)

    def _turns(self, shape: tuple[int, int]) -> Tensor:
        """Return symmetries `[*shape[:1], S, *shape[1:]]` of the board, drawn at random."""
        count = len(self.symmetries.cells) if self.config.symmetries else 1
        return streams.draw(self.streams, lambda s: torch.randint(count, shape, generator=s, device=self.device), dim=1)

    def update(self, index: Tensor, turn: Tensor, learning_rate: float) -> dict[str, Tensor | float]:
        """Take one gradient step on the positions `index [S, M]` of the replay buffer, by the symmetries `turn`."""
        rows = torch.arange(len(self.seeds), device=self.device).unsqueeze(1)
        boards, policies, returns = self.boards[rows, index], self.policies[rows, index], self.returns[rows, index]
        obs = self._seen(Positions(*boards.flatten(0, 1).unbind(1))).view(*index.shape, -1)
        obs = obs.gather(-1, self.symmetries.inputs[turn])
        policies = policies.gather(-1, self.symmetries.actions[turn])
        forward = Pass(self.agent.networks, obs)
        logs = forward.outputs.log_softmax(-1).masked_fill(obs[..., -self.game.actions :] == 0, 0.0)
        policy = -(policies * logs).sum(-1).mean(1)
        value = ops.value_loss(forward.values.view_as(returns).tanh(), returns).mean(1)
        gradient = forward.gradient((policy + self.config.vf_coef * value).sum())
        norm = self.optimizer.step(gradient, learning_rate=learning_rate)
        return {
            "losses/policy": policy.detach(),
            "losses/value": value.detach(),
            "losses/gradient_norm": norm,
        }

    @torch.no_grad()
    def act(self, obs: Tree, hidden_state: Tree | None, noise: Tensor | None) -> tuple[Tensor, Tree | None]:
        """Select actions for observations `[S, N, ...]` by a search (see `runtime.Policy`)."""
        assert isinstance(obs, Mapping)  # noqa: S101 - of `BoardGameEnv`
        boards = obs["observation"]
        assert isinstance(boards, Tensor)  # noqa: S101 - of `BoardGameEnv`
        positions = self.game.positions(boards.flatten(0, 1))
        result = self.search(positions, None if noise is None else noise.flatten(0, 1))
        return result.actions.view(boards.shape[:2]), None

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Sample the noise of one action for each of `rows` environments of one seed."""
        return self.planner.noise((rows, self.game.actions), generator)

    def for_seed(self, seed: int) -> Self:
        """Return a player of a single seed."""
        twin = copy(self)
        twin.agent = self.agent.for_seed(seed)
        return twin
