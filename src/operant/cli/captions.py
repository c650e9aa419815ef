"""Frames of a film, made large enough to see and with a line of text below them (extra: `render`)."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from operant.runtime.watching import Frame, Moment

SMALLEST = 320
"""Pixels that the longer side of a frame has at least; smaller frames are enlarged by a whole number."""

STRIP = 24
"""Pixels of the line below."""


def enlarged(frame: "Frame") -> "Frame":
    """Return a frame whose pixels are repeated until its longer side has `SMALLEST` of them."""
    factor = -(-SMALLEST // max(frame.shape[:2]))
    return frame.repeat(factor, axis=0).repeat(factor, axis=1) if factor > 1 else frame


def words(moment: "Moment") -> str:
    """Return what the line says: the step, the return so far, and the value of the state where one is known."""
    value = "" if moment.value is None else f"   value {moment.value:.4g}"
    return f"step {moment.step}   return {moment.score:.5g}{value}"


def captioned(frame: "Frame", moment: "Moment") -> "Frame":
    """Return a frame, enlarged if it is small, above a strip that says how the episode goes."""
    import pygame

    if not pygame.font.get_init():
        pygame.font.init()
    large = enlarged(frame)
    width = max(large.shape[1], SMALLEST)
    text = pygame.font.Font(None, 20).render(words(moment), True, (255, 255, 255), (40, 40, 40))
    pixels = pygame.surfarray.array3d(text).swapaxes(0, 1)
    picture = np.full((large.shape[0] + STRIP, width, 3), 40, np.uint8)
    left = (width - large.shape[1]) // 2
    picture[: large.shape[0], left : left + large.shape[1]] = large
    top, height, across = large.shape[0] + 5, min(pixels.shape[0], STRIP - 5), min(pixels.shape[1], width - 8)
    picture[top : top + height, 8 : 8 + across] = pixels[:height, :across]
    return picture
