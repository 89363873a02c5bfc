"""A database that is gone for a while, under loops of the SDK: they wait, and end as if nothing had happened."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

from faults_loops import Reference


def missing() -> str | None:
    return None


def check_sqlite_is_locked(args, work: Path):
    with Reference(args, work / "sqlite") as reference:
        loop = reference.begin()
        reference.reach(loop, 4)
        with contextlib.closing(sqlite3.connect(reference.world.data / "tinderbox.db", timeout=30, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            time.sleep(args.outage_seconds)
            other.execute("ROLLBACK")
        reference.same(loop)
        return noted(reference)


def check_postgres_does_not_answer(args, work: Path):
    """All its processes are stopped, connections stay open."""
    with postgres_world(args, work, "frozen") as reference:
        loop = reference.begin()
        reference.reach(loop, 4)
        processes = [postmaster(), *children(postmaster())]
        signal_all(processes, signal.SIGSTOP)
        time.sleep(args.outage_seconds)
        signal_all(processes, signal.SIGCONT)
        reference.same(loop)
        return noted(reference)


def check_postgres_ends_and_comes_back(args, work: Path):
    with postgres_world(args, work, "restarted") as reference:
        loop = reference.begin()
        reference.reach(loop, 4)
        folder = query("SHOW data_directory")
        control = [str(program("pg_ctl")), "--pgdata", folder, "--silent", "--wait"]
        options = Path(folder, "postmaster.opts").read_text().split(maxsplit=1)[1].replace('"', "'").strip()
        unprivileged([*control, "--mode", "immediate", "stop"])
        time.sleep(args.outage_seconds)
        unprivileged([*control, "--log", f"{folder}/server.log", "--options", options, "start"])
        reference.same(loop)
        return noted(reference)


def noted(reference: Reference) -> str:
    loud = reference.world.loud()
    return f"{len(loud)} warnings" + (f", the first: {loud[0][:200]}" if loud else "")


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
