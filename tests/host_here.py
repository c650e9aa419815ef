"""Host whose actors are objects in this process, each with its own threads; they can be lost as remote ones can."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
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
    def __init__(self, kind, args, threads):
        self._pool = ThreadPoolExecutor(threads)
        self.made = self._pool.submit(kind, *args)
        self.pending = []
        self.lost = False

    def call(self, method, *args):
        future = Future()
        if self.lost:
            future.set_exception(ConnectionError("the actor is lost"))
            return ReplyHere(future)
        self.pending = [*(each for each in self.pending if not each.done()), future]
        try:
            self._pool.submit(self._run, future, method, args)
        except RuntimeError:  # the interpreter ends
            self.kill()
        return ReplyHere(future)

    def _run(self, future, method, args):
        try:
            result = getattr(self.made.result(), method)(*args)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)

    def kill(self):
        self.lost = True
        for future in self.pending:
            if not future.done():
                future.set_exception(ConnectionError("the actor is lost"))


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
