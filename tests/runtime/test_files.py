import os

import pytest

from operant.runtime.files import beside, meant, read_regular, replace_durably, sha256


def test_replace_leaves_nothing_else(tmp_path):
    file = tmp_path / "a"
    replace_durably(file, b"one")
    replace_durably(file, b"two")
    assert file.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [file]


def test_a_temporary_file_has_the_permissions_of_any_new_file(tmp_path):
    plain, replaced = tmp_path / "plain", tmp_path / "replaced"
    plain.touch()
    replace_durably(replaced, b"one")
    assert replaced.stat().st_mode == plain.stat().st_mode
    assert beside(replaced).parent == tmp_path
    assert beside(replaced) != beside(replaced)


def test_a_failed_replacement_keeps_the_old_bytes(tmp_path, monkeypatch):
    file = tmp_path / "a"
    file.write_bytes(b"old")

    def fail(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        replace_durably(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_sha256_by_the_standard_test_vector(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_pipes_devices_and_folders_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        for read in (sha256, read_regular):
            with pytest.raises(OSError, match="not a regular file"):
                read(path)


def test_an_error_about_what_is_not_yet_renamed_names_what_it_will_be(tmp_path):
    assert meant(str(beside(tmp_path / "run"))) == str(tmp_path / "run")
    assert meant("/a/.hidden") == "/a/.hidden"
    assert meant("plain") == "plain"
