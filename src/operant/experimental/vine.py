"""Vine rollouts (Schulman et al. 2015, arXiv:1502.05477, section 5.2): several actions tried in the same state.

Follow the policy; in some states try several actions, each followed by a short rollout of the policy, then restore the
environment and continue. Comparing actions in the same state needs no critic, and if the rollouts of a state share
random numbers (Ng and Jordan 2000, "PEGASUS"), common noise cancels.

What differs from the paper: the short rollouts bootstrap from the value of their last state, weighted by λ, whereas the
paper truncates them; state values are subtracted from action values, which does not change the paper's estimators to
first order.
"""

from dataclasses import dataclass
from itertools import cycle

import gymnasium
import torch
from torch import Tensor

from operant import ops, streams
from operant.control.agent import Agent, Samples
from operant.control.trpo import TRPOConfig
from operant.envs import BatchEnv, GymnasiumEnv, Step, unwrapped
from operant.runtime.learner import Metrics
from operant.runtime.rollouts import all_episodes, by_seed
from operant.state import State


@dataclass(frozen=True)
class Vine:
    """Branching options.

    Attributes:
        points: number of times at which every environment branches.
        spacing: steps between them.
        actions: K, tried in each state, drawn from the policy; a finite action space is tried as a whole instead.
        steps: steps of a branch, including its first action.
        common: whether the branches of a state share random numbers.
        gamma: discount factor.
        lam: λ of the branches' returns.
    """

    points: int
    spacing: int
    actions: int
    steps: int
    common: bool
    gamma: float
    lam: float

    def branches(self, env: BatchEnv) -> int:
        """Return the number of actions tried per state."""
        return int(env.action_space.n) if isinstance(env.action_space, gymnasium.spaces.Discrete) else self.actions

    def cost(self, env: BatchEnv) -> int:
        """Return the number of steps per environment and rollout, including branches."""
        return self.points * (self.spacing + self.branches(env) * self.steps)


class VineCollector:
    """Collector of TRPO with `sampling="vine"`.

    Args:
        agent: agent of the learner.
        config: its hyperparameters.

    Attributes:
        vine: branching options.
        rollout_steps: environment steps per seed in one rollout, including branches.

    Raises:
        ValueError: if the environments cannot branch, or `critic_minibatches` does not divide the samples.
    """

    def __init__(self, agent: Agent, config: TRPOConfig) -> None:
        self.agent, self.vine, env = agent, vine_of(config), agent.envs[0]
        require_branching(env, masked=agent.collector.features.masked)
        branches = self.vine.branches(env)
        samples = config.num_envs * config.vine_points * branches
        if samples % config.critic_minibatches:
            raise ValueError(
                f"critic_minibatches ({config.critic_minibatches}) must divide the {samples} samples of a vine: "
                f"{config.num_envs} environments x {config.vine_points} vine_points x {branches} actions"
            )
        self.rollout_steps = config.num_envs * self.vine.cost(env)

    def collect(self) -> tuple[Samples, Metrics]:
        """Branch in some states of a rollout (see `collect_vine`)."""
        return collect_vine(self.agent, self.vine)


def vine_of(config: TRPOConfig) -> Vine:
    """Return the branching options of TRPO."""
    return Vine(
        points=config.vine_points,
        spacing=config.num_steps // config.vine_points,
        actions=config.vine_actions,
        steps=config.vine_steps,
        common=config.vine_common,
        gamma=config.gamma,
        lam=config.gae_lambda,
    )


def require_branching(env: BatchEnv, *, masked: int) -> None:
    """Check that environments can be restored cheaply, and that every action can be tried in them.

    Args:
        env: the environments, with or without wrappers.
        masked: number of entries of its observations that are the action mask.

    Raises:
        ValueError: if they are Gymnasium's, which can only replay an episode, or they mask actions.
    """
    if isinstance(unwrapped(env), GymnasiumEnv):
        raise ValueError(
            f"vine sampling restores the state of environments, but {env.task} of Gymnasium can only replay "
            "its episode from the start: use env_backend='tensor', if available, or sampling='single-path'"
        )
    if masked:
        raise ValueError(f"vine sampling tries every action, but {env.task} masks some: use sampling='single-path'")


@torch.no_grad()
def collect_vine(agent: Agent, vine: Vine) -> tuple[Samples, Metrics]:
    """Collect a rollout with branches, in all environments of all seeds.

    Args:
        agent: the agent, whose environments fulfill `require_branching`.
        vine: branching options.

    Returns:
        Samples, K for each of the `points * N` states of a seed, and metrics of the episodes. The weights of a state's
        samples sum to 1: so its surrogate is `Σ_a π(a|s) A(s, a)` in a finite action space (equation 15 of the paper),
        and the mean over the K samples otherwise.
    """
    agent.graph = None  # a CUDA graph would read tensors of the environments that branches replace
    samples: list[list[Tensor]] = []
    walks: list[dict[str, Tensor]] = []
    for _ in range(vine.points):
        walks.append(agent.collect(vine.spacing).metrics)
        samples.append(_branch_out(agent, vine))
    columns = (by_seed(torch.cat(parts)) for parts in zip(*samples, strict=True))
    obs, actions, outputs, advantages, targets, old_values, weights = columns
    batch = Samples(
        obs=obs,
        actions=actions,
        outputs=outputs,
        old_log_probs=agent.head.log_prob(outputs, agent.networks.free, actions),
        advantages=advantages,
        targets=targets,
        old_values=old_values,
        weights=weights,
    )
    return batch, all_episodes(walks)


def _branch_out(agent: Agent, vine: Vine) -> list[Tensor]:
    """Try actions in the current states; return the fields of `Samples`, each `[K, S, N, ...]`."""
    obs, env = agent.collector.obs, agent.collector.env
    count = vine.branches(env)
    outputs, values = agent.networks.policy(obs), agent.networks.value(obs)
    actions, weights = _tried(agent, outputs, count)
    luck = [draw_noise(agent, vine.steps - 1) for _ in range(1 if vine.common else count)]
    saved = env.state_dict()
    returns = torch.stack([follow(agent, vine, saved, *branch) for branch in zip(actions, cycle(luck), strict=False)])
    env.load_state_dict(saved)
    mean = (weights * returns).sum(0)
    everywhere = [x.expand(count, *x.shape) for x in (obs, outputs, mean, values)]
    return [everywhere[0], actions, everywhere[1], returns - mean, everywhere[2], everywhere[3], weights]


def _tried(agent: Agent, outputs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the actions to try, `[K, S, N, ...]`, and their weights."""
    head, free = agent.head, agent.networks.free
    if isinstance(agent.collector.env.action_space, gymnasium.spaces.Discrete):
        actions = torch.arange(count, device=agent.device).view(-1, 1, 1).expand(-1, *outputs.shape[:2])
        return actions, torch.stack([head.log_prob(outputs, free, action) for action in actions]).exp()
    actions = torch.stack([head.sample(outputs, free, noise) for noise in draw_noise(agent, count)])
    return actions, outputs.new_full((count, *outputs.shape[:2]), 1 / count)


def follow(agent: Agent, vine: Vine, saved: State, action: Tensor, noise: Tensor) -> Tensor:
    """Return the λ-return of an action followed by the policy, from a saved state of the environments.

    Args:
        agent: the agent, whose environments end in the last state of the branch.
        vine: length, discount and λ of the branch.
        saved: state of the environments at its start.
        action: first action, `[S, N, ...]`.
        noise: noise of the other actions, `[steps - 1, S, N, ...]`.

    Returns:
        λ-returns `[S, N]`.
    """
    env, networks = agent.collector.env, agent.networks
    env.load_state_dict(saved)
    results: list[Step] = []
    for t in range(vine.steps):
        if t:
            obs = agent.collector.encode(results[-1].obs)
            action = agent.head.sample(networks.policy(obs), networks.free, noise[t - 1])
        results.append(env.step(agent.head.to_env(action).flatten(0, 1)))
    rewards, terminated, truncated = (
        torch.stack(column).view(vine.steps, len(agent.seeds), agent.rows)
        for column in zip(*((step.reward, step.terminated, step.truncated) for step in results), strict=True)
    )
    final_obs = torch.stack([agent.collector.encode(step.final_obs) for step in results])
    values = networks.value(by_seed(final_obs)).view(len(agent.seeds), vine.steps, agent.rows).movedim(1, 0)
    returns = ops.lambda_returns(
        rewards, values, terminated=terminated, truncated=truncated, gamma=vine.gamma, lam=vine.lam
    )
    return returns[0]


def draw_noise(agent: Agent, steps: int) -> Tensor:
    """Sample the noise of `steps` actions of every environment, `[steps, S, N, ...]`, with one stream per seed."""
    return streams.draw(agent.streams, lambda stream: agent.head.noise((steps, agent.rows), stream), dim=1)
