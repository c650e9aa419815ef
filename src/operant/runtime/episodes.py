"""Collection of whole episodes: `Episodes`."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from operant.envs import BatchEnv, EndlessError, Features, Step, Tree, reporting
from operant.runtime.metrics_window import EPISODES, LENGTH, LOST, RETURN
from operant.runtime.rollouts import Act, Rollout, has_extras, info_metrics, stack_extras

_SYNC_EVERY = 32


class Episodes:
    """Collector of one whole episode per environment.

    Every batch resets all environments with the given seeds. Environments whose episode has ended are stepped until the
    longest one ends; these steps are invalid, with reward 0 and false flags, as are all steps of an episode that is
    lost with its worker process.

    Args:
        env: environments `[S, N]`, flattened.
        seeds: number of seeds, S.
        max_steps: maximum number of steps per episode.
    """

    def __init__(self, env: BatchEnv, *, seeds: int, max_steps: int) -> None:
        if seeds < 1 or env.rows % seeds:
            raise ValueError(f"{env.rows} environments cannot be shared equally by {seeds} seeds")
        self.env, self.seeds, self.rows, self.max_steps = env, seeds, env.rows // seeds, max_steps
        self.features = Features.of(env.observation_space, env.action_space)
        self._reporting = reporting(env)

    def collect(self, row_seeds: Sequence[int], act: Act, active: Tensor | None = None) -> Rollout:
        """Collect one episode in every environment of the active seeds.

        Args:
            row_seeds: reset seed of each environment, a non-negative integer.
            act: function that selects actions.
            active: mask of the active seeds, bool `[S]`; all steps of other seeds are invalid. Default: all.

        Returns:
            A rollout with as many steps as the longest episode, or a few more on devices other than the CPU.

        Raises:
            EndlessError: an episode exceeds `max_steps` steps.
        """
        obs = self._shape(self.env.reset(row_seeds))
        playing = torch.ones(self.env.rows, dtype=torch.bool, device=self.env.device)
        if active is not None:
            playing &= active.repeat_interleave(self.rows)
        seen: list[Tensor] = []
        kept: list[tuple[Tensor, ...]] = []
        results: list[Step] = []
        live: list[Tensor] = []
        lost = torch.zeros_like(playing)
        told: list[Mapping[str, Tensor]] = []
        stride = 1 if self.env.device.type == "cpu" else _SYNC_EVERY
        for t in range(self.max_steps):
            keep, actions = act(obs, t)
            result = self.env.step(actions.flatten(0, 1))
            seen.append(obs)
            kept.append(keep)
            results.append(result)
            live.append(playing & result.valid)
            if result.infos is not None:
                told.append({name: values.where(live[-1], torch.nan) for name, values in result.infos.items()})
            obs = self._shape(result.obs)
            if not self.env.always_valid:
                lost |= playing & result.truncated & ~result.valid
            playing = playing & ~(result.terminated | result.truncated)
            if (t + 1) % stride == 0 and not playing.any():
                break
        else:
            if playing.any():
                row = int(playing.nonzero()[0, 0])
                raise EndlessError.of(self.env.task, row, self.max_steps, remedy=", or raise --max-episode-steps")
        rollout = self._rollout(torch.stack(seen), obs, kept, results, torch.stack(live) & ~lost)
        if not self.env.always_valid and lost.any():
            rollout.metrics[LOST] = lost.view(self.seeds, self.rows).sum(1)
        rollout.metrics.update(info_metrics(told, self.seeds))
        for wrapper in self._reporting:
            rollout.metrics.update({**wrapper.metrics(), **rollout.metrics})
        return rollout

    def _rollout(
        self, seen: Tensor, obs: Tensor, kept: list[tuple[Tensor, ...]], results: list[Step], live: Tensor
    ) -> Rollout:
        shape = (len(results), self.seeds, self.rows)
        scores = torch.stack([result.score for result in results]).masked_fill(~live, 0.0).double()
        counts = live.double().sum(0).view(self.seeds, self.rows)
        episodes = (counts > 0).sum(1)
        totals = scores.sum(0).view(self.seeds, self.rows)
        return Rollout(
            obs=seen,
            last_obs=obs,
            kept=tuple(torch.stack(column) for column in zip(*kept, strict=True)),
            rewards=torch.stack([result.reward for result in results]).masked_fill(~live, 0.0).view(shape),
            terminated=(torch.stack([result.terminated for result in results]) & live).view(shape),
            truncated=(torch.stack([result.truncated for result in results]) & live).view(shape),
            final_obs=torch.stack([self._shape(result.final_obs) for result in results]),
            valid=live.view(shape),
            metrics={
                RETURN: totals.sum(1) / episodes,
                LENGTH: counts.sum(1) / episodes,
                EPISODES: episodes,
            },
            extras=stack_extras(results, shape, self.env.task) if has_extras(results) else {},
        )

    def _shape(self, obs: Tree) -> Tensor:
        return self.features.encode(obs).view(self.seeds, self.rows, *self.features.shape)
