"""Draw boxes, arrows, lines and words as SVG that takes the colors of the page.

Sizes are in units of the picture, which scales to the page.
"""

from collections.abc import Sequence
from html import escape

LINE = 16
"""Height of a line of text."""
Point = tuple[float, float]


class Drawing:
    """Boxes, arrows and words.

    Args:
        width: of the picture.
        height: of the picture.
        title: what a screen reader says it is.
        words: what it shows, in sentences.
    """

    def __init__(self, width: float, height: float, title: str, words: str) -> None:
        self.width, self.height, self.title, self.words = width, height, title, words
        self._parts: list[str] = []

    def text(self, x: float, y: float, lines: str, *, anchor: str = "middle", small: bool = False) -> None:
        """Write lines centered on a point."""
        rows = lines.split("\n")
        step = LINE * (0.85 if small else 1.0)
        first = y - step * (len(rows) - 1) / 2 + step * 0.3
        size = 11.5 if small else 13.5
        for number, row in enumerate(rows):
            place = f'x="{x:g}" y="{first + number * step:g}" text-anchor="{anchor}" font-size="{size:g}"'
            self._parts.append(f"<text {place}>{escape(row)}</text>")

    def box(self, x: float, y: float, width: float, height: float, lines: str, *, kind: str = "plain") -> None:
        """Draw a box with lines in it; `kind` is plain, learned or frozen."""
        style = {
            "plain": 'fill="none"',
            "learned": 'fill="currentColor" fill-opacity="0.12"',
            "frozen": 'fill="none" stroke-dasharray="5 4"',
        }[kind]
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"'
        self._parts.append(f'<rect {place} stroke="currentColor" {style}/>')
        self.text(x + width / 2, y + height / 2, lines)

    def arrow(
        self, points: Sequence[Point], label: str = "", at: Point | None = None, *, anchor: str = "middle"
    ) -> None:
        """Draw an arrow along points, with a label at a place."""
        path = " ".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(points))
        self._parts.append(f'<path d="{path}" fill="none" stroke="currentColor" marker-end="url(#tip)"/>')
        if label and at is not None:
            self.text(*at, label, small=True, anchor=anchor)

    def line(self, points: Sequence[Point], *, dash: str = "", width: float = 1.0, opacity: float = 1.0) -> None:
        """Draw a line through points."""
        path = " ".join(f"{x:.5g},{y:.5g}" for x, y in points)
        style = f'stroke-width="{width:g}" stroke-opacity="{opacity:g}"' + (
            f' stroke-dasharray="{dash}"' if dash else ""
        )
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="currentColor" {style}/>')

    def circle(self, x: float, y: float, radius: float, *, filled: bool = False) -> None:
        """Draw a circle or a dot."""
        fill = "currentColor" if filled else "none"
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{fill}" stroke="currentColor"/>')

    def square(self, x: float, y: float, size: float) -> None:
        """Draw a square around a point."""
        place = f'x="{x - size / 2:g}" y="{y - size / 2:g}" width="{size:g}" height="{size:g}"'
        self._parts.append(f'<rect {place} fill="currentColor" fill-opacity="0.35" stroke="currentColor"/>')

    def svg(self) -> str:
        """Return the picture."""
        tip = (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="currentColor"/></marker></defs>'
        )
        names = f"<title>{escape(self.title)}</title><desc>{escape(self.words)}</desc>"
        style = f"min-width:{0.7 * self.width:g}px;max-width:{self.width:g}px;width:100%"  # on phones it scrolls
        size = f'viewBox="0 0 {self.width:g} {self.height:g}" style="{style}"'
        head = f'<svg {size} role="img"'
        return f'<figure markdown="0">{head} fill="currentColor">{names}{tip}{"".join(self._parts)}</svg></figure>'
