"""Bodies and options of requests of the Tinker API."""

import asyncio
import gzip
import time

import pytest

pytest.importorskip("starlette")

from starlette.requests import Request

from operant.language.engines.protocol import Sampling
from operant.scale import tinker_requests
from operant.scale.tinker_requests import read_sampling, unzipped


def test_sampling_requests_are_parsed():
    assert read_sampling({})[0].max_tokens == read_sampling({"max_tokens": None}, 2000)[0].max_tokens == 1024
    assert read_sampling({}, 100)[0].max_tokens == 100
    assert read_sampling({"max_tokens": 200}, 100)[0].max_tokens == 200
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"max_tokens must be at least 1, got {wrong}"):
            read_sampling({"max_tokens": wrong})
    assert read_sampling({"max_tokens": 5, "top_k": -1, "stop": "x", "seed": 0}) == (Sampling(5), ["x"], 0)
    with pytest.raises(ValueError, match="leave stop out"):
        read_sampling({"stop": []})
    with pytest.raises(ValueError, match="temperature"):
        read_sampling({"temperature": -1})
    for empty in ("", ["a", ""]):
        with pytest.raises(ValueError, match="empty string, which would end every completion"):
            read_sampling({"stop": empty})


def test_bodies_in_many_parts_take_time_in_proportion():
    parts = [bytes([i % 251]) * 4096 for i in range(10_000)]
    left = [{"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in reversed(parts)]

    async def receive():
        return left.pop()

    started = time.perf_counter()
    body = asyncio.run(tinker_requests.read_body(Request({"type": "http", "headers": []}, receive)))
    assert body == b"".join(parts)
    assert time.perf_counter() - started < 10


def test_compressed_bodies_are_read_up_to_the_limit(monkeypatch):
    monkeypatch.setattr(tinker_requests, "MOST_BYTES", 1000)
    body = gzip.compress(bytes(1000))
    assert unzipped(body) == bytes(1000)
    for wrong, message in {gzip.compress(bytes(1001)): "at most 1000", body[:-9]: "incomplete", b"no": "gzip"}.items():
        with pytest.raises(ValueError, match=message):
            unzipped(wrong)
