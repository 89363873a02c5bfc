"""What side_by_side.py measures, a function each: repetitions of both sides alternate, and one side waits while the other works."""

from __future__ import annotations

import json
import random
import statistics
import threading
import time
import urllib.request
from pathlib import Path

from contestants import Torch

RANK, BATCH, SEQ, PROMPT, NEW = 32, 8, 256, 64, 128
WARMUP = 2


def median(xs) -> float:
    return statistics.median(xs)


def sequences(n: int, length: int, vocab: int, seed: int = 1) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(8, vocab) for _ in range(length + 1)] for _ in range(n)]


def datums(rows: list[list[int]]):
    from tinker import types

    return [
        types.Datum(model_input=types.ModelInput.from_ints(s[:-1]), loss_fn_inputs={"target_tokens": s[1:], "weights": [1.0] * (len(s) - 1)})
        for s in rows
    ]


def clock(fn) -> float:
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def train(cx, threads: int) -> dict:
    """LoRA step 8 x 256, rank 32, seven linears, f32: forward_backward and optim_step submitted together, same adapter and data."""
    from tinker import types

    rows = sequences(BATCH, SEQ, cx.vocab)
    data, tokens = datums(rows), BATCH * SEQ
    wall = {"tinderbox": [], "torch": []}
    cpu = {"tinderbox": [], "torch": []}
    losses = []
    with cx.server(cx.model, threads) as server:
        trainer = server.trainer(seed=1, rank=RANK)
        adapter = server.export_adapter(trainer, cx.work / f"adapter-{threads}")
        with Torch(threads, cx.model, adapter) as torch:
            for rep in range(WARMUP + cx.reps):
                cpu_start, start = server.cpu_s(), time.perf_counter()
                backward = trainer.forward_backward(data, "cross_entropy")
                trainer.optim_step(types.AdamParams(learning_rate=1e-4)).result()
                loss = backward.result().metrics["loss:sum"]
                ours = (time.perf_counter() - start, server.cpu_s() - cpu_start)
                time.sleep(0.05)
                theirs = torch.ask("step", sequences=rows, lr=1e-4)
                time.sleep(0.05)
                losses.append((loss, theirs["loss"]))
                if rep >= WARMUP:
                    wall["tinderbox"].append(ours[0])
                    cpu["tinderbox"].append(ours[1])
                    wall["torch"].append(theirs["wall"])
                    cpu["torch"].append(theirs["cpu"])
            peak = {"tinderbox": server.peak_bytes(), "torch": torch.ask("peak")["bytes"]}
    rate = {side: tokens / median(wall[side]) for side in wall}
    cpu_rate = {side: tokens / median(cpu[side]) for side in cpu}
    return {"wall_s": wall, "cpu_s": cpu, "tokens_per_s": rate, "tokens_per_cpu_s": cpu_rate, "peak_bytes": peak, "losses": losses,
            "largest_relative_loss_gap": max(abs(a - b) / abs(b) for a, b in losses)}


def sample(sampler, prompt: list[int], n: int, tokens: int, seed: int) -> float:
    from tinker import types

    params = types.SamplingParams(max_tokens=tokens, temperature=1.0, seed=seed, stop=[])

    def call():
        got = sampler.sample(types.ModelInput.from_ints(prompt), n, params).result()
        assert [len(s.tokens) for s in got.sequences] == [tokens] * n

    return clock(call)


def read_per_token(model: Path, context: float) -> float:
    """Bytes read for one decoded token in f32: every weight once (a tied head reads the embedding) and the KV of the context."""
    from safetensors import safe_open

    c = json.loads((model / "config.json").read_text())
    numel = 0
    for shard in model.glob("*.safetensors"):
        with safe_open(shard, "pt") as f:
            for name in f.keys():
                if c["tie_word_embeddings"] or "embed_tokens" not in name:
                    shape = f.get_slice(name).get_shape()
                    numel += shape[0] * (shape[1] if len(shape) > 1 else 1)
    head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    return 4 * (numel + context * c["num_hidden_layers"] * 2 * c["num_key_value_heads"] * head)


def decode(cx) -> dict:
    """Base model, two threads: tokens after the first over the time after the first, beside the limit that memory sets."""
    prompt = sequences(1, PROMPT - 1, cx.vocab, 5)[0]
    rates = {"tinderbox": [], "torch": []}
    bandwidth = []
    with cx.server(cx.model, 2) as server, Torch(2, cx.model) as torch:
        sampler = server.client.create_sampling_client(base_model=server.model).result()
        for rep in range(WARMUP + cx.reps):
            first = sample(sampler, prompt, 1, 1, rep)
            ours = (NEW - 1) / (sample(sampler, prompt, 1, NEW, rep) - first)
            time.sleep(0.05)
            first = torch.ask("generate", prompt=prompt, n=1, tokens=1, adapter=False)["wall"]
            theirs = (NEW - 1) / (torch.ask("generate", prompt=prompt, n=1, tokens=NEW, adapter=False)["wall"] - first)
            bandwidth.append(torch.ask("bandwidth", bytes=1e9)["bytes_per_s"])
            if rep >= WARMUP:
                rates["tinderbox"].append(ours)
                rates["torch"].append(theirs)
    per_token = read_per_token(cx.model, PROMPT + NEW / 2)
    limit = median(bandwidth) / per_token
    return {"tokens_per_s": {s: median(r) for s, r in rates.items()}, "all": rates, "bandwidth_gb_per_s": median(bandwidth) / 1e9,
            "bytes_per_token": per_token, "limit_tokens_per_s": limit, "share_of_limit": median(rates["tinderbox"]) / limit}


def generate(cx) -> dict:
    """End to end with a trained adapter: 64 prompt tokens, 128 new ones, one sequence and eight together, two threads."""
    from tinker import types

    prompt = sequences(1, PROMPT - 1, cx.vocab, 6)[0]
    out = {}
    with cx.server(cx.model, 2) as server:
        trainer = server.trainer(seed=2, rank=RANK)
        trainer.forward_backward(datums(sequences(1, 64, cx.vocab, 7)), "cross_entropy").result()
        trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result()
        adapter = server.export_adapter(trainer, cx.work / "adapter-generate")
        sampler = trainer.save_weights_and_get_sampling_client().result()
        with Torch(2, cx.model, adapter) as torch:
            for n in (1, 8):
                wall = {"tinderbox": [], "torch": []}
                for rep in range(WARMUP + cx.reps):
                    ours = sample(sampler, prompt, n, NEW, rep)
                    time.sleep(0.05)
                    theirs = torch.ask("generate", prompt=prompt, n=n, tokens=NEW, adapter=True)["wall"]
                    if rep >= WARMUP:
                        wall["tinderbox"].append(ours)
                        wall["torch"].append(theirs)
                rate = {s: n * NEW / median(w) for s, w in wall.items()}
                out[str(n)] = {"wall_s": wall, "tokens_per_s": rate, "ratio": rate["tinderbox"] / rate["torch"]}
    return out


def many_runs(cx) -> dict:
    """Eight runs with one datum each, submitted together, beside one run with eight datums."""
    data = datums(sequences(BATCH, SEQ, cx.vocab, 8))
    wall = {"one_run": [], "eight_runs": []}
    with cx.server(cx.model, 2) as server:
        runs = [server.trainer(seed=10 + i, rank=RANK) for i in range(BATCH)]

        def eight():
            for future in [run.forward_backward([d], "cross_entropy") for run, d in zip(runs, data, strict=True)]:
                future.result()

        for rep in range(WARMUP + cx.reps):
            one_s = clock(lambda: runs[0].forward_backward(data, "cross_entropy").result())
            eight_s = clock(eight)
            if rep >= WARMUP:
                wall["one_run"].append(one_s)
                wall["eight_runs"].append(eight_s)
    return {"wall_s": wall, "ratio": median(wall["eight_runs"]) / median(wall["one_run"])}


def sample_while_training(cx) -> dict:
    """Tiny model: how long a one-token sample takes while another run trains 8 x 256 without a pause."""
    from tinker import types

    prompt = sequences(1, PROMPT - 1, cx.tiny_vocab, 9)[0]
    data = datums(sequences(BATCH, SEQ, cx.tiny_vocab, 10))
    stop, steps = threading.Event(), []
    with cx.server(cx.tiny, 2) as server:
        sampler = server.client.create_sampling_client(base_model=server.model).result()
        trainer = server.trainer(seed=3, rank=RANK)

        def loop():
            while not stop.is_set():
                trainer.forward_backward(data, "cross_entropy")
                trainer.optim_step(types.AdamParams(learning_rate=1e-4)).result()
                steps.append(time.perf_counter())

        idle = [sample(sampler, prompt, 1, 1, i) for i in range(5)]
        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        while not steps:
            time.sleep(0.05)
        busy = [sample(sampler, prompt, 1, 1, 100 + i) for i in range(max(12, cx.reps))]
        stop.set()
        thread.join(120)
    return {"idle_median_s": median(idle), "median_s": median(busy), "max_s": max(busy), "all_s": busy, "training_steps_meanwhile": len(steps)}


def round_trips(cx) -> dict:
    """Tiny model: an 8-token forward through the SDK beside requests that compute nothing: a plain one, and one with a future."""
    from tinker import types

    data = datums(sequences(1, 8, cx.tiny_vocab, 11))
    wall: dict[str, list[float]] = {"forward": [], "noop_request": [], "noop_future": [], "healthz": []}
    with cx.server(cx.tiny, 2) as server:
        trainer, still = server.trainer(seed=4, rank=8), server.trainer(seed=5, rank=1)
        rest = server.rest()
        calls = {
            "forward": lambda: trainer.forward(data, "cross_entropy").result(),
            "noop_request": lambda: rest.get_server_capabilities().result(),
            "noop_future": lambda: still.optim_step(types.AdamParams(learning_rate=0.0)).result(),
            "healthz": lambda: urllib.request.urlopen(f"{server.url}/api/v1/healthz", timeout=10).read(),
        }
        for rep in range(5 + max(30, cx.reps)):
            for name, call in calls.items():
                seconds = clock(call)
                if rep >= 5:
                    wall[name].append(seconds)
    return {name: median(xs) for name, xs in wall.items()}


def start_up(cx) -> dict:
    """Seconds from the start of the process to the first healthz answer."""
    out = {}
    for name, model in (("tiny", cx.tiny), ("small", cx.model)):
        ready = []
        for _ in range(max(5, cx.reps)):
            with cx.server(model, 2) as server:
                ready.append(server.ready_s)
        out[name] = {"median_s": median(ready), "all_s": ready}
    return out
