"""Where a server keeps what survives it, below its data directory, and how it is damaged from outside."""

from __future__ import annotations

from pathlib import Path

MARK = b"TBr1"
"""Each record of a journal begins with it."""


def segments(data: Path) -> list[Path]:
    """The journal's files that hold anything, the newest last."""
    return [p for p in sorted((data / "journal").glob("*.log")) if p.stat().st_size]


def states(data: Path, run: str) -> list[Path]:
    """The run's whole states, the newest last; the name is the number of the request that comes next."""
    return sorted((data / "runs" / run.replace(":", "-")).glob("*.state"))


def snapshot_files(data: Path) -> list[Path]:
    """Weights of samplers."""
    return sorted((data / "snapshots").rglob("*.safetensors"))


def checkpoint_files(data: Path, run: str) -> list[Path]:
    """Weights and optimiser of the run's checkpoints."""
    return sorted((data / "checkpoints" / run.replace(":", "-")).rglob("*.safetensors"))


def set_aside(data: Path) -> list[Path]:
    """What a start found damaged and left for a look."""
    return sorted((data / "runs").glob("*.damaged"))


def records(segment: Path) -> list[tuple[int, bytes]]:
    """Places and bytes of a segment's records, header and all."""
    found, at = [], 0
    for piece in segment.read_bytes().split(MARK)[1:]:
        found.append((at, MARK + piece))
        at += len(MARK) + len(piece)
    return found


def cut(file: Path, n: int) -> None:
    """Takes the last n bytes away."""
    with file.open("r+b") as f:
        f.truncate(max(0, file.stat().st_size - n))


def flip(file: Path, at: int) -> None:
    """Turns all bits of a byte."""
    with file.open("r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 0xFF]))
