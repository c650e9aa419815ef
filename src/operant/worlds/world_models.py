"""World Models: a controller trained in imagined episodes of a model (Ha & Schmidhuber 2018, arXiv:1803.10122).

Take random actions and train a variational autoencoder (V) that encodes images as latent vectors. Train a recurrent
network (M) that predicts a mixture of Gaussians over the next latent vector and the reward, and the end of episodes.
Then CMA-ES optimizes a linear controller (C) of latent vector and recurrent state in episodes imagined by M, with a
temperature that makes them more random, so that controllers cannot exploit errors of M. The controller acts in the
environment without further training. With several rounds, it collects the data of V and M in the next round
(section 5).

What differs from the paper: pixels are Bernoulli variables, not squared errors; the recurrent network has the gates of
a GRU; one mixture of K components is over the whole vector, not one per entry, and includes the reward; all candidates
of a generation use the same random numbers; the acting controller is the mean of the search distribution, not the best
candidate, whose score is biased upward.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, cast

import torch
from torch import Tensor

from operant import ops, streams
from operant.control.agent import require_rows
from operant.control.compatibility import require_suitable
from operant.envs import BatchEnv, Tree, learned, start
from operant.nets import StackedAdam
from operant.runtime.budget import iterations
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import DROPPED, update_metrics
from operant.runtime.replay import Replay
from operant.runtime.rollouts import Act, Collector, Rollout, all_episodes
from operant.runtime.weights import Weights
from operant.state import State
from operant.worlds import dreaming
from operant.worlds.action_vectors import action_vectors
from operant.worlds.autoencoder import StackedVAE
from operant.worlds.evolution import Evolution
from operant.worlds.mixture_rnn import MixtureRNNShape, Noise, Steps
from operant.worlds.replay_learner import ReplayLearner
from operant.worlds.world_models_config import PRESETS, WorldModelsConfig

__all__ = ["PRESETS", "WorldModels", "WorldModelsConfig"]

logger = logging.getLogger(__name__)

STEPS = 50
"""Gradient steps of V or M in one iteration; the last one of a stage takes the rest."""

AT_ONCE = 2048
"""Images per seed that are encoded together."""

Stage = Literal["collect", "vision", "model", "controller"]
"""Stage of an iteration: collect, or train V, M or C."""

STAGES: tuple[Stage, ...] = ("collect", "vision", "model", "controller")
"""The stages in order."""


class WorldModels(ReplayLearner):
    """Learner that trains `S` seeds as one program.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments with the same seeds and image observations.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps per seed.
        algorithm: name in the catalog, for messages.

    Attributes:
        consumed: environment steps per seed so far. The steps of a round are counted gradually while V, M and C are
            trained.
        vision: parameters `[S, P]` of V.
        model: parameters `[S, P]` of M.
        controller: weights `[S, F, A]` of C, with F = Z + H + 1 features, of which the last is 1.

    Raises:
        ModuleNotFoundError: if the package `cma` is not installed.
        ValueError: if the environment's spaces are unsupported, or the number of environments or the budget is wrong.
    """

    STATE = (
        *("consumed", "begun", "calls", "rounds", "vision", "model", "controller", "vision_optimizer"),
        *("model_optimizer", "collector", "replay", "evolution", "hidden", "starts", "streams"),
    )

    def __init__(
        self,
        config: WorldModelsConfig,
        env: BatchEnv,
        *,
        seeds: Sequence[int],
        budget: int,
        algorithm: str = "world-models",
    ) -> None:
        self.config = config
        if budget < (smallest := self._rollouts(0) * config.num_envs * config.num_steps):
            raise ValueError(
                f"budget must be at least {smallest} environment steps, those of the first rollouts (num_envs "
                f"{config.num_envs} times num_steps {config.num_steps}, with sequences of sequence_length "
                f"{config.sequence_length}), got {budget}"
            )
        trial = config.num_envs * self._trial_steps
        if config.train_in == "environment" and budget < self._collected + trial:
            raise ValueError(
                f"budget must be at least {self._collected + trial} environment steps to train the controller in the "
                f"environment, got {budget}: {self._collected} are collected (collect_steps in whole rollouts), and a "
                f"generation takes {trial} (population_size * rollouts * max_dream_steps): raise the budget, or lower "
                "one of these"
            )
        require_suitable(env, algorithm)
        require_rows(env, seeds, config.num_envs)
        self.seeds, self.budget, self.device = list(seeds), budget, env.device
        self.close = env.close
        start(env, seeds)
        self.collector = Collector(env, seeds=len(seeds))
        self.features = self.collector.features
        self.actions = action_vectors(env.action_space, device=env.device)
        self._make_networks()
        self.replay = Replay(seeds=len(seeds), rows=config.num_envs, capacity=config.buffer_size, device=env.device)
        self.streams = [streams.torch_generator(seed, "world models", device=env.device) for seed in seeds]
        self.hidden = torch.zeros(len(seeds), config.num_envs, config.rnn_hidden_size, device=env.device)
        self.starts = torch.ones(len(seeds), config.num_envs, dtype=torch.bool, device=env.device)
        self.consumed = self.begun = self.calls = self.rounds = 0
        self._latents: tuple[Tensor, Tensor] | None = None
        self._warned = False

    def _make_networks(self) -> None:
        config = self.config
        actions = self.actions.width
        self.vae = StackedVAE(self.features.shape, config.latent_size, config.vae_hidden_sizes, config.vae_encoder)
        self.rnn = MixtureRNNShape(
            latent=config.latent_size,
            actions=actions,
            units=config.rnn_hidden_size,
            components=config.mixture_components,
            steps=config.sequence_length,
        )
        generators = [streams.torch_generator(seed, "networks") for seed in self.seeds]
        self.vision = self.vae.initial(generators).to(self.device)
        self.model = self.rnn.initial(generators).to(self.device)
        self.vision_optimizer = StackedAdam(self.vision)
        self.model_optimizer = StackedAdam(self.model, max_grad_norm=config.max_grad_norm)
        self.bound_vision, self.bound_model = self.vae.bind(self.vision), self.rnn.bind(self.model)
        features = config.latent_size + config.rnn_hidden_size + 1
        self.controller = torch.zeros(len(self.seeds), features, actions, device=self.device)
        self.evolution = Evolution(
            seeds=self.seeds,
            population=config.population_size,
            sigma=config.initial_sigma,
            size=features * actions,
        )

    @property
    def learned(self) -> Weights:
        """The weights of networks, controllers and wrappers."""
        own = {"vision": self.vision, "model": self.model, "controller": self.controller}
        return {**own, **learned(self.collector.env)}

    @property
    def gradient_steps(self) -> int:
        """Number of gradient steps of V and M in the whole run."""
        return self._all_rounds * (self.config.vae_gradient_steps + self.config.rnn_gradient_steps)

    @property
    def _collected(self) -> int:
        """Number of steps per seed that a round collects, in whole rollouts; the last round may have others."""
        return self._rollouts(self.config.collect_steps) * self.config.num_envs * self.config.num_steps

    @property
    def _all_rounds(self) -> int:
        """Number of rounds in the run; the last one collects the rest of the budget."""
        return 1 if self.config.train_in == "environment" else max(round(self.budget / self._collected), 1)

    @property
    def plan(self) -> dict[Stage, int]:
        """Number of iterations of each stage in this round; a new budget changes only what is not collected yet."""
        config = self.config
        whole = config.train_in == "environment" or self.rounds + 1 < self._all_rounds
        wanted = self._rollouts(config.collect_steps if whole else self.budget - self.begun)
        collected = self.replay.added // config.num_steps - self.begun // (config.num_envs * config.num_steps)
        return {
            "collect": collected if self.calls > collected else max(wanted, collected),
            "vision": -(-config.vae_gradient_steps // STEPS),
            "model": -(-config.rnn_gradient_steps // STEPS),
            "controller": config.generations if config.train_in == "dream" else 0,
        }

    def _rollouts(self, wanted: int) -> int:
        """Return how many rollouts have `wanted` steps per seed, and enough for a sequence of every environment."""
        config = self.config
        return iterations(
            max(wanted, config.num_envs * (config.sequence_length + 1)), config.num_envs * config.num_steps
        )

    @property
    def stage(self) -> Stage:
        """Stage of the next iteration."""
        before = 0
        for stage, calls in self.plan.items():
            before += calls
            if self.calls < before:
                return stage
        return "controller"

    def iterate(self) -> Metrics:
        """Collect, or train V, M or C, according to the stage."""
        plan, config = self.plan, self.config
        stages: Mapping[Stage, Callable[[], Metrics]] = {
            "collect": self.collect,
            "vision": self.train_vision,
            "model": self.train_model,
            "controller": self.train_controller,
        }
        metrics = stages[self.stage]()
        self.calls += 1
        collected, total = plan["collect"] * config.num_envs * config.num_steps, sum(plan.values())
        if self.calls < total:  # less than the budget, which ends with the round and not within it
            self.consumed = self.begun + min(collected, self.budget - self.begun) * self.calls // total
        elif self.calls == total:
            self.consumed = self.begun + collected
        else:
            self.consumed += config.num_envs * self._trial_steps
        if config.train_in == "dream" and self.calls == total:
            self.begun, self.calls, self.rounds = self.consumed, 0, self.rounds + 1
        return metrics

    @torch.no_grad()
    def collect(self) -> Metrics:
        """Take `num_steps` steps in every environment, at random in the first round, and store them."""

        def act(obs: Tensor, t: int) -> tuple[tuple[Tensor], Tensor]:
            code = (
                self._controlled(obs, self.controller.unsqueeze(1), t)
                if self.rounds
                else streams.draw(self.streams, lambda stream: self.actions.draw((obs.shape[1],), stream))
            )
            return (code,), self.actions.to_env(code)

        rollout = self._played(self.config.num_steps, act)
        dropped = self.replay.add(rollout, rollout.kept[0])
        self._latents = None
        return {**rollout.metrics, DROPPED: dropped}

    def _played(self, steps: int, act: Act) -> Rollout:
        """Take steps in every environment, and record the starts of episodes."""
        rollout = self.collector.collect(steps, act)
        self.starts = self.collector.starts()
        return rollout

    def _controlled(self, obs: Tensor, weights: Tensor, t: int) -> Tensor:
        """Return encoded actions `[S, N, A]` of controllers `[S, K, F, A]`, each for a share of the environments.

        Args:
            obs: images `[S, N, C, H, W]`.
            weights: weights of the controllers.
            t: step of a rollout.
        """
        if t:
            self.starts = self.collector.starts()
        latent, hidden = self.bound_vision.encode(obs)[0], self.hidden.masked_fill(self.starts.unsqueeze(-1), 0.0)
        code = dreaming.act(self.actions, latent, hidden, weights)
        self.hidden = self.bound_model.follow(latent, code, hidden)[1]
        return code

    @property
    def _stage_calls(self) -> int:
        """Number of iterations of this stage so far."""
        plan, place = self.plan, STAGES.index(self.stage)
        return self.calls - sum(plan[stage] for stage in STAGES[:place])

    @property
    def _rate_fraction(self) -> float:
        """Current fraction of the learning rates in this stage."""
        return 1.0 if self.config.lr_schedule == "constant" else 1.0 - 0.9 * self._stage_calls / self.plan[self.stage]

    def train_vision(self) -> Metrics:
        """Take gradient steps of V on collected images."""
        config, counts, falls = self.config, self.vision_optimizer.counts, self._rate_fraction
        losses: list[Tensor] = []
        for _ in range(min(STEPS, config.vae_gradient_steps - STEPS * self._stage_calls)):
            index = self.replay.draw(config.vae_batch_size, self.streams)
            noise = self._normal(config.vae_batch_size, config.latent_size)
            parameters = self.vision.detach().requires_grad_()
            pixels, divergence = self.vae.bind(parameters).loss(self.replay.read("obs", index), noise)
            loss = pixels + divergence.clamp(min=config.free_nats * config.latent_size)
            (gradient,) = torch.autograd.grad(loss.mean(1).sum(), parameters)
            self.vision_optimizer.step(gradient, learning_rate=config.vae_learning_rate * falls)
            losses.append(torch.stack((pixels, divergence)).detach().mean(-1))
        pixels, divergence = torch.stack(losses).mean(0)
        self._latents = None
        names = {"losses/pixels": pixels, "losses/latent_kl": divergence}
        return names | update_metrics(self.vision_optimizer.counts - counts)

    def train_model(self) -> Metrics:
        """Take gradient steps of M on collected sequences."""
        config, counts, falls = self.config, self.model_optimizer.counts, self._rate_fraction
        losses: list[Tensor] = []
        for _ in range(min(STEPS, config.rnn_gradient_steps - STEPS * self._stage_calls)):
            gradient, loss = self.bound_model.gradient(self._sequences())
            self.model_optimizer.step(gradient, learning_rate=config.rnn_learning_rate * falls)
            losses.append(torch.stack(loss))
        mixture, end = torch.stack(losses).mean(0)
        return {"losses/mixture": mixture, "losses/end": end} | update_metrics(self.model_optimizer.counts - counts)

    @torch.no_grad()
    def _sequences(self) -> Steps:
        """Return training sequences, with newly sampled latent vectors."""
        config, replay = self.config, self.replay
        length, samples = config.sequence_length, config.rnn_batch_size
        index = replay.draw_sequences(samples, length + 1, self.streams)
        steps = torch.arange(length + 1, device=self.device).view(-1, 1, 1) * replay.rows
        places = (index + steps) % (replay.length * replay.rows)
        terminated, ended, valid = (replay.read(name, places[:-1]) for name in ("terminated", "ended", "valid"))
        starts = torch.cat((torch.ones_like(ended[:1]), (ended | ~valid)[:-1]))
        latent = self._drawn(places.movedim(0, 1)).movedim(1, 0)
        weights = (valid & (terminated | ~ended)).float()
        columns = (latent[:-1], replay.read("actions", places[:-1]), starts, latent[1:])
        columns = (*columns, replay.read("rewards", places[:-1]), terminated, weights)
        return Steps(*(column.movedim(1, 0) for column in columns))

    def _drawn(self, places: Tensor) -> Tensor:
        """Sample latent vectors `[S, ..., Z]` of the stored observations at indices `[S, ...]`."""
        seeds = torch.arange(len(self.seeds), device=self.device).view(-1, *[1] * (places.dim() - 1))
        mean, log_std = (part[seeds, places] for part in self.latents)
        noise = self._normal(places[0].numel(), self.config.latent_size).view_as(mean)
        return ops.gaussian_sample(mean, log_std, noise)

    def _normal(self, *shape: int) -> Tensor:
        return torch.stack([torch.empty(shape, device=s.device).normal_(generator=s) for s in self.streams])

    @property
    @torch.no_grad()
    def latents(self) -> tuple[Tensor, Tensor]:
        """V's means and log standard deviations `[S, n, Z]` of all stored observations."""
        if self._latents is None:
            index = torch.arange(self.replay.size, device=self.device).expand(len(self.seeds), -1)
            parts = [self.bound_vision.encode(self.replay.read("obs", part)) for part in torch.split(index, AT_ONCE, 1)]
            mean, log_std = zip(*parts, strict=True)
            self._latents = torch.cat(mean, 1), torch.cat(log_std, 1)
        return self._latents

    def train_controller(self) -> Metrics:
        """Evaluate one generation of controllers, in imagined episodes or in the environment, and update the search."""
        if self.evolution.rounds == self.rounds:
            self.evolution.begin(self.controller.flatten(1))
        candidates = self.evolution.ask().to(self.device, torch.float32)
        weights = torch.unflatten(candidates, 2, self.controller.shape[1:])
        returns, metrics = self.dream(weights) if self.config.train_in == "dream" else self.trial(weights)
        self.evolution.tell(returns)
        self.controller.copy_(self.evolution.mean.view_as(self.controller))
        return {
            **metrics,
            "control/fitness": returns.mean(1),
            "control/best_fitness": returns.amax(1),
            "control/sigma": self.evolution.spread,
        }

    @torch.no_grad()
    def dream(self, weights: Tensor) -> tuple[Tensor, Metrics]:
        """Return the mean returns `[S, K]` of controllers `[S, K, F, A]` in imagined episodes, and metrics.

        Imagined episodes start from the first observations of real episodes.
        """
        config, horizon = self.config, self.config.max_dream_steps
        latent = self._drawn(self._first(config.rollouts))
        shape = horizon, config.rollouts
        drawn = [Noise.draw(shape, config.mixture_components, config.latent_size, s) for s in self.streams]
        noise = Noise(*(torch.stack(part, 1) for part in zip(*drawn, strict=True)))
        returns, lengths = dreaming.dream(
            self.bound_model, self.actions, weights, latent, noise=noise, temperature=config.dream_temperature
        )
        return returns, {"dream/episode_length": lengths}

    def _first(self, count: int) -> Tensor:
        """Sample indices `[S, count]` of the first steps of episodes."""
        replay, rows = self.replay, self.replay.rows
        places = torch.arange(replay.size, device=self.device).expand(len(self.seeds), -1)
        before = (places - rows) % (replay.length * rows)
        first = replay.read("ended", before) | ~replay.read("valid", before)
        oldest = places.div(rows, rounding_mode="floor") == replay.added % replay.filled
        first = torch.where(oldest, replay.added == replay.filled, first) & replay.read("valid", places)
        candidates = [row.nonzero().squeeze(1) for row in self._with_starts(first)]
        drawn = [
            torch.randint(len(place), (count,), generator=stream, device=self.device)
            for place, stream in zip(candidates, self.streams, strict=True)
        ]
        return torch.stack([place[index] for place, index in zip(candidates, drawn, strict=True)])

    def _with_starts(self, first: Tensor) -> Tensor:
        """Return the marked steps `[S, n]`, and of seeds without any all valid ones, or else all, with a warning."""
        none = ~first.any(1, keepdim=True)
        if not none.any():
            return first
        if not self._warned:
            self._warned = True
            logger.warning(
                "the replay buffer of %d steps holds no first step of an episode: dreams begin in any step; raise "
                "buffer_size above the length of an episode times num_envs",
                self.config.buffer_size,
            )
        valid = self.replay.fields["valid"][: self.replay.filled].movedim(1, 0).flatten(1)
        return first | (none & (valid | ~valid.any(1, keepdim=True)))

    @property
    def _trial_steps(self) -> int:
        """Number of steps per environment for the evaluation of a generation."""
        config = self.config
        return config.max_dream_steps * config.rollouts * config.population_size // config.num_envs

    @torch.no_grad()
    def trial(self, weights: Tensor) -> tuple[Tensor, Metrics]:
        """Return the mean returns `[S, K]` of controllers `[S, K, F, A]` in the environment, and metrics."""

        def act(obs: Tensor, t: int) -> tuple[tuple[()], Tensor]:
            return (), self.actions.to_env(self._controlled(obs, weights, t))

        episodes, reports, left = dreaming.EpisodeReturns(self.starts), list[Metrics](), self._trial_steps
        while left:  # a rollout of all steps would keep all of their images
            rollout = self._played(min(left, self.config.num_steps), act)
            episodes.add(rollout)
            reports.append(rollout.metrics)
            left -= len(rollout.rewards)
        returns, counts = episodes.means()
        shape = (len(self.seeds), weights.shape[1], -1)
        total, count = (returns * counts).view(shape).sum(2), counts.view(shape).sum(2)
        return total / count, all_episodes(reports)

    @torch.no_grad()
    def act(self, obs: Tree, hidden_state: Tree | None, noise: Tensor | None) -> tuple[Tensor, Tree | None]:
        """Select actions for observations `[S, N, ...]` (see `runtime.Policy`); `hidden_state` is M's hidden state."""
        mean, log_std = self.bound_vision.encode(self.features.by_seed(obs))
        latent = mean if noise is None else ops.gaussian_sample(mean, log_std, noise)
        hidden = mean.new_zeros(*mean.shape[:2], self.config.rnn_hidden_size) if hidden_state is None else hidden_state
        code = dreaming.act(self.actions, latent, cast(Tensor, hidden), self.controller.unsqueeze(1))
        return self.actions.to_env(code), self.bound_model.follow(latent, code, cast(Tensor, hidden))[1]

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Sample the noise of the latent vectors of `rows` environments of one seed."""
        shape = rows, self.config.latent_size
        return torch.empty(shape, device=generator.device).normal_(generator=generator)

    def load_state_dict(self, state: State) -> None:
        """Restore a state exactly; an invalid state leaves the learner unchanged."""
        self._latents = None
        super().load_state_dict(state)

    def begin_anew(self) -> None:
        """Forget the episodes in progress."""
        self.starts.fill_(True)
