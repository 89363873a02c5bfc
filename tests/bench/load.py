#!/usr/bin/env python3
"""Thousands of open long polls, heartbeats beside them, then a burst of small samples: this process on core 0, the server on core 1.

    "$(tests/python_env)" tests/bench/load.py --tinderbox BINARY --model-dir DIR [--polls 8192] [--seconds 120] [--rounds 3]

Every round is a new server. Its polls wait for promises that cannot be kept (each run's first number is missing), so they end after
the server's 30 seconds with "not yet" and are sent again at once. Heartbeats go out on a fixed clock, 100 a second, and their time counts
from when they were due. Then 2,000 requests of four tokens each are sent at once and fetched. Limits (exit 1 beyond them): no error,
median over the rounds of heartbeat p99 below 50 ms and of memory growth after the first 30 s below 5 %, no sample lost, no 5xx.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "checks"))
from server import Server  # noqa: E402

OWNERS = 16
HEARTBEATS = 100
"""Sessions that send one heartbeat a second each."""
SAMPLES, SAMPLE_TOKENS = 2000, 4
OPENING = 256
"""Connections that may be in the making at once."""


class Connection:
    """One HTTP/1.1 connection that is kept open; one request at a time."""

    making: asyncio.Semaphore
    """Of the round's event loop."""

    def __init__(self, port: int, key: str):
        self.port, self.key, self.reader, self.writer = port, key, None, None

    async def open(self) -> None:
        async with Connection.making:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def call(self, path: str, body: dict) -> tuple[int, dict]:
        if self.writer is None:
            await self.open()
        data = json.dumps(body).encode()
        head = f"POST /api/v1/{path} HTTP/1.1\r\nHost: t\r\nX-API-Key: {self.key}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line[:15].lower() == b"content-length:")
        return int(head[9:12]), json.loads(await self.reader.readexactly(length))

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

    async def expect(self, path: str, body: dict) -> dict:
        status, answer = await self.call(path, body)
        if status != 200:
            raise SystemExit(f"{path}: {status} {answer}")
        return answer


async def session(connection: Connection) -> str:
    return (await connection.expect("create_session", {"tags": [], "sdk_version": "0.38.0"}))["session_id"]


async def unkept_promises(port: int, polls: int, model: str) -> list[tuple[str, str]]:
    """(key, request id) of requests whose turn never comes: the number before them is missing."""
    promises = []
    for owner in range(OWNERS):
        c = Connection(port, f"tml-load-{owner}")
        run = f"{(owner_session := await session(c))}:train:0"
        made = await c.expect("create_model", {"session_id": owner_session, "model_seq_id": 0, "base_model": model, "lora_config": {"rank": 1, "seed": 1}})
        while (await c.call("retrieve_future", {"request_id": made["request_id"]}))[0] == 408:
            pass
        for i in range(polls // OWNERS):
            step = await c.expect("optim_step", {"model_id": run, "seq_id": 2 + i, "adam_params": {"learning_rate": 0.1}})
            promises.append((c.key, step["request_id"]))
        c.close()
    return promises


async def keep_polling(port: int, key: str, request_id: str, seen: Counter, opened: asyncio.Event) -> None:
    c = Connection(port, key)
    try:
        await c.open()
        opened.set()
        while True:
            status, _ = await c.call("retrieve_future", {"request_id": request_id})
            seen[status] += 1
    except (OSError, asyncio.IncompleteReadError) as e:
        seen[type(e).__name__] += 1
    finally:
        opened.set()
        c.close()


async def keep_alive(port: int, offset: float, seconds: float, seen: Counter, times: list[float]) -> None:
    """One heartbeat a second; the time of each counts from when it was due."""
    c = Connection(port, "tml-load-0")
    body = {"session_id": await session(c)}
    start = time.perf_counter() + 1 + offset
    for beat in range(int(seconds)):
        due = start + beat
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        status, _ = await c.call("session_heartbeat", body)
        times.append(time.perf_counter() - due)
        seen[status] += 1
    c.close()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def watch_memory(pid: int, seconds: float) -> tuple[int, int]:
    """Resident bytes after 30 s (or half of a shorter time), and the most from then on."""
    await asyncio.sleep(min(30.0, seconds / 2))
    first = most = resident_bytes(pid)
    end = time.perf_counter() + seconds - min(30.0, seconds / 2)
    while time.perf_counter() < end:
        await asyncio.sleep(0.5)
        most = max(most, resident_bytes(pid))
    return first, most


async def database_connections(url: str | None, seconds: float) -> int | None:
    """How many connections the server holds to its Postgres, halfway."""
    if url is None:
        return None
    await asyncio.sleep(seconds / 2)
    count = "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
    psql = await asyncio.create_subprocess_exec("psql", "--no-psqlrc", "-At", "-c", count, url, stdout=subprocess.PIPE)
    return int((await psql.communicate())[0])


async def one_sample(port: int, sampler: str, i: int, seen: Counter) -> int:
    """The tokens that came back; what is refused for now (429) is sent again, as clients do."""
    c = Connection(port, "tml-load-0")
    body = {"sampling_session_id": sampler, "seq_id": i, "num_samples": 1, "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7 + i % 80]}]},
            "sampling_params": {"max_tokens": SAMPLE_TOKENS, "temperature": 1.0, "seed": i}}
    try:
        while True:
            status, answer = await c.call("asample", body)
            seen[status] += 1
            if status != 429:
                break
            await asyncio.sleep(0.5)
        while status == 200:
            fetched, result = await c.call("retrieve_future", {"request_id": answer["request_id"]})
            if fetched != 408:
                seen[fetched] += 1
                return len(result["sequences"][0]["tokens"]) if fetched == 200 and "sequences" in result else 0
    except (OSError, asyncio.IncompleteReadError) as e:
        seen[type(e).__name__] += 1
    finally:
        c.close()
    return 0


async def burst(port: int, model: str) -> dict:
    c = Connection(port, "tml-load-0")
    made = await c.expect("create_sampling_session", {"session_id": await session(c), "sampling_session_seq_id": 0, "base_model": model})
    c.close()
    seen: Counter = Counter()
    start = time.perf_counter()
    tokens = await asyncio.gather(*(one_sample(port, made["sampling_session_id"], i, seen) for i in range(SAMPLES)))
    return {"sample_statuses": dict(seen), "samples_lost": sum(t == 0 for t in tokens), "sample_seconds": round(time.perf_counter() - start, 2)}


async def load(pid: int, port: int, a: argparse.Namespace) -> dict:
    Connection.making = asyncio.Semaphore(OPENING)
    promises = await unkept_promises(port, a.polls, "load")
    polled, beaten, times = Counter(), Counter(), []
    opened = [asyncio.Event() for _ in promises]
    polls = [asyncio.create_task(keep_polling(port, *p, polled, o)) for p, o in zip(promises, opened, strict=True)]
    start = time.perf_counter()
    await asyncio.gather(*(o.wait() for o in opened))
    opening = time.perf_counter() - start
    gc.freeze()
    beats = [keep_alive(port, i / HEARTBEATS, a.seconds, beaten, times) for i in range(HEARTBEATS)]
    *_, memory, connections = await asyncio.gather(*beats, watch_memory(pid, a.seconds), database_connections(a.database_url, a.seconds))
    still_open = sum(not p.done() for p in polls)
    for p in polls:
        p.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    times.sort()
    report = {
        "polls_open": still_open, "open_seconds": round(opening, 2), "poll_statuses": dict(polled), "heartbeat_statuses": dict(beaten),
        "heartbeat_p50_ms": round(1000 * times[len(times) // 2], 2), "heartbeat_p99_ms": round(1000 * times[int(0.99 * len(times))], 2),
        "heartbeat_max_ms": round(1000 * times[-1], 2), "rss_mib": round(memory[0] / 2**20, 1), "rss_growth": round(memory[1] / memory[0] - 1, 4),
        "database_connections": connections,
    }
    return report | await burst(port, "load")


def served(a: argparse.Namespace, round_: int) -> dict:
    options = ["--database-url", a.database_url] if a.database_url else []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(a.tinderbox, Path(folder) / "data", {"load": a.model_dir}, *options)
        # A process begins on the cores of the one that starts it.
        os.sched_setaffinity(0, {a.server_core})
        with server:
            os.sched_setaffinity(0, {a.own_core})
            time.sleep(1)
            report = asyncio.run(load(server.process.pid, int(server.url.rsplit(":", 1)[1]), a))
            alive = server.process.poll() is None
        faults = [line for line in server.log.read_text().splitlines() if "ERROR" in line or "panic" in line]
    print(json.dumps({"round": round_, **report, "server_alive": alive, "server_faults": faults[:3]}), flush=True)
    return report | {"ok": alive and not faults}


def verdict(rounds: list[dict], polls: int) -> bool:
    median = {k: statistics.median(r[k] for r in rounds) for k in ("heartbeat_p50_ms", "heartbeat_p99_ms", "rss_mib", "rss_growth", "sample_seconds")}
    checks = [
        (f"{polls} polls stay open, none fails", all(r["polls_open"] == polls and set(r["poll_statuses"]) <= {408} for r in rounds)),
        ("no heartbeat fails", all(set(r["heartbeat_statuses"]) == {200} for r in rounds)),
        (f"heartbeat p99 {median['heartbeat_p99_ms']:.1f} ms < 50 (p50 {median['heartbeat_p50_ms']:.1f} ms)", median["heartbeat_p99_ms"] < 50),
        (f"memory {median['rss_mib']:.0f} MiB grows by {100 * median['rss_growth']:.1f} % < 5 %", median["rss_growth"] < 0.05),
        (f"{SAMPLES} samples in {median['sample_seconds']:.1f} s: none lost", all(r["samples_lost"] == 0 for r in rounds)),
        ("no sample answered with a 5xx or a broken connection", all(set(r["sample_statuses"]) <= {200, 429} for r in rounds)),
        ("the server ends as it began, without a fault in its log", all(r["ok"] for r in rounds)),
    ]
    for text, holds in checks:
        print(f"{'PASS' if holds else 'FAIL'}  {text}")
    return all(holds for _, holds in checks)


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tinderbox", required=True)
    ap.add_argument("--model-dir", required=True)
    ap.add_argument("--polls", type=int, default=8192)
    ap.add_argument("--seconds", type=int, default=120)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--database-url", help="an empty Postgres database for a single round; its connections are counted")
    ap.add_argument("--json", type=Path)
    a = ap.parse_args()
    # The hard limit on descriptors, and a core of one's own each where there are two.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    cores = sorted(os.sched_getaffinity(0))
    a.own_core, a.server_core = cores[0], cores[-1]
    rounds = [served(a, i) for i in range(a.rounds)]
    if a.json:
        a.json.write_text(json.dumps(rounds, indent=1) + "\n")
    return 0 if verdict(rounds, a.polls // OWNERS * OWNERS) else 1


if __name__ == "__main__":
    sys.exit(main())
