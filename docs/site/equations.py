"""Typeset equations as MathML, which browsers draw without a script: fences of `math`, and `$...$` in a line."""

import re

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

FENCE = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<![\w$\\`])\$([^\s$`](?:[^$`\n]*[^\s$`])?)\$(?![\w$])")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
"""Fences and code in a line, in which a dollar is a dollar."""


def typeset(latex: str, *, display: str = "inline") -> str:
    """Return an equation as MathML on one line."""
    return re.sub(r"\s*\n\s*", " ", convert(latex.strip(), display=display))


def block(match: re.Match[str]) -> str:
    """Return the equations of a fence, one a line."""
    lines = [line for line in match[1].splitlines() if line.strip()]
    shown = "".join(f"<p>{typeset(line, display='block')}</p>" for line in lines)
    return f'<div class="equations" markdown="0">{shown}</div>'


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put MathML in the place of LaTeX."""
    del page, config, files
    parts = CODE.split(FENCE.sub(block, markdown))
    parts[::2] = [INLINE.sub(lambda match: typeset(match[1]), part) for part in parts[::2]]
    return "".join(parts)
