"""Backup diagrams in the manner of Sutton and Barto, from a description of one line.

A description is a tree: `s` a state (a circle), `a` an action (a dot), `T` the end of an episode (a square), `:` steps
that are left out, each with a label in quotes if it has one and with its successors in parentheses. `^` before the
parentheses draws an arc over the branches, of which the greatest counts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import hypot

from drawing import Drawing

RADIUS = {"s": 8, "a": 4, "T": 8, ":": 0}
LEAF, LEVEL, TOP = 44, 46, 22
"""Width of a leaf, height of a level, and space above the first."""
TOKEN = re.compile(r'(?P<kind>[saT:])(?:"(?P<label>[^"]*)")?(?P<arc>\^?)|(?P<mark>[(),])')


@dataclass(frozen=True)
class Node:
    """A node of a backup diagram.

    Attributes:
        kind: s, a, T or `:`.
        label: written next to it.
        arc: whether the greatest of its branches counts.
        branches: what follows.
    """

    kind: str
    label: str
    arc: bool
    branches: tuple["Node", ...] = ()

    @property
    def width(self) -> int:
        """Leaves below it."""
        return sum(branch.width for branch in self.branches) or 1

    @property
    def height(self) -> int:
        """Levels from it to the deepest leaf."""
        return 1 + max((branch.height for branch in self.branches), default=0)


def parse(description: str) -> Node:
    """Return the tree of a description."""
    tokens = [match.groupdict() for match in TOKEN.finditer(description)]
    wrong = ValueError(f"no backup diagram: {description!r}; write nodes s, a, T and : with successors in parentheses")
    if "".join(match[0] for match in TOKEN.finditer(description)) != description:
        raise wrong
    tokens.append({"kind": None, "mark": None, "label": None, "arc": None})
    position = 0

    def node() -> Node:
        nonlocal position
        token = tokens[position]
        if token["kind"] is None:
            raise wrong
        position += 1
        branches: list[Node] = []
        if tokens[position]["mark"] == "(":
            while tokens[position]["mark"] in ("(", ","):
                position += 1
                branches.append(node())
            if tokens[position]["mark"] != ")":
                raise wrong
            position += 1
        label = token["label"] or ""
        return Node(token["kind"], label, bool(token["arc"]), tuple(branches))

    root = node()
    if position != len(tokens) - 1:
        raise wrong
    return root


def put(drawing: Drawing, node: Node, left: float, y: float) -> float:
    """Draw a tree whose leaves begin at `left`, and return the place of its root."""
    place, x = left, left + node.width * LEAF / 2
    for branch in node.branches:
        below = place + branch.width * LEAF / 2
        slope = hypot(below - x, LEVEL)
        across, down = (below - x) / slope, LEVEL / slope
        start, end = RADIUS[node.kind], RADIUS[branch.kind]
        points = [(x + start * across, y + start * down), (below - end * across, y + LEVEL - end * down)]
        drawing.line(points, dash="2 5" if ":" in (node.kind, branch.kind) else "")
        place += branch.width * LEAF
    if node.arc:
        half = 0.3 * (node.width - 1) * LEAF / 2
        drawing.line([(x - half, y + 0.3 * LEVEL), (x, y + 0.38 * LEVEL), (x + half, y + 0.3 * LEVEL)])
    if node.kind == "s":
        drawing.circle(x, y, RADIUS["s"])
    elif node.kind == "a":
        drawing.circle(x, y, RADIUS["a"], filled=True)
    elif node.kind == "T":
        drawing.square(x, y, 2 * RADIUS["T"])
    if node.label:
        drawing.text(x + 13, y, node.label, anchor="start", small=True)
    for branch in node.branches:
        put(drawing, branch, left, y + LEVEL)
        left += branch.width * LEAF
    return x


def backup(title: str, words: str, *parts: tuple[str, str], gap: float = 60.0) -> Drawing:
    """Draw backup diagrams next to each other.

    Args:
        title: of the picture.
        words: what it shows.
        *parts: description and caption of each.
        gap: space after each, in which its labels are written.
    """
    trees = [parse(description) for description, _ in parts]
    widths = [tree.width * LEAF + gap for tree in trees]
    deepest = max(tree.height for tree in trees)
    captions = max(caption.count("\n") + 1 for _, caption in parts)
    drawing = Drawing(sum(widths) + gap, TOP + LEVEL * deepest + 16 * captions + 8, title, words)
    left = gap
    for tree, width, (_, caption) in zip(trees, widths, parts, strict=True):
        x = put(drawing, tree, left, TOP)
        drawing.text(x, TOP + LEVEL * (tree.height - 1) + 24 + 8 * caption.count("\n"), caption, small=True)
        left += width
    return drawing


def chains(first: str, steps: Sequence[int]) -> list[str]:
    """Return descriptions of n-step backups: alternating states and actions, and one to the end of the episode."""
    other = "a" if first == "s" else "s"

    def chain(length: int, last: str) -> str:
        kinds = [first if i % 2 == 0 else other for i in range(length)]
        return "(".join([*kinds, last]) + ")" * length

    return [*(chain(2 * n, first) for n in steps), chain(3, ":(T)")]


def spectrum(title: str, words: str, first: str, steps: Sequence[int], captions: Sequence[str]) -> Drawing:
    """Draw n-step backups next to each other, the last to the end of the episode."""
    return backup(title, words, *zip(chains(first, steps), captions, strict=True), gap=70)


CIRCLES = "Circles are states, dots are actions; values flow upwards."
WEIGHTS = ("1 - λ", "(1 - λ) λ", "(1 - λ) λ²", "λ^(T-t-1)")
STEPS = ("1 step: TD(0)", "2 steps", "3 steps", "to the end:\nMonte Carlo")

BACKUPS: Mapping[str, Callable[[], Drawing]] = {
    "q-learning": partial(
        backup,
        "Backup diagram of Q-learning",
        f"The value of a state and an action is updated from the greatest value in the next state. {CIRCLES}",
        ('a"s, a"(s"r, s\'"^(a,a,a))', "the greatest Q(s', a')"),
    ),
    "sarsa": partial(
        backup,
        "Backup diagrams of SARSA, Expected SARSA and Q-learning",
        f"SARSA updates from the action taken next, Expected SARSA from the mean over the policy, Q-learning from the "
        f"greatest value. {CIRCLES}",
        ('a"s, a"(s"r, s\'"(a"a\'"))', "SARSA:\nthe action taken next"),
        ('a"s, a"(s"r, s\'"(a,a,a))', "Expected SARSA:\nthe mean over π"),
        ('a"s, a"(s"r, s\'"^(a,a,a))', "Q-learning:\nthe greatest"),
    ),
    "expected-sarsa": partial(
        backup,
        "Backup diagram of Expected SARSA",
        f"The value of a state and an action is updated from the mean of the next values under the policy. {CIRCLES}",
        ('a"s, a"(s"r, s\'"(a,a,a))', "the mean of Q(s', a') under π"),
    ),
    "monte-carlo": partial(
        backup,
        "Backup diagram of Monte Carlo control",
        f"The value of a state and an action is updated from all rewards to the end of the episode. {CIRCLES}",
        ('a"s, a"(s"r"(a(:(T"end"))))', "one whole episode"),
    ),
    "monte-carlo-prediction": partial(
        backup,
        "Backup diagrams of Monte Carlo and of TD(0)",
        f"Monte Carlo updates the value of a state from all rewards to the end of the episode, TD(0) from one reward "
        f"and the next value. {CIRCLES}",
        ('s"s"(a(s(a(:(T"end")))))', "Monte Carlo"),
        ('s"s"(a(s"s\'"))', "TD(0)"),
    ),
    "n-step-td": partial(
        spectrum,
        "Backup diagrams of n-step TD",
        f"From TD(0), which uses one reward and the next value, to Monte Carlo, which uses all rewards. {CIRCLES}",
        "s",
        (1, 2, 3),
        STEPS,
    ),
    "n-step-sarsa": partial(
        spectrum,
        "Backup diagrams of n-step SARSA",
        f"From SARSA, which uses one reward and the next value, to Monte Carlo, which uses all rewards. {CIRCLES}",
        "a",
        (1, 2, 3),
        ("1 step: SARSA", "2 steps", "3 steps", "to the end:\nMonte Carlo"),
    ),
    "lambda-return": partial(
        spectrum,
        "Backup diagrams of the λ-return",
        f"The λ-return is the mean of all n-step returns, with weights that fall by the factor λ. {CIRCLES}",
        "s",
        (1, 2, 3),
        WEIGHTS,
    ),
    "sarsa-lambda": partial(
        spectrum,
        "Backup diagrams of SARSA(λ)",
        f"SARSA(λ) averages all n-step targets of SARSA, with weights that fall by the factor λ. {CIRCLES}",
        "a",
        (1, 2, 3),
        WEIGHTS,
    ),
}
"""The backup diagrams, by the algorithm whose page shows them."""
