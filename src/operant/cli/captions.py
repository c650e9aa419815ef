"""Captions of video frames (extra: `render`)."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from operant.runtime.watching import Frame, Moment

SMALLEST = 320
"""Minimum pixels of the longer side of a frame; smaller frames are enlarged by an integer factor."""

STRIP = 24
"""Height of the caption in pixels."""


def enlarged(frame: "Frame") -> "Frame":
    """Return a frame, enlarged until its longer side has at least `SMALLEST` pixels."""
    factor = -(-SMALLEST // max(frame.shape[:2]))
    return frame.repeat(factor, axis=0).repeat(factor, axis=1) if factor > 1 else frame


def caption(moment: "Moment") -> str:
    """Return the caption: step, return so far, and value of the state if known."""
    value = "" if moment.value is None else f"   value {moment.value:.4g}"
    return f"step {moment.step}   return {moment.score:.5g}{value}"


def captioned(frame: "Frame", moment: "Moment") -> "Frame":
    """Return a frame with its caption below; small frames are enlarged."""
    import pygame

    if not pygame.font.get_init():
        pygame.font.init()
    large = enlarged(frame)
    width = max(large.shape[1], SMALLEST)
    text = pygame.font.Font(None, 20).render(caption(moment), True, (255, 255, 255), (40, 40, 40))
    pixels = pygame.surfarray.array3d(text).swapaxes(0, 1)
    image = np.full((large.shape[0] + STRIP, width, 3), 40, np.uint8)
    left = (width - large.shape[1]) // 2
    image[: large.shape[0], left : left + large.shape[1]] = large
    top, height, across = large.shape[0] + 5, min(pixels.shape[0], STRIP - 5), min(pixels.shape[1], width - 8)
    image[top : top + height, 8 : 8 + across] = pixels[:height, :across]
    return image
