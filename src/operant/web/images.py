"""Encoding of frames as PNG (ISO/IEC 15948)."""

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_LEVEL = 1  # frames have few colors: higher levels take longer than they save


def png(frame: NDArray[np.uint8]) -> bytes:
    """Encode an image `[height, width, 3]` as PNG.

    Raises:
        ValueError: the image has another shape or type.
    """
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or 0 in frame.shape:
        raise ValueError(f"an image must be [height, width, 3] of uint8, got {frame.dtype} {list(frame.shape)}")
    height, width, _ = frame.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each line starts with its filter, 0: none
    lines[:, 1:] = frame.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, red green blue
    data: Any = lines.data
    return b"".join(
        (SIGNATURE, _chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(data, _LEVEL)), _chunk(b"IEND", b""))
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
