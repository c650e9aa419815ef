import pytest

from operant.language import tasks
from operant.language.tasks import Task


def test_every_name_leads_to_a_task_of_that_name():
    assert tasks.names() == list(tasks.TASKS)
    for name in tasks.names():
        task = tasks.find(name)
        assert isinstance(task, Task)
        assert task.name.startswith(name)
        assert task.title


def test_options_reach_the_task():
    task = tasks.find("steps:terms=2/5-6,digits=1,operators=-,limit=33")
    assert task.name == "steps:terms=2/5/6,digits=1,operators=-,limit=33"
    assert task.max_completion_length == 33
    assert len(tasks.find("arithmetic:digits=4").rows("train", 1, seed=0)[0]["prompt"]) == len("1234+5678=")


def test_names_are_written_out_and_lead_back():
    for name in [*tasks.names(), "steps:terms=2-4/6,limit=40", "sort:of=letters", "preference:noise=0.25"]:
        task = tasks.find(name)
        again = tasks.find(task.name)
        assert again.name == task.name
        assert again.rows("train", 5, seed=0) == task.rows("train", 5, seed=0)
    assert tasks.find("arithmetic:digits=2").name == tasks.find("arithmetic").name


def test_mistakes_in_names_are_explained():
    with pytest.raises(ValueError, match=r"no task 'aritmetic' \(did you mean 'arithmetic'\?\); there are arithmetic,"):
        tasks.find("aritmetic")
    with pytest.raises(ValueError, match=r"the task steps has no option 'term' \(did you mean 'terms'\?\)"):
        tasks.find("steps:term=3")
