"""Claim: PPO with its preset solves CartPole-v1 with each of 24 seeds in 100 000 steps per seed.

Solved is a mean of 475 or more over 100 greedy episodes of Gymnasium's own environment, of the final policy. Three
blocks of eight seeds, each block trained as one program.
"""

from learning import draw, learn, write

BLOCKS = (range(8), range(100, 108), range(200, 208))
SOLVED = 475.0


def main() -> None:
    """Train, evaluate, store and plot the results; fail if a seed does not solve the task."""
    blocks = [learn("CartPole-v1", block, 100_000) for block in BLOCKS]
    write(blocks, __file__)
    draw(blocks, __file__, title="PPO on CartPole-v1, 24 seeds", bar=SOLVED)
    for block in blocks:
        scores = ", ".join(f"{score:.1f}" for score in block["final"]["scores"])
        print(
            f"seeds {block['seeds'][0]}-{block['seeds'][-1]}: {scores}  ({block['training_seconds']:.1f} s of training)"
        )
    worst = min(score for block in blocks for score in block["final"]["scores"])
    print(f"worst seed: {worst:.1f}, to reach: {SOLVED:g}")
    raise SystemExit(worst < SOLVED)


if __name__ == "__main__":
    main()
