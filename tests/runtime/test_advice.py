from operant.control import PPOConfig, TRPOConfig
from operant.language.dpo import DPOConfig
from operant.language.grpo import GRPOConfig
from operant.language.rlhf import RLHFConfig
from operant.runtime.advice import advice, hints_of
from operant.runtime.run import Run
from operant.runtime.settings import Settings


def test_advice_names_the_options_that_there_are():
    assert advice(DPOConfig(), "beta") == "a smaller --learning-rate (now 1e-06) or a larger --beta (now 0.1)"
    assert advice(GRPOConfig(num_minibatches=4, num_iterations=2), "beta") == (
        "a smaller --learning-rate (now 1e-06), a larger --beta (now 0) or fewer --num-minibatches (now 4) or "
        "--num-iterations (now 2)"
    )
    assert advice(RLHFConfig(step="vpg"), "beta") == (
        "a smaller --learning-rate (now 3e-06) or a larger --beta (now 0.05)"
    )
    assert advice(RLHFConfig(step="trpo"), "beta") == "a smaller --target-kl (now 0.01) or a larger --beta (now 0.05)"
    assert advice(TRPOConfig()) == "a smaller --target-kl (now 0.01)"
    assert advice(object()) == ""


def test_hints_are_for_what_started_from_something(tmp_path):
    speaks = Run.create(tmp_path / "one", Settings("grpo", "arithmetic"), GRPOConfig())
    hints = hints_of(speaks, kept=True)
    assert (hints.unit, hints.kept, hints.penalty) == ("prompts", True, "--beta")
    acts = Run.create(tmp_path / "two", Settings("ppo", "CartPole-v1"), PPOConfig())
    assert hints_of(acts, kept=True) is None
    begun = Run.create(tmp_path / "three", Settings("ppo", "CartPole-v1"), PPOConfig(), resolved={"init": "two"})
    assert hints_of(begun, kept=True).penalty == ""
