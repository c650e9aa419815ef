"""`operant play`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from operant.cli.flags import Parser

if TYPE_CHECKING:
    from operant.envs.tensor.board_games import BoardGame
    from operant.worlds.board_game_player import BoardGamePlayer


def play(arguments: list[str]) -> int:
    """Play a board game against a trained policy."""
    parser = Parser("operant play", description="Play a board game against the policy of a run, in the terminal.")
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a run of alphazero or muzero")
    parser.add_argument("--seed", type=int, help="seed of the run to play against; default: the first one")
    parser.add_argument(
        "--second", action=argparse.BooleanOptionalAction, default=False, help="move second: the policy moves first"
    )
    parser.add_argument(
        "--simulations", type=int, metavar="N", help="simulations of each search of the policy; default: as in training"
    )
    options = parser.parse_args(arguments)
    from operant import api
    from operant.worlds.board_game_player import BoardGamePlayer

    trained = api.load(options.run)
    learner = trained.experiment.learner
    if not isinstance(learner, BoardGamePlayer) or learner.game is None:
        raise ValueError(
            f"{options.run} is a run of {trained.run.entry.name} on {trained.run.settings.task}; you can play "
            "against runs of alphazero and muzero on board games"
        )
    if options.simulations is not None:
        learner.search_with(options.simulations)
    seed = learner.seeds[0] if options.seed is None else options.seed
    if seed not in learner.seeds:
        raise ValueError(f"seed must be one of {', '.join(map(str, learner.seeds))}, got {seed}")
    learner.close()
    return _game(learner.game, learner.for_seed(learner.seeds.index(seed)), second=options.second)


def _game(game: "BoardGame", opponent: "BoardGamePlayer", *, second: bool) -> int:
    """Play one game; actions are entered as numbers from 1."""
    from operant.tensors import booleans

    yours = not second
    numbered = {game.columns: "columns"} if game.gravity else {game.rows * game.columns: "cells, row by row,"}
    kind = numbered.get(game.actions, "actions")
    print(f"You are x. The {kind} are numbered from 1 to {game.actions}; q quits.\n")
    positions = game.start(1)
    while True:
        marks = {"own": "x", "other": "o"} if yours else {"own": "o", "other": "x"}
        print(f"{game.drawing(positions, **marks)}\n")
        over, value = game.outcomes(positions)
        if over:
            print("A draw." if not value else "You win." if yours == bool(value > 0) else "The policy wins.")
            return 0
        if yours:
            action = _read_action(booleans(game.moves(positions)[0] != 0))
            if action is None:
                return 0
        else:
            action = int(opponent.reply(positions))
            print(f"The policy plays {action + 1}.")
        positions = game.play(positions, positions.own.new_tensor([action]))
        yours = not yours


def _read_action(allowed: list[bool]) -> int | None:
    """Read an action; return None at the end of the input."""
    while True:
        try:
            text = input("Your move: ").strip()
        except EOFError:
            print()
            return None
        if text == "q":
            return None
        if text.isdecimal() and 1 <= int(text) <= len(allowed) and allowed[int(text) - 1]:
            return int(text) - 1
        free = ", ".join(str(i + 1) for i, free in enumerate(allowed) if free)
        print(f"Legal moves: {free}; got {text!r}.")
