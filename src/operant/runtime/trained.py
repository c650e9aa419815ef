"""A run and its trained policies: `Trained`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from numbers import Integral
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from operant import doors, streams
from operant.envs import Wrapper, wrappers
from operant.envs.spaces import GymnasiumActions
from operant.runtime.acting import draw_noise
from operant.runtime.comparison import learning_curve
from operant.runtime.evaluation import Evaluation
from operant.runtime.experiment import Answering, Collecting, Experiment, InEnvironments, Numbering, env_of
from operant.runtime.learned_tables import LearnedTables
from operant.runtime.outcome import Outcome
from operant.runtime.predicting import Predictor
from operant.runtime.run import Run
from operant.runtime.run_paths import location
from operant.runtime.time_travel import Arrival
from operant.runtime.weights import Best

EPISODES = 100
"""Default number of episodes per seed of evaluations after training."""

OF_BEST = "evaluation of the best"
"""Purpose of the random numbers with which best policies are evaluated after training."""


@dataclass(frozen=True)
class Trained(LearnedTables):
    """A run and its trained policies.

    Attributes:
        run: the run.
        experiment: learner (`experiment.learner`) and its environments.
        outcome: outcome of training; None if the run was only loaded.
        consumed: budget that each seed had used at its best evaluation, for best policies; None for latest policies.
        arrival: recomputed update, if any (`operant.runtime.time_travel`).
    """

    run: Run
    experiment: Experiment = field(repr=False)
    outcome: Outcome | None = None
    consumed: tuple[int, ...] | None = None
    arrival: Arrival | None = None

    def __repr__(self) -> str:
        """Return the run, the budget used per seed, and the last evaluation of this session."""
        used = self.outcome.consumed if self.outcome else self.experiment.learner.consumed
        score = f", {self.outcome.evaluation!r}" if self.outcome and self.outcome.evaluation else ""
        return f"Trained({self.run!r}, consumed={used:,}{score})"

    def evaluate(
        self,
        episodes: int | None = None,
        *,
        backend: str | None = None,
        wrappers: Any = (),
        env_kwargs: Mapping[str, Any] | None = None,
        deterministic: bool = True,
    ) -> Evaluation:
        """Evaluate the policies of all seeds.

        The random streams of the episodes are those of the evaluations during training. Best policies of deep control,
        which were selected by these, get others. A task that changes over time is evaluated as it is at the latest
        point of training, for best policies of earlier points, too.

        Args:
            episodes: number of episodes per seed, or of held-out examples. Default: 100 episodes, or all examples.
            backend: backend of the environments, "tensor" or "gymnasium"; ignored for language models. Default: the
                run's.
            wrappers: additional wrappers of the environments: a list of classes, functions or names as for
                `operant.train`, such as those of `operant.envs.randomizer`, for other physics or noisy sensors. For
                deep control.
            env_kwargs: keyword arguments of the environments that replace those of the run, or are added to them. For
                deep control.
            deterministic: whether to select the most probable actions instead of sampling as in training. Tables and
                language models are always evaluated with the former.

        Raises:
            ValueError: wrappers, `env_kwargs` or `deterministic=False` are given for a table or a language model, or
                environments cannot be created with them.
        """
        if episodes is None:
            episodes = self.experiment.held_out if isinstance(self.experiment, Answering) else EPISODES
        if not isinstance(cast(object, episodes), Integral):
            raise ValueError(f"episodes must be an integer, got {episodes!r}")
        if episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {episodes}")
        names: tuple[str, ...] = doors.named((wrappers,) if isinstance(wrappers, str) else tuple(wrappers))
        if isinstance(self.experiment, Collecting):
            purpose = "evaluation" if self.consumed is None else OF_BEST
            collecting = cast(Collecting, self.experiment)
            given: dict[str, Any] = {"backend": backend, "wrappers": names, "env_kwargs": env_kwargs}
            return collecting.evaluate(episodes, **given, purpose=purpose, sample=not deterministic)
        name = self.run.entry.name
        if names:
            raise ValueError(f"wrappers are for deep control, but this is a run of {name}: {names}")
        if env_kwargs:
            raise ValueError(
                f"env_kwargs of evaluations are for deep control, but this is a run of {name}: leave out "
                f"{dict(env_kwargs)}"
            )
        if not deterministic:
            raise ValueError(f"sampled actions are for deep control, but this is a run of {name}: leave them out")
        return self.experiment.evaluate(episodes, backend=backend)

    def predict(
        self,
        observations: Any,
        hidden_state: Any = None,
        *,
        seed_index: int | Literal["best"] = 0,
        deterministic: bool = True,
    ) -> tuple[Any, Any]:
        """Compute the action of one seed's policy.

        Args:
            observations: NumPy arrays, or a dictionary of arrays, as from `gymnasium.make(task)`: one observation, or N
                stacked along the first axis. For Atari, as from `operant.envs.Atari`.
            hidden_state: that of a recurrent policy from the previous call; None at the start of an episode. In a
                batch, set the rows of environments that start an episode to 0. None for other policies.
            seed_index: index of the seed in the run, or "best" (see `best_seed`).
            deterministic: whether to select the most probable action instead of sampling as in training.

        Returns:
            The action for `env.step`, or `[N, ...]` for a batch; and the hidden state for the next call.

        Raises:
            ValueError: the run trained a language model, the seed is unknown, or a shape is wrong.
        """
        seed_index = self.best_seed if seed_index == "best" else seed_index
        noise = None if deterministic else partial(self._noise, seed_index)
        return self._predictor.predict(observations, hidden_state, seed_index=seed_index, noise=noise)

    def _noise(self, seed_index: int, rows: int) -> Tensor:
        return draw_noise(self.experiment.learner, rows, self._streams[seed_index : seed_index + 1])[0]

    @cached_property
    def best_seed(self) -> int:
        """Index of the seed with the highest score in the last evaluation, or among best policies.

        Raises:
            RunError: the run has no evaluation.
        """
        if self.consumed is not None:
            return int(Best(self.run).load().scores.argmax())
        curve = learning_curve(self.run)
        last = -1 if self.arrival is None else max(0, int((curve.consumed <= self.arrival.consumed).sum()) - 1)
        return int(np.nan_to_num(curve.scores[last], nan=-np.inf).argmax())

    @property
    def device(self) -> torch.device:
        """Device of the networks."""
        if isinstance(self.experiment, Collecting):
            return self.experiment.device
        return self.experiment.learner.device

    @property
    def evaluation_kwargs(self) -> Mapping[str, Any]:
        """Keyword arguments of evaluation environments of all seeds; a changing task stays as it is now in training."""
        if isinstance(self.experiment, InEnvironments):
            return self.experiment.evaluation_kwargs
        return self.run.settings.env_kwargs

    def evaluation_kwargs_of(self, seed_index: int) -> Mapping[str, Any]:
        """Return the keyword arguments of environments for the policy of one seed.

        A changing task stays as it is at the point of training of this policy, which for a best policy is that of its
        best evaluation.
        """
        if self.consumed is None or not isinstance(self.experiment, InEnvironments):
            return self.evaluation_kwargs
        return self.experiment.evaluation_kwargs_at(self.consumed[seed_index])

    @property
    def wrappers(self) -> list[Wrapper]:
        """Wrappers of the training environments, from the innermost to the outermost."""
        env = env_of(self.experiment)
        return [] if env is None else wrappers(env)

    @cached_property
    def _predictor(self) -> Predictor:
        settings, learner = self.run.settings, self.experiment.learner
        if self.run.entry.package == "language":
            place = location(self.run.path)
            raise ValueError(
                f"{settings.algorithm} trained a language model, which takes prompts instead of observations: in "
                "Python use `find_chat_model` and `Conversation` of operant.language.chat, or transformers with the "
                f"folder that `operant export {place}` writes; in a terminal try `operant chat {place}`"
            )
        return Predictor(
            learner,
            settings.task,
            seeds=len(settings.seeds),
            wrap=self.experiment.wrap if isinstance(self.experiment, Numbering) else None,
            actions=self.experiment.actions if isinstance(self.experiment, Numbering) else GymnasiumActions.of,
            env_kwargs=settings.env_kwargs,
            wrappers=self.wrappers,
            device=self.device,
        )

    @cached_property
    def _streams(self) -> list[torch.Generator]:
        """Random streams of the actions sampled by `predict`, one per seed."""
        return streams.of_seeds(self.run.settings.seeds, "predicting", device=self.device)

    def close(self) -> None:
        """Close the environments. Can be called twice."""
        self.experiment.close()
