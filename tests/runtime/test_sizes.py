import pytest

from operant.runtime.sizes import readable


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (2048, "2 KiB"),
        (3.5 * 2**20, "3.5 MiB"),
        (2**41, "2 TiB"),
        (2**52, "4.1e+03 TiB"),
    ],
)
def test_sizes_are_readable_in_three_digits(size, text):
    assert readable(size) == text
