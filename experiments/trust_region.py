"""Claims about trust regions: monotonic improvement of TRPO, estimates of the KL, vine sampling, and PPO.

1. Is TRPO's improvement monotonic? With exact updates on random models of 20 states, steps that follow the lower bound
   of the theory never lower the return, and are very small. Steps with a practical δ never lower it either if the
   policy is a table, since the natural step of a table improves it in every state. If states share parameters, a step
   with a large δ can. With estimates instead of expectations, on CartPole-v1, one update in ten lowers the return.
2. Equal steps of the parameters are unequal steps of the policy, by orders of magnitude.
3. Four ways to estimate the KL of a step: many actions per state, one sample, the analytic mean, the Fisher quadratic.
4. Advantages of a vine vary less than those of a path for as many samples of Q, with common random numbers least.
5. PPO against TRPO on CartPole-v1, in samples and in time: the same networks, one epoch and several, shared layers.
"""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from checks import COLORS, conclude, panels, save
from matplotlib.axes import Axes
from torch import Tensor

import operant
from operant import mdp, ops
from operant.catalog import find
from operant.control import assemble
from operant.control.agent import Samples
from operant.control.trpo import TRPO
from operant.envs import make
from operant.experimental.vine import draw_noise, follow, vine_of
from operant.runtime.settings import Settings

SEEDS = range(5)
MODELS, UPDATES, GAMMA = 10, 40, 0.9
DRAWS, REPEATS = 320, 50
BUDGETS = {"measured": 30_000, "half trained": 20_000, "against": 60_000}
DELTAS = (0.01, 0.1, 1.0)
Claims = dict[str, bool]


def softmax_trpo(model: mdp.MDP, features: Tensor, delta: float, *, theory: bool) -> np.ndarray:
    """Return the exact returns before and after every exact update of a softmax policy with logits `features @ W`.

    Args:
        model: known.
        features: features of the states, `[S, K]`; the unit matrix makes the policy a table.
        delta: bound on the mean KL over the states that the old policy visits.
        theory: take the largest step whose lower bound (equation 9 of the paper) exceeds the return instead.
    """
    shape = (features.shape[1], model.actions)
    weights = torch.zeros(shape, dtype=torch.float64).flatten()

    def logits(vector: Tensor) -> Tensor:
        return features @ vector.view(shape)

    def policy(vector: Tensor) -> np.ndarray:
        return mdp.softmax_policy(model, logits(vector).numpy())

    returns = [mdp.expected_return(model, policy(weights), gamma=GAMMA)]
    for _ in range(UPDATES):
        old, before = policy(weights), weights
        visits = torch.as_tensor(mdp.occupancy(model, old, gamma=GAMMA, normalized=True)).unsqueeze(1)
        by_logits = torch.as_tensor(mdp.policy_gradient(model, logits(weights).numpy(), gamma=GAMMA))

        def fisher(vector: Tensor, visits: Tensor = visits, before: Tensor = before) -> Tensor:
            return (features.T @ (visits * ops.categorical_fisher(logits(before), logits(vector)))).flatten()

        def acceptable(step: Tensor, old: np.ndarray = old, before: Tensor = before, visits: Tensor = visits) -> Tensor:
            new = policy(before + step)
            if theory:
                return torch.tensor(mdp.trust_region_bound(model, new, old, gamma=GAMMA) > returns[-1])
            kl = (visits[:, 0] * ops.categorical_kl(logits(before), logits(before + step))).sum()
            return torch.tensor(mdp.surrogate(model, new, old, gamma=GAMMA) > returns[-1]) & (kl <= delta)

        step = ops.natural_step(fisher, (features.T @ by_logits).flatten(), delta=delta, iterations=30)
        weights = before + ops.backtrack(acceptable, step, coefficient=0.5, max_backtracks=40).step
        returns.append(mdp.expected_return(model, policy(weights), gamma=GAMMA))
    return np.array(returns)


def exact(curves: Axes, drops: Axes, claims: Claims) -> dict[str, Any]:
    """Compare theory and practice on random models, with tables and with states that share parameters."""
    models = [mdp.random_model(20, 4, 3, seed=seed) for seed in range(MODELS)]
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    kinds = {"table": torch.eye(20, dtype=torch.float64), "5 shared features": shared}
    rules = {"lower bound": (1e-3, True), **{f"δ = {delta:g}": (delta, False) for delta in DELTAS}}
    results: dict[str, Any] = {}
    shares: dict[str, list[float]] = {}
    for offset, (kind, features) in enumerate(kinds.items()):
        shares[kind] = []
        for (name, (delta, theory)), color in zip(rules.items(), COLORS, strict=False):
            returns = np.array([softmax_trpo(model, features, delta, theory=theory) for model in models])
            lowered = np.diff(returns, axis=1) < -1e-9
            gains = returns - returns[:, :1]
            label = name if offset == 0 else None
            curves.plot(gains.mean(axis=0), color=color, label=label, linestyle=("-", "--")[offset])
            shares[kind].append(float(lowered.mean()))
            results[f"{kind}, {name}"] = {
                "share of updates that lower the return": lowered.mean(),
                "models in which one does": lowered.any(axis=1).mean(),
                "largest loss of an update": max(0.0, -np.diff(returns, axis=1).min()),
                "gain after all updates": gains[:, -1].mean(),
            }
        place = np.arange(len(rules)) + 0.4 * offset - 0.2
        drops.bar(place, shares[kind], width=0.38, color=COLORS[offset], label=kind)
    curves.set(xlabel="update", ylabel="gain of the exact return", title="exact updates: table, and shared (dashed)")
    drops.set(ylabel="share of updates that lower the return", title="is the improvement monotonic?")
    drops.set_xticks(range(len(rules)), list(rules), rotation=20)
    claims["following the lower bound never lowers the return"] = (
        shares["table"][0] == shares["5 shared features"][0] == 0
    )
    claims["following the lower bound gains less than a quarter of δ = 0.01"] = (
        results["table, lower bound"]["gain after all updates"]
        < 0.25 * results["table, δ = 0.01"]["gain after all updates"]
    )
    claims["with a table no update lowers the return, whatever δ"] = not any(shares["table"])
    claims["where states share parameters some updates do"] = any(shares["5 shared features"])
    return results


def learner(algorithm: str, task: str, budget: int, **parameters: Any) -> Any:
    """Return a learner of five seeds in tensor environments."""
    settings = Settings(algorithm, task, seeds=tuple(SEEDS), budget=budget)
    return assemble(find(algorithm), settings, operant.configure(algorithm, task, **parameters), device="cpu").learner


def discounted_returns(trpo: TRPO, episodes: int = 64) -> Tensor:
    """Return discounted returns `[S, episodes]` of the policies, with the same random numbers at every call."""
    env = make("CartPole-v1", episodes, SEEDS, backend="tensor", purpose="evaluation")
    obs = env.reset()
    generator = torch.Generator().manual_seed(0)
    total, alive = torch.zeros(env.rows), torch.ones(env.rows)
    for t in range(500):
        noise = trpo.agent.head.noise((len(SEEDS), episodes), generator)
        actions, _ = trpo.act(obs.view(len(SEEDS), episodes, -1), None, noise)
        step = env.step(actions.flatten())
        total += trpo.config.gamma**t * alive * step.reward
        alive *= ~(step.terminated | step.truncated)
        obs = step.obs
        if not alive.any():
            break
    return total.view(len(SEEDS), episodes)


def measured(axis: Axes, claims: Claims) -> dict[str, Any]:
    """Evaluate all policies of TRPO on CartPole with common random numbers."""
    trpo = learner("trpo", "CartPole-v1", BUDGETS["measured"])
    scores = [discounted_returns(trpo)]
    while trpo.consumed < BUDGETS["measured"]:
        trpo.iterate()
        scores.append(discounted_returns(trpo))
    returns = torch.stack(scores)
    changes = returns.diff(dim=0)
    error = changes.std(2) / changes.shape[2] ** 0.5
    lowered = (changes.mean(2) < -3 * error).float()
    for seed, curve in enumerate(returns.mean(2).T.tolist()):
        axis.plot(curve, color=COLORS[seed], linewidth=1)
        worse = [k + 1 for k, flag in enumerate(lowered[:, seed].tolist()) if flag]
        axis.plot(worse, [curve[k] for k in worse], "v", color="black", markersize=4)
    axis.plot([], [], "v", color="black", label="worse by 3 standard errors")
    axis.set(xlabel="update", ylabel="discounted return", title="TRPO on CartPole-v1, 5 seeds")
    claims["on CartPole some updates within the trust region lower the return measurably"] = bool(lowered.any())
    claims["on CartPole three in four do not"] = bool(lowered.mean() < 0.25)
    return {
        "share of updates that lower the return": lowered.mean().item(),
        "largest loss": -changes.mean(2).min().item(),
    }


def unequal_steps(axis: Axes, claims: Claims, trpo: TRPO) -> dict[str, Any]:
    """Compare the divergence that steps of equal length in the parameters cause, from one policy."""
    batch = trpo.collect()[0].standardized()
    gradient, _ = trpo.policy_gradient(batch)
    natural = ops.natural_step(trpo.fisher(batch), gradient, delta=0.01, damping=trpo.config.cg_damping)
    generator = torch.Generator().manual_seed(0)
    directions = {"gradient": gradient, "natural gradient": natural}
    directions |= {f"random {k}": torch.randn(gradient.shape, generator=generator) for k in range(30)}
    lengths = np.geomspace(1e-3, 3.0, 15)
    results: dict[str, np.ndarray] = {}
    styles = {"gradient": (COLORS[1], 2.0), "natural gradient": (COLORS[0], 2.0)}
    for name, direction in directions.items():
        unit = direction / direction.norm(dim=1, keepdim=True)
        kl = np.array([trpo.measure(batch, trpo.actor + float(length) * unit)[1, 0].item() for length in lengths])
        results[name] = kl
        color, width = styles.get(name, (COLORS[6], 0.5))
        label = name if name in styles else None
        axis.loglog(lengths, kl.clip(1e-12), color=color, linewidth=width, label=label, zorder=width)
    axis.plot([], [], color=COLORS[6], linewidth=0.5, label="random directions")
    axis.set(
        xlabel="length of the step of the parameters", ylabel="KL(old‖new), nats", title="equal steps are not equal"
    )
    axis.axhline(0.01, color="black", linewidth=0.6, linestyle=":")
    at = int(np.abs(lengths - 0.1).argmin())
    everything = np.array([kl[at] for kl in results.values()])
    ratio = everything.max() / everything.min()
    claims["steps of the parameters of equal length differ by a factor of 100 in the KL"] = ratio > 100
    # N(0, σ²) with its mean moved by 0.1: the same step of a parameter, at two deviations.
    wide, narrow = (ops.gaussian_kl(*(torch.tensor([x]) for x in (0.0, s, 0.1, s))).item() for s in (0.0, np.log(0.01)))
    return {
        "length": lengths[at],
        "least": everything.min(),
        "most": everything.max(),
        "N(0, 1)": wide,
        "N(0, 1e-4)": narrow,
    }


def empirical_curvature(trpo: TRPO, batch: Samples, step: Tensor, draws: int = 200) -> Tensor:
    """Return stepᵀ F step of the first seed with F the mean outer product of the scores of drawn actions, `[draws]`."""
    policy, logits = trpo.linearized(batch.obs)
    change = policy.push(step)
    scores = change - (logits.softmax(-1) * change).sum(-1, keepdim=True)  # of every action, times the step
    generator = torch.Generator().manual_seed(1)
    chosen = torch.multinomial(logits[0].softmax(-1), draws, replacement=True, generator=generator)
    return scores[0].gather(1, chosen).square().mean(0)


def estimates(axis: Axes, claims: Claims, trpo: TRPO) -> dict[str, Any]:
    """Estimate the KL of growing steps in four ways, from 1024 states, with the spread over draws of the actions."""
    batch = trpo.collect()[0].standardized()
    head, networks = trpo.agent.head, trpo.agent.networks
    gradient, _ = trpo.policy_gradient(batch)
    fisher = trpo.fisher(batch)
    step = ops.natural_step(fisher, gradient, delta=0.01, damping=trpo.config.cg_damping)
    ratios = {}
    for damping in (0.1, 0.01, 0.001):
        proposed = ops.natural_step(fisher, gradient, delta=0.01, damping=damping)
        true = trpo.measure(batch, trpo.actor + proposed)[1]
        ratios[f"damping {damping:g}"] = (true / (0.5 * (proposed * fisher(proposed)).sum(1))).tolist()
    claims["with damping of 0.001 the KL of a step is twice what its quadratic says, for some seed"] = (
        max(ratios["damping 0.001"]) > 2
    )
    scores = empirical_curvature(trpo, batch, step)
    scales = np.linspace(0.1, 3.0, 12)
    generator = torch.Generator().manual_seed(0)
    names = ("analytic", "Fisher quadratic", "Fisher of samples", "one action, k1", "one action, k3", "64 actions, k1")
    means: dict[str, list[float]] = {name: [] for name in names}
    spreads: dict[str, list[float]] = {name: [] for name in names}
    for scale in scales.tolist():
        actor = trpo.actor + scale * step
        weights, free = actor.split([trpo.mlp.size, head.free], dim=1)
        new = trpo.mlp(trpo.mlp.layers(weights), batch.obs)
        drawn: list[Tensor] = []
        for _ in range(DRAWS):
            noise = head.noise((*batch.outputs.shape[:2],), generator)
            actions = head.sample(batch.outputs, networks.free, noise)
            pair = head.log_prob(batch.outputs, networks.free, actions), head.log_prob(new, free, actions)
            drawn.append(torch.stack(pair)[:, 0])
        old_log_probs, new_log_probs = torch.stack(drawn, dim=1)
        k1, k3 = (ops.kl_estimate(old_log_probs, new_log_probs, kind).mean(1) for kind in ("k1", "k3"))
        quadratic = 0.5 * scale**2
        samples = {
            "analytic": trpo.measure(batch, actor)[1, :1],
            "Fisher quadratic": quadratic * (step * fisher(step)).sum(1)[:1],
            "Fisher of samples": quadratic * scores,
            "one action, k1": k1,
            "one action, k3": k3,
            "64 actions, k1": k1.view(-1, 64).mean(1),
        }
        for name, values in samples.items():
            means[name].append(values.mean().item())
            spreads[name].append(values.std().item() if len(values) > 1 else 0.0)
    x = scales
    for name, color in zip(names, COLORS, strict=False):
        mean, spread = np.array(means[name]), np.array(spreads[name])
        axis.plot(x, mean, color=color, label=name, linewidth=2.5 if name == "analytic" else 1.2)
        axis.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0)
    axis.set(
        xlabel="step, in natural steps of δ = 0.01",
        ylabel="KL(old‖new), ± one deviation",
        title="four ways to estimate the KL",
    )
    near = int(np.abs(x - 1.0).argmin())
    truth = np.array(means["analytic"])
    errors = {name: abs(means[name][near] / truth[near] - 1) for name in names}
    claims["the Fisher quadratic is within 20 % of the KL at δ = 0.01"] = errors["Fisher quadratic"] < 0.2
    for name in ("one action, k1", "one action, k3"):
        error = np.array(spreads[name]) / DRAWS**0.5
        claims[f"{name} is unbiased, within 4 standard errors"] = bool((abs(means[name] - truth) < 4 * error).all())
    claims["k3 varies less than k1"] = spreads["one action, k3"][near] < spreads["one action, k1"][near]
    claims["64 actions a state vary less than one"] = (
        spreads["64 actions, k1"][near] < 0.25 * spreads["one action, k1"][near]
    )
    return {
        "KL over its quadratic, each seed": ratios,
        "scale": x[near],
        "mean": {n: means[n][near] for n in names},
        "deviation": {n: spreads[n][near] for n in names},
    }


@torch.no_grad()
def branches(axis: Axes, claims: Claims) -> dict[str, Any]:
    """Compare the variance of the advantage of one of two actions of Pendulum, for as many samples of Q."""
    rows, lengths = 20, (1, 2, 5, 10, 20, 40)
    trpo = learner("trpo", "Pendulum-v1", 1, num_envs=rows, num_steps=20, critic_minibatches=1)
    agent = trpo.agent
    agent.collect(20)
    saved = agent.collector.env.state_dict()
    left, right = (torch.full((len(SEEDS), rows, 1), push) for push in (-0.5, 0.5))
    spreads = []
    for steps in lengths:
        plan = replace(vine_of(trpo.config), steps=steps, lam=1.0)
        samples = []
        for _ in range(REPEATS):
            noise, other_noise = (draw_noise(agent, steps - 1) for _ in range(2))
            one = follow(agent, plan, saved, left, noise)
            alone, beside = (follow(agent, plan, saved, right, numbers) for numbers in (other_noise, noise))
            samples.append(torch.stack((one, (one - alone) / 2, (one - beside) / 2)))
        spreads.append(torch.stack(samples).var(0).mean((1, 2)).numpy())
    path, separate, common = variances = np.array(spreads).T
    names = ("path, perfect baseline", "vine", "vine, common random numbers")
    for name, variance, color in zip(names, variances, COLORS, strict=False):
        axis.semilogy(lengths[1:], variance[1:], "o-", color=color, label=name, markersize=3)
    axis.set(xlabel="steps of a rollout", ylabel="variance of the advantage", title="Pendulum-v1, one sample of Q each")
    claims["advantages of a vine vary less than those of a path"] = bool((separate[1:] < 0.65 * path[1:]).all())
    claims["with common random numbers less than a third of that"] = bool((3 * common[1:] < separate[1:]).all())
    return {"steps": lengths, **dict(zip(names, variances, strict=True))}


def against(samples: Axes, seconds: Axes, claims: Claims) -> dict[str, Any]:
    """Train TRPO and PPO with the same networks and rollouts, and draw returns over steps and over time.

    Where layers are shared rewards are scaled, since the gradient of large values drowns that of the policy.
    """
    common = {"num_envs": 16, "num_steps": 64, "hidden_sizes": (64, 64)}
    first_order = {**common, "num_minibatches": 8, "learning_rate": 1e-3, "lr_schedule": "constant", "num_epochs": 10}
    cases = {
        "TRPO": ("trpo", common),
        "PPO, 10 epochs": ("ppo", first_order),
        "PPO, 10 epochs, shared layers": ("ppo", {**first_order, "share_features": True, "normalize_reward": True}),
        "PPO, 1 epoch": ("ppo", {**first_order, "num_epochs": 1}),
    }
    results: dict[str, Any] = {}
    for (name, (algorithm, parameters)), color in zip(cases.items(), COLORS, strict=False):
        experiment = assemble(
            find(algorithm),
            Settings(algorithm, "CartPole-v1", seeds=tuple(SEEDS), budget=BUDGETS["against"]),
            operant.configure(algorithm, "CartPole-v1", **parameters),
            device="cpu",
        )
        steps, spent, curve, start = [], [], [], time.process_time()
        while experiment.learner.consumed < BUDGETS["against"]:
            curve.append(experiment.learner.iterate()["rollout/episode_return"].tolist())
            steps.append(experiment.learner.consumed)
            spent.append(time.process_time() - start)
        means = forward_filled(np.array(curve))
        typical = np.median(means, axis=1)
        samples.plot(steps, typical, color=color, label=name)
        seconds.plot(spent, typical, color=color, label=name)
        reached = [int(np.argmax(seed >= 400)) if (seed >= 400).any() else None for seed in means.T]
        final = experiment.evaluate(100, backend="gymnasium")
        results[name] = {
            "final": final.scores,
            "mean": final.mean,
            "seconds": spent[-1],
            "steps to 400": [None if k is None else steps[k] for k in reached],
            "seconds to 400": [None if k is None else spent[k] for k in reached],
            "curve": means[::4],
        }
    samples.set(
        xlabel="environment steps of each seed", ylabel="return, median of 5 seeds", title="CartPole-v1, by samples"
    )
    seconds.set(xlabel="seconds of one processor, 5 seeds together", title="CartPole-v1, by time")
    claims["TRPO and PPO with several epochs end above 475"] = all(
        results[name]["mean"] >= 475 for name in list(cases)[:2]
    )
    claims["PPO learns more of each sample with 10 epochs than with 1"] = np.nanmean(
        results["PPO, 10 epochs"]["curve"]
    ) > np.nanmean(results["PPO, 1 epoch"]["curve"])
    return results


def forward_filled(curve: np.ndarray) -> np.ndarray:
    """Return `[T, S]` with missing numbers, of steps without an episode end, replaced by the last one."""
    filled = curve.copy()
    for t in range(1, len(filled)):
        filled[t] = np.where(np.isnan(filled[t]), filled[t - 1], filled[t])
    return filled


def main() -> None:
    """Measure, store and plot the results; fail if a claim does not hold."""
    torch.set_num_threads(1)
    figure, axes = panels(4, 2)
    claims: Claims = {}
    results = {"exact": exact(axes[0], axes[1], claims), "measured": measured(axes[2], claims)}
    trpo = learner("trpo", "CartPole-v1", BUDGETS["half trained"], sub_sampling_factor=1)
    while trpo.consumed < BUDGETS["half trained"]:
        trpo.iterate()
    results["unequal steps"] = unequal_steps(axes[3], claims, trpo)
    results["estimates"] = estimates(axes[4], claims, trpo)
    results["branches"] = branches(axes[5], claims)
    results["TRPO and PPO"] = against(axes[6], axes[7], claims)
    save(figure, __file__, [axes[k] for k in (0, 1, 2, 3, 4, 5, 7)])
    conclude(__file__, results, [], claims)


if __name__ == "__main__":
    main()
