"""Time and peak memory of the loss of a language model's last layer, beside all of its logits at once.

The loss is the mean of -log p over 8 sequences of 512 tokens, with 128 000 choices and 256 hidden units in float32, on
one thread. Each variant has a process of its own, so that its peak memory is its own; inputs count for both. Wanted of
`token_log_probs`: an eighth of the memory of the whole logits, at most 1.2 times the time, gradients equal to 1e-5.

    python benchmarks/vocabulary.py [--rounds 3] [--tokens 4096] [--choices 128000] [--width 256] [--json]
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from operant.ops import token_log_probs

VARIANTS = ("whole logits", "token_log_probs")
GIB = 2**20
"""The kibibytes that `getrusage` counts in, of a gibibyte."""


def loss(variant: str, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of -log p."""
    if variant == "whole logits":
        return cross_entropy(hidden @ weight.T, targets)
    return -token_log_probs(hidden, weight, targets).mean()


def inputs(tokens: int, choices: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, an embedding and targets, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=generator).requires_grad_()
    weight = torch.randn(choices, width, generator=generator).mul_(0.05).requires_grad_()
    return hidden, weight, torch.randint(choices, (tokens,), generator=generator)


def measure(variant: str, rounds: int, shape: tuple[int, int, int], path: Path) -> dict[str, Any]:
    """Return seconds and peak memory of one variant, in this process; write its gradients."""
    torch.set_num_threads(1)
    hidden, weight, targets = inputs(*shape)
    seconds: list[tuple[float, float]] = []
    for _ in range(rounds):
        hidden.grad = weight.grad = None
        start = time.perf_counter()
        value = loss(variant, hidden, weight, targets)
        middle = time.perf_counter()
        value.backward()
        seconds.append((middle - start, time.perf_counter() - middle))
        number = value.item()
        del value
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GIB
    assert hidden.grad is not None
    assert weight.grad is not None
    save_file({"hidden": hidden.grad, "weight": weight.grad}, path)
    forward, backward = (statistics.median(column) for column in zip(*seconds, strict=True))
    total = statistics.median(sum(pair) for pair in seconds)
    return {"loss": number, "forward": forward, "backward": backward, "seconds": total, "gib": peak}


def compare(rounds: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Measure each variant in a process of its own, one after the other."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {variant: Path(folder) / f"{index}.safetensors" for index, variant in enumerate(VARIANTS)}
        for variant, path in paths.items():
            sizes = [f"--{name}={size}" for name, size in zip(("tokens", "choices", "width"), shape, strict=True)]
            command = [sys.executable, __file__, "--variant", variant, "--out", path, f"--rounds={rounds}", *sizes]
            results[variant] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        gradients = [load_file(path) for path in paths.values()]
    whole, tiled = (results[variant] for variant in VARIANTS)
    differences = [(gradients[0][name] - gradients[1][name]).abs().max().item() for name in gradients[0]]
    largest = [gradients[0][name].abs().max().item() for name in gradients[0]]
    return results | {
        "memory ratio": whole["gib"] / tiled["gib"],
        "time ratio": tiled["seconds"] / whole["seconds"],
        "largest difference of a gradient": max(differences),
        "relative to the largest gradient": max(a / b for a, b in zip(differences, largest, strict=True)),
    }


def main() -> None:
    """Measure, or be one of the measured processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=8 * 512)
    parser.add_argument("--choices", type=int, default=128_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    shape = (arguments.tokens, arguments.choices, arguments.width)
    if arguments.variant:
        print(json.dumps(measure(arguments.variant, arguments.rounds, shape, arguments.out)))
        return
    result = compare(arguments.rounds, shape)
    if arguments.json:
        print(json.dumps(result))
        return
    for variant in VARIANTS:
        row = result[variant]
        times = f"{row['seconds']:6.2f} s (forward {row['forward']:.2f}, backward {row['backward']:.2f})"
        print(f"{variant:16} {times}, peak {row['gib']:.2f} GiB, loss {row['loss']:.6f}")
    print(f"memory: a factor of {result['memory ratio']:.1f} less (wanted: 8)")
    print(f"time:   {result['time ratio']:.2f} times that of the whole logits (wanted: at most 1.2)")
    print(
        f"gradients differ by {result['largest difference of a gradient']:.1e}, relative to the largest by "
        f"{result['relative to the largest gradient']:.1e} (wanted: at most 1e-5)"
    )


if __name__ == "__main__":
    main()
