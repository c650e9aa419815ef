"""Make the gallery: every experiment with its claim, its picture, its verdict and its command.

Claims and commands are those of the table in experiments/README.md, verdicts those of the result files.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

MARK = "<!-- gallery -->"
ROW = re.compile(r"^\| (?P<claim>.+) \| `(?P<command>[^`]*?experiments/(?P<name>\w+)\.py[^`]*)` \|$", re.MULTILINE)


class Experiment(NamedTuple):
    """One experiment.

    Attributes:
        name: of its file.
        claim: what it shows.
        command: that runs it.
        held: claims that hold by the result file; None: the file lists none.
        failed: those that do not.
        picture: whether there is one.
    """

    name: str
    claim: str
    command: str
    held: int | None
    failed: tuple[str, ...]
    picture: bool

    @property
    def verdict(self) -> str:
        """What the result file says of the claims."""
        if self.held is None:
            return "results reported"
        total = self.held + len(self.failed)
        if not self.failed:
            return f"all {total} claims hold" if total > 1 else "the claim holds"
        return f"{self.held} of {total} claims hold; not: {'; '.join(self.failed)}"

    def card(self) -> str:
        """Return it as Markdown."""
        image = f"![{self.claim}](../experiments/{self.name}.png)\n\n" if self.picture else ""
        return f"### {self.claim}\n\n{image}**Verdict:** {self.verdict}. `{self.command}`\n"


def experiments(folder: Path) -> list[Experiment]:
    """Return the experiments that a folder's README lists, in its order."""
    found: list[Experiment] = []
    for row in ROW.finditer((folder / "README.md").read_text(encoding="utf-8")):
        results, claims = folder / f"{row['name']}.json", None
        if results.is_file():
            data = json.loads(results.read_text(encoding="utf-8"))
            claims = data.get("claims") if isinstance(data, dict) else None
        found.append(
            Experiment(
                name=row["name"],
                claim=row["claim"],
                command=row["command"],
                held=None if claims is None else sum(claims.values()),
                failed=tuple(name for name, holds in (claims or {}).items() if not holds),
                picture=(folder / f"{row['name']}.png").is_file(),
            )
        )
    return found


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the gallery in the place of its mark."""
    del page, files
    if MARK not in markdown:
        return markdown
    folder = Path(config.config_file_path).parent / "experiments"
    return markdown.replace(MARK, "\n".join(experiment.card() for experiment in experiments(folder)))
