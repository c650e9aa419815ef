"""Learners of language models after some iterations, in this process, or as a program in several that share models."""

import sys
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file

import operant
from operant import catalog
from operant.build import assemble, resolve
from operant.language.in_step import is_sharded
from operant.language.iterative import IterativeGRPO
from operant.language.rlhf import RLHF
from operant.language.sharded import gathered
from operant.runtime.encoding import flatten
from operant.runtime.settings import Settings
from operant.runtime.shards import group
from operant.scale import follow, joined, leave

SMALL = {"held_out": 8, "train_examples": 64, "micro_batch_tokens": 96, "max_grad_norm": 0.05}
DRAWN = SMALL | {"prompts_per_batch": 3, "num_generations": 4, "max_completion_length": 8, "learning_rate": 1e-4}
CRITIC = DRAWN | {"critic_learning_rate": 1e-6}
"""Settings with a critic, whose learning rate does not warm up: in its first steps Adam turns rounding errors of small
gradients into steps of the size of the learning rate."""
REWARD = "reward"
"""Run of a reward model in the folder of the test."""
CASES = {
    "sft": ("sft", "arithmetic", SMALL | {"batch_size": 7, "validations": 2}),
    "sft, recomputed": ("sft", "arithmetic", SMALL | {"batch_size": 7, "gradient_checkpointing": True}),
    "sft, 16 bits": ("sft", "arithmetic", SMALL | {"batch_size": 7, "dtype": "bfloat16", "learning_rate": 1e-3}),
    "dpo": ("dpo", "preference", SMALL | {"batch_size": 5}),
    "dpo, with a reference": ("dpo", "preference", SMALL | {"batch_size": 5, "precompute_ref_log_probs": False}),
    "grpo": ("grpo", "preference", DRAWN | {"num_minibatches": 2, "num_iterations": 2}),
    "grpo, filtered": ("grpo", "preference", DRAWN | {"filter": "refill", "max_rounds": 2, "beta": 0.04}),
    "reward model": ("reward-model", "preference", SMALL | {"batch_size": 5, "lm_coef": 0.5}),
    "rlhf": ("rlhf", "preference", CRITIC | {"num_minibatches": 2, "num_iterations": 2}),
    "rlhf, vanilla": ("rlhf", "preference", CRITIC | {"num_minibatches": 1, "step": "vpg", "critic_warmup": 1}),
    "rlhf, critic from a reward model": ("rlhf", "preference", CRITIC | {"num_minibatches": 1, "reward_model": REWARD}),
    "rlhf, shared critic": ("rlhf", "preference", CRITIC | {"num_minibatches": 1, "critic": "shared"}),
    "iterative grpo": (
        *("iterative-grpo", "preference"),
        DRAWN | {"filter": "refill", "max_rounds": 2, "ref_reset_interval": 1, "reward_model": REWARD},
    ),
    "reward model of steps": (
        *("reward-model", "steps"),
        SMALL | {"batch_size": 5, "supervision": "process", "lm_coef": 1.0, "step_log_probs": True},
    ),
}


def trained(name, folder, iterations=2):
    """Return the losses, gradients and final state of a case, by name."""
    algorithm, task, values = CASES[name]
    if "reward_model" in values:
        values = values | {"reward_model": str(Path(folder, REWARD))}
    entry = catalog.find(algorithm)
    settings = Settings(entry.name, task, seeds=(1000,), budget=10**4, threads=1)
    config = operant.configure(algorithm, task, **values)
    learner = assemble(entry, settings, config, resolve(entry, settings, config)).learner.learners[0]
    found = {}

    def stepped(stepper, step, progress):
        gradients = {name: value.grad for name, value in stepper._masters.items() if value.grad is not None}
        for key, gradient in gradients.items():
            found[f"gradient {len(found)} {key}"] = gathered(gradient, group()).clone()
        return step(progress)

    for stepper in steppers(learner):
        stepper.step = partial(stepped, stepper, stepper.step)
    for number in range(iterations):
        for key, value in learner.iterate().items():
            found[f"metric {number} {key}"] = torch.as_tensor(value, dtype=torch.float64).clone()
    _, tensors = flatten(learner.state_dict())
    shares = [value.to_local() for value in tensors.values() if is_sharded(value)]
    found |= {f"state {key}": gathered(value, group()).clone() for key, value in tensors.items()}
    return found | {"bytes": torch.tensor([sum(value.nbytes for value in (shares or tensors.values()))])}


def steppers(learner):
    """Return the optimizers of a learner."""
    if isinstance(learner, IterativeGRPO):
        return [learner.grpo.stepper, learner.reward.stepper]
    return [learner.stepper, learner.critic_stepper] if isinstance(learner, RLHF) else [learner.stepper]


def main(folder, run):
    """Write the results of all cases in the leading process, and continue a run."""
    torch.set_num_threads(1)
    with joined(sharded=True) as processes:
        for number, name in enumerate(CASES):
            found = trained(name, folder)
            if processes.rank == 0:
                tensors = {key: value.contiguous() for key, value in found.items()}
                save_file(tensors, Path(folder, f"{number}.safetensors"))
        if processes.rank == 0:
            operant.resume(run, progress="silent")
        else:
            follow(processes)
    leave(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
