#!/usr/bin/env python3
"""tinderbox beside PyTorch + PEFT on the 100 M Qwen3-style model of make_model.py, repetition by repetition.

    cargo build --release
    "$(tests/python_env)" tests/bench/side_by_side.py --tinderbox target/release/tinderbox --work target/bench

Both sides get the same weights, the same adapter and the same tokens, and never work at the same time: PyTorch lives in a process
of its own that does one repetition when told. Figures are medians of --reps (at least 5). Absolute figures are for a quiet machine
(load below 0.5 before the start); on a busy one the ratios within the run count. Writes WORK/side_by_side.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import phases
from contestants import Server

HERE = Path(__file__).resolve().parent
PHASES = ["train1", "train2", "decode", "generate", "many_runs", "sample_while_training", "round_trips", "start_up"]


@dataclass
class Context:
    binary: Path
    work: Path
    reps: int
    model: Path
    tiny: Path
    vocab: int
    tiny_vocab: int

    def server(self, model: Path, threads: int) -> Server:
        return Server(self.binary, model, self.work / "data", threads)


def make_models(work: Path) -> dict[str, Path]:
    out = {}
    for preset in ("tiny", "small"):
        out[preset] = work / "models" / preset
        if not (out[preset] / "bench_meta.json").exists():
            subprocess.run([sys.executable, str(HERE / "make_model.py"), "--preset", preset, "--out", str(out[preset])], check=True)
    return out


def vocab(model: Path) -> int:
    return json.loads((model / "config.json").read_text())["vocab_size"]


def measure(name: str, cx: Context) -> dict:
    if name in ("train1", "train2"):
        return phases.train(cx, threads=int(name[-1]))
    return getattr(phases, name)(cx)


def rows(results: dict) -> list[tuple[str, str, str, str, bool | None]]:
    """(what, tinderbox, beside it, wanted, reached) for every phase that ran."""
    out = []

    def row(what, ours, beside, wanted, ok):
        out.append((what, ours, beside, wanted, ok))

    for phase, key, label in (("train1", "tokens_per_cpu_s", "LoRA step 8 x 256, one thread, tokens per CPU second"),
                              ("train2", "tokens_per_s", "LoRA step 8 x 256, two threads, tokens/s")):
        if r := results.get(phase):
            rate, peak = r[key], {s: b / 1e9 for s, b in r["peak_bytes"].items()}
            row(label, f"{rate['tinderbox']:.0f}", f"PyTorch {rate['torch']:.0f}", "≥ 1.1 x", rate["tinderbox"] >= 1.1 * rate["torch"])
            row(f"— peak memory, {phase[-1]} thread(s)", f"{peak['tinderbox']:.2f} GB", f"PyTorch {peak['torch']:.2f} GB", "≤ 0.5 x",
                peak["tinderbox"] <= 0.5 * peak["torch"])
            row("— largest relative difference of the losses", f"{r['largest_relative_loss_gap']:.1e}", "", "≤ 1e-4", r["largest_relative_loss_gap"] <= 1e-4)
    if r := results.get("decode"):
        rate = r["tokens_per_s"]
        row("decode, base model, two threads, tokens/s", f"{rate['tinderbox']:.1f}",
            f"limit {r['limit_tokens_per_s']:.1f} at {r['bandwidth_gb_per_s']:.1f} GB/s; PyTorch {rate['torch']:.1f}", "≥ 0.85 x limit", r["share_of_limit"] >= 0.85)
    for n, factor in (("1", 1.6), ("8", 2.0)):
        if r := results.get("generate", {}).get(n):
            rate = r["tokens_per_s"]
            row(f"with an adapter, end to end, {n} sequence(s), tokens/s", f"{rate['tinderbox']:.1f}", f"PyTorch {rate['torch']:.1f}", f"≥ {factor} x", r["ratio"] >= factor)
    if r := results.get("many_runs"):
        one, eight = (phases.median(r["wall_s"][k]) for k in ("one_run", "eight_runs"))
        row("8 runs x 1 datum", f"{eight:.2f} s", f"1 run x 8 datums {one:.2f} s", "≤ 1.15 x", r["ratio"] <= 1.15)
    if r := results.get("sample_while_training"):
        row("1-token sample while another run trains (tiny)", f"{1e3 * r['median_s']:.0f} ms", f"idle {1e3 * r['idle_median_s']:.0f} ms, worst {1e3 * r['max_s']:.0f} ms", "≤ 500 ms", r["median_s"] <= 0.5)
    if r := results.get("round_trips"):
        row("8-token forward through the SDK (tiny)", f"{1e3 * r['forward']:.1f} ms",
            f"no-op request {1e3 * r['noop_request']:.1f} ms, no-op future {1e3 * r['noop_future']:.1f} ms, healthz {1e3 * r['healthz']:.1f} ms",
            "≤ 10 ms or ≤ 3 x no-op", r["forward"] <= 0.010 or r["forward"] <= 3 * r["noop_request"])
    for name, limit in (("tiny", 1.0), ("small", 5.0)):
        if r := results.get("start_up", {}).get(name):
            row(f"ready after start, {name}", f"{r['median_s']:.2f} s", "", f"≤ {limit:.0f} s", r["median_s"] <= limit)
    return out


def table(report: dict) -> str:
    lines = [f"Load before the start {report['load_before']}, at the end {report['load_after']}; {report['cpu']}; medians of {report['reps']}.", "",
             "| what | tinderbox | beside it | wanted | |", "|---|---|---|---|---|"]
    for what, ours, beside, wanted, ok in rows(report["results"]):
        lines.append(f"| {what} | {ours} | {beside} | {wanted} | {'yes' if ok else 'no'} |")
    lines += [f"\n{name} failed: {why}" for name, why in report["failed"].items()]
    return "\n".join(lines) + "\n"


def cpu_name() -> str:
    with open("/proc/cpuinfo") as f:
        names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
    return f"{len(names)} x {names[0]}"


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tinderbox", type=Path, required=True, help="the release binary")
    ap.add_argument("--work", type=Path, required=True, help="models, data and results are kept here")
    ap.add_argument("--reps", type=int, default=5)
    ap.add_argument("--phases", default=",".join(PHASES))
    a = ap.parse_args()
    a.work = a.work.resolve()
    a.work.mkdir(parents=True, exist_ok=True)
    models = make_models(a.work)
    load = list(os.getloadavg())
    print(f"load before the start: {load}", flush=True)
    cx = Context(a.tinderbox.resolve(), a.work, a.reps, models["small"], models["tiny"], vocab(models["small"]), vocab(models["tiny"]))
    report = {"time": time.strftime("%F %T"), "cpu": cpu_name(), "reps": a.reps, "load_before": load, "load_after": load, "results": {}, "failed": {}}
    for name in a.phases.split(","):
        print(f"{name} … load {os.getloadavg()[0]:.2f}", flush=True)
        try:
            report["results"][name] = measure(name, cx)
        except Exception as e:  # noqa: BLE001 - one failed phase must not lose the others' figures
            report["failed"][name] = f"{type(e).__name__}: {e}"[:500]
            print(f"{name} failed: {report['failed'][name]}", flush=True)
        report["load_after"] = list(os.getloadavg())
        (a.work / "side_by_side.json").write_text(json.dumps(report, indent=1) + "\n")
        (a.work / "side_by_side.md").write_text(table(report))
    print(table(report))
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
