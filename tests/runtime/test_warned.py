import logging
import subprocess
import sys
import warnings

from operant.runtime.metrics import read_records
from operant.runtime.warned import keeping

logger = logging.getLogger("operant.runtime.somewhere")


def texts(folder):
    return [(record["source"], record["text"]) for record in read_records(folder / "warnings.jsonl")]


def test_warnings_are_kept_and_shown(tmp_path):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        show = warnings.showwarning
        with keeping() as keeper:
            logger.warning("early %d", 1)
            with keeping(tmp_path / "other") as inner:
                assert inner is keeper
            keeper.attach(tmp_path)
            logger.info("no warning")
            warnings.warn("late", RuntimeWarning, stacklevel=1)
        assert warnings.showwarning is show
    assert [str(one.message) for one in shown] == ["late"]
    logger.warning("too late")
    assert texts(tmp_path) == [("operant.runtime.somewhere", "early 1"), ("RuntimeWarning", "late")]


def test_where_there_is_nothing_to_say_there_is_no_file(tmp_path):
    with keeping(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_gone_is_survived(tmp_path):
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
