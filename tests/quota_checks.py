#!/usr/bin/env python3
"""What an account took and may take, through the official SDK and CLI, against figures counted here.

    "$(tests/python_env)" tests/quota_checks.py --tinderbox target/debug/tinderbox --model-dir DIR

Starts servers of its own on the tiny model in DIR. One line per check; exit 0 when all hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

os.environ["TINKER_TELEMETRY"] = "0"
import tinker  # noqa: E402
from tinker import types  # noqa: E402

KEY, OTHER = "tml-quota-one", "tml-quota-two"
MODEL = "tiny/qwen3"
WAIT = 120


class Server:
    """`tinderbox serve` with some variables set; a context manager. The data directory outlives it."""

    def __init__(self, binary: Path, model: Path, data: Path, **variables: str):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.url, self.data, self.log = f"http://127.0.0.1:{port}", data, data.with_suffix(".log")
        self.command = [str(binary), "serve", "--port", str(port), "--data-dir", str(data), "--model", f"{MODEL}={model}", "--api-key", KEY, "--api-key", OTHER]
        self.env = {**os.environ, **variables}

    def __enter__(self) -> "Server":
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.env)
        for _ in range(600):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=5).read()
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"the server did not become ready: {self.log.read_text()[-2000:]}")

    def __exit__(self, *_exc) -> None:
        self.process.terminate()
        self.process.wait(30)

    def service(self, key: str = KEY, **about) -> tinker.ServiceClient:
        return tinker.ServiceClient(base_url=self.url, api_key=key, **about)

    def admin(self, key: str = KEY) -> tinker.AdminClient:
        return tinker.AdminClient(base_url=self.url, api_key=key)

    def rest(self) -> tinker.RestClient:
        return tinker.RestClient(base_url=self.url, api_key=KEY)

    def http(self, method: str, path: str, body: object = None, key: str = KEY, timeout: float = 60) -> tuple[int, dict]:
        headers = {"X-API-Key": key, "Content-Type": "application/json", "x-stainless-read-timeout": "11"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as r:
                return r.status, json.load(r)
        except urllib.error.HTTPError as e:
            return e.code, json.load(e)

    def cli(self, *args: str) -> dict:
        env = {**os.environ, "TINKER_BASE_URL": self.url, "TINKER_API_KEY": KEY, "HOME": str(self.data), "COLUMNS": "300"}
        done = subprocess.run([sys.executable, "-m", "tinker.cli", "--format", "json", *args], capture_output=True, text=True, timeout=120, env=env)
        if not done.stdout.strip().startswith("{"):
            raise RuntimeError(f"tinker {args}: exit {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
        return json.loads(done.stdout)


class Checks:
    def __init__(self) -> None:
        self.failed = 0

    def that(self, name: str, holds: bool, figures: object = "") -> None:
        self.failed += not holds
        print(f"{'ok  ' if holds else 'FAIL'} {name}  {figures}", flush=True)

    @contextlib.contextmanager
    def group(self, name: str):
        """What breaks in a group fails it, and the groups after it are run."""
        try:
            yield
        except Exception as e:  # noqa: BLE001
            traceback.print_exc()
            self.that(f"all of {name}", False, f"{type(e).__name__}: {e}")


def datum(n: int) -> types.Datum:
    ids = [(7 * i + n) % 500 for i in range(n + 1)]
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * n})


def prompt(n: int) -> types.ModelInput:
    return types.ModelInput.from_ints([(11 * i + n) % 500 for i in range(n)])


def trainer_of(service: tinker.ServiceClient, rank: int = 4):
    return service.create_lora_training_client(MODEL, rank=rank, seed=1).result(WAIT)


def hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def window(start: datetime) -> tuple[str, str]:
    return hour(start).isoformat(), (hour(datetime.now(timezone.utc)) + timedelta(hours=1)).isoformat()


def bytes_on_disk(data: Path) -> int:
    return sum(f.stat().st_size for f in (data / "checkpoints").rglob("*") if f.is_file() and "~gone" not in str(f))


def by_kind(events: list) -> dict[str, float]:
    """Sums of an SDK response's events."""
    sums: dict[str, float] = {}
    for event in events:
        info = event.event_info
        kind = info.type + ("_cached" if getattr(info, "cached", False) else "")
        sums[kind] = sums.get(kind, 0) + (getattr(info, "token_count", 0) or getattr(info, "count", 0) or getattr(info, "gigabyte_hours", 0))
    return sums


class Counted:
    """What this program asked for and got, counted by itself."""

    def __init__(self) -> None:
        self.trained = self.forward = self.prefill = self.cached = self.sampled = 0

    def train(self, trainer, lengths: list[int]) -> None:
        pending = trainer.forward_backward([datum(n) for n in lengths], "cross_entropy")
        trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result(WAIT)
        pending.result(WAIT)
        self.trained += sum(lengths)

    def evaluate(self, trainer, lengths: list[int]) -> None:
        trainer.forward([datum(n) for n in lengths], "cross_entropy").result(WAIT)
        self.forward += sum(lengths)

    def sample(self, sampler, length: int, n: int, most: int) -> None:
        got = sampler.sample(prompt(length), n, types.SamplingParams(max_tokens=most, temperature=1.0, seed=length)).result(WAIT)
        self.prefill += length
        self.cached += (n - 1) * length
        self.sampled += sum(len(s.tokens) for s in got.sequences)


def usage_checks(check: Checks, server: Server) -> dict:
    start, clock = datetime.now(timezone.utc), time.monotonic()
    service = server.service(user_metadata={"team": "blue"})
    trainer = trainer_of(service)
    of_run, of_base = Counted(), Counted()
    of_run.train(trainer, [5, 17, 3])
    of_run.train(trainer, [40] * 4)
    of_run.evaluate(trainer, [9, 9])
    snapshot = trainer.save_weights_and_get_sampling_client().result(WAIT)
    of_run.sample(snapshot, 12, 1, 8)
    of_run.sample(snapshot, 30, 4, 6)
    base = service.create_sampling_client(base_model=MODEL).result(WAIT)
    of_base.sample(base, 25, 2, 5)
    before_save = time.monotonic()
    path = trainer.save_state("one").result(WAIT).path
    saved = time.monotonic()
    wall = time.monotonic() - clock

    storage_checks(check, server, trainer, path, before_save, saved)

    events = server.admin().get_billing_usage(*window(start)).result(WAIT)
    sums = by_kind(events.data)
    want = {
        "training": of_run.trained + of_run.forward, "sampling_prefill": of_run.prefill + of_base.prefill,
        "sampling_prefill_cached": of_run.cached + of_base.cached, "sampling_sample": of_run.sampled + of_base.sampled, "checkpoint": 2,
    }
    check.that("billing usage counts what was asked for", {k: v for k, v in sums.items() if k != "storage"} == want, f"{sums} want {want}")
    sessions = {e.session_id for e in events.data if e.session_id}
    check.that("sessions and their metadata are named", set(events.sessions) == sessions and [s.user_metadata for s in events.sessions.values()] == [{"team": "blue"}])
    check.that("no money is made up", all(e.estimated_cost_usd is None for e in events.data) and events.cost_data_through is None)
    shown = server.cli("billing", "usage", *window(start))
    check.that("tinker billing usage shows the same", len(shown["data"]) == len(events.data), len(shown["data"]))

    status, usage = server.http("GET", f"/usage?run_id={trainer.model_id}&day={start.date()}")
    total = usage["total"]
    got = [total[k] for k in ("training_tokens", "forward_tokens", "prefill_tokens", "cached_prefill_tokens", "sampled_tokens")]
    check.that("usage of the run", status == 200 and got == [of_run.trained, of_run.forward, of_run.prefill, of_run.cached, of_run.sampled], got)
    check.that("device seconds lie within the wall clock", 0 < total["device_seconds"] < wall, f"{total['device_seconds']:.3f} of {wall:.3f}")
    _, everything = server.http("GET", "/usage")
    lines = [r for r in everything["data"] if r.get("sampler_id")]
    check.that("samples of the base model stand under their sampler", [r["sampled_tokens"] for r in lines] == [of_base.sampled], lines and lines[0]["sampler_id"])
    check.that("of a snapshot nothing is stored", everything["storage"]["ephemeral_samplers"] == 1 and everything["storage"]["size_bytes"] == 0)
    check.that("another account sees nothing of it", server.http("GET", "/usage", key=OTHER)[1]["data"] == [] and not server.admin(OTHER).get_billing_usage(*window(start)).result(WAIT).data)
    check.that("another account's run is not found", server.http("GET", f"/usage?run_id={trainer.model_id}", key=OTHER)[0] == 404)
    for bad, part in [("starting_on=2026-01-01T00:30:00Z&ending_before=2026-01-01T02:00:00Z", "whole hour"), ("starting_on=2026-01-01T00:00:00Z&ending_before=2026-01-16T00:00:00Z", "14 days"), ("ending_before=2026-01-16T00:00:00Z", "starting_on")]:
        status, answer = server.http("GET", f"/billing/usage/events?{bad}")
        check.that(f"a wrong window is refused: {part}", status == 400 and part in answer["detail"], answer.get("detail"))
    _, now = server.http("GET", "/status")
    rates = now["server"]["tokens_per_second"]
    check.that("status: tokens per second", abs(rates["training"] * 60 - of_run.trained - of_run.forward) < 1e-6 and rates["sampled"] > 0, rates)
    check.that("status: nothing waits, nothing failed", now["waiting_count"] == 0 and now["recent_errors"] == [] and now["server"]["queue_depth"] == 0)
    server.http("POST", "/unload_model", {"model_id": trainer.model_id})
    with contextlib.suppress(tinker.RequestFailedError):
        trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result(WAIT)
    errors = server.http("GET", "/status")[1]["recent_errors"]
    check.that("status: a failure is told to its account alone", len(errors) == 1 and trainer.model_id in errors[0]["request"] and server.http("GET", "/status", key=OTHER)[1]["recent_errors"] == [], errors)
    service.close("success").result(WAIT)
    return total


def storage_checks(check: Checks, server: Server, trainer, path: str, before_save: float, saved: float) -> None:
    external = trainer.save_weights_external("out").result(WAIT).path
    admin = server.admin()
    stored = admin.get_current_checkpoint_storage_usage().result(WAIT).data
    on_disk = bytes_on_disk(server.data)
    check.that("stored bytes are those on disk", [(s.checkpoint_count, s.size_bytes) for s in stored] == [(2, on_disk)], f"{on_disk} bytes")
    check.that("tinker billing checkpoint-storage shows them", server.cli("billing", "checkpoint-storage")["data"][0]["size_bytes"] == on_disk)
    listed = server.http("GET", f"/usage?run_id={trainer.model_id}")[1]["storage"]
    check.that("bytes of each checkpoint, hidden kinds too", sum(c["size_bytes"] for c in listed["checkpoints"]) == on_disk and len(listed["checkpoints"]) == 2)
    size = next(c["size_bytes"] for c in listed["checkpoints"] if c["tinker_path"] == path)
    time.sleep(3)
    rest = server.rest()
    rest.delete_checkpoint_from_tinker_path(external).result(WAIT)
    low = time.monotonic() - saved
    rest.delete_checkpoint_from_tinker_path(path).result(WAIT)
    high = time.monotonic() - before_save
    check.that("nothing is stored once all is deleted", admin.get_current_checkpoint_storage_usage().result(WAIT).data == [])
    total = server.http("GET", f"/usage?run_id={trainer.model_id}")[1]["total"]["storage_gigabyte_hours"] * 3600e9
    check.that("storage time is bytes times seconds", size * low <= total <= (on_disk + 1) * high, f"{size * low:.0f} <= {total:.0f} <= {on_disk * high:.0f} byte seconds")


def restart_checks(check: Checks, server: Server, before: dict) -> None:
    after = server.http("GET", "/usage")[1]
    runs = [r for r in after["data"] if r.get("run_id") and r.get("session_id")]
    keys = ("training_tokens", "forward_tokens", "sampled_tokens", "checkpoints", "device_seconds")
    check.that("a restart loses no count", all(abs(sum(r[k] for r in runs) - before[k]) < 1e-6 + 0.2 * (k == "device_seconds") for k in keys), [sum(r[k] for r in runs) for k in keys])


def run_quota(check: Checks, server: Server) -> None:
    first = server.service()
    trainer_of(first)
    second = server.service()
    try:
        trainer_of(second)
        check.that("one run too many is refused", False)
    except tinker.PermissionDeniedError as e:
        check.that("one run too many is refused with number and remedy", "max_runs: limit 1, used 1" in str(e) and "finish" in str(e), e)
    trainer_of(server.service(OTHER))  # Another account is not affected.
    first.close("success").result(WAIT)
    trainer_of(second)  # A finished session frees its runs.


def disk_quota(check: Checks, server: Server, limit: int) -> None:
    trainer, paths, refusal = trainer_of(server.service(), 8), [], ""
    for i in range(100):
        try:
            paths.append(trainer.save_state(f"s{i}").result(WAIT).path)
        except (tinker.PermissionDeniedError, tinker.RequestFailedError) as e:
            refusal = str(e)
            break
    used = server.admin().get_current_checkpoint_storage_usage().result(WAIT).data[0].size_bytes
    check.that("saves stop at the disk quota", 0 < used <= limit and len(paths) > 0, f"{len(paths)} saves, {used} of {limit} bytes")
    check.that("the refusal names limit, use and remedy", f"disk_bytes: limit {limit}, used {used}" in refusal and "delete" in refusal, refusal)
    end = time.monotonic() + 60
    while bytes_on_disk(server.data) != used and time.monotonic() < end:
        time.sleep(0.05)
    check.that("nothing of the refused save stays", bytes_on_disk(server.data) == used, bytes_on_disk(server.data))
    trainer.save_weights_and_get_sampling_client().result(WAIT)  # Snapshots are not counted.
    server.rest().delete_checkpoint_from_tinker_path(paths[0]).result(WAIT)
    trainer.save_state("again").result(WAIT)  # Deleting made room.


def token_quota(check: Checks, server: Server) -> None:
    """6000 tokens a minute are 100 a second: a first step takes nearly all, the next has to wait."""
    trainer = trainer_of(server.service())
    wait = []

    def poll() -> None:
        for _ in range(1200):
            told = server.http("GET", "/status")[1]["waiting"]
            wait.extend(w for w in told if w["queue_state"] == "paused_rate_limit")
            if wait:
                request = {"request_id": wait[0]["request_id"]}
                answers.append(server.http("POST", "/retrieve_future", request))
                beat.append(server.http("GET", "/sessions")[0])
                return
            time.sleep(0.05)

    answers: list[tuple[int, dict]] = []
    beat: list[int] = []
    watcher = threading.Thread(target=poll)
    watcher.start()
    start = time.monotonic()
    pending = [trainer.forward_backward([datum(95)] * 62, "cross_entropy"), trainer.forward_backward([datum(100)] * 4, "cross_entropy")]
    pending.append(trainer.optim_step(types.AdamParams(learning_rate=1e-3)))
    for p in pending:
        p.result(WAIT)
    took = time.monotonic() - start
    watcher.join()
    # 5890 + 400 tokens against 6000 and 100 a second: at least 2.9 s.
    check.that("training beyond the rate waits and is done", 2.8 < took < 60, f"{took:.1f} s")
    status, told = answers[0] if answers else (0, {})
    reason = told.get("queue_state_reason", "")
    check.that("a waiting poll says paused_rate_limit and why", status == 408 and told["queue_state"] == "paused_rate_limit" and "tokens_per_minute: limit 6000, used" in reason, reason)
    check.that("other routes are not limited meanwhile", beat == [200])
    _, now = server.http("GET", "/status")
    check.that("status shows limit and use", now["quotas"]["tokens_per_minute"]["limit"] == 6000 and now["quotas"]["tokens_per_minute"]["used"] > 0, now["quotas"]["tokens_per_minute"])


def request_quota(check: Checks, server: Server) -> None:
    """120 requests a minute are 2 a second."""
    service = server.service()
    sampler = service.create_sampling_client(base_model=MODEL).result(WAIT)
    session = server.http("GET", "/sessions")[1]["sessions"][0]
    raw = {"session_id": session, "sampling_session_seq_id": 99, "base_model": MODEL}
    raw_id = server.http("POST", "/create_sampling_session", raw)[1]["sampling_session_id"]
    start, statuses = time.monotonic(), []
    for seq in range(125):
        body = {"sampling_session_id": raw_id, "seq_id": seq, "num_samples": 1, "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}, "sampling_params": {"max_tokens": 1}}
        statuses.append(server.http("POST", "/asample", body))
    refused = [a["detail"] for s, a in statuses if s == 429]
    allowed = 120 + 2 * (time.monotonic() - start) + 1
    check.that("samples beyond the rate are 429", 120 <= len(statuses) - len(refused) <= allowed and {s for s, _ in statuses} <= {200, 429}, f"{len(refused)} refused of {len(statuses)}")
    check.that("the refusal names quota, limit and use", bool(refused) and "requests_per_minute: limit 120, used 120" in refused[0], refused[:1])
    repeat = {"sampling_session_id": raw_id, "seq_id": 0, "num_samples": 1, "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}, "sampling_params": {"max_tokens": 1}}
    check.that("a repeat of an accepted sample costs nothing", server.http("POST", "/asample", repeat) == statuses[0])
    params = types.SamplingParams(max_tokens=2, temperature=1.0)
    start = time.monotonic()
    futures = [sampler.sample(prompt(5), 1, params) for _ in range(8)]
    done = [len(f.result(WAIT).sequences) for f in futures]
    check.that("the SDK repeats them until all are done", done == [1] * 8, f"{time.monotonic() - start:.1f} s")


def concurrency_quota(check: Checks, server: Server) -> None:
    session = server.http("POST", "/create_session", {"tags": [], "sdk_version": tinker.__version__})[1]["session_id"]
    sampler = server.http("POST", "/create_sampling_session", {"session_id": session, "sampling_session_seq_id": 5, "base_model": MODEL})[1]["sampling_session_id"]

    def ask(seq: int) -> tuple[int, dict]:
        chunks = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
        return server.http("POST", "/asample", {"sampling_session_id": sampler, "seq_id": seq, "num_samples": 8, "prompt": chunks, "sampling_params": {"max_tokens": 300, "stop": []}})

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(16)))
    refused = [a["detail"] for s, a in answers if s == 429]
    check.that("requests beyond the concurrency quota are 429 with the number", bool(refused) and "pending_requests: limit 3, used 3" in refused[0] and any(s == 200 for s, _ in answers), refused[:1])
    for _, answer in answers:
        if "request_id" in answer:
            server.http("POST", "/cancel_future", {"request_id": answer["request_id"]})


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tinderbox", type=Path, required=True)
    ap.add_argument("--model-dir", type=Path, required=True)
    ap.add_argument("--only", default="usage,runs,disk,tokens,requests,concurrency")
    a = ap.parse_args()
    check, only = Checks(), a.only.split(",")
    with tempfile.TemporaryDirectory() as work:
        root = Path(work)
        def server(name: str, **variables: str) -> Server:
            return Server(a.tinderbox.resolve(), a.model_dir.resolve(), root / name, **variables)

        if "usage" in only:
            with check.group("usage"):
                with server("usage") as s:
                    before = usage_checks(check, s)
                with server("usage") as s:
                    restart_checks(check, s, before)
        quotas = [
            ("runs", run_quota, {"TINDERBOX_QUOTA_MAX_RUNS": "1"}), ("disk", lambda c, s: disk_quota(c, s, 1 << 20), {"TINDERBOX_QUOTA_DISK_BYTES": "1MiB"}),
            ("tokens", token_quota, {"TINDERBOX_QUOTA_TOKENS_PER_MINUTE": "6000"}), ("requests", request_quota, {"TINDERBOX_QUOTA_REQUESTS_PER_MINUTE": "120"}),
            ("concurrency", concurrency_quota, {"TINDERBOX_PENDING_REQUESTS": "3"}),
        ]
        for name, run, variables in quotas:
            if name in only:
                with check.group(name), server(name, **variables) as s:
                    run(check, s)
    print(f"{check.failed} failed" if check.failed else "all hold")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
