"""Block diagrams from a description: boxes on a grid, and arrows between them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from drawing import Drawing, Point

COLUMN, ROW, WIDTH, HEIGHT, EDGE = 196, 92, 132, 50, 26
"""Distances of columns and rows, size of a box, and space around the picture."""
LETTER = 6.2
"""Width of a letter of a label."""


class Box(NamedTuple):
    """A box.

    Attributes:
        column: from the left, from 0; a fraction is allowed.
        row: from the top, from 0.
        lines: written in it.
        kind: plain, learned or frozen.
    """

    column: float
    row: float
    lines: str
    kind: str = "plain"


class Arrow(NamedTuple):
    """An arrow between two boxes.

    Attributes:
        start: name of a box.
        end: name of another.
        label: written next to it.
        way: auto: straight, or across and then up or down; `first-down`: up or down and then across; `under` and
            `over`: around all boxes.
    """

    start: str
    end: str
    label: str = ""
    way: str = "auto"


def _center(box: Box, top: float) -> Point:
    return EDGE + box.column * COLUMN + WIDTH / 2, top + box.row * ROW + HEIGHT / 2


def _route(start: Point, end: Point, way: str, bottom: float) -> tuple[list[Point], Point, str]:
    """Return the points of an arrow, the place of its label, and how that is aligned."""
    (x, y), (to_x, to_y) = start, end
    right, down = (1 if to_x > x else -1), (1 if to_y > y else -1)
    half, middle = WIDTH / 2, HEIGHT / 2
    if way in ("under", "over"):
        side = 1 if way == "under" else -1
        level = bottom + 18 if way == "under" else EDGE - 4
        points = [(x, y + side * middle), (x, level), (to_x, level), (to_x, to_y + side * (middle + 2))]
        return points, ((x + to_x) / 2, level + side * 12), "middle"
    if y == to_y:
        points = [(x + right * half, y), (to_x - right * (half + 2), y)]
        return points, ((points[0][0] + points[1][0]) / 2, y - 11), "middle"
    if x == to_x:
        points = [(x, y + down * middle), (x, to_y - down * (middle + 2))]
        return points, (x + 7, (points[0][1] + points[1][1]) / 2), "start"
    if way == "first-down":
        points = [(x, y + down * middle), (x, to_y), (to_x - right * (half + 2), to_y)]
        return points, ((x + points[2][0]) / 2, to_y - 11), "middle"
    points = [(x + right * half, y), (to_x, y), (to_x, to_y - down * (middle + 2))]
    return points, ((points[0][0] + to_x) / 2, y - 11), "middle"


def flow(title: str, words: str, boxes: Mapping[str, Box], arrows: Sequence[Arrow]) -> Drawing:
    """Draw boxes and arrows.

    Args:
        title: of the picture.
        words: what it shows.
        boxes: by name.
        arrows: between them.
    """
    ways = {arrow.way for arrow in arrows}
    top = EDGE + (26 if "over" in ways else 0)
    columns, rows = (max(box[i] for box in boxes.values()) for i in (0, 1))
    bottom = top + rows * ROW + HEIGHT
    height = bottom + EDGE + (22 if "under" in ways else 0)
    centers = {name: _center(box, top) for name, box in boxes.items()}
    routes = [_route(centers[arrow.start], centers[arrow.end], arrow.way, bottom) for arrow in arrows]
    longest = [max(map(len, arrow.label.split("\n"))) * LETTER for arrow in arrows]
    ends = [x + length for length, (_, (x, _), anchor) in zip(longest, routes, strict=True) if anchor == "start"]
    drawing = Drawing(max([EDGE + columns * COLUMN + WIDTH, *ends]) + EDGE, height, title, words)
    for name, box in boxes.items():
        x, y = centers[name]
        drawing.box(x - WIDTH / 2, y - HEIGHT / 2, WIDTH, HEIGHT, box.lines, kind=box.kind)
    for arrow, (points, place, anchor) in zip(arrows, routes, strict=True):
        drawing.arrow(points, arrow.label, place, anchor=anchor)
    return drawing
