"""`operant label`."""

import getpass
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from operant.cli.agreement import agreement_fields, agreement_text
from operant.cli.arguments import Answering, parse
from operant.cli.output import location, print_json, require_extra, say

if TYPE_CHECKING:
    from operant.language.data import Row
    from operant.language.preferences import Outcome, PreferenceStore, Presentation, Text

LETTERS = "ABCDEFGHI"
"""What the completions of an item are called on the screen, in the order shown."""


@dataclass(frozen=True)
class LabelOptions(Answering):
    """Compare what a run has sampled, in the terminal: which completion of a prompt is better?

    Prompts and completions come from RUN/eval/samples.jsonl, which are held-out prompts, or by --prompts and --ask from
    elsewhere. Answers go to RUN/preferences.sqlite. Whatever is shown as saved is on the disk. Without a terminal,
    answers are read line by line from standard input.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""

    annotator: str | None = None
    """Who answers, or has answered what is imported. Exported files hold a pseudonym. Default: your login name, and
    "imported" for imports."""

    completions: int = 2
    """How many completions of a prompt are put side by side, when samples are seen for the first time; 2 to 9."""

    overlap: int = 1
    """How many annotators are to judge each item."""

    seed: int = 0
    """Of the order in which completions are put together and shown."""

    repeat: tyro.conf.FlagCreatePairsOff[bool] = False
    """Ask again what you have judged before, to measure how steady your answers are."""

    import_: Annotated[Path | None, tyro.conf.arg(name="import")] = None
    """Add the labels of a JSONL file: {prompt, chosen, rejected}, {context, completions: [{rank, completion}]}, or a
    log that --format events has written. Nothing is asked."""

    ask: Path | None = None
    """Ask about the prompts and answers of this file, too: {prompt, completions}, or pairs; their order is not used.
    Prompts alone, {prompt}, are answered by the policy of the run."""

    prompts: Literal["training", "held-out"] | None = None
    """Ask about prompts of the run's own task or data set, and about no others: those to train on, or those that
    policies are scored by. The policy of the run answers them. Default: about what the run sampled in evaluations."""

    count: int = 32
    """How many prompts --prompts takes; those with labels count."""

    seed_index: int = 0
    """Which seed of the run answers prompts: its place among the seeds of the run, from 0."""

    best: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let the weights answer that did best in the evaluations, not the latest ones."""

    device: str = "auto"
    """Where answers are computed: cpu, cuda, cuda:1, mps, or auto: a GPU if there is one."""

    remote_code: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let Python code that comes with the model of the run run. It can do anything; only for authors you trust."""

    accept_changes: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let the run answer prompts where the model that it began with has changed since."""

    export: Path | None = None
    """Write the labels to this JSONL file, and a manifest beside it. Nothing is asked."""

    format: Literal["pairs", "rankings", "events"] = "pairs"
    """Of the exported file: TRL's pairs (ties are left out), NeMo-RL's rankings, or the log of all events."""

    names: tyro.conf.FlagCreatePairsOff[bool] = False
    """Export the annotators' names instead of pseudonyms."""

    held_out: Literal["with", "without", "only"] = "without"
    """Which labels are exported. What a run samples in evaluations answers held-out prompts, by which policies are
    scored: train on the labels of others (without), and score by these alone (only). A log of events has all."""

    agreement: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print how far the annotators agree. Nothing is asked."""

    rebuild: tyro.conf.FlagCreatePairsOff[bool] = False
    """Make a damaged or lost database anew from preferences.events.jsonl. Nothing is asked."""

    web: tyro.conf.FlagCreatePairsOff[bool] = False
    """Label in the browser, on the page of `operant serve` (extra: web)."""

    def __post_init__(self) -> None:
        if not 2 <= self.completions <= len(LETTERS):
            raise ValueError(f"completions must be from 2 to {len(LETTERS)}, got {self.completions}")
        if self.overlap < 1 or self.seed < 0:
            raise ValueError(f"overlap must be at least 1 and seed at least 0, got {self.overlap} and {self.seed}")
        if self.annotator == "":
            raise ValueError("annotator must be a name, got an empty one")
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")
        if self.web and (self.ask or self.prompts or self.import_ or self.export or self.agreement or self.rebuild):
            raise ValueError("web opens the page and does nothing else: give the other options to a command before it")


def label(arguments: list[str]) -> int:
    """Label, or do one of the chores."""
    options = parse(LabelOptions, arguments, "label")
    if not options.run.is_dir():
        raise ValueError(f"{options.run} is not the folder of a run")
    if options.web:
        return _browse(options)
    from operant.language.preferences import PreferenceStore, rebuild

    database, samples = options.run / "preferences.sqlite", options.run / "eval" / "samples.jsonl"
    if options.rebuild:
        count = rebuild(database)
        say(f"made anew: {location(database)} with {count} items and events")
        return 0
    if not (
        database.exists()
        or database.with_suffix(".events.jsonl").exists()
        or samples.exists()
        or options.import_
        or options.ask
        or options.prompts
    ):
        raise ValueError(
            f"there is nothing to label: {samples} does not exist, and nothing was imported with --import; the run "
            "answers prompts of its task with --prompts training"
        )
    chores = options.import_ or options.export or options.agreement
    given = [] if chores else _given(options)  # before anything is written
    with PreferenceStore(database, seed=options.seed) as store:
        if chores:
            _chores(store, options)
            return 0
        for rows, path in given:
            _answer(store, options, rows) if path is None else _compare(store, options, rows, path)
        if options.prompts is None and samples.exists():
            _add(store, options, samples)
        if not store.items():
            what = samples if options.prompts is None else f"{options.count} {options.prompts} prompts"
            raise ValueError(f"there is nothing to label: no prompt in {what} has two different completions")
        return Session(store, options).run()


def _browse(options: LabelOptions) -> int:
    """Serve the page that labels this run."""
    from urllib.parse import urlencode

    from operant.cli.serving import start

    run = options.run.resolve()
    asked = {"run": run.name, "as": options.annotator or _login(), "overlap": options.overlap}
    return start(run.parent, 0, page=f"/labels#{urlencode(asked)}")


def _chores(store: "PreferenceStore", options: LabelOptions) -> None:
    from operant.language.preferences import agreement, export, import_file

    answer: dict[str, Any] = {}
    if options.import_ is not None:
        imported = import_file(store, options.import_, annotator=options.annotator or "imported")
        say(f"imported: {imported.rows} lines, {imported.items} new items, {imported.events} new labels")
        answer["imported"] = vars(imported)
    if options.export is not None:
        exported = export(store, options.export, form=options.format, names=options.names, held_out=options.held_out)
        left = ", ".join(f"{count} {outcome}" for outcome, count in exported.left_out.items())
        say(f"exported: {exported.rows} lines to {location(exported.path)}" + (f"; left out: {left}" if left else ""))
        if exported.left_out.get("held-out"):
            say(
                f"{exported.left_out['held-out']} lines about held-out prompts, by which policies are scored, were "
                "left out: write them with --held-out with or only; label others with --prompts training"
            )
        if exported.held_out and options.held_out == "with" and options.format != "events":
            say(
                f"{exported.held_out} of {exported.rows} lines are on held-out prompts: a policy that trains on them "
                "must not be scored by them; leave them out with --held-out without"
            )
        answer["exported"] = {"path": str(exported.path), "rows": exported.rows, "left_out": exported.left_out}
        answer["exported"]["held_out"] = exported.held_out
    if options.agreement:
        report = agreement(store.items(), store.labels(), seed=options.seed)
        answer["agreement"] = agreement_fields(report)
        if not options.json:
            print(agreement_text(report))
    if options.json:
        print_json(answer)


def _add(store: "PreferenceStore", options: LabelOptions, samples: Path) -> None:
    from operant.language.preferences import add_samples

    name = options.run.resolve().name
    new, prompts = add_samples(store, samples, run=name, completions=options.completions, seed=options.seed)
    if new:
        say(f"{new} new items from the samples of {prompts} prompts")


def _given(options: LabelOptions) -> "list[tuple[list[Row], Path | None]]":
    """Return the rows that --ask and --prompts name, each with the file whose answers are compared, if any."""
    from operant.language.data import kind, read_rows

    found: list[tuple[list[Row], Path | None]] = []
    if options.ask is not None:
        rows = read_rows(options.ask)
        alone = kind(rows, accept=("preference", "ranking", "prompt-only")) == "prompt-only"
        found.append((rows, None if alone else options.ask))
    if options.prompts is not None:
        from operant.language.preferences.sampling import prompts_of
        from operant.runtime.run import Run

        rows = prompts_of(Run.open(options.run), options.prompts, options.count, index=options.seed_index)
        if len(rows) < options.count:
            say(f"the run has {len(rows)} {options.prompts} prompts, fewer than the {options.count} asked for")
        found.append((rows, None))
    return found


def _compare(store: "PreferenceStore", options: LabelOptions, rows: "list[Row]", path: Path) -> None:
    """Add the answers of a file."""
    from operant.language.preferences import add_rows

    shared: dict[str, Any] = {"completions": options.completions, "seed": options.seed}
    new = add_rows(store, rows, file=path.name, held_out=_held_out(options), **shared)
    say(f"{new} new items from {len(rows)} rows of {path}")


def _answer(store: "PreferenceStore", options: LabelOptions, rows: "list[Row]") -> None:
    """Add prompts with answers of the run's policy."""
    require_extra("language", "a language model", ["transformers", "tokenizers", "peft"])
    from operant.language.preferences.sampling import Policy
    from operant.runtime.machine import chosen_device
    from operant.runtime.run import Run

    policy = Policy(
        Run.open(options.run),
        index=options.seed_index,
        best=options.best,
        device=chosen_device(options.device),
        remote_code=options.remote_code,
        accept_changes=options.accept_changes,
    )
    shared: dict[str, Any] = {"completions": options.completions, "seed": options.seed}
    found = policy.add_answers(store, rows, held_out=_held_out(options), **shared)
    alike = f"; {found.alike} prompts got the same answer each time" if found.alike else ""
    if found.prompts:
        say(f"{found.items} new items from answers of the run to {found.prompts} of {len(rows)} prompts{alike}")


def _held_out(options: LabelOptions) -> set[str]:
    """Return the prompts by which policies of the run are scored; none where the folder is of no language model."""
    from operant.language.preferences.sampling import held_out_prompts
    from operant.runtime.run import Run, RunError

    if not (options.run / "config.toml").exists():
        return set()
    try:
        return held_out_prompts(Run.open(options.run))
    except (OSError, ValueError, RunError) as error:
        say(f"operant: which prompts are held out is not known, so none of them is marked so: {error}")
        return set()


class Session:
    """One annotator at work."""

    def __init__(self, store: "PreferenceStore", options: LabelOptions):
        """Prepare for `run`; nothing is stored yet."""
        self._store = store
        self._options = options
        self._annotator = options.annotator or _login()
        self._answered = 0
        self._among = self._asked_for()

    def run(self) -> int:
        """Show items and store answers until nothing is left, input ends, or the annotator quits."""
        presentation = self._next()
        print(f"{self._annotator}: {self._count()} labels so far. Every answer is saved at once.", flush=True)
        while presentation is not None:
            print(show(presentation), flush=True)
            presentation = self._ask(presentation)
            if presentation == "quit":
                return self._end("go on with the same command")
            presentation = presentation or self._next()
        waiting = self._store.waiting(self._annotator, repeat=self._options.repeat)
        return self._end(f"{waiting} left stand in another window" if waiting else "nothing is left to label")

    def _next(self) -> "Presentation | None":
        options = self._options
        names = {"overlap": options.overlap, "repeat": options.repeat}
        return self._store.next_item(self._annotator, among=self._among, **names)

    def _asked_for(self) -> set[str] | None:
        """Return the items that --prompts asks about; None for all."""
        from operant.language.preferences import scored_items

        if self._options.prompts is None:
            return None
        items = self._store.items()
        scored = scored_items(items)
        return scored if self._options.prompts == "held-out" else {item.item_id for item in items} - scored

    def _ask(self, presentation: "Presentation") -> "Presentation | Literal['quit'] | None":
        """Take one answer; return what is to be shown next if it is not simply the next item."""
        from operant.language.preferences import ConflictError, new_event_id

        shown_at, begin, event_id = time.time(), time.monotonic(), new_event_id()
        while True:
            print(f"{keys(len(presentation.shown))}: ", end="", flush=True)
            line = sys.stdin.readline()
            if not line or line.strip().lower() in ("q", "quit"):
                print()
                return "quit"
            if line.strip().lower() in ("u", "undo"):
                undone = self._undo()
                if undone is not None:
                    return undone
                continue
            try:
                outcome, ranks = read_answer(line, len(presentation.shown))
            except ValueError as error:
                print(error, flush=True)
                continue
            answered_at = shown_at + time.monotonic() - begin
            try:
                self._store.record(
                    presentation, outcome, event_id=event_id, ranks=ranks, shown_at=shown_at, answered_at=answered_at
                )
            except ConflictError:  # nothing was stored, the other answer holds
                print("answered in another window already, and that holds; here is the next one\n", flush=True)
                return None
            self._answered += 1
            print(f"saved: {line.strip() if ranks else outcome}\n", flush=True)
            return None

    def _undo(self) -> "Presentation | None":
        from operant.language.preferences import new_event_id

        with self._store.transaction():  # between the two another window could take the item
            event = self._store.undo(self._annotator, event_id=new_event_id())
            again = event and self._store.present(event.item_id, event.annotator, round=event.round)
        print("undone: asked again\n" if again else "there is nothing to undo", flush=True)
        return again

    def _count(self) -> int:
        return sum(event.annotator == self._annotator for event in self._store.labels())

    def _end(self, what: str) -> int:
        print(f"{self._answered} answers saved, {self._count()} labels by {self._annotator} in all; {what}.")
        return 0


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return "me"


def keys(count: int) -> str:
    """Return what can be answered to `count` completions."""
    choice = "a, b: the better one" if count == 2 else "best first, such as bac, or b a=c for equals"
    return f"[{choice} | t: tie | n: neither is good | s: skip | u: undo | q: quit]"


def read_answer(line: str, count: int) -> "tuple[Outcome, tuple[int, ...] | None]":
    """Return the outcome, and the ranks if it is a ranking.

    Args:
        line: what was typed.
        count: how many completions were shown.

    Raises:
        ValueError: it is no answer; the message says what is one.
    """
    words: dict[str, Outcome] = {"t": "tie", "n": "both-bad", "s": "skip"}
    words |= {"tie": "tie", "neither": "both-bad", "skip": "skip"}
    if count == 2:
        words |= {"a": "A", "b": "B"}
    typed = line.strip().lower()
    if typed in words:
        return words[typed], None
    letters = LETTERS[:count].lower()
    tight = "".join(typed.split())
    if count > 2 and sorted(tight.replace("=", "")) == list(letters):
        ranks, rank = [0] * count, 1
        for before, letter in zip(" " + tight, tight, strict=False):
            if letter != "=":
                rank += before not in " ="
                ranks[letters.index(letter)] = rank
        if not tight.startswith("=") and not tight.endswith("=") and "==" not in tight:
            return ("ranking", tuple(ranks)) if rank > 1 else ("tie", None)
    raise ValueError(f"{line.strip()!r} is no answer; these are: {keys(count)}")


def show(presentation: "Presentation") -> str:
    """Return an item as text; what could steer the terminal is shown as its code instead."""
    parts = ["-" * 72, "PROMPT", _indented(presentation.prompt)]
    for letter, text in zip(LETTERS, presentation.completions, strict=False):
        parts += [letter, _indented(text)]
    return "\n".join(parts) + "\n"


def _indented(text: "Text") -> str:
    if not isinstance(text, str):
        text = "\n".join(f"{message.get('role')}: {message.get('content')}" for message in text)
    visible = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    return "\n".join(f"    {line}" for line in (visible or "(empty)").split("\n"))
