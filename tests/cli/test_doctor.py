import platform
import re

import numpy
import torch

from operant.cli import doctor


def test_the_report_of_this_installation(answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = answer("doctor")
    assert report["versions"]["python"] == platform.python_version()
    assert report["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert report["versions"]["numpy"] == numpy.__version__
    assert report["broken"] == {}
    assert report["devices"][0] == "cpu"
    assert 1 <= report["threads"]["allowed"] <= report["threads"]["cores"]
    assert report["runs"] == {"path": str(tmp_path / "runs"), "writable": True}
    assert {"plots", "render", "language", "track", "scale", "tune"} <= report["extras"].keys()


def test_the_report_in_words(cli):
    status, out, _ = cli("doctor")
    assert status == 0
    assert re.search(rf"^numpy +{re.escape(numpy.__version__)}$", out, re.MULTILINE)
    assert "cores allowed" in out


def test_broken_or_missing_packages_are_named_with_the_fix(cli, monkeypatch):
    def requirements():
        return ["numpy", "no-such-package"], {"extra": ["nor-this-one"], "other": ["numpy"]}

    monkeypatch.setattr(doctor, "_requirements", requirements)
    status, out, _ = cli("doctor")
    assert status == 1
    assert "no-such-package is broken (ModuleNotFoundError" in out
    assert 'pip install --force-reinstall "no-such-package"' in out
    assert 'without nor-this-one: pip install "operant[extra]"' in out
    assert "other  installed" in out


def test_a_folder_that_cannot_be_written_is_a_failure(cli, monkeypatch):
    def full(dir):  # noqa: A002 - the name that tempfile gives it
        raise PermissionError(13, "denied", str(dir))

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", full)
    status, out, _ = cli("doctor")
    assert status == 1
    assert "NOT writable: choose another with --run" in out
