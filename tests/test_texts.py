import re

import pytest

from operant.texts import decoded, parse_json, parse_toml, read_toml


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_files_may_begin_with_a_byte_order_mark(tmp_path, mark):
    path = tmp_path / "a.toml"
    path.write_bytes(mark + 'name = "größe"\n'.encode())
    assert read_toml(path) == {"name": "größe"}
    assert parse_json(mark + b'{"a": 1}', path) == {"a": 1}
    assert decoded(mark + b"a", path) == "a"


@pytest.mark.parametrize(
    ("read", "data", "problem"),
    [
        (parse_json, b"", "is not JSON: it is empty"),
        (parse_json, b"{", "is not JSON: Expecting property name"),
        (parse_json, b"[" * 100_000, "is not JSON: "),
        (parse_json, b'"\xff"', "is not UTF-8: byte 1 is 0xff"),
        (lambda data, path: parse_toml(data.decode(), path), b"algorithm = =", "is not TOML: Invalid value (at line 1"),
        (
            lambda data, path: parse_toml(data.decode(), path),
            b"a = " + b"[" * 100_000,
            "is not TOML: maximum recursion",
        ),
    ],
)
def test_errors_name_the_file(tmp_path, read, data, problem):
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / 'a'} {problem}")):
        read(data, tmp_path / "a")


def test_a_missing_file_stays_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_toml(tmp_path / "a.toml")
