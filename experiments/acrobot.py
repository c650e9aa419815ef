"""Claim: PPO with its preset reaches -90 on Acrobot-v1 in 500 000 steps, on average over 5 seeds.

The score of a seed is the mean over 100 greedy episodes of Gymnasium's own environment, of the final policy.
"""

from learning import draw, learn, write

SEEDS = range(5)
BAR = -90.0


def main() -> None:
    """Train, evaluate, store and plot the results; fail if the mean over the seeds is below the bar."""
    block = learn("Acrobot-v1", SEEDS, 500_000)
    write(block, __file__)
    draw([block], __file__, title="PPO on Acrobot-v1, 5 seeds", bar=BAR)
    final = block["final"]
    print("seeds 0-4:", ", ".join(f"{score:.1f}" for score in final["scores"]))
    print(f"mean: {final['mean']:.1f}, to reach: {BAR:g}  ({block['training_seconds']:.1f} s of training)")
    raise SystemExit(final["mean"] < BAR)


if __name__ == "__main__":
    main()
