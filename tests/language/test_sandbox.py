import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from operant.language.sandbox import Sandbox, SandboxError

FUNCTIONS = """
import asyncio, os, subprocess, sys, time

def double(x, plus=0):
    return 2 * x + plus

def pid(seconds=0):
    time.sleep(seconds)
    return os.getpid()

def loop(x):
    while x == "loop":
        pass
    return x

def leave(code):
    os._exit(code)

def hog(x):
    return len(bytearray(1 << 40)) if x == "hog" else x

def chatter(x):
    print("not an answer")
    os.write(1, b"neither is this\\n")
    os.system("echo nor this")
    return [x, sys.stdin.read(), os.read(0, 1).decode()]

def wrong(x):
    raise KeyError(x)

async def later(x):
    await asyncio.sleep(0)
    return x + 1

def numbers(kind):
    import numpy as np
    return {"array": np.arange(3.0), "number": np.float32(0.5), "list": [np.int64(3), None]}[kind]

def odd():
    return {1, 2}

def slow(x):
    time.sleep(0.2)
    return x

def meet(folder, x, others):
    open(os.path.join(folder, str(x)), "w").close()
    while len(os.listdir(folder)) < others:
        time.sleep(0.01)
    return x

def fork(x):
    if x and os.fork() == 0:
        time.sleep(0.5)
    return x

def daemon(path):
    code = "import os, sys, time; os.setsid(); open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    subprocess.Popen(["sh", "-c", f'{sys.executable} -c "{code}" {path} & exit'], start_new_session=True).wait()
    while not os.path.exists(path) or not open(path).read():
        time.sleep(0.01)

def torch_sum(x):
    import torch
    return torch.ones(1000, 1000).sum() + x

def child(path):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(path, "w").write(str(process.pid))
    time.sleep(600)
"""


@pytest.fixture
def sandbox(tmp_path):
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    opened = []

    def open_sandbox(name, **kwargs):
        opened.append(Sandbox(f"{path}:{name}", **kwargs))
        return opened[-1]

    yield open_sandbox
    for one in opened:
        one.close()


def gone(pid):
    for _ in range(100):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


def test_a_function_is_called_in_another_process_that_stays(sandbox):
    assert sandbox("double").call(4, plus=1) == 9
    pid = sandbox("pid")
    first = pid.call()
    assert first != os.getpid()
    assert pid.call() == first


def test_a_function_of_an_installed_module_is_called():
    with Sandbox("math:sqrt") as sandbox:
        assert sandbox.call(9.0) == 3.0


def test_a_hanging_call_is_stopped_and_the_next_one_is_answered(sandbox):
    loop = sandbox("loop", seconds=1.5)
    assert loop.call("before") == "before"
    with pytest.warns(RuntimeWarning, match=r"loop did not answer within 1\.5 seconds"):
        assert loop.call("loop", fallback="none") == "none"
    assert loop.call("after") == "after"


def test_a_call_that_ends_its_process_gives_the_fallback(sandbox):
    leave = sandbox("leave")
    with pytest.warns(RuntimeWarning, match=r"died \(exit code 3\)"):
        assert leave.call(3) is None
    with pytest.warns(RuntimeWarning, match=r"died \(exit code 0\)"):
        assert leave.call(0, fallback=0.5) == 0.5


def test_the_exit_code_of_a_call_that_ends_python_is_reported(tmp_path):
    """Do not report the signal that stops a process which takes a while to end."""
    (tmp_path / "end.py").write_text("import sys\ndef end(code):\n    sys.exit(code)\n")
    with Sandbox(f"{tmp_path / 'end.py'}:end") as sandbox:
        for code in range(2, 5):
            with pytest.warns(RuntimeWarning, match=rf"died \(exit code {code}\)"):
                assert sandbox.call(code) is None


def test_a_function_may_start_processes_that_import_its_file(tmp_path):
    (tmp_path / "my_doubles.py").write_text(
        "import multiprocessing\n"
        "def double(number):\n    return 2 * number\n"
        "def doubled(numbers):\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        return pool.map(double, numbers)\n"
    )
    with Sandbox(f"{tmp_path / 'my_doubles.py'}:doubled", seconds=60) as sandbox:
        assert sandbox.call([1, 2]) == [2, 4]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_a_call_with_too_much_memory_gives_the_fallback(sandbox):
    hog = sandbox("hog", memory=1 << 30)
    with pytest.warns(RuntimeWarning, match="ran out of memory"):
        assert hog.call("hog", fallback="none") == "none"
    assert hog.call("after") == "after"


def test_output_and_input_do_not_disturb_the_protocol(sandbox):
    chatter = sandbox("chatter")
    assert [chatter.call(i) for i in range(3)] == [[i, "", ""] for i in range(3)]


def test_an_exception_is_an_error_with_its_traceback(sandbox):
    wrong = sandbox("wrong")
    with pytest.raises(
        SandboxError, match=r"functions.py:wrong raised KeyError: 'salt' \(.*functions.py, line \d+\)$"
    ) as e:
        wrong.call("salt")
    assert "raise KeyError(x)" in str(e.value.__cause__)


def test_the_copy_of_a_worker_that_forked_answers_no_call(sandbox):
    fork = sandbox("fork")
    assert fork.call(1) == 1
    time.sleep(1.0)
    assert [fork.call(x) for x in (0, None, 0)] == [0, None, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of processes")
def test_a_daemon_ends_with_its_worker(sandbox, tmp_path):
    daemon = sandbox("daemon")
    daemon.call(str(tmp_path / "pid"))
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 0)
    daemon.close()
    assert gone(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_memory_is_limited_by_default_and_leaves_room_for_torch(sandbox):
    assert sandbox("torch_sum", seconds=120).call(1) == 1_000_001
    with pytest.warns(RuntimeWarning, match="ran out of memory"):
        assert sandbox("hog").call("hog", fallback="none") == "none"


def test_the_late_result_of_another_call_is_ignored(sandbox):
    double = sandbox("double")
    assert double.call(1) == 2
    (slot,) = double._idle.queue
    slot._process.stdin.write('{"id": -5, "args": [50], "kwargs": {}, "seconds": 9}\n')  # its response comes first
    assert double.call(2) == 4


def test_coroutines_are_awaited(sandbox):
    assert sandbox("later").call(1) == 2


@pytest.mark.parametrize(("kind", "result"), [("array", [0.0, 1.0, 2.0]), ("number", 0.5), ("list", [3, None])])
def test_arrays_come_back_as_lists(sandbox, kind, result):
    assert sandbox("numbers").call(kind) == result


def test_values_that_json_does_not_support_are_an_error(sandbox):
    with pytest.raises(SandboxError, match="numbers, strings, lists and None, got a set"):
        sandbox("odd").call()
    with pytest.raises(TypeError, match="not JSON serializable"):
        sandbox("double").call(object())


def test_large_arguments_pass(sandbox):
    text = "ä" * 300_000
    assert sandbox("loop").call(text) == text


def test_calls_from_threads_share_the_workers(sandbox):
    slow = sandbox("slow", workers=1)
    results = {}
    threads = [threading.Thread(target=lambda i=i: results.update({i: slow.call(i)})) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: i for i in range(4)}


def test_a_call_outside_the_main_thread_is_stopped_too(sandbox):
    loop = sandbox("loop", seconds=0.3)
    results = []
    thread = threading.Thread(target=lambda: results.append(loop.call("loop", fallback="none")))
    thread.start()
    with pytest.warns(RuntimeWarning, match="did not answer"):
        thread.join(timeout=20)
    assert results == ["none"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there is no such alarm")
def test_an_interrupted_call_does_not_stand_in_the_way_of_the_next(sandbox):
    late = sandbox("pid", seconds=5)
    first = late.call()

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            late.call(600)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert gone(first)
    assert late.call() != first


def test_map_runs_side_by_side_and_keeps_the_order(sandbox, tmp_path):
    (tmp_path / "met").mkdir()
    meet = sandbox("meet", workers=4, seconds=60)
    assert meet.map([(str(tmp_path / "met"), i, 4) for i in range(8)]) == list(range(8))


def test_map_replaces_only_what_failed(sandbox):
    loop = sandbox("loop", seconds=0.3)
    with pytest.warns(RuntimeWarning, match="2 such calls"):
        assert loop.map([("a",), ("loop",), ("b",), ("loop",)]) == ["a", None, "b", None]


def test_a_stopped_worker_takes_along_what_it_started(sandbox, tmp_path):
    note = tmp_path / "pid"
    with pytest.warns(RuntimeWarning, match="did not answer"):
        sandbox("child", seconds=1.5).call(str(note))
    assert gone(int(note.read_text()))


def test_closing_ends_the_worker(sandbox):
    pid = sandbox("pid")
    number = pid.call()
    pid.close()
    pid.close()
    assert gone(number)
    with pytest.raises(ValueError, match="is closed"):
        pid.call()


def test_a_worker_that_died_between_calls_is_replaced_silently(sandbox):
    pid = sandbox("pid")
    number = pid.call()
    os.kill(number, 9)
    assert gone(number)
    assert pid.call() != number


def test_leaving_the_interpreter_ends_the_workers(tmp_path):
    code = (
        "from operant.language.sandbox import Sandbox\n"
        "keep = Sandbox('os:getpid')\n"
        "import sys; sys.stdout.write(str(keep.call()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert gone(int(result.stdout))


def test_a_file_that_changed_within_a_second_is_read_again(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    path = tmp_path / "mine.py"
    for value in (1, 2):
        path.write_text(f"def value():\n    return {value}\n", encoding="utf-8")
        os.utime(path, (1_000_000_000, 1_000_000_000))
        with Sandbox(f"{path}:value") as function:
            assert function.call() == value


def test_start_finds_mistakes_before_the_first_call(sandbox, tmp_path):
    sandbox("double").start()
    with pytest.raises(SandboxError, match=r"cannot be loaded(.|\n)*has no 'missing'; it defines .*double"):
        sandbox("missing").start()
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    with pytest.raises(SandboxError, match=r"cannot be loaded(.|\n)*SyntaxError"):
        Sandbox(f"{broken}:f").call()
    hanging = tmp_path / "hanging.py"
    hanging.write_text("while True: pass\n")
    with pytest.raises(SandboxError, match=r"did not answer within 0\.3 seconds"):
        Sandbox(f"{hanging}:f", start_seconds=0.3).start()


@pytest.mark.parametrize(
    ("target", "message"),
    [("function", "path/to/file.py:function"), ("a.py:", "path/to/file.py:function"), ("no/such.py:f", "no file")],
)
def test_an_invalid_target_is_rejected(target, message):
    with pytest.raises(ValueError, match=message):
        Sandbox(target)


@pytest.mark.parametrize(
    "options", [{"seconds": 0}, {"seconds": float("inf")}, {"start_seconds": -1}, {"workers": 0}, {"memory": 0}]
)
def test_options_out_of_range_are_rejected(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Sandbox("math:sqrt", **options)
