#!/usr/bin/env python3
"""Turns what tests/bench/probe_semantics.py and probe_isolation.py report into an exit status (both always exit with 0).

    probe_verdict.py PROBE.json ISOLATION.txt
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path


def bad_semantics(path: Path) -> list[str]:
    report = json.loads(path.read_text())
    rows = report if isinstance(report, list) else report["results"]
    return [f"{r['verdict']} {r['name']}: {r['detail']}" for r in rows if r["verdict"] not in ("PASS", "n.a.")]


def bad_isolation(text: str) -> list[str]:
    wanted = {
        "a token outside the vocabulary is refused": r"^B refused:",
        "the neighbour keeps its weights": r"NaN after B's bad step: False max change 0(\.0)?$",
        "the neighbour's next step is clean": r"^A after its own next step:.*NaN: False",
        "the sender can go on": r"^B usable again\?",
        "an empty datum is refused": r"^datum of 0 tokens:",
        "mismatched lengths are refused": r"^mismatched lengths refused:",
    }
    return [f"isolation: {name}" for name, pattern in wanted.items() if not re.search(pattern, text, re.M)]


def main() -> int:
    bad = bad_semantics(Path(sys.argv[1])) + bad_isolation(Path(sys.argv[2]).read_text())
    print("\n".join(bad) or "all probes pass")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
