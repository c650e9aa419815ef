"""How often does AlphaZero err, over every position of a game?

Boards this small are solved exactly by enumeration, so each move of a policy can be checked: a mistake is a move that
lowers the value of the game. The commands, with the defaults of all other options:

    operant train alphazero operant/TicTacToe-v0 --seeds 3
    operant train alphazero operant/ConnectFour-v0 --env-kwargs columns=4 rows=4 --seeds 3 --budget 600000 \
        --num-envs 128
    operant evaluate RUN --exact

Mistakes are counted for the greedy policy with the search of training, and for the network alone. They are counted over
all positions with a decision, and over the positions that the policy can reach in either seat against any opponent.
Defaults were chosen on seeds from 1000 up.

    python experiments/certified.py            # half an hour; resumes where it stopped
    python experiments/certified.py --draw
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from arms import gather
from checks import COLORS, conclude, panels, save

import operant
from operant.envs.tensor.solved_games import SolvedGame

SEEDS = range(3)
GAMES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tic-tac-toe": ("operant/TicTacToe-v0", {}, {}),
    "Connect Four on 4 x 4": (
        "operant/ConnectFour-v0",
        {"columns": 4, "rows": 4},
        {"budget": 600_000, "num_envs": 128},
    ),
}
PLAYERS = {"network alone": 0, "with search": None}


def learn(name: str) -> dict[str, Any]:
    """Train, and return the certificates of every seed."""
    task, env_kwargs, options = GAMES[name]
    with tempfile.TemporaryDirectory() as folder:
        began, cpu = time.monotonic(), time.process_time()
        trained = operant.train(
            "alphazero",
            task,
            seeds=SEEDS,
            env_kwargs=env_kwargs,
            run=Path(folder) / "run",
            evaluate_episodes=20,
            **options,
        )
        seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu
        learner = trained.experiment.learner
        solved = SolvedGame(learner.game)
        certificates = {
            player: [learner.certify(solved, seed, simulations)._asdict() for seed in range(len(SEEDS))]
            for player, simulations in PLAYERS.items()
        }
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "all positions": len(solved), "certificates": certificates}


def main() -> None:
    """Train, count the mistakes and plot; fail if a claim does not hold."""
    found = gather(__file__, __doc__, {name: (name,) for name in GAMES}, tuple, learn)
    figure, axes = panels(len(GAMES))
    for axis, name in zip(axes, GAMES, strict=True):
        for i, (player, color) in enumerate(zip(PLAYERS, COLORS, strict=False)):
            cells = found[name]["certificates"][player]
            for j, part in enumerate(("", "faced_")):
                shares = [cell[f"{part}mistakes"] / cell["faced" if part else "positions"] for cell in cells]
                x = j + 0.2 * (i - 0.5)
                axis.scatter(np.full(len(shares), x), np.array(shares) * 100, color=color, label=None if j else player)
        axis.set(title=name, xlim=(-0.6, 1.6), ylim=(0, None))
        axis.set_xticks([0, 1], ["all positions", "those it can face"])
    axes[0].set_ylabel("mistakes, % of the positions; 3 seeds")
    save(figure, __file__, axes)
    for name in GAMES:
        print(
            f"{name}: {found[name]['all positions']} positions, {found[name]['seconds']:.0f} s for {len(SEEDS)} seeds"
        )
        for player in PLAYERS:
            for seed, cell in zip(SEEDS, found[name]["certificates"][player], strict=True):
                print(f"  {player:14s} seed {seed}: {cell}")
    with_search = {name: found[name]["certificates"]["with search"] for name in GAMES}
    claims = {
        "tic-tac-toe: no mistake in any position, every seed": all(
            cell["mistakes"] == 0 for cell in with_search["tic-tac-toe"]
        ),
        "4 x 4: mistakes in less than one of 500 positions, every seed": all(
            cell["mistakes"] * 500 < cell["positions"] for cell in with_search["Connect Four on 4 x 4"]
        ),
    }
    conclude(__file__, {"games": found}, [], claims)


if __name__ == "__main__":
    main()
