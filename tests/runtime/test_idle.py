from dataclasses import replace

import pytest

import operant
from operant import catalog
from operant.envs import make
from operant.runtime.idle import CONDITIONS, warn_of_idle, warn_of_idle_in, warn_of_idle_settings
from operant.runtime.settings import Settings

WHOLE = {"actor_network": "torch.nn:Identity", "critic_network": "torch.nn:Identity"}


@pytest.mark.parametrize(
    ("algorithm", "task", "values", "said"),
    [
        ("a2c", "LunarLander-v3", {"gae_lambda": 0.5}, "a2c: gae_lambda=0.5 has no effect with estimator=n-step"),
        (
            "q-learning",
            "FrozenLake-v1",
            {"step_size": 0.05},
            "step_size=0.05 has no effect with step_size_schedule=visits: leave it out, or set step_size_schedule",
        ),
        ("q-learning", "FrozenLake-v1", {"step_size": 0.05, "step_size_schedule": "constant"}, ""),
        (
            "monte-carlo-prediction",
            "operant/RandomWalk5-v0",
            {"step_size": 0.05},
            "step_size=0.05 has no effect with step_size_schedule=visits",
        ),
        (
            "sarsa",
            "CliffWalking-v1",
            {"exploration_factor": 0.2},
            "exploration_factor=0.2 has no effect with exploration_schedule=constant",
        ),
        ("sarsa", "CliffWalking-v1", {"step_size_power": 0.7}, "step_size_power=0.7 has no effect with"),
        ("sarsa", "CliffWalking-v1", {"step_size_power": 0.7, "step_size_schedule": "visits"}, ""),
        ("sarsa", "Other-v0", {"schedule_unit": "steps"}, "schedule_unit=steps has no effect, because nothing"),
        ("sarsa", "Other-v0", {"schedule_unit": "steps", "exploration_schedule": "linear"}, ""),
        ("td-lambda", "Other-v0", {"schedule_unit": "steps"}, "schedule_unit=steps has no effect"),
        ("dyna-q-plus", "Other-v0", {"bonus_coef": 0.1, "planning_steps": 0}, "has no effect with planning_steps=0"),
        ("sarsa-lambda", "Other-v0", {"traces": "true_online", "td_lambda": 0.0}, "has no effect with td_lambda=0.0"),
        ("thompson", "operant/TwoArms-v0", {"noise": 2.0, "prior": "beta"}, "noise=2.0 has no effect with prior=beta"),
        ("thompson", "operant/TwoArms-v0", {"failures": 2.0, "prior": "gaussian"}, "has no effect with prior=gaussian"),
        ("mbpo", "Pendulum-v1", {"rounds_per_iteration": 3}, "mbpo: rounds_per_iteration=3 has no effect, because"),
        ("sac", "Pendulum-v1", {"rounds_per_iteration": 3}, ""),
        ("a2c", "CartPole-v1", {"n_step": 3}, "a2c: n_step=3 has no effect with estimator=gae"),
        ("reinforce", "CartPole-v1", {"gae_lambda": 0.5}, "gae_lambda=0.5 has no effect with advantage_kind=total"),
        (
            "reinforce",
            "CartPole-v1",
            {"target": "bootstrap"},
            "target=bootstrap has no effect with advantage_kind=total",
        ),
        ("reinforce", "CartPole-v1", {"target": "bootstrap", "advantage_kind": "baseline"}, ""),
        (
            "ppo",
            "Pendulum-v1",
            {"objective": "penalty", "clip_range_high": 0.3},
            "clip_range_high=0.3 has no effect with objective=penalty",
        ),
        (
            "ppo",
            "Pendulum-v1",
            {"objective": "penalty", "clip_range_schedule": "linear"},
            "clip_range_schedule=linear has no effect with objective=penalty",
        ),
        ("ppo", "CartPole-v1", {"kl_coef": 3.0}, "kl_coef=3.0 has no effect with objective=clip"),
        (
            "ppo-penalty",
            "Pendulum-v1",
            {"kl_coef_rounds": 4, "kl_coef_target": None},
            "kl_coef_rounds=4 has no effect with kl_coef_target=None",
        ),
        (
            "sac-discrete",
            "CartPole-v1",
            {"ent_coef": 0.1, "target_entropy_scale": 0.5},
            "target_entropy_scale=0.5 has no effect with ent_coef=0.1",
        ),
        (
            "ppo",
            "CartPole-v1",
            {"network": "torch.nn:Identity", "hidden_sizes": (999,)},
            "hidden_sizes=(999,) has no effect with network=torch.nn:Identity",
        ),
        ("ppo", "CartPole-v1", {"network": "torch.nn:Identity"}, ""),
        *(
            (
                "ppo-penalty",
                "CartPole-v1",
                {"objective": "operant.control.ppo:penalized", name: value},
                f"{name}={value} has no effect with objective=operant.control.ppo:penalized, which gets kl_coef as a",
            )
            for name, value in (("kl_coef_target", 0.5), ("kl_coef_rounds", 3))
        ),
        ("ppo", "CartPole-v1", {"objective": "operant.control.ppo:penalized", "kl_coef": 0.5}, ""),
        ("ppo", "CartPole-v1", {"objective": "penalty", "kl_coef_target": 0.5, "kl_coef_rounds": 3}, ""),
        (
            "sac",
            "Pendulum-v1",
            {**WHOLE, "hidden_sizes": (999,)},
            "hidden_sizes=(999,) has no effect with actor_network and critic_network, which have all layers",
        ),
        ("td3", "Pendulum-v1", {**WHOLE, "activation": "tanh"}, "activation=tanh has no effect with actor_network and"),
        ("sac", "Pendulum-v1", {"actor_network": "torch.nn:Identity", "hidden_sizes": (999,)}, ""),
        ("impala", "CartPole-v1", {"deadline": 5.0}, "deadline=5.0 has no effect with workers=0"),
        ("impala", "CartPole-v1", {"deadline": 5.0, "workers": 1}, ""),
        ("a3c", "CartPole-v1", {"deadline": 5.0}, ""),
        ("ppo", "Pendulum-v1", {"sde_sample_freq": 4}, "sde_sample_freq=4 has no effect with use_sde=False"),
        (
            "reinforce",
            "CartPole-v1",
            {"discount_steps": True},
            "discount_steps=True has no effect with advantage_kind=total",
        ),
        ("reinforce-to-go", "CartPole-v1", {"discount_steps": True}, ""),
        (
            "npg",
            "CartPole-v1",
            {"line_search_max_iter": 5},
            "line_search_max_iter=5 has no effect with line_search=False",
        ),
        ("trpo", "CartPole-v1", {"vine_steps": 9}, "vine_steps=9 has no effect with sampling=single-path"),
        ("trpo", "CartPole-v1", {"vine_steps": 9, "sampling": "vine", "critic_minibatches": 2}, ""),
        (
            "ddpg",
            "Pendulum-v1",
            {"target_noise_clip": 0.1},
            "target_noise_clip=0.1 has no effect with target_policy_noise=0",
        ),
        ("dqn", "CartPole-v1", {"per_beta": 0.5}, "per_beta=0.5 has no effect with per_alpha=0"),
        ("muzero", "CartPole-v1", {"dirichlet_alpha": 1.0}, "dirichlet_alpha=1.0 has no effect with search=gumbel"),
        ("muzero", "CartPole-v1", {"dirichlet_alpha": 1.0, "search": "puct"}, ""),
        (
            "alphazero",
            "operant/ConnectFour-v0",
            {"value_scale": 0.5, "search": "puct"},
            "value_scale=0.5 has no effect",
        ),
        ("pets", "Pendulum-v1", {"num_elites": 3, "planner": "mppi"}, "num_elites=3 has no effect with planner=mppi"),
        ("pets", "Pendulum-v1", {"planning_temperature": 2.0}, "planning_temperature=2.0 has no effect"),
        ("sac", "Pendulum-v1", {"hindsight_ratio": 2.0}, "hindsight_ratio=2.0 has no effect with hindsight=none"),
        (
            "td3",
            "Pendulum-v1",
            {"use_sde": True, "train_freq": 1},
            "use_sde with train_freq=1 draws new weights at every",
        ),
        ("td3", "Pendulum-v1", {"use_sde": True, "train_freq": 8}, ""),
        (
            "sac",
            "Pendulum-v1",
            {"ent_coef": 0.1, "target_entropy": -3.0},
            "target_entropy=-3.0 has no effect with ent_coef=0.1",
        ),
        ("a2c", "CartPole-v1", {"estimator": "n-step"}, ""),
        ("a2c", "LunarLander-v3", {"gae_lambda": 0.5, "estimator": "gae"}, ""),
        ("ppo", "CartPole-v1", {"kl_coef": 3.0, "objective": "penalty"}, ""),
        ("prioritized-dqn", "CartPole-v1", {"per_beta": 0.5}, ""),
        (
            "grpo",
            "arithmetic",
            {"kl_estimator": "k1"},
            "grpo: kl_estimator=k1 has no effect with beta=0.0: leave it out",
        ),
        ("grpo", "arithmetic", {"kl_weighted": True}, "kl_weighted=True has no effect with beta=0.0"),
        ("grpo", "arithmetic", {"kl_estimator": "k1", "beta": 0.1}, ""),
        (
            "iterative-grpo",
            "preference",
            {"beta": 0.0, "kl_estimator": "k1"},
            "kl_estimator=k1 has no effect with beta=0",
        ),
        (
            "grpo",
            "arithmetic",
            {"overlong_penalty": 0.3},
            "overlong_penalty=0.3 has no effect with overlong_buffer=0.0",
        ),
        ("grpo", "arithmetic", {"overlong_penalty": 0.3, "overlong_buffer": 0.1}, ""),
        ("grpo", "arithmetic", {"max_rounds": 3, "filter": "drop"}, "max_rounds=3 has no effect with filter=drop"),
        ("grpo", "arithmetic", {"max_rounds": 3, "filter": "refill"}, ""),
        (
            "rlhf",
            "preference",
            {"importance_sampling_cap": 4.0, "importance_sampling_correction": "none"},
            "importance_sampling_cap=4.0 has no effect with importance_sampling_correction=none",
        ),
        (
            "grpo",
            "arithmetic",
            {"advantage_eps": 1e-2, "advantage": "leave-one-out"},
            "advantage_eps=0.01 has no effect with advantage=leave-one-out",
        ),
        ("grpo", "arithmetic", {"advantage_eps": 1e-2}, ""),
        ("grpo", "arithmetic", {"preset": "cispo", "epsilon": 0.1}, "epsilon=0.1 has no effect with objective=cispo"),
        (
            "grpo",
            "arithmetic",
            {"preset": "cispo", "dual_clip": 3.0},
            "dual_clip=3.0 has no effect with objective=cispo",
        ),
        ("grpo", "arithmetic", {"preset": "prorl", "beta": 0.0}, ""),
        ("rlhf", "arithmetic", {"beta_horizon": 500}, "beta_horizon=500 has no effect with beta_target=None"),
        ("rlhf", "arithmetic", {"beta_horizon": 500, "beta_target": 6.0}, ""),
        ("rlhf", "arithmetic", {"preset": "ziegler", "beta_horizon": 500}, ""),
        (
            "process-reward-model",
            "steps",
            {"ranking_loss": "plackett-luce"},
            "ranking_loss=plackett-luce has no effect with supervision=process",
        ),
        (
            "process-reward-model",
            "steps",
            {"centering_examples": 9},
            "centering_examples=9 has no effect with supervision=process",
        ),
        ("reward-model", "preference", {"centering_examples": 9, "ranking_loss": "plackett-luce"}, ""),
        (
            "reward-model",
            "preference",
            {"step_separator": ";"},
            "step_separator=; has no effect with supervision=outcome",
        ),
        (
            "reward-model",
            "preference",
            {"steps_finished": False},
            "steps_finished=False has no effect with supervision",
        ),
        ("process-reward-model", "steps", {"step_separator": ";", "steps_finished": False}, ""),
        ("sft", "rows", {"dataset": "d.jsonl", "train_examples": 10}, "train_examples=10 has no effect with dataset="),
        (
            "grpo",
            "steps",
            {"supervision": "process", "rewards": ("exact",)},
            "rewards=('exact',) has no effect, because answers are rewarded for their steps alone",
        ),
        ("grpo", "rows", {"supervision": "process", "rewards": ("exact",), "dataset": "d.jsonl"}, ""),
        (
            "sft",
            "arithmetic",
            {"validations": 9, "keep_best": False},
            "validations=9 has no effect with keep_best=False",
        ),
        ("sft", "arithmetic", {"validations": 9}, ""),
        (
            "dqn",
            "Other-v0",
            {"tau": 0.005},
            "with tau=0.005 and target_update_interval=250 the target network moves by 0.005 of the difference every "
            "250 gradient steps: set target_update_interval to 1",
        ),
        ("double-dqn", "CartPole-v1", {"tau": 0.005}, "target network moves by 0.005 of the difference every 100 "),
        ("dqn", "Other-v0", {"tau": 0.005, "target_update_interval": 1}, ""),
        ("dqn", "Other-v0", {"tau": 0.5, "target_update_interval": 100}, ""),
        ("dqn", "Other-v0", {"target_update_interval": 50_000}, ""),
        ("sac", "Pendulum-v1", {"tau": 0.001}, ""),
        (
            "world-models",
            "operant/PixelCatch-v0",
            {"train_in": "environment", "num_envs": 32, "generations": 7},
            "generations=7 has no effect with train_in=environment",
        ),
        ("world-models", "operant/PixelCatch-v0", {"generations": 7, "dream_temperature": 2.0}, ""),
        (
            "bootstrapped-dqn",
            "CartPole-v1",
            {"exploration_fraction": 0.5},
            "exploration_fraction=0.5 has no effect, because exploration_initial_eps and exploration_final_eps are",
        ),
        ("bootstrapped-dqn", "CartPole-v1", {"exploration_fraction": 0.5, "exploration_initial_eps": 0.1}, ""),
    ],
)
def test_chosen_fields_without_an_effect_are_named(algorithm, task, values, said, caplog):
    warn_of_idle(catalog.find(algorithm), task, operant.configure(algorithm, task, **values))
    assert said in caplog.text if said else not caplog.records


def test_a_model_next_to_a_run_to_begin_with_is_named(caplog):
    config = replace(operant.configure("sft", "arithmetic"), model="small", init="runs/sft")
    warn_of_idle(catalog.find("sft"), "arithmetic", config)
    assert "model=small has no effect with init=runs/sft, whose model is trained further" in caplog.text


@pytest.mark.parametrize("name", ["ppo", "a2c", "reinforce", "trpo", "impala"])
def test_a_standard_deviation_of_discrete_actions_is_named(name, caplog):
    entry = catalog.find(name)
    config = operant.configure(name, "CartPole-v1", log_std_init=-1.0)
    warn_of_idle_in(entry, "Pendulum-v1", config, make("Pendulum-v1", 1, [0]))
    pole = make("CartPole-v1", 1, [0])
    warn_of_idle_in(entry, "CartPole-v1", operant.configure(name, "CartPole-v1"), pole)
    assert not caplog.records
    warn_of_idle_in(entry, "CartPole-v1", config, pole)
    assert (
        f"{name}: log_std_init=-1.0 has no effect, because the actions of CartPole-v1 are not continuous" in caplog.text
    )


@pytest.mark.parametrize(
    ("algorithm", "task", "values", "said"),
    [
        (
            "mrq",
            "Pendulum-v1",
            {"gumbel_temperature": 3.0},
            "gumbel_temperature=3.0 has no effect, because",
        ),
        ("mrq", "CartPole-v1", {"gumbel_temperature": 3.0}, ""),
        ("mrq", "CartPole-v1", {"depth": 4}, "depth=4 has no effect, because the observations of CartPole-v1 are not"),
        ("dreamer", "operant/PixelCatch-v0", {"layers": 2}, "layers=2 has no effect, because the observations of"),
        ("dreamer", "operant/PixelCatch-v0", {"depth": 4}, ""),
        ("dreamer", "operant/PixelCatch-v0", {"preset": "size12m"}, ""),
        ("muzero", "operant/TicTacToe-v0", {"gamma": 0.9}, "gamma=0.9 has no effect, because operant/TicTacToe-v0 is"),
        ("muzero", "operant/TicTacToe-v0", {"support_size": 5}, "support_size=5 has no effect, because operant/TicTac"),
        ("muzero", "operant/TicTacToe-v0", {"symmetries": False}, ""),
        ("muzero", "CartPole-v1", {"symmetries": False}, "symmetries=False has no effect, because CartPole-v1 is not"),
        ("muzero", "CartPole-v1", {"gamma": 0.9, "support_size": 5}, ""),
        ("alphazero", "operant/TicTacToe-v0", {"symmetries": False}, ""),
    ],
)
def test_fields_without_an_effect_in_the_environments_are_named(algorithm, task, values, said, caplog):
    env = make(task, 1, [0])
    warn_of_idle_in(catalog.find(algorithm), task, operant.configure(algorithm, task, **values), env)
    assert said in caplog.text if said else not caplog.records


def test_training_names_a_standard_deviation_of_discrete_actions(caplog, tmp_path):
    options = {"num_envs": 1, "num_steps": 4, "seeds": 1, "budget": 4, "evaluate_episodes": 1, "progress": "silent"}
    operant.train("a2c", "CartPole-v1", log_std_init=-1.0, run=tmp_path / "run", **options)
    assert "log_std_init=-1.0 has no effect" in caplog.text


def test_a_time_limit_of_workers_in_this_process_is_named(caplog):
    for options in ({"worker_seconds": 5.0, "vectorization": "async"}, {}):
        warn_of_idle_settings(Settings("ppo", "CartPole-v1", **options))
    assert not caplog.records
    warn_of_idle_settings(Settings("ppo", "CartPole-v1", worker_seconds=5.0))
    assert "worker_seconds=5.0 has no effect, because environments are in this process: leave it out" in caplog.text


def test_no_default_or_preset_is_named(caplog):
    for entry in (*catalog.CONTROL, *catalog.TABULAR):
        for task in ("CartPole-v1", "Pendulum-v1", "operant/Reach-v0", "FrozenLake-v1", *entry.preset_values):
            warn_of_idle(entry, task, operant.configure(entry.name, task))
    for entry in catalog.LANGUAGE:
        for preset in (None, *entry.presets):
            warn_of_idle(entry, "arithmetic", operant.configure(entry.name, "arithmetic", preset=preset))
    assert not caplog.records


def test_every_condition_is_of_fields_of_an_algorithm():
    for condition in CONDITIONS:
        assert any(
            hasattr(entry.config_class, name) and hasattr(entry.config_class, condition.field)
            for entry in (*catalog.CONTROL, *catalog.TABULAR, *catalog.LANGUAGE)
            for name in condition.fields
        )


def test_training_of_language_models_warns(tmp_path, caplog):
    options = {"run": tmp_path / "run", "budget": 2, "prompts_per_batch": 2, "num_generations": 2, "progress": "silent"}
    operant.train("grpo", "reverse", max_rounds=3, held_out=2, train_examples=8, **options).close()
    assert "grpo: max_rounds=3 has no effect with filter=none: leave it out, or set filter" in caplog.text


def test_training_warns(tmp_path, caplog):
    options = {"run": tmp_path / "run", "budget": 16, "seeds": 1, "num_envs": 1, "num_steps": 8, "progress": "silent"}
    operant.train("a2c", "MountainCar-v0", gae_lambda=0.5, evaluate_episodes=1, **options).close()
    assert "gae_lambda=0.5 has no effect with estimator=n-step: leave it out, or set estimator" in caplog.text
