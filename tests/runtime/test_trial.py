import os
import subprocess
import sys
import textwrap
import time
from functools import partial

import gymnasium
import pytest

from operant import train
from operant.envs import make, only_here
from operant.envs.worlds.hidden import HiddenCartPole
from operant.runtime.trial import require_makeable


def test_a_function_that_only_this_process_has_registered_is_rejected_before_anything_is_written(tmp_path):
    gymnasium.register("OperantTestOnlyHere-v0", partial(HiddenCartPole))
    try:
        assert only_here(make("OperantTestOnlyHere-v0", 1, [0]))
        assert not only_here(make("CartPole-v1", 1, [0]))
        with pytest.raises(
            ValueError,
            match=r"OperantTestOnlyHere-v0 cannot be created in another process.*Use 'module:Name-v0'.*use a2c",
        ):
            train("a3c", "OperantTestOnlyHere-v0", run=tmp_path / "run", workers=1, progress="silent")
        assert not (tmp_path / "run").exists()
    finally:
        gymnasium.registry.pop("OperantTestOnlyHere-v0")


def test_a_class_of_a_script_that_registers_it_when_it_is_imported_is_fine(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import gymnasium
        from operant.envs.worlds.hidden import HiddenCartPole
        class Mine(HiddenCartPole):
            pass
        gymnasium.register("Mine-v0", Mine, max_episode_steps=9)
        if __name__ == "__main__":
            from operant.runtime.trial import require_makeable
            from operant.envs import make, maker_like, only_here
            env = make("Mine-v0", 1, [0])
            assert only_here(env)
            maker = maker_like(env, 1)
            require_makeable("Mine-v0", maker, method="forkserver", deadline=100.0, algorithm="a3c", instead="")
        """)
    )
    subprocess.run([sys.executable, script], check=True, env=os.environ, timeout=200)


def _hang(seed):
    time.sleep(600)


def _die(seed):
    os._exit(3)


@pytest.mark.parametrize(("make_env", "message"), [(_hang, "did not respond in time"), (_die, "the process died")])
def test_processes_that_do_not_answer_are_named(make_env, message):
    with pytest.raises(ValueError, match=message):
        require_makeable("X-v0", make_env, method="fork", deadline=1.0, algorithm="a3c", instead="a2c")
