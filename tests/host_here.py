"""Host whose actors are objects in this process, each with its own threads; they can be lost as remote ones can."""

import queue
import threading
import weakref
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError


class ReplyHere:
    def __init__(self, future):
        self._future = future

    def done(self):
        return self._future.done()

    def result(self, seconds=None):
        try:
            return self._future.result(seconds)
        except LateError as error:
            raise TimeoutError from error


class ActorHere:
    """An object with its own threads, which read calls from a queue.

    The garbage collector may close a sandbox, and so call its actor, at any point of a thread. A SimpleQueue allows
    that; a ThreadPoolExecutor would wait forever if that thread were inside another executor, with the lock of all.
    """

    def __init__(self, kind, args, threads):
        self._tasks = queue.SimpleQueue()
        self.made = Future()
        self.pending = []
        self.lost = False
        self._tasks.put(lambda: _settle(self.made, kind, args))
        for _ in range(threads):
            threading.Thread(target=_work, args=(self._tasks,), daemon=True).start()
        weakref.finalize(self, _stop, self._tasks, threads).atexit = False

    def call(self, method, *args):
        future = Future()
        if self.lost:
            future.set_exception(ConnectionError("the actor is lost"))
            return ReplyHere(future)
        self.pending = [*(each for each in self.pending if not each.done()), future]
        self._tasks.put(lambda: self._run(future, method, args))
        return ReplyHere(future)

    def _run(self, future, method, args):
        _settle(future, lambda: getattr(self.made.result(), method)(*args))

    def kill(self):
        self.lost = True
        for future in self.pending:
            if not future.done():
                future.set_exception(ConnectionError("the actor is lost"))


def _work(tasks):
    while (task := tasks.get()) is not None:
        task()
        del task  # it may be the last reference to the actor


def _stop(tasks, threads):
    for _ in range(threads):
        tasks.put(None)


def _settle(future, function, args=()):
    """Set the result of the function, unless the actor was lost meanwhile."""
    try:
        result = function(*args)
    except Exception as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)


class HostHere:
    """Host that creates actors in this process.

    Attributes:
        actors: all actors created so far.
    """

    def __init__(self):
        self.actors = []

    def actor(self, kind, *args, threads=1):
        self.actors.append(ActorHere(kind, args, threads))
        return self.actors[-1]


class Uneven(HostHere):
    """Host whose first actor waits with all calls until `release` is set."""

    def __init__(self):
        super().__init__()
        self.release = threading.Event()

    def actor(self, kind, *args, threads=1):
        actor = super().actor(kind, *args, threads=threads)
        if actor is self.actors[0]:
            run = actor._run
            actor._run = lambda *task: (self.release.wait(60), run(*task))
        return actor
