"""Post-training and generation beside TRL and transformers, in one run, on one thread, with a Llama of 3 M parameters.

All competitors have the same weights, prompts, groups and lengths of completions, and take their turns in every round;
what is compared are medians. The model is first fitted to completions whose lengths are spread evenly over 1 to 64
tokens, so that what it samples ends at many different lengths.

- `generate`: 64 prompts, at most 64 tokens: the native engine beside `transformers.generate`.
- `grpo`: a whole step on 8 prompts with 8 completions each: sampling, rewards, one update. Completion tokens a second.
- `sft`, `dpo`: a step on 32 demonstrations or 16 pairs; TRL with padding and, where it offers that, without.

    python benchmarks/language.py [--tasks generate grpo sft dpo] [--rounds 5] [--precision highest] [--json]

`--precision medium` lets both sides multiply 32-bit matrices with bfloat16 units, where the processor has them.
"""

import argparse
import contextlib
import json
import logging
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

from operant.language import examples
from operant.language.configs import LanguageConfig, ModelOptions
from operant.language.dpo import DPO, DPOConfig
from operant.language.engines import NativeEngine, Sampling
from operant.language.grpo import GRPO, GRPOConfig
from operant.language.models import LanguageModel, load
from operant.language.optimizer import OptimizerStep
from operant.language.packing import pack
from operant.language.rewards import combine
from operant.language.sft import SFT, SFTConfig

LETTERS = "abcdefghijklmnopqrstuvwxyz "
PROMPTS, LONGEST, GROUP = 64, 64, 8
BATCH, PAIRS = 32, 16
WARM, TIMED = 1, 3
"""Steps of a trainer in one round that are not timed, and that are."""
LEARNING_RATE = 1e-5


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """Return prompts of 8 to 24 letters with completions of 1 to 63, and others to compare them with."""
    draw = random.Random(seed)

    def text(shortest: int, longest: int) -> str:
        return "".join(draw.choices(LETTERS, k=draw.randint(shortest, longest)))

    return [
        {"prompt": text(8, 24), "completion": text(1, LONGEST - 1), "rejected": text(1, LONGEST - 1)}
        for _ in range(count)
    ]


def fitted(seed: int, steps: int) -> LanguageModel:
    """Return a model that ends its completions at all lengths."""
    model = load(ModelOptions(model="small"), seed=seed)
    stepper = OptimizerStep(model.trained(), LanguageConfig(learning_rate=1e-3))
    for step in range(steps):
        batch = pack(examples.demonstrations(model.tokenizer, rows(BATCH, step + 1000), eos_ids=model.stop))
        (-model.log_probs(batch)[0].mean()).backward()
        stepper.step(0.0)
    return model


def reward(completions: list[str], **_: Any) -> list[float]:
    """Return the share of the letter e, which differs among completions."""
    return [text.count("e") / max(len(text), 1) for text in completions]


class Rates:
    """Tokens a second by competitor, a number a round."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}

    def add(self, name: str, tokens: float, seconds: float) -> None:
        """Take one measurement."""
        self.found.setdefault(name, []).append(tokens / seconds)

    def report(self, task: str) -> dict[str, Any]:
        """Print medians and ratios to operant; return them."""
        medians = {name: statistics.median(rates) for name, rates in self.found.items()}
        for name, median in medians.items():
            low, high = min(self.found[name]), max(self.found[name])
            ratio = "" if name == "operant" else f"  operant is {medians['operant'] / median:.2f} x as fast"
            print(f"{task:9} {name:26} {median:8.0f} tokens/s  [{low:.0f}, {high:.0f}]{ratio}", flush=True)
        return {"task": task, "medians": medians, "rates": self.found}


def generation(model: LanguageModel, folder: Path, rounds: int) -> Rates:
    """Time 64 completions of mixed lengths."""
    from transformers import AutoModelForCausalLM

    peer = AutoModelForCausalLM.from_pretrained(folder)
    prompts = [p.prompt for p in examples.prompts(model.tokenizer, rows(PROMPTS, 1))]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = ids != 0
    engine, generator = NativeEngine(model), torch.Generator().manual_seed(0)
    rates = Rates()
    for turn in range(rounds + 1):
        begin = time.perf_counter()
        found = engine.generate(prompts, 1, Sampling(max_tokens=LONGEST), generator=generator)
        seconds = time.perf_counter() - begin
        if turn:
            rates.add("operant", sum(len(c.ids) for (c,) in found), seconds)
        begin = time.perf_counter()
        with torch.no_grad():
            out = peer.generate(
                ids, attention_mask=mask, max_new_tokens=LONGEST, do_sample=True, top_k=0, pad_token_id=0
            )
        seconds = time.perf_counter() - begin
        if turn:
            rates.add("transformers", int((out[:, width:] != 0).sum()), seconds)
    return rates


def timed_peer(make: Callable[[Any], Any], tokens: Callable[[Any], float]) -> tuple[float, float]:
    """Run a trainer of TRL for some steps; return the tokens and seconds of those that count.

    Args:
        make: returns a trainer, given a callback.
        tokens: tokens of the timed steps, given the trainer.
    """
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.perf_counter())

    clock = Clock()
    trainer = make(clock)
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        trainer.train()
    return tokens(trainer), clock.ends[-1] - clock.ends[WARM - 1]  # the fetching of batches included


def trainer_arguments(folder: Path, batch: int) -> dict[str, Any]:
    """Return what all trainers of TRL are told."""
    return {
        "output_dir": str(folder / "trl"),
        "per_device_train_batch_size": batch,
        "max_steps": WARM + TIMED,
        "learning_rate": LEARNING_RATE,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def peer_model(folder: Path) -> tuple[Any, Any]:
    """Return fresh weights and their tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def own_model(folder: Path) -> LanguageModel:
    """Return fresh weights."""
    return load(ModelOptions(model=str(folder)), seed=0)


def timed(learner: Any, name: str) -> tuple[float, float]:
    """Run a learner for some iterations; return the tokens and seconds of those that count."""
    for _ in range(WARM):
        learner.iterate()
    begin, tokens = time.perf_counter(), 0.0
    for _ in range(TIMED):
        tokens += float(learner.iterate()[name])
    return tokens, time.perf_counter() - begin


def grpo(folder: Path, rounds: int) -> Rates:
    """Time whole steps of GRPO."""
    from datasets import Dataset
    from trl import GRPOConfig as PeerConfig
    from trl import GRPOTrainer

    rates, data = Rates(), rows(512, 2)
    for _ in range(rounds):
        model = own_model(folder)
        config = GRPOConfig(prompts_per_batch=PROMPTS // GROUP, num_generations=GROUP, learning_rate=LEARNING_RATE)
        prompts = examples.prompts(model.tokenizer, data)
        learner = GRPO(
            config, model, NativeEngine(model), prompts, combine([reward]), max_tokens=LONGEST, seed=0, budget=10**6
        )
        rates.add("operant", *timed(learner, "num_tokens"))
        lengths: list[int] = []

        def count(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
            lengths.append(sum(map(len, completion_ids)))  # noqa: B023 - used up in this round
            return reward(completions)

        def make(clock: Any) -> Any:
            network, tokenizer = peer_model(folder)
            arguments = PeerConfig(
                **trainer_arguments(folder, PROMPTS), num_generations=GROUP, max_completion_length=LONGEST, beta=0.0
            )
            return GRPOTrainer(
                network,
                reward_funcs=count,
                args=arguments,
                train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in data]),
                processing_class=tokenizer,
                callbacks=[clock],
            )

        rates.add("TRL", *timed_peer(make, lambda _: sum(lengths[WARM : WARM + TIMED])))  # noqa: B023
    return rates


def sft(folder: Path, rounds: int) -> Rates:
    """Time steps of supervised fine-tuning."""
    from datasets import Dataset
    from trl import SFTConfig as PeerConfig
    from trl import SFTTrainer

    rates = Rates()
    data = [{"prompt": row["prompt"], "completion": row["completion"]} for row in rows((WARM + TIMED) * BATCH, 3)]
    for _ in range(rounds):
        model = own_model(folder)
        samples = examples.demonstrations(model.tokenizer, data, eos_ids=model.stop)
        config = SFTConfig(batch_size=BATCH, learning_rate=LEARNING_RATE, keep_best=False)
        tokens, seconds = timed(SFT(config, model, samples, samples, seed=0, budget=10**6), "num_tokens")
        mean = tokens / TIMED
        rates.add("operant", tokens, seconds)
        for name, free in (("TRL", False), ("TRL without padding", True)):

            def make(clock: Any, free: bool = free) -> Any:
                network, tokenizer = peer_model(folder)
                arguments = PeerConfig(**trainer_arguments(folder, BATCH), padding_free=free, max_length=None)
                dataset = Dataset.from_list(data)
                return SFTTrainer(
                    network, args=arguments, train_dataset=dataset, processing_class=tokenizer, callbacks=[clock]
                )

            _, seconds = timed_peer(make, lambda _: 0.0)
            rates.add(name, mean * TIMED, seconds)
    return rates


def dpo(folder: Path, rounds: int) -> Rates:
    """Time steps of direct preference optimization, with the reference's log-probabilities computed beforehand."""
    from datasets import Dataset
    from trl import DPOConfig as PeerConfig
    from trl import DPOTrainer

    rates = Rates()
    data = [
        {"prompt": row["prompt"], "chosen": row["completion"], "rejected": row["rejected"]}
        for row in rows((WARM + TIMED) * PAIRS, 4)
    ]
    for _ in range(rounds):
        model = own_model(folder)
        pairs = examples.pairs(model.tokenizer, data, eos_ids=model.stop)
        learner = DPO(
            DPOConfig(batch_size=PAIRS, learning_rate=LEARNING_RATE), model, pairs, pairs, seed=0, budget=10**6
        )
        _, seconds = timed(learner, "num_tokens")
        mean = statistics.mean(len(pair.chosen) + len(pair.rejected) for pair in pairs) * PAIRS
        rates.add("operant", mean * TIMED, seconds)

        def make(clock: Any) -> Any:
            network, tokenizer = peer_model(folder)
            arguments = PeerConfig(**trainer_arguments(folder, PAIRS), precompute_ref_log_probs=True, max_length=None)
            dataset = Dataset.from_list(data)
            return DPOTrainer(
                network, args=arguments, train_dataset=dataset, processing_class=tokenizer, callbacks=[clock]
            )

        _, seconds = timed_peer(make, lambda _: 0.0)
        rates.add("TRL", mean * TIMED, seconds)
    return rates


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["generate", "grpo", "sft", "dpo"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", choices=("highest", "high", "medium"), default="highest")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision(options.precision)
    with tempfile.TemporaryDirectory() as place:
        folder, model = Path(place), fitted(0, 60)
        model.save(folder)
        runs: dict[str, Callable[[], Rates]] = {
            "generate": lambda: generation(model, folder, options.rounds),
            "grpo": lambda: grpo(folder, options.rounds),
            "sft": lambda: sft(folder, options.rounds),
            "dpo": lambda: dpo(folder, options.rounds),
        }
        found = [runs[task]().report(task) for task in options.tasks]
    if options.json:
        print(json.dumps({"precision": options.precision, "results": found}))


if __name__ == "__main__":
    main()
