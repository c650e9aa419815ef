"""What the token ledger costs: milliseconds to make and write one, next to an iteration of GRPO, medians of rounds.

python benchmarks/ledger.py [--rounds 5]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import operant
from operant.language.ledger import take_ledger
from operant.runtime.ledger import FOLDER, keep_ledgers


def main() -> None:
    """Iterate, and write the ledger of each batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    iterating, writing = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "run"
        trained = operant.train("grpo", "arithmetic", seeds=1, budget=32, held_out=4, run=path, progress="silent")
        (member,) = trained.experiment.members
        for _ in range(rounds):
            began = time.perf_counter()
            member.learner.iterate()
            between = time.perf_counter()
            found = take_ledger(member.learner, consumed=member.learner.consumed, seed=0)
            assert found is not None
            keep_ledgers(path, [found])
            iterating.append(between - began)
            writing.append(time.perf_counter() - between)
        size = (path / FOLDER / found.name).stat().st_size
    ratio = statistics.median(writing) / statistics.median(iterating)
    print(
        f"a ledger of {len(found.answers)} answers, {len(found.columns['piece'])} tokens, {size / 1000:.0f} kB: "
        f"{1000 * statistics.median(writing):.1f} ms, {ratio:.2%} of an iteration of "
        f"{statistics.median(iterating):.2f} s; it is written at evaluations alone ({rounds} rounds)"
    )


if __name__ == "__main__":
    main()
