"""`operant doctor`."""

import importlib.metadata
import os
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from operant.cli.flags import Parser
from operant.cli.output import print_json, table
from operant.cores import allowed_cores

BF16_FLAGS = ("amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16", "i8mm")
"""Processor flags of bf16 arithmetic (Linux)."""


def doctor(arguments: list[str]) -> int:
    """Report versions, devices and extras of this machine; fail if a required package is broken."""
    parser = Parser("operant doctor", description="Report versions, devices and missing extras.")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args(arguments)
    core, extras = _requirements()
    # Each required package has its own name with underscores as its module's.
    broken = {name: fault for name in core if (fault := _import_fault(name.replace("-", "_")))}
    runs = _runs_folder()
    report = {
        "versions": {"python": platform.python_version(), "operant": _version("operant")}
        | {name: _version(name) for name in core},
        "broken": broken,
        "platform": platform.platform(),
        "threads": _threads(),
        "devices": [] if "torch" in broken else _devices(),
        "bf16": _bf16(),
        "extras": {extra: [name for name in names if _version(name) is None] for extra, names in extras.items()},
        "runs": runs,
    }
    if options.json:
        print_json(report)
    else:
        _print(report)
    return 1 if broken or not runs["writable"] else 0


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Return the required packages, and the packages of each extra."""
    core: list[str] = []
    extras: dict[str, list[str]] = {}
    for line in importlib.metadata.requires("operant") or []:
        name = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"]([^'\"]+)", line)
        (extras.setdefault(extra[1], []) if extra else core).append(name)
    return core, extras


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _import_fault(module: str) -> str | None:
    """Return the error of importing a module; None if it can be imported."""
    try:
        importlib.import_module(module)
    except Exception as error:  # a broken installation can raise anything
        return f"{type(error).__name__}: {error}"
    return None


def _threads() -> dict[str, int]:
    return {"cores": os.cpu_count() or 1, "allowed": allowed_cores(), "used": 1}


def _devices() -> list[str]:
    import torch

    gpus = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def _bf16() -> list[str]:
    """Return the processor's flags of bf16 arithmetic; empty outside Linux."""
    try:
        flags = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return []
    present = set(flags[1].split()) if flags else set[str]()
    return [flag for flag in BF16_FLAGS if flag in present]


def _runs_folder() -> dict[str, Any]:
    """Return the default folder of runs, and whether it is writable."""
    folder = Path("runs").resolve()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            writable = True
    except OSError:
        writable = False
    return {"path": str(folder), "writable": writable}


def _print(report: dict[str, Any]) -> None:
    threads, runs = report["threads"], report["runs"]
    allowed = f"{threads['allowed']} of {threads['cores']} cores allowed"
    facts = [
        *((name, version or "missing") for name, version in report["versions"].items()),
        ("platform", report["platform"]),
        ("threads", f"{allowed}; runs use {threads['used']} unless --threads says otherwise"),
        ("devices", ", ".join(report["devices"])),
        ("bf16", ", ".join(report["bf16"]) or "no units known"),
        ("runs", f"{runs['path']} ({'writable' if runs['writable'] else 'NOT writable: choose another with --run'})"),
    ]
    print(table(facts, "<<"))
    print("\nextras:")
    rows: list[list[str]] = []
    for extra, absent in report["extras"].items():
        rows.append(
            [f"  {extra}", f'without {", ".join(absent)}: pip install "operant[{extra}]"' if absent else "installed"]
        )
    print(table(rows, "<<"))
    for name, fault in report["broken"].items():
        print(f'\n{name} is broken ({fault}): {sys.executable} -m pip install --force-reinstall "{name}"')
