import json
import re
from dataclasses import fields

import pytest

from operant import catalog, configure
from operant.cli.arguments import TrainOptions, parse_training
from operant.control.ppo import PPOConfig
from operant.runtime.settings import Settings

TASK = "CartPole-v1"


def words(text):
    """Return a text without its frame and its line breaks."""
    return " ".join(text.replace("│", " ").split())


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "config.toml"

    def write(text):
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_without_flags_there_are_the_defaults_and_the_preset():
    options, config = parse_training(["ppo", TASK])
    assert options.settings() == vars(Settings("ppo", TASK, seeds=tuple(range(8))))
    assert config == configure("ppo", TASK)


@pytest.mark.parametrize("entry", catalog.ALGORITHMS, ids=lambda entry: entry.name)
def test_seeds_and_budget_are_those_of_the_algorithm(entry):
    options, _ = parse_training([entry.name, TASK])
    assert (options.chosen_seeds(), options.budget) == (tuple(range(entry.seeds)), entry.budget)


def test_an_asynchronous_algorithm_and_a_language_model_have_one_seed():
    assert [parse_training([name, TASK])[0].chosen_seeds() for name in ("a3c", "sft")] == [(0,), (0,)]


def test_seeds_is_a_count_and_seed_the_first():
    options, _ = parse_training(["ppo", TASK, "--seeds", "3", "--seed", "5"])
    assert options.chosen_seeds() == (5, 6, 7)


@pytest.mark.parametrize("flags", [["--seeds", "0"], ["--seed", "-1"]])
def test_impossible_seeds(flags):
    options, _ = parse_training(["ppo", TASK, *flags])
    with pytest.raises(ValueError, match="--seeds must be at least 1 and --seed at least 0"):
        options.chosen_seeds()


def test_dashes_and_underscores_are_the_same():
    options, config = parse_training(["ppo", TASK, "--env_backend", "gymnasium", "--learning_rate", "0.5"])
    assert (options.env_backend, config.learning_rate) == ("gymnasium", 0.5)


@pytest.mark.parametrize("flags", [["--total-timesteps", "5e3"], ["--total_timesteps=5000"]])
def test_total_timesteps_is_the_budget_of_what_counts_steps(flags):
    assert parse_training(["ppo", TASK, *flags])[0].budget == 5000
    with pytest.raises(ValueError, match=r"unknown flag --total.timesteps"):
        parse_training(["grpo", "arithmetic", *flags])


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        ([], None),
        (["--kl-weighted"], True),
        (["--no-kl-weighted"], False),
        (["--no_kl_weighted", "--beta", "0.1"], False),
        (["--kl-weighted", "False"], False),
        (["--kl_weighted=None"], None),
    ],
)
def test_a_switch_with_a_default_that_depends_on_others(flags, value):
    assert parse_training(["grpo", "arithmetic", *flags])[1].kl_weighted is value


def test_a_named_preset():
    assert parse_training(["ppo", TASK, "--preset", "paper"])[1] == PPOConfig()


def test_a_file_wins_over_presets_and_flags_over_both(file):
    path = file("[config]\ngamma = 0.5\nlam = 0.25\nmax_grad_norm = 'none'\n")
    _, config = parse_training(["ppo", TASK, "--preset", "zoo", "--gae-lambda", "0.75", f"--config={path}"])
    zoo = configure("ppo", TASK, preset="zoo")
    assert (config.gamma, config.gae_lambda, config.max_grad_norm, config.num_steps) == (0.5, 0.75, None, zoo.num_steps)


def test_the_file_of_a_run_is_taken_as_a_whole(run):
    flags = ["--config", str(run / "config.toml")]
    options, config = parse_training(["ppo", TASK, *flags])
    assert (options.seeds, options.budget, options.evaluate_episodes, config.num_envs) == ((0, 1), 1024, 4, 4)
    options, _ = parse_training(["ppo", "Pendulum-v1", *flags, "--budget", "7"])
    assert (options.task, options.budget) == ("Pendulum-v1", 7)


def test_seeds_of_a_file_need_not_follow_each_other(file):
    path = file("[config]\n[settings]\nalgorithm = 'ppo'\ntask = 'x'\nseeds = [3, 9]\n")
    assert parse_training(["ppo", TASK, "--config", path])[0].chosen_seeds() == (3, 9)


@pytest.mark.parametrize(
    ("flags", "seeds"),
    [
        (["--seeds", "3"], (3, 4, 5)),
        (["--seeds=2"], (3, 4)),
        (["--seed", "3"], (3, 4)),
        (["--seeds", "2", "--seed", "3"], (3, 4)),
        (["--seed", "5"], (5, 6)),
    ],
)
def test_flags_win_over_the_seeds_of_a_file_even_where_they_repeat_its_number_or_first(flags, seeds, file):
    path = file("[config]\n[settings]\nalgorithm = 'ppo'\ntask = 'x'\nseeds = [3, 9]\n")
    assert parse_training(["ppo", TASK, "--config", path, *flags])[0].chosen_seeds() == seeds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[config]\ngama = 1.0", "config.gama: there is no such key; did you mean gamma"),
        ("[config]\nlr = 1.0", "config.lr: there is no such key: PPO calls it learning_rate"),
        ("[confg]", r"must have a table \[config\], \[settings\] or both; it has also confg: put hyper"),
        ("", "or both; it has no such table"),
        ("nonsense", "is not TOML"),
        ("[config]\n[settings]\nalgorithm = 'dqn'\ntask = 'x'", "configures dqn, not ppo"),
        ("[config]\ntau = 1.0\n[settings]\nalgorithm = 'dqn'\ntask = 'x'", "configures dqn, not ppo"),
    ],
)
def test_a_wrong_file(text, message, file):
    with pytest.raises(ValueError, match=message):
        parse_training(["ppo", TASK, "--config", file(text)])


def test_settings_in_a_file_leave_the_rest_to_the_algorithm(file):
    """Take algorithm and task from the command line, and seeds and budget from the algorithm, not from `Settings`."""
    options, _ = parse_training(["ppo", TASK, "--config", file("[settings]\nevaluate_episodes = 3\n")])
    plain, _ = parse_training(["ppo", TASK])
    assert options.evaluate_episodes == 3
    assert (options.chosen_seeds(), options.budget) == (plain.chosen_seeds(), plain.budget)
    assert len(plain.chosen_seeds()) > 1


def test_a_file_may_begin_with_a_byte_order_mark(file):
    assert parse_training(["ppo", TASK, "--config", file("\ufeff[config]\ngamma = 0.5\n")])[1].gamma == 0.5


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        parse_training(["ppo", TASK, "--config", str(tmp_path / "nothing.toml")])


@pytest.mark.parametrize("arguments", [[], ["ppo"], ["--gamma", "1", "ppo", TASK]])
def test_algorithm_and_task_come_first(arguments):
    with pytest.raises(ValueError, match="name an algorithm and a task first"):
        parse_training(arguments)


def test_task_and_algorithm_in_the_wrong_order():
    with pytest.raises(ValueError, match=f"the algorithm comes first: operant train ppo {TASK}$"):
        parse_training([TASK, "ppo", "--budget", "100"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gamma", "x"], "could not convert"),
        (["--gamma", "7"], "in [0, 1]"),
        (["--budget", "0"], "budget must be in [1, inf)"),
        (["--preset"], "--preset"),
        (["--vectorization", "thread"], "invalid choice 'thread' for argument '--vectorization'"),
        (["--hidden-sizes", "64,64"], "--hidden-sizes: expected values separated by spaces, without commas"),
        (["--hidden-sizes"], "--hidden-sizes: expected at least one size; for no hidden layers"),
        (["--keep-checkpoints", "x"], "or 1e5, got x, or one of ('auto', 'all', 'none'); see"),
        (["--run", ""], "--run: expected a path, got an empty one"),
        (["--run="], "--run: expected a path, got an empty one"),
    ],
)
def test_a_wrong_flag_is_explained_in_one_line(flags, message, capsys):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        parse_training(["ppo", TASK, *flags])
    said = str(caught.value)
    assert said.endswith(f"; see `operant train ppo {TASK} --help`")
    assert not any(part in said for part in ("\n", "  ", "---- ", "Error parsing", "<class"))
    assert capsys.readouterr().err == ""


def test_a_missing_number_of_a_pair_is_explained_without_markup():
    with pytest.raises(ValueError, match=r"^--reward-range: input length 1 did not .* count 2 of `FLOAT FLOAT`; see"):
        parse_training(["ddpg", "operant/Reach-v0", "--reward-range", "1"])


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [([], "ALGORITHM TASK"), (["ppo"], "ppo TASK"), (["ppo", TASK], f"ppo {TASK}")],
)
def test_help_at_every_stage(arguments, usage, capsys):
    with pytest.raises(SystemExit, match="0"):
        parse_training([*arguments, "--help"])
    out = capsys.readouterr().out
    assert out.startswith(f"usage: operant train {usage} [-h]")
    assert "--evaluate-every" in out
    assert ("--clip-range" in out) is bool(arguments)


def test_help_shows_the_values_of_the_task(capsys):
    chosen = configure("ppo", TASK).num_envs
    assert chosen != PPOConfig().num_envs
    with pytest.raises(SystemExit, match="0"):
        parse_training(["ppo", TASK, "--help"])
    assert f"and faster rollouts. (default: {chosen})" in words(capsys.readouterr().out)


@pytest.mark.parametrize("algorithm", catalog.ALGORITHMS, ids=lambda algorithm: algorithm.name)
def test_no_parameter_of_an_algorithm_is_called_like_an_option(algorithm):
    _, config = parse_training([algorithm.name, TASK])
    options = {field.name for field in fields(TrainOptions)} | {"seeds", "seed"}
    if algorithm.package == "language":
        options.remove("init")  # a field of their own configurations
    assert {field.name for field in fields(config)}.isdisjoint(options)


ENVIRONMENTS_ONLY = (
    "--env-kwargs",
    "--env-backend",
    "--vectorization",
    "--num-workers",
    "--lost-workers",
    "--worker-seconds",
    "--clip-rewards",
    "--episodic-life",
    "--evaluate-episodes",
    "--evaluate-max-steps",
)


def test_options_about_environments_are_hidden_from_language_models(capsys):
    for arguments, there in ((["sft", "arithmetic"], False), (["ppo", TASK], True)):
        with pytest.raises(SystemExit, match="0"):
            parse_training([*arguments, "--help"])
        out = capsys.readouterr().out
        assert [flag in out for flag in ENVIRONMENTS_ONLY] == [there] * len(ENVIRONMENTS_ONLY)
        assert "--evaluate-every" in out
    with pytest.raises(ValueError, match="unknown flag --env-backend"):
        parse_training(["sft", "arithmetic", "--env-backend", "tensor"])


def test_games_of_atari_have_options_of_their_own():
    assert parse_training(["ppo", "ALE/Pong-v5"])[0].settings().items() >= {"clip_rewards": True}.items()
    options, _ = parse_training(["ppo", "ALE/Pong-v5", "--no-clip-rewards", "--episodic-life"])
    assert options.settings().items() >= {"clip_rewards": False, "episodic_life": True}.items()


def test_a_data_set_stands_for_the_task():
    for flags in (["--dataset", "data/pairs.v2.jsonl"], ["--dataset=data/pairs.v2.jsonl"]):
        options, config = parse_training(["sft", *flags])
        assert (options.task, config.dataset) == ("pairs.v2", "data/pairs.v2.jsonl")
    assert parse_training(["sft", "mine", "--dataset", "x.jsonl"])[0].task == "mine"
    assert parse_training(["sft", "x.jsonl"])[0].task == "x.jsonl"


@pytest.mark.parametrize("flags", [[], ["--dataset"], ["--model", "tiny"]])
def test_a_task_or_a_data_set_is_needed(flags):
    with pytest.raises(
        ValueError, match="name a task or data after sft: operant train sft arithmetic, or operant train"
    ):
        parse_training(["sft", *flags])


def test_step_sizes_for_small_models_are_not_for_others(spoken, file):
    small = parse_training(["sft", "arithmetic"])[1].learning_rate
    asked = configure("sft", "arithmetic", preset="paper").learning_rate
    assert small > asked
    flags = {
        "of another size": ["--model", "small"],
        "from a run": ["--init", str(spoken)],
        "on a data set": ["--dataset", "x.jsonl"],
    }
    for more in flags.values():
        assert parse_training(["sft", "arithmetic", *more])[1].learning_rate == small
    _, config = parse_training(["sft", "arithmetic", "--model", "owner/model"])
    assert (config.model, config.learning_rate) == ("owner/model", asked)
    named = file("[config]\nmodel = 'owner/model'\n")
    assert parse_training(["sft", "arithmetic", "--config", named])[1].learning_rate == asked
    assert parse_training(["sft", "arithmetic", "--config", named, "--model", "tiny"])[1].learning_rate == small
    assert parse_training(["sft", "arithmetic", "--model", "owner/model", "--learning-rate", "1"])[1].learning_rate == 1


@pytest.mark.parametrize(
    ("algorithm", "values"),
    [
        ("grpo", {"reward_model": "runs/scorer"}),
        ("rlhf", {"reward_model": "runs/scorer"}),
        ("grpo", {"num_minibatches": 4}),
        ("grpo", {"prompts_per_batch": 8, "num_generations": 2}),
        ("sft", {"batch_size": 8}),
    ],
)
def test_flags_and_files_decide_the_defaults_of_others_as_parameters_do(algorithm, values, file):
    expected = configure(algorithm, "arithmetic", **values)
    words = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert parse_training([algorithm, "arithmetic", *words])[1] == expected
    joined = [f"--{name}={value}" for name, value in values.items()]
    assert parse_training([algorithm, "arithmetic", *joined])[1] == expected
    named = file("[config]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    assert parse_training([algorithm, "arithmetic", "--config", named])[1] == expected
    assert parse_training([algorithm, "arithmetic", "--config", named, *words])[1] == expected


@pytest.mark.parametrize(
    "words", [("--prompts-per-batch", "1e2"), ("--prompts-per-batch", "1_00"), ("--prompts", "100"), ("--prompts=1e2",)]
)
def test_a_size_decides_the_learning_rate_in_every_notation_and_under_its_old_name(words):
    assert parse_training(["grpo", "arithmetic", *words])[1] == configure("grpo", "arithmetic", prompts_per_batch=100)


def test_a_size_that_is_no_number_is_rejected():
    with pytest.raises(ValueError, match=r"--num-generations: expected a whole number .*, got many"):
        parse_training(["grpo", "arithmetic", "--num-generations", "many"])


def test_a_run_that_went_on_from_a_pretrained_model_is_not_small(spoken, tmp_path):
    text = (spoken / "config.toml").read_text()
    for name, model, init in (("first", "owner/model", ""), ("second", "tiny", str(tmp_path / "first"))):
        (tmp_path / name).mkdir()
        changed = text.replace('model = "tiny"', f'model = "{model}"').replace(
            'init = ""', f"init = {json.dumps(init)}"
        )
        (tmp_path / name / "config.toml").write_text(changed)
    paper = configure("sft", "arithmetic", preset="paper").learning_rate
    assert parse_training(["sft", "arithmetic", "--init", str(tmp_path / "second")])[1].learning_rate == paper


def test_parameters_of_an_environment_come_from_a_file_and_flags_win(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('[settings]\nalgorithm = "ppo"\ntask = "X-v0"\n[settings.env_kwargs]\nsize = 3\n[config]\n')
    options, _ = parse_training(["ppo", "Y-v0", "--config", str(file)])
    assert options.settings()["env_kwargs"] == {"size": 3}
    options, _ = parse_training(["ppo", "Y-v0", "--config", str(file), "--env-kwargs", "size=4"])
    assert options.settings()["env_kwargs"] == {"size": 4}


def test_wrappers_are_given_one_by_one():
    words = ["ppo", "CartPole-v1", "--wrapper", "a.py:A(scale=0.1)", "--wrapper", "b.py:B"]
    options, _ = parse_training(words)
    assert options.settings()["wrappers"] == ("a.py:A(scale=0.1)", "b.py:B")
    assert parse_training(words[:2])[0].wrappers == ()


def test_a_file_of_another_library_is_named(tmp_path):
    (tmp_path / "ppo.yml").write_text("CartPole-v1:\n  n_envs: 8\n")
    with pytest.raises(ValueError, match=r"is not TOML: .*YAML, as of RL Zoo, is not supported"):
        parse_training(["ppo", "CartPole-v1", "--config", str(tmp_path / "ppo.yml")])
