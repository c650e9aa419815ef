import logging
import subprocess
import sys
import threading
import warnings

import gymnasium
import numpy as np

from operant import api
from operant.runtime.metrics import read_records
from operant.runtime.warned import bound, keeping

logger = logging.getLogger("operant.runtime.somewhere")


def texts(folder):
    return [(record["source"], record["text"]) for record in read_records(folder / "warnings.jsonl")]


def test_warnings_are_kept_and_shown(tmp_path):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        show = warnings.showwarning
        with keeping() as keeper:
            logger.warning("early %d", 1)
            keeper.attach(tmp_path)
            with keeping(tmp_path) as inner:
                assert inner is keeper
            logger.info("no warning")
            warnings.warn("late", RuntimeWarning, stacklevel=1)
        assert warnings.showwarning is show
    assert [str(one.message) for one in shown] == ["late"]
    logger.warning("too late")
    assert texts(tmp_path) == [("operant.runtime.somewhere", "early 1"), ("RuntimeWarning", "late")]


def test_warnings_of_one_run_are_not_those_of_another(tmp_path):
    def train_b():
        with keeping(tmp_path / "b"):
            logger.warning("of b")
            warnings.warn("of b", RuntimeWarning, stacklevel=1)

    for name in "abc":
        (tmp_path / name).mkdir()
    with warnings.catch_warnings(record=True), keeping(tmp_path / "a"):
        warnings.simplefilter("always")
        for call in (train_b, bound(lambda: logger.warning("of a's worker")), lambda: logger.warning("of a thread")):
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
        with keeping() as keeper:
            logger.warning("of c")
            keeper.attach(tmp_path / "c")
        logger.warning("of a")
    assert [text for _, text in texts(tmp_path / "a")] == ["of a's worker", "of a thread", "of a"]
    assert texts(tmp_path / "b") == [("operant.runtime.somewhere", "of b"), ("RuntimeWarning", "of b")]
    assert [text for _, text in texts(tmp_path / "c")] == ["of c"]


def test_a_thread_without_a_run_warns_all_of_them(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    operant = logging.getLogger("operant")
    both, handlers = threading.Barrier(3), list(operant.handlers)

    def run(folder):
        folder.mkdir()
        with keeping(folder):
            both.wait(60)
            both.wait(60)

    threads = [threading.Thread(target=run, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    both.wait(60)
    logger.warning("whose?")
    both.wait(60)
    for thread in threads:
        thread.join()
    assert [[text for _, text in texts(folder)] for folder in folders] == [["whose?"]] * 2
    assert operant.handlers == handlers


def test_without_warnings_there_is_no_file(tmp_path):
    with keeping(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_removed_folder_does_not_end_training(tmp_path):
    with keeping(tmp_path / "gone"):
        logger.warning("lost")
    assert not list(tmp_path.iterdir())


def test_without_any_handler_warnings_are_still_printed(tmp_path):
    code = (
        "import logging, sys; from pathlib import Path; from operant.runtime.warned import keeping\n"
        "with keeping(Path(sys.argv[1])): logging.getLogger('operant.x').warning('once')"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stderr == "once\n"
    assert texts(tmp_path) == [("operant.x", "once")]


class OutOfItsBox(gymnasium.Env):
    """Environment whose observations alternate between 0 and 5, outside its box of at most 1."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.array([0, 5 * (self.steps % 2)], np.float32), 1.0, self.steps == 4, False, {}


def test_a_fault_of_an_environment_is_reported_once_in_a_run(tmp_path, caplog):
    """Training and every evaluation create separate environments."""
    api.train("a2c", OutOfItsBox, budget=400, evaluate_every=100, run=tmp_path / "run", progress="silent")
    found = [text for source, text in texts(tmp_path / "run") if source == "operant.envs.checks"]
    assert len(found) == 1
    assert "observation[1] is 5, but its space is [-1, 1]" in found[0]
    assert caplog.text.count("this warning appears once") == 1


class Endless(OutOfItsBox):
    """Environment without an end of the episode."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,))

    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, False, truncated, info


def test_evaluations_that_cut_episodes_are_warned_about_once_in_a_run(tmp_path, caplog):
    options = {"budget": 400, "evaluate_every": 100, "evaluate_episodes": 2, "evaluate_max_steps": 50}
    api.train("a2c", Endless, **options, run=tmp_path / "run", progress="silent")
    found = [text for source, text in texts(tmp_path / "run") if source == "operant.runtime.evaluation"]
    assert len(found) == 1
    assert "truncate episodes after 50 steps" in found[0]
    assert len(read_records(tmp_path / "run" / "eval" / "evaluations.jsonl")) > 2
