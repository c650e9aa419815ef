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
from operant.cli.output import print_json, require_extra, say
from operant.runtime.run_paths import is_run, location

if TYPE_CHECKING:
    from operant.language.data import Row
    from operant.language.preferences import Outcome, PreferenceStore, Presentation, Text

LETTERS = "ABCDEFGHI"
"""Letters of an item's completions, in the order displayed."""


@dataclass(frozen=True)
class LabelOptions(Answering):
    """Label preferences in the terminal: which completion of a prompt is better?

    Prompts and completions come from RUN/eval/samples.jsonl, with held-out prompts, or from --prompts and --ask.
    Labels are stored in RUN/preferences.sqlite; those reported as saved are on disk. Without a terminal, labels are
    read line by line from standard input.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""

    annotator: str | None = None
    """Name of the annotator, including that of imported labels. Exported files contain a pseudonym. Default: your login
    name, and "imported" for imports."""

    completions: int = 2
    """Number of completions to compare per prompt, from 2 to 9; it takes effect when samples are first read."""

    overlap: int = 1
    """Target number of annotators per item."""

    seed: int = 0
    """Random seed of the order of completions."""

    repeat: tyro.conf.FlagCreatePairsOff[bool] = False
    """Repeat items that you have labeled, to measure consistency."""

    import_: Annotated[Path | None, tyro.conf.arg(name="import")] = None
    """Import the labels of a JSONL file: {prompt, chosen, rejected}, {context, completions: [{rank, completion}]}, or a
    log from --format events; then exit."""

    ask: Path | None = None
    """Also label the prompts and answers of this file: {prompt, completions}, or pairs, whose order is ignored. Prompts
    without answers, {prompt}, are answered by the run's policy."""

    prompts: Literal["training", "held-out"] | None = None
    """Label answers of the run's policy to prompts of its task or data set: training prompts, or held-out ones.
    Default: samples of the run's evaluations."""

    count: int = 32
    """Number of prompts for --prompts, including those already labeled."""

    seed_index: int = 0
    """Index of the seed of the run that answers prompts, from 0."""

    best: tyro.conf.FlagCreatePairsOff[bool] = False
    """Use the weights with the best evaluation instead of the latest ones."""

    device: str = "auto"
    """Device for answers: cpu, cuda, cuda:1, mps, or auto (a GPU if available)."""

    remote_code: tyro.conf.FlagCreatePairsOff[bool] = False
    """Allow Python code that comes with the run's model. The code is not restricted: only for authors you trust."""

    accept_changes: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let the run answer prompts even if its initial model has changed."""

    export: Path | None = None
    """Export the labels to this JSONL file, with a manifest next to it; then exit."""

    format: Literal["pairs", "rankings", "events"] = "pairs"
    """Format of the exported file: TRL's pairs (without ties), NeMo-RL's rankings, or the log of all events."""

    names: tyro.conf.FlagCreatePairsOff[bool] = False
    """Export the annotators' names instead of pseudonyms."""

    held_out: Literal["with", "without", "only"] = "without"
    """Whether to export labels on held-out prompts, on which policies are evaluated (all samples of a run's evaluations
    have such prompts): with, without (for training) or only (for evaluation). A log of events contains all labels."""

    agreement: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the agreement of the annotators, and exit."""

    rebuild: tyro.conf.FlagCreatePairsOff[bool] = False
    """Rebuild a damaged or lost database from preferences.events.jsonl, and exit."""

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
            raise ValueError("--web only opens the page: run the command with the other options separately first")


def label(arguments: list[str]) -> int:
    """Label preferences, or import, export, compare or restore labels."""
    options = parse(LabelOptions, arguments, "label")
    if not options.run.is_dir():
        raise ValueError(f"{options.run} is not the folder of a run")
    if options.web:
        return _browse(options)
    from operant.language.preferences import PreferenceStore, rebuild

    database, samples = options.run / "preferences.sqlite", options.run / "eval" / "samples.jsonl"
    if options.rebuild:
        count = rebuild(database)
        say(f"rebuilt: {location(database)} with {count} items and events")
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
            f"there is nothing to label: {samples} does not exist, and nothing was imported with --import; with "
            "--prompts training, the run answers prompts of its task"
        )
    chores = options.import_ or options.export or options.agreement
    examples = [] if chores else _examples(options)  # check them before writing anything
    with PreferenceStore(database, seed=options.seed) as store:
        if chores:
            _chores(store, options)
            return 0
        for rows, path in examples:
            _answer(store, options, rows) if path is None else _compare(store, options, rows, path)
        if options.prompts is None and samples.exists():
            _add(store, options, samples)
        if not store.items():
            what = samples if options.prompts is None else f"{options.count} {options.prompts} prompts"
            raise ValueError(f"there is nothing to label: no prompt in {what} has two different completions")
        return Session(store, options).run()


def _browse(options: LabelOptions) -> int:
    """Serve the labeling page of this run."""
    from urllib.parse import urlencode

    from operant.cli.serving import start

    run = options.run.resolve()
    samples = run / "eval" / "samples.jsonl"
    if samples.exists():  # the page alone would create pairs
        from operant.language.preferences import PreferenceStore

        with PreferenceStore(run / "preferences.sqlite", seed=options.seed) as store:
            _add(store, options, samples)
    asked = {"run": run.name, "as": options.annotator or _login(), "overlap": options.overlap}
    if options.repeat:
        asked["repeat"] = 1
    return start(run.parent, 0, page=f"/labels#{urlencode(asked)}")


def _chores(store: "PreferenceStore", options: LabelOptions) -> None:
    from operant.language.preferences import agreement, export, import_file

    answer: dict[str, Any] = {}
    if options.import_ is not None:
        imported = import_file(store, options.import_, annotator=options.annotator or "imported")
        skipped = f"; skipped: {imported.skipped} lines without two different completions" * bool(imported.skipped)
        say(f"imported: {imported.rows} lines, {imported.items} new items, {imported.events} new labels{skipped}")
        answer["imported"] = vars(imported)
    if options.export is not None:
        exported = export(store, options.export, form=options.format, names=options.names, held_out=options.held_out)
        left = ", ".join(f"{count} {outcome}" for outcome, count in exported.left_out.items())
        say(f"exported: {exported.rows} lines to {location(exported.path)}" + (f"; left out: {left}" if left else ""))
        if exported.left_out.get("held-out"):
            say(
                f"{exported.left_out['held-out']} lines on held-out prompts, which are for evaluation, were "
                "left out: export them with --held-out with or only; label training prompts with --prompts training"
            )
        if exported.held_out and options.held_out == "with" and options.format != "events":
            say(
                f"{exported.held_out} of {exported.rows} lines are on held-out prompts: a policy that trains on them "
                "must not be scored on them; leave them out with --held-out without"
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


def _examples(options: LabelOptions) -> "list[tuple[list[Row], Path | None]]":
    """Return the examples of --ask and --prompts, each with the file of its answers, if any."""
    from operant.language.data import Kind, kind, read_rows

    found: list[tuple[list[Row], Path | None]] = []
    if options.ask is not None:
        accepted: tuple[Kind, ...] = ("preference", "ranking", "prompt-only")
        rows = read_rows(options.ask, accept=accepted)
        alone = kind(rows, accept=accepted) == "prompt-only"
        found.append((rows, None if alone else options.ask))
    if options.prompts is not None:
        from operant.language.preferences.sampling import prompts_of
        from operant.runtime.run import Run

        rows = prompts_of(Run.open(options.run), options.prompts, options.count, index=options.seed_index)
        if len(rows) < options.count:
            say(f"the run has {len(rows)} {options.prompts} prompts, fewer than the requested {options.count}")
        found.append((rows, None))
    return found


def _compare(store: "PreferenceStore", options: LabelOptions, rows: "list[Row]", path: Path) -> None:
    """Add items with the answers of a file."""
    from operant.language.preferences import add_rows

    shared: dict[str, Any] = {"completions": options.completions, "seed": options.seed}
    new = add_rows(store, rows, file=path.name, held_out=_held_out(options), **shared)
    say(f"{new} new items from {len(rows)} rows of {path}")


def _answer(store: "PreferenceStore", options: LabelOptions, rows: "list[Row]") -> None:
    """Add items with answers of the run's policy."""
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
    """Return the held-out prompts of the run; empty unless it trained a language model."""
    from operant.language.preferences.sampling import held_out_prompts
    from operant.runtime.run import Run, RunError

    if not is_run(options.run):
        return set()
    try:
        return held_out_prompts(Run.open(options.run))
    except (OSError, ValueError, RunError) as error:
        say(f"operant: the held-out prompts are unknown, so none is marked: {error}")
        return set()


class Session:
    """A labeling session of one annotator."""

    def __init__(self, store: "PreferenceStore", options: LabelOptions):
        """Initialize the session without storing anything."""
        self._store = store
        self._options = options
        self._annotator = options.annotator or _login()
        self._answered = 0
        self._among = self._asked_for()

    def run(self) -> int:
        """Display items and store labels until no item is left, the input ends, or the annotator quits."""
        presentation = self._next()
        print(f"{self._annotator}: {self._count()} labels so far. Every answer is saved immediately.", flush=True)
        while presentation is not None:
            print(show(presentation), flush=True)
            presentation = self._ask(presentation)
            if presentation == "quit":
                return self._end("continue with the same command")
            presentation = presentation or self._next()
        waiting = self._store.waiting(self._annotator, repeat=self._options.repeat)
        return self._end(f"{waiting} items are open in another window" if waiting else "nothing is left to label")

    def _next(self) -> "Presentation | None":
        options = self._options
        return self._store.next_item(self._annotator, among=self._among, overlap=options.overlap, repeat=options.repeat)

    def _asked_for(self) -> set[str] | None:
        """Return the items of --prompts; None for all."""
        from operant.language.preferences import scored_items

        if self._options.prompts is None:
            return None
        items = self._store.items()
        scored = scored_items(items)
        return scored if self._options.prompts == "held-out" else {item.item_id for item in items} - scored

    def _ask(self, presentation: "Presentation") -> "Presentation | Literal['quit'] | None":
        """Process one answer; return the item to display next, or None for the next one in order."""
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
            except ConflictError:  # nothing was stored; the other answer is kept
                print("already labeled in another window; next item:\n", flush=True)
                return None
            self._answered += 1
            print(f"saved: {line.strip() if ranks else outcome}\n", flush=True)
            return None

    def _undo(self) -> "Presentation | None":
        from operant.language.preferences import new_event_id

        with self._store.transaction():  # another window could take the item in between
            event = self._store.undo(self._annotator, event_id=new_event_id())
            again = event and self._store.present(event.item_id, event.annotator, round=event.round)
        print("undone; label it again:\n" if again else "there is nothing to undo", flush=True)
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
    """Return a description of the valid answers for `count` completions."""
    choice = "a, b: the better one" if count == 2 else "best first, such as bac, or b a=c for equals"
    return f"[{choice} | t: tie | n: neither is good | s: skip | u: undo | q: quit]"


def read_answer(line: str, count: int) -> "tuple[Outcome, tuple[int, ...] | None]":
    """Parse an answer into its outcome, and its ranks if it is a ranking.

    Args:
        line: typed line.
        count: number of completions.

    Raises:
        ValueError: the line is not a valid answer; the message lists the valid ones.
    """
    outcomes: dict[str, Outcome] = {"t": "tie", "n": "both-bad", "s": "skip"}
    outcomes |= {"tie": "tie", "neither": "both-bad", "skip": "skip"}
    if count == 2:
        outcomes |= {"a": "A", "b": "B"}
    typed = line.strip().lower()
    if typed in outcomes:
        return outcomes[typed], None
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
    raise ValueError(f"{line.strip()!r} is not a valid answer; choose from: {keys(count)}")


def show(presentation: "Presentation") -> str:
    """Return an item as text, with visible control characters."""
    parts = ["-" * 72, "PROMPT", _indented(presentation.prompt)]
    for letter, text in zip(LETTERS, presentation.completions, strict=False):
        parts += [letter, _indented(text)]
    return "\n".join(parts) + "\n"


def _indented(text: "Text") -> str:
    if not isinstance(text, str):
        text = "\n".join(f"{message.get('role')}: {message.get('content')}" for message in text)
    visible = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    return "\n".join(f"    {line}" for line in (visible or "(empty)").split("\n"))
