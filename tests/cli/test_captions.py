import numpy as np

from operant.cli.captions import SMALLEST, STRIP, caption, captioned, enlarged
from operant.runtime.watching import Moment


def test_small_frames_are_enlarged_by_whole_pixels():
    frame = np.arange(24 * 48 * 3, dtype=np.uint8).reshape(24, 48, 3)
    large = enlarged(frame)
    assert large.shape == (24 * 7, 48 * 7, 3)
    np.testing.assert_array_equal(large[::7, ::7], frame)
    assert enlarged(large) is large


def test_the_line_says_how_the_episode_goes():
    assert caption(Moment(3, -12.0, None)) == "step 3   return -12"
    assert caption(Moment(12, 1.5, -0.25)) == "step 12   return 1.5   value -0.25"


def test_the_strip_is_below_the_frame():
    frame = np.full((400, 600, 3), 200, np.uint8)
    picture = captioned(frame, Moment(0, 0.0, None))
    assert picture.shape == (400 + STRIP, 600, 3)
    np.testing.assert_array_equal(picture[:400], frame)
    assert (picture[400:] == 255).any(), "the letters are white"
    narrow = captioned(np.full((640, 8, 3), 200, np.uint8), Moment(0, 0.0, 1.0))
    assert narrow.shape == (640 + STRIP, SMALLEST, 3)
    assert (narrow[:640] == 200).all(axis=2).sum() == 640 * 8
