"""Answers of benches that were saved with ``--json``, to make tables and plots of without running anything again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ebrl.errors import UsageError

Document = dict[str, Any]


def bench_of(document: object) -> str:
    """Which of the benches with plots made this; empty if none of them did."""
    if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
        return ""
    if "curves" in document:
        return "convergence"
    if "parts" in document:
        return "ablation"
    if "ratios" in document:
        return "modes"
    if "efficiency" in document:
        return "scaling"
    rows = document["rows"]
    return "staleness" if rows and all(isinstance(row, dict) and "slack" in row for row in rows) else ""


def read_document(path: Path, bench: str) -> Document:
    """A saved answer of ``ebrl bench BENCH --json``.

    Raises:
        UsageError: there is no such file, or it holds something else.
    """
    advice = f"save one with: ebrl bench {bench} --json > FILE.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); {advice}") from error
    except ValueError as error:
        raise UsageError(f"{path}: no JSON document ({error}); {advice}") from error
    if isinstance(document, dict) and "error" in document:
        raise UsageError(f"{path}: the answer of a command that failed: {document['error']}; {advice}")
    found = bench_of(document)
    if found != bench:
        what = f"a document of ebrl bench {found}" if found else "no document of a bench"
        raise UsageError(f"{path}: {what}, want one of ebrl bench {bench}; {advice}")
    return document  # type: ignore[no-any-return]
