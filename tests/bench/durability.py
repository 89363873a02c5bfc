"""What durability costs, and how fast a run is made up again after a kill: the same server with it and, as far as that goes, without.

    tests/bench/durability.py --tinderbox B --work DIR [--steps N] [--rounds N]

"Without" writes no state of a run and keeps the journal in memory (a data directory in /dev/shm). Both servers are up all the time and take turns,
so that both see the same machine. Steps are 8 x 256 tokens on the model of 100 M that side_by_side.py makes (in DIR/models).
"""

import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tinker
from tinker import types

HERE = Path(__file__).resolve().parent
DATUMS, TOKENS = 8, 256


class Server:
    """One server, its log and its data directory."""

    def __init__(self, binary: Path, model: Path, data: Path, port: int, **variables: str):
        self.data, self.port, self.log = data, port, data.parent / f"{data.name}.log"
        self.command = [binary, "serve", "--model", f"small={model}", "--port", str(port), "--data-dir", data]
        self.environment = os.environ | {"RUST_LOG": "info,tinderbox::durability=debug"} | variables
        self.start()

    def start(self):
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(self.command, env=self.environment, stderr=log)
        while b"ready on" not in self.log.read_bytes().rsplit(b"KILLED", 1)[-1]:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            time.sleep(0.02)

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait()

    def client(self):
        return tinker.ServiceClient(base_url=f"http://127.0.0.1:{self.port}", api_key="tml-bench")


def datums(vocab: int, step: int) -> list[types.Datum]:
    rows = [[(7 * i + 13 * j + 5 * step) % vocab for j in range(TOKENS + 1)] for i in range(DATUMS)]
    inputs = lambda row: {"target_tokens": row[1:], "weights": [1.0] * TOKENS}  # noqa: E731
    return [types.Datum(model_input=types.ModelInput.from_ints(row[:-1]), loss_fn_inputs=inputs(row)) for row in rows]


def steps(run, vocab: int, first: int, count: int) -> float:
    """Seconds of so many steps, one after the other."""
    start = time.perf_counter()
    for step in range(first, first + count):
        pending = run.forward_backward(datums(vocab, step), "cross_entropy")
        run.optim_step(types.AdamParams(learning_rate=1e-5)).result()
        pending.result()
    return time.perf_counter() - start


def beside(servers: dict, create, vocab: int, count: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of each server, round by round; they take turns."""
    runs = {name: create(server.client()) for name, server in servers.items()}
    for run in runs.values():
        steps(run, vocab, 0, 2)
    took = {name: [] for name in servers}
    for n in range(rounds):
        order = list(servers) if n % 2 == 0 else list(reversed(servers))
        for name in order:
            took[name].append(steps(runs[name], vocab, 2 + n * count, count) / count)
    return took


def size(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def replay(server: Server, vocab: int, count: int) -> tuple[float, float]:
    """Seconds that steps took, and that the same took again after a kill."""
    run = server.client().create_lora_training_client(base_model="small", rank=32)
    steps(run, vocab, 0, 1)
    first = steps(run, vocab, 1, count)
    server.stop(signal.SIGKILL)
    with open(server.log, "a") as log:
        log.write("KILLED\n")
    server.start()
    while not (ended := re.findall(r"replay ends .*seconds=([0-9.]+)", server.log.read_text().rsplit("KILLED", 1)[-1])):
        time.sleep(0.05)
    return first, float(ended[-1])


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    ap.add_argument("--tinderbox", type=Path, required=True)
    ap.add_argument("--work", type=Path, required=True, help="where the model is, or is made")
    ap.add_argument("--steps", type=int, default=6, help="steps of a round")
    ap.add_argument("--rounds", type=int, default=6)
    a = ap.parse_args()
    model = a.work / "models" / "small"
    if not model.is_dir():
        subprocess.run([sys.executable, HERE / "make_model.py", "--preset", "small", "--out", model], check=True)
    import json

    vocab = json.loads((model / "config.json").read_text())["vocab_size"]
    binary = a.tinderbox.resolve()
    disk, memory = Path(tempfile.mkdtemp(prefix="durable-", dir=a.work)), Path(tempfile.mkdtemp(prefix="bench-", dir="/dev/shm"))
    never = {"TINDERBOX_RUN_SNAPSHOT_SECONDS": "86400"}
    with_, without = Server(binary, model, disk / "data", 18731), Server(binary, model, memory / "data", 18732, **never)
    again = Server(binary, model, disk / "again", 18733, **never)
    load = os.getloadavg()
    print(f"load before {load[0]:.1f}; {a.rounds} rounds of {a.steps} steps of {DATUMS} x {TOKENS} tokens each, taking turns\n")
    print("| run | a step with | without | more (median) | states | journal |\n|---|---|---|---|---|---|", flush=True)
    try:
        kinds = {
            "LoRA, rank 32": lambda c: c.create_lora_training_client(base_model="small", rank=32),
            "every weight": lambda c: c.create_lora_training_client(base_model="small:full"),
        }
        for kind, create in kinds.items():
            took = beside({"with": with_, "without": without}, create, vocab, a.steps, a.rounds)
            ratio = statistics.median(x / y for x, y in zip(took["with"], took["without"], strict=True))
            mean = {name: statistics.median(v) for name, v in took.items()}
            files = f"{size(with_.data / 'runs') / 1e6:.0f} MB | {size(with_.data / 'journal') / 1e6:.1f} MB"
            print(f"| {kind} | {mean['with']:.3f} s | {mean['without']:.3f} s | {100 * (ratio - 1):+.1f} % | {files} |", flush=True)
        first, second = replay(again, vocab, 2 * a.steps)
        print(f"\n{2 * a.steps} LoRA steps: {first:.2f} s; done again after a kill: {second:.2f} s ({second / first:.2f} x)")
    finally:
        for server in (with_, without, again):
            server.stop()
        shutil.rmtree(disk)
        shutil.rmtree(memory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
