import zlib

import gymnasium
import numpy as np
import pytest

from operant.web.images import SIGNATURE, png


def decoded(data):
    """Decode a PNG without filters by hand, and return the image."""
    assert data.startswith(SIGNATURE)
    place, parts = len(SIGNATURE), {}
    while place < len(data):
        size, kind = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        body = data[place + 8 : place + 8 + size]
        assert int.from_bytes(data[place + 8 + size : place + 12 + size], "big") == zlib.crc32(kind + body)
        parts[kind] = body
        place += 12 + size
    width, height = (int.from_bytes(parts[b"IHDR"][i : i + 4], "big") for i in (0, 4))
    assert parts[b"IHDR"][8:] == bytes([8, 2, 0, 0, 0])
    lines = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (400, 600)])
def test_an_image_is_what_it_was(shape):
    frame = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    assert np.array_equal(decoded(png(frame)), frame)
    assert np.array_equal(decoded(png(frame[:, ::-1])), frame[:, ::-1])


def test_a_frame_of_a_task_is_small():
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=0)
    frame = env.render()
    env.close()
    assert np.array_equal(decoded(png(frame)), frame)
    assert len(png(frame)) < 10_000


@pytest.mark.parametrize("frame", [np.zeros((2, 2), np.uint8), np.zeros((2, 2, 3)), np.zeros((0, 2, 3), np.uint8)])
def test_invalid_images_are_named(frame):
    with pytest.raises(ValueError, match=r"an image must be \[height, width, 3\] of uint8, got"):
        png(frame)
