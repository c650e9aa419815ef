"""Draw the diagrams of the pages as SVG in the page itself, so that they follow its colors.

A page asks for one by `<!-- diagram: NAME -->`. Those of single algorithms are in `flows.py` (blocks and arrows),
`backups.py` (backup diagrams) and `curves.py` (curves of `operant.ops`).
"""

import re
from collections.abc import Callable, Mapping, Sequence

from backups import BACKUPS
from curves import CURVES
from drawing import LINE, Drawing
from flows import FLOWS
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from operant import catalog

MARK = re.compile(r"^<!-- diagram: ([\w-]+) -->$", re.MULTILINE)


def agent_and_environment() -> Drawing:
    """Draw the loop of Sutton and Barto's figure 3.1."""
    drawing = Drawing(
        520, 200, "Agent and environment", "The agent acts; the environment answers with a reward and the next state."
    )
    drawing.box(190, 20, 140, 46, "agent\nπ(a | s)", kind="learned")
    drawing.box(190, 134, 140, 46, "environment\nP(s', r | s, a)")
    drawing.arrow([(330, 43), (430, 43), (430, 157), (332, 157)], "action a_t", (436, 100), anchor="start")
    drawing.arrow([(190, 148), (90, 148), (90, 34), (188, 34)], "state\ns_{t+1}", (62, 91))
    drawing.arrow([(190, 166), (120, 166), (120, 52), (188, 52)], "reward\nr_t", (152, 100))
    return drawing


def dqn() -> Drawing:
    """Draw DQN's two networks and its replay buffer (Mnih et al. 2015)."""
    drawing = Drawing(
        720,
        250,
        "DQN's two networks",
        "Transitions go from the environment to a replay buffer. The online network learns from minibatches; its "
        "targets come from a target network, which is a copy of it from some steps ago.",
    )
    drawing.box(20, 100, 120, 46, "environment")
    drawing.box(210, 100, 130, 46, "replay buffer\n(s, a, r, s')")
    drawing.box(430, 30, 150, 50, "online network\nQ(s, a; θ)", kind="learned")
    drawing.box(430, 166, 150, 50, "target network\nQ(s', a'; θ⁻)", kind="frozen")
    drawing.box(610, 100, 95, 46, "Huber loss")
    drawing.arrow([(140, 123), (208, 123)], "transition", (174, 114))
    drawing.arrow([(340, 112), (385, 112), (385, 55), (428, 55)], "s, a", (404, 84))
    drawing.arrow([(340, 134), (385, 134), (385, 191), (428, 191)], "r, s'", (404, 164))
    drawing.arrow([(580, 55), (657, 55), (657, 98)], "Q(s, a)", (632, 46))
    drawing.arrow([(580, 191), (657, 191), (657, 148)], "r + γ max Q", (650, 206))
    drawing.arrow([(505, 80), (505, 164)], "copy every\nC steps", (512, 122), anchor="start")
    drawing.arrow([(430, 42), (80, 42), (80, 98)], "ε-greedy action", (250, 33))
    return drawing


def rlhf() -> Drawing:
    """Draw the three stages of RLHF (Ouyang et al. 2022)."""
    drawing = Drawing(
        760,
        290,
        "The three stages of RLHF",
        "Demonstrations train a policy. Comparisons of its answers train a reward model. PPO trains the policy on the "
        "reward minus the divergence from where it began, with a critic.",
    )
    drawing.text(110, 20, "1  sft")
    drawing.text(365, 20, "2  reward-model")
    drawing.text(635, 20, "3  rlhf")
    drawing.box(20, 40, 180, 40, "demonstrations")
    drawing.box(20, 120, 180, 46, "policy π_SFT\n-log π(y | x)", kind="learned")
    drawing.box(275, 40, 180, 40, "people compare answers")
    drawing.box(275, 120, 180, 46, "reward model r(x, y)\n-log σ(r⁺ - r⁻)", kind="learned")
    drawing.box(545, 40, 180, 40, "prompts x")
    drawing.box(545, 120, 180, 46, "policy π and critic V\nPPO on tokens", kind="learned")
    drawing.box(275, 225, 180, 46, "reference π_SFT\nβ KL(π ‖ π_SFT)", kind="frozen")
    drawing.arrow([(110, 80), (110, 118)])
    drawing.arrow([(365, 80), (365, 118)])
    drawing.arrow([(635, 80), (635, 118)])
    drawing.arrow([(200, 143), (236, 143), (236, 60), (273, 60)], "samples", (238, 48))
    drawing.arrow([(110, 166), (110, 248), (273, 248)], "a frozen copy", (180, 240))
    drawing.arrow([(455, 143), (543, 143)], "reward", (499, 134))
    drawing.arrow([(455, 248), (600, 248), (600, 168)], "minus the divergence", (525, 263))
    drawing.arrow([(670, 166), (670, 200), (740, 200), (740, 143), (727, 143)], "answers", (700, 212))
    return drawing


def ppo_and_grpo() -> Drawing:
    """Draw what GRPO leaves out of PPO (Shao et al. 2024, figure 4)."""
    drawing = Drawing(
        740,
        300,
        "PPO next to GRPO",
        "PPO estimates advantages of each token with a critic, by generalized advantage estimation. GRPO samples "
        "several answers to a prompt and takes the distance of each reward from their mean.",
    )
    drawing.text(30, 20, "rlhf (PPO)", anchor="start")
    drawing.box(20, 50, 90, 40, "prompt")
    drawing.box(150, 50, 110, 40, "policy π", kind="learned")
    drawing.box(300, 50, 90, 40, "one answer")
    drawing.box(440, 20, 130, 34, "reward model", kind="frozen")
    drawing.box(440, 64, 130, 34, "reference", kind="frozen")
    drawing.box(440, 108, 130, 34, "critic V", kind="learned")
    drawing.box(620, 58, 100, 46, "GAE\nÂ_t of a token")
    drawing.text(30, 175, "grpo", anchor="start")
    drawing.box(20, 205, 90, 40, "prompt")
    drawing.box(150, 205, 110, 40, "policy π", kind="learned")
    drawing.box(300, 195, 90, 60, "G answers\ny₁ ... y_G")
    drawing.box(440, 185, 130, 34, "verifier or model", kind="frozen")
    drawing.box(440, 232, 130, 34, "reference", kind="frozen")
    drawing.box(620, 195, 105, 46, "(r_i - mean) / sd\nÂ of an answer")
    for y in (70, 225):
        drawing.arrow([(110, y), (148, y)])
        drawing.arrow([(260, y), (298, y)])
    for y in (37, 81, 125):
        drawing.arrow([(390, 70), (415, 70), (415, y), (438, y)])
        drawing.arrow([(570, y), (595, y), (595, 81), (618, 81)])
    drawing.arrow([(390, 225), (415, 225), (415, 202), (438, 202)])
    drawing.arrow([(390, 225), (415, 225), (415, 249), (438, 249)])
    drawing.arrow([(570, 202), (595, 202), (595, 218), (618, 218)])
    drawing.arrow(
        [(570, 249), (672, 249), (672, 280), (205, 280), (205, 247)], "β KL in the loss, not in the reward", (440, 293)
    )
    return drawing


FAMILIES: Mapping[str, str] = {
    "bandit": "Bandits",
    "prediction": "Prediction",
    "value": "Value based",
    "policy": "Policy gradient",
    "actor-critic": "Actor-critic",
    "search": "Search",
    "imitation": "Imitation",
    "reward": "Reward models",
}
"""Titles of families, in the order of the picture; others follow by their own name."""


def taxonomy() -> Drawing:
    """Draw the catalog: packages, families, and the algorithms in them."""
    packages = {"tabular": "Tables", "control": "Networks", "language": "Language models"}
    rows: list[tuple[str, str, list[str]]] = []
    for package, title in packages.items():
        entries = [entry for entry in catalog.ALGORITHMS if entry.package == package]
        families = sorted({entry.family for entry in entries}, key=lambda name: [*FAMILIES, name].index(name))
        for family in families:
            names = [entry.name for entry in entries if entry.family == family]
            rows.append((title, FAMILIES.get(family, family.capitalize()), _wrapped(names, 62)))
    height = 30 + sum(LINE * len(lines) + 16 for _, _, lines in rows)
    drawing = Drawing(
        760, height, "The algorithms by family", "Each line is a family of algorithms, by what they learn from."
    )
    y, former = 20.0, ""
    for title, family, lines in rows:
        size = LINE * len(lines) + 8
        if title != former:
            drawing.text(10, y + size / 2, title, anchor="start")
            former = title
        drawing.box(130, y, 130, size, family)
        drawing.arrow([(260, y + size / 2), (284, y + size / 2)])
        drawing.text(292, y + size / 2, "\n".join(lines), anchor="start")
        y += size + 8
    return drawing


def _wrapped(names: Sequence[str], columns: int) -> list[str]:
    lines = [""]
    for name in names:
        if lines[-1] and len(lines[-1]) + len(name) + 2 > columns:
            lines.append("")
        lines[-1] += (", " if lines[-1] else "") + name
    return lines


DIAGRAMS: Mapping[str, Callable[[], Drawing]] = {
    "agent-and-environment": agent_and_environment,
    "dqn": dqn,
    "rlhf": rlhf,
    "ppo-and-grpo": ppo_and_grpo,
    "taxonomy": taxonomy,
    **BACKUPS,
    **CURVES,
    **FLOWS,
}
"""The diagrams by name."""


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put diagrams in the place of their marks."""
    del page, config, files
    return MARK.sub(lambda match: DIAGRAMS[match[1]]().svg(), markdown)
