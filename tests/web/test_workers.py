import asyncio
import json
import os
import signal

import pytest

from operant.web.workers import Worker


def test_calls_are_answered_one_after_another(tmp_path):
    async def both():
        worker = Worker(tmp_path)
        calls = [worker.call("playground.read", {"drawing": text}) for text in ("S.G", "SG")]
        found = await asyncio.gather(*calls)
        process = worker._process
        await worker.close()
        return found, process

    found, process = asyncio.run(both())
    assert [json.loads(body)["cells"] for _, body in found] == [[["S", ".", "G"]], [["S", "G"]]]
    assert process.returncode is not None


def test_a_call_that_takes_too_long_is_killed_and_the_next_one_is_answered(tmp_path):
    async def slow():
        worker = Worker(tmp_path, deadline=60.0)
        await worker.call("playground.read", {"drawing": "SG"})
        worker._deadline = 0.0
        late = await worker.call("playground.presets", {})
        worker._deadline = 60.0
        good = await worker.call("playground.read", {"drawing": "S.G"})
        await worker.close()
        return late, good

    (status, body), (good, _) = asyncio.run(slow())
    assert status == 503
    assert "stopped after 0 seconds" in json.loads(body)["error"]
    assert good == 200


def test_a_worker_that_was_killed_is_replaced(tmp_path):
    async def killed():
        worker = Worker(tmp_path)
        await worker.call("playground.read", {"drawing": "SG"})
        os.kill(worker._process.pid, signal.SIGKILL)
        first = await worker.call("playground.read", {"drawing": "SG"})
        second = await worker.call("playground.read", {"drawing": "SG"})
        await worker.close()
        return first, second

    (first, body), (second, _) = asyncio.run(killed())
    assert (first, second) in [(503, 200), (200, 200)]
    assert first == 200 or "process ended" in json.loads(body)["error"]


def test_a_process_that_is_not_needed_ends_and_the_next_call_starts_another(tmp_path):
    async def rests():
        worker = Worker(tmp_path, idle=0.2)
        await worker.call("playground.read", {"drawing": "SG"})
        first = worker._process
        for _ in range(100):
            if worker._process is None:
                break
            await asyncio.sleep(0.1)
        ended = worker._process is None and first.returncode is not None
        good, _ = await worker.call("playground.read", {"drawing": "S.G"})
        await worker.close()
        return ended, good

    assert asyncio.run(rests()) == (True, 200)


@pytest.mark.parametrize(("together", "idle", "turns"), [(1, 0.4, 6), (3, 2.0, 16)], ids=["alone", "together"])
def test_a_process_that_is_needed_does_not_end(tmp_path, together, idle, turns):
    async def busy():
        worker = Worker(tmp_path, idle=idle)
        await asyncio.gather(*(worker.call("playground.read", {"drawing": "SG"}) for _ in range(together)))
        first = worker._process
        for _ in range(turns):
            await asyncio.sleep(0.15)
            await worker.call("playground.read", {"drawing": "SG"})
        same = worker._process is first
        await worker.close()
        return same

    assert asyncio.run(busy())
