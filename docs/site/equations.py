"""Typeset equations as MathML, which browsers draw without a script: fences of `math`, and `$...$` in a line.

A fence is one environment `aligned`, or one equation a line.
"""

import re
from html import unescape

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

FENCE = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<![\w$\\`])\$([^\s$`](?:[^$`\n]*[^\s$`])?)\$(?![\w$])")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
"""Fences and code in a line, in which a dollar is a dollar."""
THIN = 'space="0.167em"'
NAME = r"<m[io]>(?:\\(?=arg<))?([a-z]{2,})</m[io]>"
CORRECTIONS = (
    (NAME + r"(?=<mo stretchy=\"\w+\"[^>]*>(?:&#x00028;|\())", rf'<mo l{THIN} rspace="0">\1</mo>'),
    (NAME, rf"<mo l{THIN} r{THIN}>\1</mo>"),
    ("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>"),
    (r"\\_", "&#x0005F;"),
)
"""What the converter leaves: names of functions without space, `\\arg`, an ASCII tilde, escaped underscores."""
WIDE = 30
"""Characters of an equation in a line above which a narrow screen gives it a line of its own."""


def typeset(latex: str, *, display: str = "inline") -> str:
    """Return an equation as MathML on one line."""
    source = latex.strip().replace("{aligned}", "{align*}")
    shown = re.sub(r"\s*\n\s*", " ", convert(source, display=display))
    for wrong, right in CORRECTIONS:
        shown = re.sub(wrong, right, shown)
    if unknown := re.search(r"<m[ion]>\\\w*", shown):
        raise ValueError(f"no MathML for {unknown[0][4:]} in the equation {latex!r}; write it otherwise")
    return shown


def block(match: re.Match[str]) -> str:
    """Return the equations of a fence."""
    text = match[1]
    equations = [text] if r"\begin{" in text else [line for line in text.splitlines() if line.strip()]
    shown = "".join(f"<p>{typeset(equation, display='block')}</p>" for equation in equations)
    return f'<div class="equations" markdown="0">{shown}</div>'


def inline(match: re.Match[str]) -> str:
    """Return an equation in a line; in a span, since Markdown takes a line that begins with `<math` for a block."""
    shown = typeset(match[1])
    wide = len(unescape(re.sub(r"<[^>]+>", "", shown))) > WIDE
    return f'<span class="{"wide" if wide else "narrow"} equation">{shown}</span>'


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put MathML in the place of LaTeX."""
    del page, config, files
    parts = CODE.split(FENCE.sub(block, markdown))
    parts[::2] = [INLINE.sub(inline, part) for part in parts[::2]]
    return "".join(parts)
