"""A database that is gone for a while, under loops of the SDK: they wait, and end as if nothing had happened."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

from faults_loops import MODEL, Reference
from plain import PlainRun


def missing() -> str | None:
    return None


def check_sqlite_is_locked(args, work: Path):
    with Reference(args, work / "sqlite") as reference:
        # Longer: some statements of its own wait for ten seconds each before those of the saves.
        return over(reference, locked(reference), 1.5 * args.outage_seconds)


def check_postgres_does_not_answer(args, work: Path):
    with postgres_world(args, work, "frozen") as reference:
        return over(reference, frozen(), args.outage_seconds)


def check_postgres_ends_and_comes_back(args, work: Path):
    with postgres_world(args, work, "restarted") as reference:
        return over(reference, stopped(), args.outage_seconds)


def over(reference: Reference, outage, seconds: float) -> str:
    """It begins while a loop runs, and while saves were promised that end only after it has begun."""
    other = PlainRun(reference.world, MODEL, random.Random(1))
    loop = reference.begin()
    reference.reach(loop, 4)
    other.train(datums=16, length=2000)
    promised = [other.numbered("save_weights_for_sampler", sampling_session_seq_id=i) for i in range(4)]
    promised += [other.numbered("save_weights", path="a"), other.numbered("save_weights_for_sampler", path="b")]
    with outage:
        time.sleep(seconds)
    told = [other.outcome(promise) for promise in promised]
    assert not any("error" in answer for answer in told), f"promised before the outage: {told}"
    reference.same(loop)
    loud = reference.world.loud()
    return f"{len(loud)} warnings" + (f", the first: {loud[0][:200]}" if loud else "")


@contextlib.contextmanager
def locked(reference: Reference):
    """Another process holds the database."""
    with contextlib.closing(sqlite3.connect(reference.world.data / "tinderbox.db", timeout=30, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@contextlib.contextmanager
def frozen():
    """All its processes are stopped; connections stay open."""
    processes = [postmaster(), *children(postmaster())]
    signal_all(processes, signal.SIGSTOP)
    yield
    signal_all(processes, signal.SIGCONT)


@contextlib.contextmanager
def stopped():
    """It is gone, and its connections with it."""
    folder = query("SHOW data_directory")
    control = [str(program("pg_ctl")), "--pgdata", folder, "--silent", "--wait"]
    options = Path(folder, "postmaster.opts").read_text().split(maxsplit=1)[1].replace('"', "'").strip()
    unprivileged([*control, "--mode", "immediate", "stop"])
    yield
    unprivileged([*control, "--log", f"{folder}/server.log", "--options", options, "start"])


def postgres_world(args, work: Path, name: str):
    database = f"faults_{os.getpid()}_{name}"
    query(f'CREATE DATABASE "{database}"')
    return Reference(args, work / name, f"{os.environ['POSTGRES_SERVER']}/{database}")


def query(sql: str) -> str:
    command = ["psql", "--no-psqlrc", "--tuples-only", "--no-align", "--command", sql, f"{os.environ['POSTGRES_SERVER']}/postgres"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def postmaster() -> int:
    return int(Path(query("SHOW data_directory"), "postmaster.pid").read_text().split()[0])


def children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def signal_all(processes: list[int], what: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)


def program(name: str) -> Path:
    return max(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))


def unprivileged(command: list[str]) -> None:
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    subprocess.run([*as_user, *command], check=True, capture_output=True, cwd="/")


if "POSTGRES_SERVER" not in os.environ:
    del check_postgres_does_not_answer, check_postgres_ends_and_comes_back
