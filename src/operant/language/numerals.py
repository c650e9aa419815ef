r"""Parsing of numbers in text and LaTeX: `last_number`, `stated_number`, `answer_number`, `last_box`.

Plain text and LaTeX are equivalent: `70,000`, `70{,}000`, `70\,000` and `7 \times 10^4` are one number, and
`\frac{36}{2}`, `36/2` and `18.0` are another. A part of an expression is not a number: the 18 of `x/18`, of
`\sqrt{18}`, of `1:18`, of `2^{18}` and of `(18)^2`.
"""

import re
from fractions import Fraction

_LONGEST, _LARGEST_EXPONENT = 300, 300
"""Maximum number of digits, and maximum exponent, of a number."""

_HOLE = "\N{WHITE SQUARE}"
"""Placeholder of an expression that has a value but cannot be parsed as a number."""
_CURRENCY = "$€£¥₹"
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "k": 3}
_PLAIN = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_SCIENTIFIC = rf"(?:{_PLAIN})(?:e[-+]?\d+(?![a-z]))?"
_TOKEN = re.compile(
    rf"""
    (?P<bad>{_HOLE}
      | \d+(?::\d+)+                                             # a time, a ratio
      | \d+(?:\.\d+){{2,}}                                       # a version
      | (?:{_PLAIN})(?:\s*/\s*(?:{_PLAIN})){{2,}}                # a date
      | \^\s*[-+(]*(?:{_PLAIN})                                  # the exponent of something else
      | /\s*[-+]?[{_CURRENCY}]?(?:{_PLAIN}))                     # what something else is divided by
    | (?P<sign>(?<![\d.)\]a-z{_HOLE}])[-+](?=[{_CURRENCY}]?[\d.]))?[{_CURRENCY}]?
      (?:(?P<whole>\d+)\s+(?=\d+\s*/\s*\d))?                     # 1 1/2
      (?P<number>{_SCIENTIFIC})
      (?:\s*\^\s*(?P<power>-?\d+)(?!\.?\d)
        | \s*(?:\\times|\\cdot|[×·*x])\s*10\s*\^\s*(?P<ten>[-+]?\d+))?
      (?:\s*/\s*(?P<divisor>[-+]?(?:{_SCIENTIFIC})))?
      (?P<scale>\s*(?:hundred|thousand|million|billion|trillion)\b|k\b)?
      (?P<times>\s*(?:\\sqrt|{_HOLE}|\\?pi\b|π))?                # times another expression
    """,
    re.VERBOSE | re.IGNORECASE,
)

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"(?<!\\)[{}]")
_MINUS = str.maketrans(
    dict.fromkeys("\N{MINUS SIGN}\N{EN DASH}\N{FIGURE DASH}\N{HYPHEN}\N{NON-BREAKING HYPHEN}−﹣－", "-")
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SPACE = (
    r"(?:\\[,;: ]|~|[\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}\N{FIGURE SPACE}\N{SIX-PER-EM SPACE}])"
)
_FONT = re.compile(
    r"\\(?:text|mbox|hbox|math|operatorname)(?:rm|bf|it|sf|tt|normal|up)?\s*\{([^{}]*)\}|\\(?:bf|rm|it|displaystyle)\b"
)
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_PART = re.compile(rf"\s*([-+]?)\s*[{_CURRENCY}]?\s*({_SCIENTIFIC})[\s%a-z]*", re.IGNORECASE)
_ROOT = re.compile(r"\\sqrt\s*(?:\[[^\[\]]*\]\s*)?(?:\{[^{}]*\}|\d)|√\s*[\d.]+")
_REWRITES = (
    (re.compile(r"\\(?:left|right|!|boldsymbol)(?![a-z])|\\[()\[\]]|``|''"), ""),
    (re.compile(r"\{,\}"), ","),
    (re.compile(rf"(?<=\d){_SPACE}(?=\d{{3}}(?!\d))"), ","),
    (re.compile(_SPACE), " "),
    (re.compile(r"\\(?=[$%#&_])"), ""),
    (re.compile(r"\^\s*(?:\{\s*)?\\circ\s*\}?|\\(?:degree|circ)\b"), "°"),
)
_LATER_REWRITES = (
    (re.compile(r"\^\s*\{\s*([-+]?\d+)\s*\}"), r"^\1"),
    (re.compile(r"\^\s*\{[^{}]*\d[^{}]*\}"), f"^{_HOLE}"),
    (re.compile(r"(?<=[a-z])\s*\^\s*-?\d+", re.IGNORECASE), ""),  # of a unit: cm^2
    (re.compile(r"\(([^()\d]*)\)\s*\^\s*-?\d+"), r"(\1)"),  # of a unit: (cm)^2
    (re.compile(r"(?<=[a-z])_(?:\{\w+\}|\w)", re.IGNORECASE), ""),  # of a name: x_1
    (re.compile(r"-\s*[({]\s*(?=[$\d.][^(){}]*[)}])"), "-"),
    (re.compile(r"[{}]"), " "),
)

_PREFIX = re.compile(
    r"\s*(?:\([A-E]\)|[A-Za-z ]{1,40}:|(?:the )?(?:final )?answer is\b|about\b|(?:US|USD|EUR|GBP|INR|Rs)\b\.?)?"
    rf"[\s(*`\"]*(?:US(?=\$))?(?:[{_CURRENCY}](?=-))?",
    re.IGNORECASE,
)
_UNIT = re.compile(rf"(?:[A-Za-z°%{_CURRENCY}¢.'*`\"/\s)]|(?<=[A-Za-z])-(?=[A-Za-z]))*")
_VARIABLE = re.compile(r"\s*(?:[abeijnqruvwxyz]|pi)\W*")
_LEFT_OF_EQUAL = re.compile(r"[^\d<>≤≥\\]*|[^A-Za-z<>≤≥\\]*(?:\\(?:times|cdot|div)[^A-Za-z<>≤≥\\]*)*")
_EQUAL = re.compile(r"=|≈|\\approx(?![a-z])")


def last_number(text: str) -> Fraction | None:
    """Return the last number in a text; None if there is none, or if the text ends in part of an expression.

    A sign is part of the number unless it can be an operator: `x = -7` ends in -7, and `12-7` in 7. Undefined numbers
    (`1/0`) and numbers with hundreds of digits are ignored.
    """
    found = None
    for match in _TOKEN.finditer(_plain(text)):
        found = match
    return None if found is None else _value(found)


def first_number(text: str) -> Fraction | None:
    """Return the first number in a text, with the rules of `last_number`."""
    match = _TOKEN.search(_plain(text))
    return None if match is None else _value(match)


def stated_number(text: str) -> Fraction | None:
    r"""Return the number that a text consists of: alone, with a unit (`18 dollars`, `18\%`), or as `x = 18`.

    A percent sign is a unit. Returns None for a number with a variable (`18x`), several numbers (`18, 19`) or a
    comparison (`x < 18`).
    """
    plain = _plain(text).strip()
    *_, equal = [None, *_EQUAL.finditer(plain)]
    if equal is not None:
        left, plain = plain[: equal.start()], plain[equal.end() :].strip()
        if not all(_LEFT_OF_EQUAL.fullmatch(part) for part in _EQUAL.split(left)):
            return None
    plain = re.sub(rf"^([-+])\s+(?=[{_CURRENCY}\d.])", r"\1", plain)
    plain = (
        re.sub(r"(?<=\d) (?=\d{3}(?:\D|$))", ",", plain) if re.fullmatch(r"\D?\d{1,3}(?: \d{3})+\D*", plain) else plain
    )
    prefix = _PREFIX.match(plain)
    match = _TOKEN.match(plain, prefix.end() if prefix else 0)
    if match is None:
        return None
    rest = plain[match.end() :]
    return _value(match) if _UNIT.fullmatch(rest) and not _VARIABLE.fullmatch(rest) else None


def last_box(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` or `\fbox{...}` of a text, with its inner braces; None if none.

    Unclosed boxes are ignored.
    """
    starts = {match.end() - 1: match.start() for match in _BOX.finditer(text)}
    opened, found = list[int](), (-1, 0, 0)
    for brace in _BRACE.finditer(text, min(starts, default=len(text))):
        place = brace.start()
        if brace[0] == "{":
            opened.append(place)
        elif opened and (begin := opened.pop()) in starts:
            found = max(found, (starts[begin], begin + 1, place))
    return None if found[0] < 0 else text[found[1] : found[2]]


def after_mark(text: str) -> str | None:
    """Return the rest of the line after the last `####` of a text, as in GSM8K; None if there is no such mark."""
    _, mark, rest = text.rpartition("####")
    return rest.strip().partition("\n")[0].strip() if mark else None


def answer_number(text: str) -> Fraction | None:
    r"""Return the number that is the final answer of a completion.

    It is the content of the last `\boxed{...}`, otherwise the first number after the last `####`, otherwise the last
    number.
    """
    box = last_box(text)
    if box is not None:
        return stated_number(box)
    mark = after_mark(text)
    if mark is not None:
        return first_number(mark)
    open_box = _BOX.search(text)  # the text was truncated, possibly within the number
    return last_number(text if open_box is None else text[: open_box.start()])


def _plain(text: str) -> str:
    """Convert LaTeX and typography to plain text, and other expressions to placeholders."""
    text = text.translate(_MINUS)
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text)
    text = re.sub(r"(?<=[A-Za-z])[⁻⁰¹²³⁴-⁹]+", "", text)
    text = re.sub(r"[⁻⁰¹²³⁴-⁹]+", lambda match: "^" + match[0].translate(_SUPERSCRIPTS), text)
    for _ in range(4):  # they may be nested
        before = text
        text = _ROOT.sub(_HOLE, _FRACTION.sub(_fraction, _FONT.sub(lambda match: f" {match[1] or ''} ", text)))
        if text == before:
            break
    for pattern, new in _LATER_REWRITES:
        text = pattern.sub(new, text)
    return text


def _fraction(match: re.Match[str]) -> str:
    """Return a LaTeX fraction as `1/2`, or a placeholder if its parts are not numbers."""
    parts = [_PART.fullmatch(match[1] or match[2] or ""), _PART.fullmatch(match[3] or match[4] or "")]
    if not all(parts):
        return _HOLE
    (sign, above), (other, below) = ((part[1], part[2]) for part in parts if part)
    negative = (sign == "-") != (other == "-")
    mixed = match.start() and match.string[match.start() - 1].isdigit()
    return f"{'-' if negative else ' ' if mixed else ''}{above}/{below}"


def _value(match: re.Match[str]) -> Fraction | None:
    """Return the value of a match of `_TOKEN`; None if it has none."""
    if match["bad"] or match["times"]:
        return None
    value, divisor = _scientific(match["number"]), _scientific(match["divisor"] or "1")
    power, ten = int((match["power"] or "1")[:9]), int((match["ten"] or "0")[:9])
    if value is None or not divisor or max(abs(power), abs(ten)) > _LARGEST_EXPONENT or (power < 0 and not value):
        return None
    if abs(power) > 1 and len(match["number"]) * abs(power) > _LONGEST:
        return None
    value = value**power * Fraction(10) ** ten / divisor
    if match["whole"] and value < 1:
        value += int(match["whole"][:_LONGEST])
    value *= 10 ** _SCALES.get((match["scale"] or "").strip().lower(), 0)
    return -value if match["sign"] == "-" else value


def _scientific(text: str) -> Fraction | None:
    """Return the value of `-1,234.5e6`; None if it has too many digits."""
    if len(text) > _LONGEST:
        return None
    mantissa, _, exponent = text.replace(",", "").lower().partition("e")
    if abs(int(exponent or 0)) > _LARGEST_EXPONENT:
        return None
    return Fraction(mantissa) * Fraction(10) ** int(exponent or 0)
