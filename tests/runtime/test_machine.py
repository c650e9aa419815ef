import subprocess
import sys

import pytest
import torch

from operant.runtime.machine import chosen_device, cores, present


@pytest.mark.parametrize(("said", "expected"), [("1", 1), ("7", 7)])
def test_the_number_of_cores_follows_omp_num_threads(monkeypatch, said, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert cores() == expected


@pytest.mark.parametrize("said", [None, "", "0", "many"])
def test_cores_are_counted_where_nothing_limits_threads(monkeypatch, said):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert cores() >= 1


def test_a_device_beyond_those_that_there_are_is_not_present():
    assert present("cpu")
    assert not present("cuda:99")


def test_a_device_is_chosen_where_none_is_named(monkeypatch):
    assert chosen_device("cpu") == "cpu"
    for there, chosen in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert chosen_device("auto") == chosen
        assert chosen_device("auto", large=False) == "cpu"


@pytest.mark.parametrize(
    ("device", "message"),
    [("gpu", "device must be auto, cpu, cuda, .*, got 'gpu'"), ("cuda:99", "device 'cuda:99' is not on this machine")],
)
def test_a_device_that_is_missing_is_an_error(device, message):
    with pytest.raises(ValueError, match=message):
        chosen_device(device)


@pytest.mark.parametrize(("first", "sleep"), [("operant", True), ("torch", False)])
def test_threads_sleep_unless_torch_was_there_before(first, sleep, monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    code = f"import {first}, operant.runtime.machine as machine; print(machine.threads_sleep())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(sleep)]
