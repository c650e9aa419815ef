import pytest

from operant.language.options import Choices, build, split

ONE = Choices((1,))


def thing(*, count: int = 2, part: float = 0.5, word: str = "a", flag: bool = False, many: Choices = ONE):
    return (count, part, word, flag, many)


def needy(*, limit: int, buffer: int | None = None):
    return (limit, buffer)


FACTORIES = {"thing": thing, "needy": needy}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("4", (4,)), ("2-6", (2, 3, 4, 5, 6)), ("3-3", (3,)), ("2/2/5-6", (2, 2, 5, 6)), ("0", (0,))],
)
def test_choices(text, numbers):
    assert Choices.parse(text) == numbers
    assert isinstance(Choices.parse(text), Choices)


@pytest.mark.parametrize("text", ["", "a", "6-2", "-3", "2-", "2//3", "1.5", "2-3-4"])
def test_choices_that_are_none(text):
    with pytest.raises(ValueError, match="4, 2-6 or 2/2/3-5"):
        Choices.parse(text)


def test_split():
    assert split("name") == ("name", {})
    assert split("name:a=1,b=x=y") == ("name", {"a": "1", "b": "x=y"})
    assert split("format:pattern=\\d{1,3}:.*,flag=true") == ("format", {"pattern": "\\d{1,3}:.*", "flag": "true"})


@pytest.mark.parametrize(
    ("text", "message"), [("n:3", "got '3' in 'n:3'"), ("n:=3", "'=3'"), ("n:a=1,a=2", "given twice")]
)
def test_options_that_cannot_be_split(text, message):
    with pytest.raises(ValueError, match=message):
        split(text)


def test_values_are_read_as_annotated():
    assert build("thing", FACTORIES, "thing") == (2, 0.5, "a", False, (1,))
    text = "thing:count=3,part=1e-3,word=b,c,flag=true,many=2-3"
    assert build(text, FACTORIES, "thing") == (3, 0.001, "b,c", True, (2, 3))
    assert build("needy:limit=5,buffer=2", FACTORIES, "thing") == (5, 2)


def test_defaults_reach_those_that_have_them_and_give_way_to_what_is_written():
    assert build("thing", FACTORIES, "thing", limit=9) == (2, 0.5, "a", False, (1,))
    assert build("needy", FACTORIES, "thing", limit=9) == (9, None)
    assert build("needy:limit=4", FACTORIES, "thing", limit=9) == (4, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thin", r"no thing 'thin' \(did you mean 'thing'\?\); there are thing, needy"),
        ("zzz", "no thing 'zzz'; there are"),
        ("thing:cuont=3", r"no option 'cuont' \(did you mean 'count'\?\); it has count, part"),
        ("thing:count=two", "option count of the thing thing: expected a whole number, got 'two'"),
        ("thing:part=half", "expected a number, got 'half'"),
        ("thing:flag=yes", "expected true or false, got 'yes'"),
        ("thing:many=x", "option many of the thing thing: expected whole numbers"),
        ("needy", "needs limit: write needy:limit="),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        build(text, FACTORIES, "thing")
