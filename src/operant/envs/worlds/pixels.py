"""A game from pixels that is learned in seconds."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CELLS = 10
"""Rows and columns of the field."""


class PixelCatch(gymnasium.Env[Any, Any]):
    """Catch a ball that falls straight down (the catch of Mnih et al. 2014, arXiv 1406.6247, section 4.2).

    The ball starts in any column of the first row of a field of 10 x 10 cells, the paddle in the middle of the last.
    Each step the paddle moves left (0), stays (1) or moves right (2), and the ball falls by a row. After nine steps the
    episode ends with a reward of 1 if the paddle is below the ball, and -1 if not. Every ball can be caught, so the
    best return is 1; never moving gets -0.8 on average. Ball and paddle can be several cells wide: then neighboring
    columns look alike, and a ball is caught if its middle is above the paddle.

    An observation is a gray image of bytes `[1, side, side]`, black except ball and paddle.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, side: int = CELLS, *, width: int = 1, render_mode: str | None = None) -> None:
        """Make the game.

        Args:
            side: of the image, in pixels; at least 10, rounded down to a multiple of 10 in use.
            width: of ball and paddle, in cells; odd. What lies beyond the field is not seen.
            render_mode: "rgb_array" or None.

        Raises:
            ValueError: the image is too small for the field, the width is not odd, or the render mode is unknown.
        """
        if side < CELLS:
            raise ValueError(f"side must be at least {CELLS} pixels, one per cell, got {side}")
        if width < 1 or width % 2 == 0:
            raise ValueError(f"width must be an odd number of cells, so that there is one in the middle, got {width}")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        self.render_mode, self.side, self._scale = render_mode, side, side // CELLS
        self._reach = width // 2
        self.observation_space = spaces.Box(0, 255, (1, side, side), np.uint8)
        self.action_space = spaces.Discrete(3)
        self.row, self.ball, self.paddle = 0, 0, CELLS // 2

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Drop a ball from a random column."""
        super().reset(seed=seed)
        self.row, self.ball, self.paddle = 0, int(self.np_random.integers(CELLS)), CELLS // 2
        return self._image(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the paddle.

        Raises:
            ValueError: unknown action.
        """
        if action not in (0, 1, 2):
            raise ValueError(f"actions are 0 (left), 1 (stay) and 2 (right), got {action}")
        self.paddle = min(max(self.paddle + int(action) - 1, 0), CELLS - 1)
        self.row += 1
        over = self.row == CELLS - 1
        reward = 0.0 if not over else 1.0 if abs(self.ball - self.paddle) <= self._reach else -1.0
        return self._image(), reward, over, False, {}

    def render(self) -> Any:
        """Return the image in color, `[side, side, 3]`."""
        if self.render_mode is None:
            gymnasium.logger.warn('render() shows nothing: make the environment with render_mode="rgb_array"')
            return None
        return np.repeat(self._image()[0][:, :, np.newaxis], 3, axis=2)

    def _image(self) -> np.ndarray:
        image = np.zeros((1, self.side, self.side), np.uint8)
        for row, column in ((self.row, self.ball), (CELLS - 1, self.paddle)):
            left, right = max(column - self._reach, 0), min(column + self._reach + 1, CELLS)
            rows = slice(row * self._scale, (row + 1) * self._scale)
            image[0, rows, left * self._scale : right * self._scale] = 255
        return image
