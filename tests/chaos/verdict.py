"""What a loop was given, beside what it was given undisturbed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

SAME_WEIGHTS = 1e-3
"""How far logprobs of a sample may lie from those of the same tokens as a prompt: other kernels, the same weights."""


def digest(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def differences(reference: dict, got: dict) -> list[str]:
    """Both as `loops.py` wrote them, with `files` added: nothing where they agree to the last bit."""
    faults = []
    for i, (want, have) in enumerate(zip(reference["record"], got["record"], strict=False)):
        if want != have:
            where = f"answer {i}, step {want['step']}, {want['what']}"
            faults.append(f"{where}: {short(have)} instead of {short(want)}")
            break
    if len(reference["record"]) != len(got["record"]):
        faults.append(f"{len(got['record'])} answers instead of {len(reference['record'])}")
    for name in sorted({*reference["files"], *got["files"]}):
        if reference["files"].get(name) != got["files"].get(name):
            faults.append(f"the final checkpoint's {name} differs")
    return faults + miscounted(got["record"]) + incoherent(got["loose"])


def miscounted(record: list[dict]) -> list[str]:
    """Whether the optimiser's steps follow one another, but where a state was loaded."""
    faults, last, jumps = [], 0, 0
    for entry in record:
        if entry["what"] == "load_state":
            jumps += 1
        if entry["what"] == "optim_step":
            step = entry["value"]["step"]
            if step != last + 1:
                jumps -= 1
                if jumps < 0:
                    faults.append(f"step {entry['step']}: the optimiser counts {step} after {last}")
            last = step
    return faults


def incoherent(loose: list[dict]) -> list[str]:
    """Samples without a seed: drawn from the weights they should be, by the logprobs of their own tokens."""
    faults = []
    for sample in loose:
        worst = max(abs(a - b) for a, b in zip(sample["logprobs"], sample["again"], strict=True))
        if not worst <= SAME_WEIGHTS:
            faults.append(f"step {sample['step']}: a sample's logprobs are {worst:.2e} off those of its tokens")
    return faults


def short(value: object, limit: int = 240) -> str:
    text = json.dumps(value)
    return text if len(text) <= limit else text[:limit] + "…"
