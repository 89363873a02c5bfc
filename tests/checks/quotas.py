#!/usr/bin/env python3
"""What an account took and may take, through the official SDK and CLI, against figures counted here.

    "$(tests/python_env)" tests/checks/quotas.py --tinderbox target/debug/tinderbox --model-dir DIR [--only usage,disk]

Starts servers of its own on the tiny model in DIR.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import tinker
from address import datum
from runner import Checks, main
from server import Server, arguments
from tinker import types

KEY, OTHER = "tml-quota-one", "tml-quota-two"
MODEL = "tiny/qwen3"
WAIT = 120


def row(n: int) -> types.Datum:
    return datum([(7 * i + n) % 500 for i in range(n + 1)])


def prompt(n: int) -> types.ModelInput:
    return types.ModelInput.from_ints([(11 * i + n) % 500 for i in range(n)])


def trainer_of(service: tinker.ServiceClient, rank: int = 4):
    return service.create_lora_training_client(MODEL, rank=rank, seed=1).result(WAIT)


def raw_session(server: Server) -> str:
    return server.call("POST", "create_session", {"tags": [], "sdk_version": tinker.__version__})[1]["session_id"]


def raw_sampler(server: Server, session: str) -> str:
    """The id of a sampler of the base model, for requests that no client repeats."""
    wanted = {"session_id": session, "sampling_session_seq_id": 99, "base_model": MODEL}
    return server.call("POST", "create_sampling_session", wanted)[1]["sampling_session_id"]


def ask(server: Server, sampler: str, seq: int, n: int, most: int) -> tuple[int, dict]:
    """Status and answer of a request for `n` sequences of up to `most` tokens, after a prompt of two."""
    chunks = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
    asked = {"sampling_session_id": sampler, "seq_id": seq, "num_samples": n, "prompt": chunks, "sampling_params": {"max_tokens": most, "stop": []}}
    return server.call("POST", "asample", asked)


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
        pending = trainer.forward_backward([row(n) for n in lengths], "cross_entropy")
        trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result(WAIT)
        pending.result(WAIT)
        self.trained += sum(lengths)

    def evaluate(self, trainer, lengths: list[int]) -> None:
        trainer.forward([row(n) for n in lengths], "cross_entropy").result(WAIT)
        self.forward += sum(lengths)

    def sample(self, sampler, length: int, n: int, most: int) -> None:
        got = sampler.sample(prompt(length), n, types.SamplingParams(max_tokens=most, temperature=1.0, seed=length)).result(WAIT)
        self.prefill += length
        self.cached += (n - 1) * length
        self.sampled += sum(len(s.tokens) for s in got.sequences)


def usage_checks(check: Checks, server: Server, counted: dict) -> None:
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
    shown = json.loads(server.cli("--format", "json", "billing", "usage", *window(start)))
    check.that("tinker billing usage shows the same", len(shown["data"]) == len(events.data), len(shown["data"]))

    status, usage = server.call("GET", f"usage?run_id={trainer.model_id}&day={start.date()}")
    total = usage["total"]
    got = [total[k] for k in ("training_tokens", "forward_tokens", "prefill_tokens", "cached_prefill_tokens", "sampled_tokens")]
    check.that("usage of the run", status == 200 and got == [of_run.trained, of_run.forward, of_run.prefill, of_run.cached, of_run.sampled], got)
    check.that("device seconds lie within the wall clock", 0 < total["device_seconds"] < wall, f"{total['device_seconds']:.3f} of {wall:.3f}")
    _, everything = server.call("GET", "usage")
    lines = [r for r in everything["data"] if r.get("sampler_id")]
    check.that("samples of the base model stand under their sampler", [r["sampled_tokens"] for r in lines] == [of_base.sampled], lines and lines[0]["sampler_id"])
    check.that("of a snapshot nothing is stored", everything["storage"]["ephemeral_samplers"] == 1 and everything["storage"]["size_bytes"] == 0)
    check.that("another account sees nothing of it", server.call("GET", "usage", key=OTHER)[1]["data"] == [] and not server.admin(OTHER).get_billing_usage(*window(start)).result(WAIT).data)
    check.that("another account's run is not found", server.call("GET", f"usage?run_id={trainer.model_id}", key=OTHER)[0] == 404)
    for bad, part in [("starting_on=2026-01-01T00:30:00Z&ending_before=2026-01-01T02:00:00Z", "whole hour"), ("starting_on=2026-01-01T00:00:00Z&ending_before=2026-01-16T00:00:00Z", "14 days"), ("ending_before=2026-01-16T00:00:00Z", "starting_on")]:
        status, answer = server.call("GET", f"billing/usage/events?{bad}")
        check.that(f"a wrong window is refused: {part}", status == 400 and part in answer["detail"], answer.get("detail"))
    _, now = server.call("GET", "status")
    rates = now["server"]["tokens_per_second"]
    check.that("status: tokens per second", abs(rates["training"] * 60 - of_run.trained - of_run.forward) < 1e-6 and rates["sampled"] > 0, rates)
    check.that("status: nothing waits, nothing failed", now["waiting_count"] == 0 and now["recent_errors"] == [] and now["server"]["queue_depth"] == 0)
    server.call("POST", "unload_model", {"model_id": trainer.model_id})
    with contextlib.suppress(tinker.RequestFailedError):
        trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result(WAIT)
    errors = server.call("GET", "status")[1]["recent_errors"]
    check.that("status: a failure is told to its account alone", len(errors) == 1 and trainer.model_id in errors[0]["request"] and server.call("GET", "status", key=OTHER)[1]["recent_errors"] == [], errors)
    service.close("success").result(WAIT)
    counted.update(total)


def storage_checks(check: Checks, server: Server, trainer, path: str, before_save: float, saved: float) -> None:
    external = trainer.save_weights_external("out").result(WAIT).path
    admin = server.admin()
    stored = admin.get_current_checkpoint_storage_usage().result(WAIT).data
    on_disk = bytes_on_disk(server.data)
    check.that("stored bytes are those on disk", [(s.checkpoint_count, s.size_bytes) for s in stored] == [(2, on_disk)], f"{on_disk} bytes")
    check.that("tinker billing checkpoint-storage shows them", json.loads(server.cli("--format", "json", "billing", "checkpoint-storage"))["data"][0]["size_bytes"] == on_disk)
    listed = server.call("GET", f"usage?run_id={trainer.model_id}")[1]["storage"]
    check.that("bytes of each checkpoint, hidden kinds too", sum(c["size_bytes"] for c in listed["checkpoints"]) == on_disk and len(listed["checkpoints"]) == 2)
    size = next(c["size_bytes"] for c in listed["checkpoints"] if c["tinker_path"] == path)
    time.sleep(3)
    rest = server.rest()
    rest.delete_checkpoint_from_tinker_path(external).result(WAIT)
    low = time.monotonic() - saved
    rest.delete_checkpoint_from_tinker_path(path).result(WAIT)
    high = time.monotonic() - before_save
    check.that("nothing is stored once all is deleted", admin.get_current_checkpoint_storage_usage().result(WAIT).data == [])
    total = server.call("GET", f"usage?run_id={trainer.model_id}")[1]["total"]["storage_gigabyte_hours"] * 3600e9
    check.that("storage time is bytes times seconds", size * low <= total <= (on_disk + 1) * high, f"{size * low:.0f} <= {total:.0f} <= {on_disk * high:.0f} byte seconds")


def restart_checks(check: Checks, server: Server, before: dict) -> None:
    after = server.call("GET", "usage")[1]
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
            told = server.call("GET", "status")[1]["waiting"]
            wait.extend(w for w in told if w["queue_state"] == "paused_rate_limit")
            if wait:
                request = {"request_id": wait[0]["request_id"]}
                answers.append(server.call("POST", "retrieve_future", request, headers={"x-stainless-read-timeout": "11"}))
                beat.append(server.call("GET", "sessions")[0])
                return
            time.sleep(0.05)

    answers: list[tuple[int, dict]] = []
    beat: list[int] = []
    watcher = threading.Thread(target=poll)
    watcher.start()
    start = time.monotonic()
    pending = [trainer.forward_backward([row(95)] * 62, "cross_entropy"), trainer.forward_backward([row(100)] * 4, "cross_entropy")]
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
    _, now = server.call("GET", "status")
    check.that("status shows limit and use", now["quotas"]["tokens_per_minute"]["limit"] == 6000 and now["quotas"]["tokens_per_minute"]["used"] > 0, now["quotas"]["tokens_per_minute"])


def token_reservation(check: Checks, server: Server) -> None:
    """Of 3000 tokens a sample that may generate 2400 leaves no room for another, until it has ended."""
    sampler = raw_sampler(server, raw_session(server))
    (status, first), (refused, why) = ask(server, sampler, 0, 8, 300), ask(server, sampler, 1, 8, 300)
    check.that("a sample counts with what it may generate", (status, refused) == (200, 429) and "this request takes 2402" in why["detail"], why)
    server.call("POST", "cancel_future", {"request_id": first["request_id"]})
    until = time.monotonic() + 20
    while (again := ask(server, sampler, 1, 8, 300))[0] == 429 and time.monotonic() < until:
        time.sleep(0.1)
    check.that("what a cancelled one did not generate is free again", again[0] == 200, again)


def request_quota(check: Checks, server: Server) -> None:
    """120 requests a minute are 2 a second; the client's session and the two samplers are three of them."""
    service = server.service()
    sampler = service.create_sampling_client(base_model=MODEL).result(WAIT)
    session = server.call("GET", "sessions")[1]["sessions"][0]
    raw = raw_sampler(server, session)
    start = time.monotonic()
    statuses = [ask(server, raw, seq, 1, 1) for seq in range(125)]
    refused = [a["detail"] for s, a in statuses if s == 429]
    allowed = 120 + 2 * (time.monotonic() - start) + 1
    check.that("samples beyond the rate are 429", 117 <= len(statuses) - len(refused) <= allowed and {s for s, _ in statuses} <= {200, 429}, f"{len(refused)} refused of {len(statuses)}")
    check.that("the refusal names quota, limit and use", bool(refused) and "requests_per_minute: limit 120, used 1" in refused[0], refused[:1])
    made = [server.request("POST", "/api/v1/create_session", {"tags": [], "sdk_version": tinker.__version__})[:2] for _ in range(10)]
    waits = {headers["Retry-After"] for status, headers in made if status == 429}
    check.that("so are sessions, with the time to wait", waits == {"1"}, waits)
    check.that("a repeat of an accepted sample costs nothing", ask(server, raw, 0, 1, 1) == statuses[0])
    params = types.SamplingParams(max_tokens=2, temperature=1.0)
    start = time.monotonic()
    futures = [sampler.sample(prompt(5), 1, params) for _ in range(8)]
    done = [len(f.result(WAIT).sequences) for f in futures]
    check.that("the SDK repeats them until all are done", done == [1] * 8, f"{time.monotonic() - start:.1f} s")


def concurrency_quota(check: Checks, server: Server) -> None:
    sampler = raw_sampler(server, raw_session(server))
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda seq: ask(server, sampler, seq, 8, 300), range(16)))
    refused = [a["detail"] for s, a in answers if s == 429]
    check.that("requests beyond the concurrency quota are 429 with the number", bool(refused) and "pending_requests: limit 3, used 3" in refused[0] and any(s == 200 for s, _ in answers), refused[:1])
    for _, answer in answers:
        if "request_id" in answer:
            server.call("POST", "cancel_future", {"request_id": answer["request_id"]})


def body(check: Checks, args) -> None:
    with tempfile.TemporaryDirectory() as work:

        def served(check_server, name: str, **variables: str) -> None:
            with Server(args.tinderbox, Path(work) / name, {MODEL: args.model_dir}, keys=(KEY, OTHER), **variables) as server:
                check_server(check, server)

        def usage() -> None:
            counted: dict = {}
            served(partial(usage_checks, counted=counted), "usage")
            served(partial(restart_checks, before=counted), "usage")

        check.run("usage", usage)
        for name, check_server, variable, value in [
            ("runs", run_quota, "TINDERBOX_QUOTA_MAX_RUNS", "1"),
            ("disk", partial(disk_quota, limit=1 << 20), "TINDERBOX_QUOTA_DISK_BYTES", "1MiB"),
            ("tokens", token_quota, "TINDERBOX_QUOTA_TOKENS_PER_MINUTE", "6000"),
            ("reservation", token_reservation, "TINDERBOX_QUOTA_TOKENS_PER_MINUTE", "3000"),
            ("requests", request_quota, "TINDERBOX_QUOTA_REQUESTS_PER_MINUTE", "120"),
            ("concurrency", concurrency_quota, "TINDERBOX_PENDING_REQUESTS", "3"),
        ]:
            check.run(name, partial(served, check_server, name, **{variable: value}))


if __name__ == "__main__":
    main(arguments(__doc__), body)
