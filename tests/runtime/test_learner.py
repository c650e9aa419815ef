import pytest

from operant.runtime.learner import all_or_nothing


class Pair:
    """Two numbers, the second of which must be positive."""

    def __init__(self, first, second):
        self.first, self.second = first, second

    def state_dict(self):
        return {"first": self.first, "second": self.second}

    @all_or_nothing
    def load_state_dict(self, state):
        """Go on."""
        self.first = state["first"]
        if state["second"] <= 0:
            raise ValueError(f"second must be positive, got {state['second']}")
        self.second = state["second"]


class Triple(Pair):
    """One more, in a state of its own kind."""

    third = 3

    def state_dict(self):
        return {**super().state_dict(), "third": self.third}

    @all_or_nothing
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.third = state["third"]


def test_a_good_state_is_loaded():
    pair = Pair(1, 2)
    pair.load_state_dict({"first": 5, "second": 6})
    assert pair.state_dict() == {"first": 5, "second": 6}


def test_a_bad_state_is_refused_whole_and_its_error_is_what_is_seen():
    pair = Pair(1, 2)
    with pytest.raises(ValueError, match=r"^second must be positive, got -6$"):
        pair.load_state_dict({"first": 5, "second": -6})
    assert pair.state_dict() == {"first": 1, "second": 2}


@pytest.mark.parametrize(
    ("state", "error"), [({"first": 5, "second": 6}, KeyError), ({"first": 5, "second": 0, "third": 7}, ValueError)]
)
def test_what_a_parent_class_loads_is_taken_back_too(state, error):
    triple = Triple(1, 2)
    with pytest.raises(error):
        triple.load_state_dict(state)
    assert triple.state_dict() == {"first": 1, "second": 2, "third": 3}


def test_the_method_keeps_its_name_and_its_words():
    assert Pair.load_state_dict.__name__ == "load_state_dict"
    assert Pair.load_state_dict.__doc__ == "Go on."
