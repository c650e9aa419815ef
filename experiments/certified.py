"""How often do AlphaZero and MuZero err, over every position of a game?

Boards this small are solved exactly by enumeration, so each move of a policy can be checked: a mistake is a move that
lowers the value of the game. The commands, with the defaults of all other options:

    operant train alphazero operant/TicTacToe-v0 --seeds 3
    operant train alphazero operant/ConnectFour-v0 --env-kwargs columns=4 rows=4 --seeds 3 --budget 1000000
    operant train alphazero operant/ConnectFour-v0 --env-kwargs columns=5 rows=4 --seeds 3 --budget 4000000
    operant train muzero operant/ConnectFour-v0 --env-kwargs columns=4 rows=4 --seeds 3 --budget 320000
    operant evaluate RUN --exact
    operant evaluate RUN --exact --faced --simulations 128

Mistakes of the greedy policies are counted over all positions with a decision, and over the positions that a policy can
reach in either seat against any opponent: those of the network alone, of searches as in training, and of larger ones.
On 5 x 4 cells, all positions are counted for the network alone. MuZero searches in a learned model and never gets
the rules. Defaults were chosen on seeds from 1000 up.

    python experiments/certified.py            # some three hours of one core; resumes where it stopped
    python experiments/certified.py --draw
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from arms import gather
from checks import COLORS, conclude, panels, save

import operant
from operant.envs.tensor.solved_games import SolvedGame
from operant.runtime.callbacks import Callback

SEEDS = range(3)
PLAYERS = {"network alone": 0, "32 simulations": 32, "128 simulations": 128}


class Game(NamedTuple):
    """A game to be learned.

    Attributes:
        task: its environment.
        board: parameters of the environment.
        budget: moves.
        everywhere: simulations of the searches with which all positions are counted, at most.
        algorithm: the algorithm that learns it.
    """

    task: str
    board: Mapping[str, int]
    budget: int
    everywhere: int
    algorithm: str = "alphazero"


GAMES = {
    "tic-tac-toe": Game("operant/TicTacToe-v0", {}, 100_000, 128),
    "Connect Four on 4 x 4": Game("operant/ConnectFour-v0", {"columns": 4, "rows": 4}, 1_000_000, 32),
    "Connect Four on 5 x 4": Game("operant/ConnectFour-v0", {"columns": 5, "rows": 4}, 4_000_000, 0),
    "MuZero, 4 x 4": Game("operant/ConnectFour-v0", {"columns": 4, "rows": 4}, 320_000, 32, "muzero"),
}
STAGES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
"""Shares of the budget after which mistakes are counted."""


class StopAt(Callback):
    """Stops training after some moves, so that it can be continued."""

    background = False

    def __init__(self, consumed: float) -> None:
        self.consumed = consumed

    def should_stop(self, consumed: int) -> bool:
        """Stop at the given number of moves."""
        return consumed >= self.consumed


def learn(name: str, seed: int) -> dict[str, Any]:
    """Train one seed in stages, and count the mistakes after each of them."""
    game = GAMES[name]
    solved: SolvedGame | None = None
    stages: list[dict[str, Any]] = []
    seconds, cpu = 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        for share in STAGES:
            began, cpu_began = time.monotonic(), time.process_time()
            callbacks = [StopAt(share * game.budget)]
            if run.exists():
                trained = operant.resume(run, callbacks=callbacks)
            else:
                options = {"env_kwargs": dict(game.board), "budget": game.budget, "evaluate_episodes": 20}
                trained = operant.train(
                    game.algorithm, game.task, seeds=[seed], run=run, callbacks=callbacks, **options
                )
            seconds, cpu = seconds + time.monotonic() - began, cpu + time.process_time() - cpu_began
            learner = trained.experiment.learner
            solved = solved or SolvedGame(learner.game)
            last = share == STAGES[-1]
            found = {
                player: learner.certify(
                    solved, 0, simulations, faced_only=not last or simulations > game.everywhere
                )._asdict()
                for player, simulations in PLAYERS.items()
            }
            stages.append({"moves": learner.consumed, "cpu_seconds": cpu, "certificates": found})
            trained.close()
    return {"seconds": seconds, "all positions": len(solved or ()), "stages": stages}


def draw(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Plot the mistakes in reachable positions over the time of training."""
    figure, axes = panels(len(GAMES))
    for axis, name in zip(axes, GAMES, strict=True):
        for player, color in zip(PLAYERS, COLORS, strict=False):
            for i, cell in enumerate(found[name]):
                at = [stage["cpu_seconds"] / 60 for stage in cell["stages"]]
                faced = [stage["certificates"][player]["faced_mistakes"] for stage in cell["stages"]]
                axis.plot(at, faced, "o-", color=color, label=None if i else player, markersize=3)
        axis.set_yscale("symlog", linthresh=1)
        axis.set(title=name, xlabel="minutes of one core", ylim=(-0.1, None), xlim=(0, None))
    axes[0].set_ylabel("mistakes in positions that it can face; 3 seeds")
    save(figure, __file__, axes)


def main() -> None:
    """Train, count the mistakes and plot; fail if a claim does not hold."""
    cases = {f"{name}, seed {seed}": (name, seed) for name in GAMES for seed in SEEDS}
    cells = gather(__file__, __doc__, cases, tuple, learn)
    found = {name: [cells[f"{name}, seed {seed}"] for seed in SEEDS] for name in GAMES}
    draw(found)
    for name, results in found.items():
        print(f"{name}: {results[0]['all positions']} positions")
        for seed, cell in zip(SEEDS, results, strict=True):
            print(f"  seed {seed}: {cell['seconds']:.0f} s, {cell['stages'][-1]['cpu_seconds']:.0f} s of one core")
            for player, certificate in cell["stages"][-1]["certificates"].items():
                print(f"    {player:15s} {certificate}")
    ends = {name: [cell["stages"][-1]["certificates"] for cell in results] for name, results in found.items()}
    faced = {
        (name, player): np.array([end[player]["faced_mistakes"] for end in several])
        for name, several in ends.items()
        for player in PLAYERS
    }
    claims = {
        "tic-tac-toe: no mistake in any position with searches as in training, every seed": all(
            end["32 simulations"]["mistakes"] == 0 for end in ends["tic-tac-toe"]
        ),
        "4 x 4: no mistake in a position that it can face with 128 simulations, every seed": not faced[
            "Connect Four on 4 x 4", "128 simulations"
        ].any(),
        "5 x 4: no mistake in a position that it can face with 128 simulations, every seed": not faced[
            "Connect Four on 5 x 4", "128 simulations"
        ].any(),
    }
    conclude(__file__, {"games": found}, [], claims)


if __name__ == "__main__":
    main()
