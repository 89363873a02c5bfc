#!/usr/bin/env python3
"""A day of churn in minutes: hundreds of short lives, most of which end without a word. Memory, handles, disk and rows must be flat afterwards.

    churn.py --tinderbox BINARY --model-dir DIR

Two batches of lives, equal in size. After each the silent sessions' timeout passes, and all rows are made 100 days older, so that whatever
is kept for a time only is over; then everything is measured. What the second batch leaves behind is growth without end.
"""

from __future__ import annotations

import os
import random
import sqlite3
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from address import Address
from plain import PlainRun
from runner import Checks, main
from server import Server, arguments

NAME = "tiny"
VARIABLES = {"TINDERBOX_SESSION_TIMEOUT": "60", "TINDERBOX_RESULT_RETENTION_SECONDS": "60", "TINDERBOX_RUN_SNAPSHOT_SECONDS": "0.2"}
SWEEP_S = 60
"""How often the server looks for what is over."""
AGE_DAYS = 100
TIMES = {
    "sessions": ("created_at", "last_heartbeat_at", "finished_at"),
    "training_runs": ("created_at", "last_request_at"),
    "samplers": ("created_at",),
    "checkpoints": ("created_at", "expires_at"),
    "custom_losses": ("created_at",),
    "telemetry": ("received_at",),
    "copies": ("created_at",),
    "usage": ("hour",),
    "audit": ("at",),
}
"""Columns with times, in microseconds."""
ELSEWHERE = {"audit": "cleared once an hour, by age and number of rows", "_sqlx_migrations": "of the tables themselves"}
"""Rows that are printed and not judged."""
RSS_SHARE, RSS_MIB, HANDLES, THREADS, ENTRIES, DISK_MIB = 0.10, 8, 6, 3, 2, 2
JOURNAL_MIB = 128
"""Released records may lie about up to 64 MiB, beside as many as are needed; so much is the journal's bound, not what it may grow by."""
MIB = 1 << 20


def live(server: Address, rng: random.Random) -> None:
    """A client's life: a run, a checkpoint, a sampler; then its end: in order, by unloading the run, or by falling silent, idle or with work left."""
    client = PlainRun(server, NAME, rng)
    for _ in range(rng.randint(2, 3)):
        client.step()
    client.save("kept", ttl_seconds=3600)
    sampler = client.snapshot()
    for _ in range(3):
        client.result(client.sample(sampler))
    match rng.randrange(4):
        case 0:
            client.ask(f"sessions/{client.session}/finish", reason={"type": "success"}, detail=None)
        case 1:
            client.result(client.ask("unload_model", model_id=client.run))
        case 2:
            client.train()
            client.sample(sampler)


def batch(server: Address, lives: int, parallel: int, seed: int) -> None:
    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(lambda i: live(server, random.Random(1_000_000 * seed + i)), range(lives)))


class Books:
    """What a server takes, read from outside."""

    def __init__(self, server: Server):
        self.server, self.database = server, server.data / "tinderbox.db"

    def query(self, sql: str, *values) -> list[tuple]:
        with sqlite3.connect(self.database, timeout=30) as connection:
            return connection.execute(sql, values).fetchall()

    def open_sessions(self) -> int:
        return self.query("SELECT COUNT(*) FROM sessions WHERE finished_at IS NULL")[0][0]

    def age(self) -> None:
        """Makes every row older."""
        known = {name for (name,) in self.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table, columns in TIMES.items():
            if table in known:
                earlier = ", ".join(f"{c} = {c} - {AGE_DAYS * 86_400_000_000}" for c in columns)
                self.query(f"UPDATE {table} SET {earlier}")

    def measure(self) -> dict[str, float]:
        proc = Path(f"/proc/{self.server.process.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        taken = {"memory MiB": int(status["VmRSS"].split()[0]) / 1024, "threads": int(status["Threads"]), "handles": len(os.listdir(proc / "fd"))}
        for place in sorted(self.server.data.iterdir()):
            below = [place, *place.rglob("*")] if place.is_dir() else [place]
            name = place.name.removesuffix("-wal").removesuffix("-shm")
            bump(taken, f"{name} MiB", sum(p.stat().st_size for p in below if p.is_file()) / MIB)
            bump(taken, f"{name} entries", len(below))
        for (table,) in self.query("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"):
            taken[f"rows {table}"] = self.query(f"SELECT COUNT(*) FROM {table}")[0][0]
        return taken


def bump(counts: dict[str, float], name: str, by: float) -> None:
    counts[name] = counts.get(name, 0) + by


def growth_allowed(name: str, before: float, lives: int) -> float | None:
    """None: not judged."""
    kind = name.split()
    if name == "memory MiB":
        return RSS_SHARE * before + RSS_MIB
    if kind[0] == "rows":
        return None if kind[1] in ELSEWHERE else lives / 20
    if kind[0] == "journal" and kind[1] == "MiB":
        return JOURNAL_MIB - before
    return {"threads": THREADS, "handles": HANDLES, "entries": ENTRIES, "MiB": DISK_MIB}[kind[-1]]


def settle(books: Books) -> None:
    """Until every session has ended, all is old, and what is over was cleared away."""
    end = time.monotonic() + 4 * SWEEP_S
    while books.open_sessions() and time.monotonic() < end:
        time.sleep(1)
    assert not books.open_sessions(), f"{books.open_sessions()} silent sessions were not ended"
    books.age()
    time.sleep(2.5 * SWEEP_S)


def churn(checks: Checks, server: Server, lives: int, parallel: int) -> None:
    books, taken = Books(server), []
    fresh = books.measure()
    for number in (1, 2):
        begin, most = time.monotonic(), Peak(books)
        batch(server, lives, parallel, number)
        peak = most.stop()
        print(f"batch {number}: {lives} lives, {parallel} at a time, in {time.monotonic() - begin:.0f} s, up to {peak:.0f} MiB", flush=True)
        settle(books)
        taken.append(books.measure())
    before, after = taken
    print(f"{'':28} {'fresh':>10} {'1st batch':>10} {'2nd batch':>10}")
    for name in sorted({*before, *after}):
        was, now = before.get(name, 0), after.get(name, 0)
        print(f"{name:28} {fresh.get(name, 0):10.1f} {was:10.1f} {now:10.1f}")
    for name in sorted({*before, *after}):
        was, now = before.get(name, 0), after.get(name, 0)
        allowed = growth_allowed(name, was, lives)
        if allowed is not None:
            checks.that(f"{name} flat", now - was <= allowed, f"{was:.1f} → {now:.1f}, {allowed:.1f} more allowed")


class Peak:
    """The most memory while something runs."""

    def __init__(self, books: Books):
        self.books, self.most, self.ended = books, 0.0, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        status = Path(f"/proc/{self.books.server.process.pid}/status")
        while not self.ended.wait(0.2):
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            self.most = max(self.most, int(lines["VmRSS"].split()[0]) / 1024)

    def stop(self) -> float:
        self.ended.set()
        self.thread.join()
        return self.most


def body(checks: Checks, args) -> None:
    work = Path(tempfile.mkdtemp(prefix="churn-"))
    with Server(args.tinderbox.resolve(), work / "data", {NAME: args.model_dir}, **VARIABLES) as server:
        checks.run("churn", churn, checks, server, args.lives, args.parallel)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--lives", type=int, default=600, help="of each of the two batches")
    parser.add_argument("--parallel", type=int, default=12)
    main(parser, body)
