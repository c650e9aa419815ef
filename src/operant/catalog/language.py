"""Chapter 6: language models."""

from functools import partial

from operant.catalog.algorithm import Algorithm

_LANGUAGE = partial(
    Algorithm,
    package="language",
    seeds=1,
)
_ON_PROMPTS = partial(
    _LANGUAGE,
    family="policy",
    on_policy=True,
    unit="prompts",
    budget=20000,
)
_REWARD = partial(
    _LANGUAGE,
    family="reward",
    on_policy=False,
    module="operant.language.reward_model",
    config="RewardModelConfig",
    learner="RewardModel",
)

LANGUAGE: tuple[Algorithm, ...] = (
    _LANGUAGE(
        name="sft",
        title="Supervised fine-tuning",
        family="imitation",
        on_policy=False,
        idea="Maximum likelihood of demonstrations, token by token.",
        paper="Ouyang et al. 2022, arXiv:2203.02155, section 3.5",
        module="operant.language.sft",
        config="SFTConfig",
        learner="SFT",
        unit="demonstrations",
        budget=20_000,
        budgets=(("arithmetic", 18_000), ("reverse", 40_000), ("steps", 15_000)),
    ),
    _REWARD(
        name="reward-model",
        title="Reward model",
        idea="Preferred answers get higher scores; the difference gives the probability of the preference.",
        paper="Christiano et al. 2017, arXiv:1706.03741; Ouyang et al. 2022, arXiv:2203.02155, equation 1",
        unit="comparisons",
        budget=20_000,
    ),
    _REWARD(
        name="process-reward-model",
        title="Process reward model",
        idea="Each step of an answer gets a score, not only its result.",
        paper="Uesato et al. 2022, arXiv:2211.14275; Lightman et al. 2023, arXiv:2305.20050",
        unit="solutions",
        budget=60_000,
        budgets=(("steps", 20_000),),
        values=(("supervision", "process"),),
    ),
    _LANGUAGE(
        name="dpo",
        title="Direct preference optimization",
        family="policy",
        on_policy=False,
        idea="A policy implies a reward model: fitting it to preferences trains the policy.",
        paper="Rafailov et al. 2023, arXiv:2305.18290",
        module="operant.language.dpo",
        config="DPOConfig",
        learner="DPO",
        unit="pairs",
        budget=10_000,
    ),
    _ON_PROMPTS(
        name="rlhf",
        title="Reinforcement learning from human feedback (PPO)",
        family="actor-critic",
        idea="PPO on tokens: a score at the last one, and a KL penalty to the reference at each.",
        paper="Ziegler et al. 2019, arXiv:1909.08593; Ouyang et al. 2022, arXiv:2203.02155",
        module="operant.language.rlhf",
        config="RLHFConfig",
        learner="RLHF",
        budgets=(("arithmetic", 80_000), ("countdown", 160_000), ("preference", 4_000), ("steps", 80_000)),
        presets=("paper", "ziegler", "instructgpt", "huang", "vpg", "trpo"),
    ),
    _ON_PROMPTS(
        name="grpo",
        title="Group relative policy optimization",
        idea="An answer's advantage compares it with other answers to the same prompt: no critic is needed.",
        paper="Shao et al. 2024, arXiv:2402.03300",
        module="operant.language.grpo",
        config="GRPOConfig",
        learner="GRPO",
        budgets=(("arithmetic", 40_000), ("preference", 4_000), ("steps", 40_000)),
        presets=("paper", "grpo", "dr-grpo", "dapo", "prorl", "rloo", "gspo", "cispo"),
    ),
    _ON_PROMPTS(
        name="iterative-grpo",
        title="Iterative GRPO",
        idea="Training of the reward model continues on the policy's answers; the policy becomes the reference.",
        paper="Shao et al. 2024, arXiv:2402.03300, algorithm 1",
        module="operant.language.iterative",
        config="IterativeGRPOConfig",
        learner="IterativeGRPO",
        budgets=(("preference", 4_000),),
    ),
)
"""In the order of the pipeline."""
