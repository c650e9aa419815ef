"""Claim: PPO keeps four models in memory, GRPO two or one, DPO two or one; the estimate before training is accurate.

PPO holds a policy, a critic, a reference and a reward model, two of them with gradients and Adam's moments; GRPO holds
no critic, and without a KL term no reference; DPO none of them but the reference, and not even that if its
log-probabilities are computed beforehand. With P parameters of 32 bits, a model that is trained is 16 P bytes (weights,
gradients, two moments), one that is not 4 P: 40 P for PPO, 20 P and 16 P for GRPO, 20 P and 16 P for DPO, if PPO's
reward model is one of that size.

Each algorithm takes three steps in a separate process, on the same Llama of 25 million parameters with random
weights, with short answers, so that weights dominate. The measure is the peak of the resident memory minus that of
the same process before it has built its first model; it is compared with the estimate of
`operant.language.memory_estimate` before the first step. Five seeds.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checks import COLORS, conclude, panels, save
from transformers import LlamaConfig, LlamaForCausalLM

from operant.language import DPO, GRPO, RLHF, DPOConfig, GRPOConfig, RLHFConfig, examples, memory_estimate, tasks
from operant.language.configs import ModelOptions
from operant.language.critic import Critic
from operant.language.engines.native import NativeEngine
from operant.language.models import finish
from operant.language.rewards import combine
from operant.language.scoring import RewardModelFunction, Scorer
from operant.language.tokenizer import character_tokenizer

SEEDS = range(5)
WIDTH, LAYERS, STEPS, PROMPTS, TOKENS = 512, 8, 3, 8, 16
ARMS = {
    "PPO": 40,
    "GRPO with KL": 20,
    "GRPO": 16,
    "DPO, live reference": 20,
    "DPO, precomputed": 16,
}
"""Bytes per parameter that weights, gradients and moments need."""
MIB = 2**20


def network(seed: int) -> Any:
    """Return a model with random weights."""
    tokenizer = character_tokenizer()
    torch.manual_seed(seed)
    shape = {"hidden_size": WIDTH, "intermediate_size": WIDTH * 8 // 3, "num_hidden_layers": LAYERS}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), num_attention_heads=8, num_key_value_heads=8, **shape, **ends)
    return finish(LlamaForCausalLM(config), tokenizer, ModelOptions(), seed=seed)


def learner(arm: str, seed: int) -> Any:
    """Return the learner of an arm."""
    model, task, common = network(seed), tasks.find("preference"), {"seed": seed, "budget": STEPS * PROMPTS}
    if arm.startswith("DPO"):
        rows = task.pairs("train", STEPS * PROMPTS, seed=seed)
        short = [{name: text[: 2 * TOKENS] for name, text in row.items()} for row in rows]
        pairs = examples.pairs(model.tokenizer, short, eos_ids=model.stop)
        return DPO(
            DPOConfig(batch_size=PROMPTS // 2, precompute_ref_log_probs="precomputed" in arm), model, pairs, **common
        )
    prompts = examples.prompts(model.tokenizer, task.rows("train", STEPS * PROMPTS, seed=seed))
    engine, common = NativeEngine(model), common | {"max_tokens": TOKENS}
    if arm == "PPO":
        scorer = Scorer(network(seed + 1))
        scorer.model.network.requires_grad_(False)
        rewards = combine([RewardModelFunction(scorer, process=False, separator="\n")])
        config, critic = RLHFConfig(prompts_per_batch=PROMPTS, num_iterations=1), Critic.copy_of(model)
        return RLHF(config, model, engine, prompts, rewards, critic=critic, **common)
    config = GRPOConfig(prompts_per_batch=2, num_generations=PROMPTS // 2, beta=0.04 * (arm != "GRPO"))
    return GRPO(config, model, engine, prompts, combine([letters]), **common)


def letters(completions: list[str], **_: object) -> list[float | None]:
    """Reward every letter, so that no two answers are alike."""
    return [sum(character.isalpha() for character in text) + len(text) / 100 for text in completions]


def resident() -> int:
    """Return the largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(arm: str, seed: int) -> dict[str, float]:
    """Train in this process, and return bytes."""
    torch.set_num_threads(1)
    before = resident()
    made = learner(arm, seed)
    longest = 16 + (2 if arm.startswith("DPO") else 1) * TOKENS
    estimated = memory_estimate.estimate(
        [made], tokens=PROMPTS * longest, cached=0 if "DPO" in arm else PROMPTS * longest
    )
    parameters = sum(value.numel() for value in made.model.network.parameters())
    for _ in range(STEPS):
        made.iterate()
    return {"peak": resident() - before, "estimate": estimated.peak, "parameters": parameters}


def draw(table: dict[str, Any]) -> None:
    """Draw the arithmetic, the estimates and what was measured."""
    figure, axes = panels(1)
    figure.set_size_inches(7, 4)
    at = np.arange(len(ARMS))
    columns = {
        "weights, gradients, moments": table["arithmetic, MiB"],
        "estimate before the first step": table["estimates, MiB"],
        "measured": table["MiB"],
    }
    for k, (name, values) in enumerate(columns.items()):
        heights = [np.median(values[arm]) for arm in ARMS]
        axes[0].barh(at + 0.27 * (k - 1), heights, 0.25, color=COLORS[k], label=name)
    axes[0].set_yticks(at, list(ARMS))
    axes[0].invert_yaxis()
    axes[0].set(title=f"{table['parameters'] / 1e6:.0f} M parameters of 32 bits", xlabel="peak memory, MiB")
    save(figure, __file__, axes)


def main() -> None:
    """Measure, write down, draw; fail if a claim does not hold."""
    if sys.argv[1:] == ["--draw"]:
        draw(json.loads(Path(__file__).with_suffix(".json").read_text())["results"])
        return
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
        return
    found: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for seed in SEEDS:
        for arm in ARMS:
            command = [sys.executable, "-W", "ignore", str(Path(__file__)), arm, str(seed)]
            answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found[arm].append(json.loads(answer.splitlines()[-1]))
            print(seed, arm, {name: round(value / MIB) for name, value in found[arm][-1].items()}, flush=True)
    parameters = found["GRPO"][0]["parameters"]
    peaks, estimates = (
        {arm: np.array([run[name] for run in runs]) / MIB for arm, runs in found.items()}
        for name in ("peak", "estimate")
    )
    arithmetic = {arm: each * parameters / MIB for arm, each in ARMS.items()}
    table = {"parameters": parameters, "MiB": peaks, "estimates, MiB": estimates, "arithmetic, MiB": arithmetic}
    draw(table)
    middle = {arm: float(np.median(values)) for arm, values in peaks.items()}
    ratios = {arm: float(np.median(peaks[arm] / estimates[arm])) for arm in ARMS}
    model = 4 * parameters / MIB
    claims = {
        "PPO needs at least 1.8 times the memory of GRPO with KL": middle["PPO"] >= 1.8 * middle["GRPO with KL"],
        "a KL term costs GRPO a model": middle["GRPO with KL"] - middle["GRPO"] >= 0.8 * model,
        "a live reference costs DPO a model": middle["DPO, live reference"] - middle["DPO, precomputed"] >= 0.8 * model,
        "the growth of the process is 1 to 1.5 times the estimate": all(1 <= r <= 1.5 for r in ratios.values()),
    }
    conclude(__file__, table | {"peak by estimate": ratios}, [], claims)


if __name__ == "__main__":
    main()
