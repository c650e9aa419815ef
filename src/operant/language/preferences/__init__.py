"""Human preferences: a durable store of comparisons, agreement statistics, files, a simulated annotator.

`PreferenceStore` stores items (a prompt with two or more completions) and an append-only log of answers; the command
line and all other front ends use it:

    with PreferenceStore("runs/x/preferences.sqlite") as store:
        store.add_item(Item.of("2 + 2 = ", ["4", "5"]))
        while presentation := store.next_item("ann"):
            outcome = ...  # "A", "B", "tie", "both-bad" or "skip": what stands first is A
            store.record(presentation, outcome, event_id=new_event_id(), shown_at=..., answered_at=...)
"""

from operant.language.preferences.agreement import Agreement, Estimate, agreement
from operant.language.preferences.annotator import SimulatedAnnotator
from operant.language.preferences.exporting import Exported, export, scored_items
from operant.language.preferences.importing import Imported, import_file
from operant.language.preferences.items import OUTCOMES, Completion, Event, Item, Outcome, Presentation, Text
from operant.language.preferences.recovery import rebuild
from operant.language.preferences.samples import add_rows, add_samples
from operant.language.preferences.schema import StoreError
from operant.language.preferences.store import ConflictError, PreferenceStore, new_event_id

__all__ = [
    "OUTCOMES",
    "Agreement",
    "Completion",
    "ConflictError",
    "Estimate",
    "Event",
    "Exported",
    "Imported",
    "Item",
    "Outcome",
    "PreferenceStore",
    "Presentation",
    "SimulatedAnnotator",
    "StoreError",
    "Text",
    "add_rows",
    "add_samples",
    "agreement",
    "export",
    "import_file",
    "new_event_id",
    "rebuild",
    "scored_items",
]
