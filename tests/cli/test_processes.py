from contextlib import contextmanager
from functools import partial

import pytest

from operant import hosts, scale
from operant.cli.arguments import Training
from operant.cli.processes import in_processes
from operant.scale import ray_cluster


@pytest.fixture(autouse=True)
def outside_of_torchrun(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_one_process_does_the_work_itself():
    assert in_processes(["train"], Training(), lambda: 7) == 7


@pytest.mark.parametrize("others", [{}, {"WORLD_SIZE": "2"}, {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "a"}])
def test_several_are_started_with_the_same_command(others, monkeypatch):
    for name, value in others.items():  # not of torchrun, or of one process
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(scale, "launch", lambda command, processes: (command, processes))
    found = in_processes(
        ["train", "ppo"], Training(processes=3), lambda: pytest.fail("this process only starts others")
    )
    assert found == (["train", "ppo"], 3)


@pytest.mark.parametrize(("options", "starts"), [({}, False), ({"fsdp": True}, True)])
def test_shards_are_counted_before_processes_start(options, starts, monkeypatch):
    monkeypatch.setattr(scale, "launch", lambda command, processes: (command, processes))
    started = partial(in_processes, ["train"], Training(processes=3, **options), lambda: 0, shards=2)
    if starts:  # a sharded model has no shards of batches
        assert started() == (["train"], 3)
    else:
        with pytest.raises(ValueError, match="3 processes need at least as many shards, but the run has 2: create"):
            started()


def test_less_than_one_is_rejected():
    with pytest.raises(ValueError, match="--processes must be at least 1, got 0"):
        in_processes(["train"], Training(processes=0), lambda: 0)


@pytest.mark.parametrize("options", [Training(ray=True), Training(ray_address="auto", ray_unauthenticated=True)])
def test_work_may_have_its_workers_on_ray(options, monkeypatch):
    asked = []

    @contextmanager
    def cluster(address, *, unauthenticated):
        asked.append((address, unauthenticated))
        with hosts.within("ray"):
            yield

    monkeypatch.setattr(ray_cluster, "cluster", cluster)
    assert in_processes(["train"], options, hosts.current) == "ray"
    assert asked == [(options.ray_address, options.ray_unauthenticated)]
    assert hosts.current() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Training(fsdp=True), "add --processes 2, or leave it out"),
        (Training(ray=True, processes=2), "leave out --ray or --processes"),
        (Training(ray=True, ray_unauthenticated=True), "add --ray-address"),
    ],
)
def test_choices_that_exclude_each_other_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        in_processes(["train"], options, lambda: 0)
