"""One idea has one name and one type in every algorithm, one name has one meaning, and spelling is American."""

import importlib
import io
import re
import runpy
import tokenize
import types
import typing

import pytest

from operant import catalog
from operant.catalog.old_names import FIELDS

BRITISH = re.compile(
    r"(?:behaviou|colou|favou|neighbou|flavou|honou|labou)r|\b[Cc]entr(?:e|ed|es|ing)\b|labell|modell(?:ed|ing)"
    r"|cancelled|travelled|signalled|\blearnt\b|\bgrey|judgement|licence|artefact|\bcatalogue"
    r"|(?:normal|standard|optim|maxim|minim|initial|final|summar|factor|central|penal|priorit|token|linear|recogn|regular"
    r"|parameter|synchron|vector|serial|material|organ|parallel|discret|general|random|special)"
    r"is(?:e|ed|es|er|ers|ing|ation|ations)(?-i:(?![a-z]))",
    re.IGNORECASE,
)
TEXTS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "src", "tests", "experiments", "benchmarks")
SUFFIXES = {".py", ".md"}
TELL_OF_OLD_NAMES = ("old_names.py", "registration.py", "test_old_names.py", "test_words.py")

COUNTED = (
    "(?:actions|answers|bytes|episodes|frames|games|moves|nats|pulls|requests|seconds|simulations|steps|tokens|trials"
    "|updates)"
)
UNITS = (
    "(?:answer|cell|core|episode|game|iteration|line|minute|parameter|process|prompt|run|second|seed|step|task|token|trial"
    "|update)"
)
# Phrases of a private dialect, and the field's words for them.
DIALECT = {
    r"judg\w*": "evaluate, estimate, score, compare",
    r"refus\w*": "raise an error, reject",
    r"pictures?": "image, frame, plot",
    r"Return what": "the noun: Return the action mask",
    r"beside": "next to, with, besides",
    r"anew": "again, new",
    r"not finite": "NaN or Inf",
    r"go(?:es)? on|went on": "continue, resume",
    r"st(?:and|ood)s? for": "represent, be, approximate",
    r"told": "given, configured, called with",
    r"tells? (?:\w+ )?apart": "distinguish",
    r"by chance": "at random",
    r"at once": "immediately, together, in parallel",
    r"so many": "this many, n",
    r"seldom": "rarely",
    r"for good": "permanently",
    r"says? so": "report",
    r"warn(?:s|ed)? of": "warn about",
    r"mend(?:s|ed)?": "fix",
    r"side by side": "in parallel, next to each other",
    r"films?": "video",
    r"replay memor(?:y|ies)": "replay buffer",
    r"for ever": "forever, without end",
    r"to be had": "available, possible",
    r"of one's own": "your own, custom",
    r"news": "rewards, values, changes that propagate",
    r"flatters?": "favor, overestimate",
    r"hand(?:s|ed)? over": "pass, send",
    r"but for": "except",
    r"in the place of": "instead of",
    r"no finite number": "NaN or Inf",
    r"on the disk": "on disk",
    r"in silence": "silently",
    r"stabler": "more stable",
    r"by heart": "memorized",
    r"what there is": "the results so far",
    r"where it was left": "where it stopped",
    r"says? nothing": "is not informative",
    r"None where": "None if",
    r"where there (?:is|are)": "if there is",
    r"whoever": "any process, the user that",
    r"hardly any": "few, almost none",
    r"half way": "incompletely, during",
    r"anybody|somebody": "any user, another user",
    r"(?:is|are) gone": "no longer exists, was deleted, is missing",
    r"hung up": "closed the connection",
    r"says? why": "contains the reason",
    r"in whatever": "in any",
    r"exists? already": "already exists",
    r"what (?:was|is) asked": "the request, the configuration",
    r"(?:code|a process) of its own": "custom code, a separate process",
    r"least and greatest": "minimum and maximum",
    r"of yours": "your, custom",
    r"greatest": "maximum, highest",
    r"tak(?:e|es) the place of": "replace",
    r"looks? further ahead": "longer horizon",
    r"the fields around": "the other fields",
    r"widths of": "sizes of",
    r"largest gradient norm": "maximum gradient norm",
    r"commits? (?:sooner|later)": "explores less long, longer",
    r"pays? (?:for|into)": "gives a reward or bonus for",
    r"no place for": "does not support",
    r"play(?:s|ed)? (?:them|it) out": "simulate",
    rf"{COUNTED} of a seed": "steps per seed",
    r"(?:one|two|integers?|characters?) an? (?:answer|cell|environment|row|seed|state|step)": "one per row",
    r"less that of": "difference from",
    rf"{COUNTED} an? {UNITS}": "per: 10 steps per second",
}
SCRIPT_COMMENT = re.compile(r"(?:^|\s)//.*|/\*.*|^\s*\* .*")
PHRASES = re.compile("|".join(rf"\b(?:{pattern})\b" for pattern in DIALECT), re.IGNORECASE)
MEANT = {
    "judged: ": "a field",
    "beside: ": "a parameter",
    "told: ": "a field",
    "{told}": "a variable",
    "columns(told": "a variable",
    "'pictures'": "an entry of saved states",
    ".*refused": "a message of the operating system",
    "| at once |": "a name in recorded results",
    "but for the luck": "a name in recorded results",
    "flatter ε-greedy": "a name in recorded results",
    "paid at once": "a name in recorded results",
    "Paid at once": "a name in recorded results",
}

# Old names that have another meaning now, and the meaning.
KEPT = {
    "target_entropy": "an entropy in SAC; the factor that discrete SAC called so has another name now",
    "temperature": "of sampling from a language model; those of plans and dreams have other names now",
}


def configurations():
    """Return the configurations of all algorithms by the names of their classes."""
    return {entry.config: getattr(importlib.import_module(entry.module), entry.config) for entry in catalog.ALGORITHMS}


def kind_of(hint):
    """Return the type of a field; a field that may be None has the same type as one that may not."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return "choice"
    if origin in (typing.Union, types.UnionType):
        return "|".join(sorted({kind_of(part) for part in typing.get_args(hint) if part is not type(None)}))
    return str(hint)


def test_one_name_has_one_type():
    found = {}
    for name, kind in configurations().items():
        for field, hint in typing.get_type_hints(kind).items():
            found.setdefault(field, {}).setdefault(kind_of(hint), []).append(name)
    assert {field: kinds for field, kinds in found.items() if len(kinds) > 1} == {}


def test_no_field_has_an_old_name():
    new = {name for fields in FIELDS.values() for name in fields.values()}
    old = {name for fields in FIELDS.values() for name in fields} - new - KEPT.keys()
    found = {
        f"{name}.{field}"
        for name, kind in configurations().items()
        for field in typing.get_type_hints(kind)
        if field in old
    }
    assert found == set()


@pytest.mark.parametrize(
    ("text", "hit"),
    [
        ("normalised", True),
        ("PrioritisedSweeping", True),
        ("normalized", False),
        ("optimistic", False),
        ("Behaviour", True),
        ("precision", False),
    ],
)
def test_the_pattern_of_british_spelling(text, hit):
    assert bool(BRITISH.search(text)) is hit


def test_spelling_is_american(root):
    found = []
    for name in TEXTS:
        paths = [root / name] if (root / name).is_file() else sorted((root / name).rglob("*"))
        for path in paths:
            if path.suffix not in SUFFIXES or path.name in TELL_OF_OLD_NAMES:
                continue
            text = path.read_text(encoding="utf-8")
            if not BRITISH.search(" ".join(set(re.findall(r"\w+", text)))):  # most words occur many times
                continue
            for number, line in enumerate(text.splitlines(), 1):
                found += [f"{path.relative_to(root)}:{number}: {match[0]}" for match in BRITISH.finditer(line)]
    assert found == []


def prose(name, text):
    """Yield the prose of a file with its line numbers: comments and strings of Python, comments of scripts, pages."""
    if name.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string):
                yield from enumerate(token.string.splitlines(), token.start[0])
        return
    if name.endswith(".js"):
        for number, line in enumerate(text.splitlines(), 1):
            yield from ((number, match[0]) for match in SCRIPT_COMMENT.finditer(line))
        return
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        is_code ^= fence
        if not fence and not is_code:
            yield number, re.sub(r"\]\([^)]*\)", "]", line)


def dialect(name, text):
    """Return the forbidden phrases of a file, by line; code in backquotes and `MEANT` are allowed."""
    found = []
    for number, line in prose(name, text):
        plain = re.sub(r"`[^`]*`", "", line)
        for meant in MEANT:
            plain = plain.replace(meant, "")
        found += [f"{number}: {match[0]}" for match in PHRASES.finditer(plain)]
    return found


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.py", '"""Return what a policy is told."""\n', ["1: Return what", "1: told"]),
        ("a.py", 'x = 1\n"""A name.\n\n    Refused values go on.\n"""\n', ["4: Refused", "4: go on"]),
        ("a.py", 'raise ValueError(f"{x} is not finite")  # seldom\n', ["1: not finite", "1: seldom"]),
        ("a.py", "judge, picture = at, once  # the judge\n", ["1: judge"]),
        ("a.py", '"""Args:\n    told: field of a record.\n"""\n', []),
        ("a.js", 'f("at once"); // told\n/** Return what. */\nconst judge = 1;\n', ["1: told", "2: Return what"]),
        ("a.md", "It stands for `a picture` at once.\n```\nby chance\n```\n", ["1: stands for", "1: at once"]),
        ("a.md", "It runs 10 steps a second; news travel for ever.\n", ["1: steps a second", "1: news", "1: for ever"]),
        ("a.md", "It takes two steps a long way, 10 per second.\n", []),
        ("a.md", "It represents an image ([more](judge.md#beside)).\n", []),
    ],
)
def test_the_rule_against_dialect_sees_it(name, text, found):
    assert dialect(name, text) == found


def test_prose_is_the_plain_english_of_the_field(root):
    found = {}
    pages = [
        *(root / name for name in ("CONTRIBUTING.md", "README.md", "SECURITY.md")),
        root / "experiments" / "README.md",
    ]
    pages += sorted((root / "docs").rglob("*.md"))
    tests = [path for path in sorted((root / "tests").rglob("*.py")) if path.name not in TELL_OF_OLD_NAMES]
    sources = [*sorted((root / "src").rglob("*.py")), *sorted((root / "src").rglob("*.js"))]
    for path in [*pages, *sorted((root / "experiments").glob("*.py")), *tests, *sources]:
        if hits := dialect(path.name, path.read_text(encoding="utf-8")):
            found[str(path.relative_to(root))] = hits
    assert found == {}, f"replace by: {DIALECT}"


def test_the_page_of_hyperparameters_is_current(root):
    page = runpy.run_path(str(root / "docs" / "hyperparameters.py"))["page"]()
    assert (root / "docs" / "hyperparameters.md").read_text(encoding="utf-8") == page, (
        "run python docs/hyperparameters.py"
    )
