#!/usr/bin/env python3
"""Unmodified cookbook recipes learn on a real model, SmolLM2-135M-Instruct: sl_loop for 30 steps and math_rl on sums for 40, three times each.

    "$(tests/python_env)" tests/checks/learning.py --tinderbox target/release/tinderbox --work target/full

The recipes run in a folder where the model's directory lies under a name that the cookbook knows; sl_loop's data set is made of the
documentation of Python's standard library, another selection for each seed. Everything else random is new in each run anyway. The model answers 2 of
100 of math_rl's questions at first, so a step has to see enough samples to meet right ones. For either recipe the mean of the last five steps must be
better than that of the first five, in every run and by more than the spread over the runs (largest minus smallest) of either mean. Curves go into
WORK/learning.svg, figures into WORK/learning.json.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import smollm2_model

from curves import draw
from runner import Checks, main
from server import Server, arguments

NAME = "Qwen/Qwen3-4B-Instruct-2507"
"""The cookbook gives it the renderer that writes ChatML, which is what SmolLM2 was tuned on."""
BATCH = 8
RECIPES = {
    # name: (module, arguments, steps, metric, whether less is better)
    "sl_loop": (
        "sl_loop", f"model_name={NAME} batch_size={BATCH} max_length=128 lora_rank=8 learning_rate=1e-3 save_every=0", 30, "train_mean_nll", True,
    ),
    "math_rl": (
        "math_rl.train", f"model_name={NAME} env=arithmetic group_size=12 groups_per_batch=12 max_tokens=5 lora_rank=8 learning_rate=3e-4 "
        "loss_fn=importance_sampling eval_every=0 save_every=0 behavior_if_log_dir_exists=delete", 40, "env/all/reward/total", False,
    ),
}
TITLES = {"sl_loop": "sl_loop: loss per token, nats", "math_rl": "math_rl arithmetic: mean reward"}
MODULES = (
    "argparse array ast asyncio base64 bisect calendar collections configparser csv datetime decimal difflib email enum fractions functools glob "
    "gzip hashlib heapq html http inspect io ipaddress itertools json logging math mimetypes os pathlib pickle platform pprint queue random re "
    "sched shlex shutil socket sqlite3 statistics string subprocess tarfile tempfile textwrap threading time timeit tokenize turtle types typing "
    "unittest urllib.parse uuid warnings weakref xml.dom zipfile zlib"
).split()


def documentation() -> list[tuple[str, str]]:
    """(name, text) of what the standard library says about its functions and classes."""
    found = {}
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name, thing in sorted(vars(module).items()):
            if not name.startswith("_") and (inspect.isroutine(thing) or inspect.isclass(thing)):
                text = inspect.getdoc(thing) or ""
                if 80 < len(text) < 2000:
                    found.setdefault(text, f"{module_name}.{name}")
    return sorted((name, text) for text, name in found.items())


def make_world(world: Path, model: Path, seed: int) -> None:
    """A working directory with the model under NAME and a data set under the name that sl_loop loads."""
    shutil.rmtree(world, ignore_errors=True)
    (world / NAME).parent.mkdir(parents=True)
    os.symlink(model, world / NAME)
    rows = documentation()
    random.Random(seed).shuffle(rows)
    steps = RECIPES["sl_loop"][2]
    assert len(rows) >= BATCH * (steps + 1), f"only {len(rows)} texts"
    data = world / "HuggingFaceH4/no_robots"
    data.mkdir(parents=True)
    for split, part in (("train", rows[: BATCH * steps]), ("test", rows[BATCH * steps : BATCH * (steps + 1)])):
        chats = [[{"role": "user", "content": f"What does {name} do?"}, {"role": "assistant", "content": text}] for name, text in part]
        (data / f"{split}.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    files = "".join(f"\n  - split: {split}\n    path: {split}.jsonl" for split in ("train", "test"))
    (data / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files:{files}\n---\n")


def run_recipe(recipe: str, world: Path, server: Server, steps: int) -> list[float]:
    """The recipe's metric at each step."""
    module, arguments, _, metric, _ = RECIPES[recipe]
    log = world / "logs" / recipe
    command = [sys.executable, "-m", f"tinker_cookbook.recipes.{module}", *arguments.split(), f"max_steps={steps}", f"log_path={log}", f"base_url={server.url}"]
    home = world / "home"
    env = {**os.environ, "TINKER_API_KEY": server.api_key, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home / "hf"), "HOME": str(home), "TOKENIZERS_PARALLELISM": "false",
           "WANDB_MODE": "disabled"}
    home.mkdir(exist_ok=True)
    log.parent.mkdir(exist_ok=True)
    with open(world / "logs" / f"{recipe}.out", "wb") as out:
        done = subprocess.run(command, cwd=world, env=env, stdout=out, stderr=subprocess.STDOUT)
    told = (world / "logs" / f"{recipe}.out").read_text(errors="replace")[-3000:]
    assert done.returncode == 0, f"{recipe} ended with {done.returncode}:\n{told}"
    rows = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    values = [row[metric] for row in rows if metric in row]
    assert len(values) == steps, f"{recipe} logged {metric} {len(values)} times in {steps} steps"
    return values


def judge(curves: list[list[float]], less_is_better: bool) -> dict:
    first, last = ([statistics.mean(part) for part in parts] for parts in ([c[:5] for c in curves], [c[-5:] for c in curves]))
    gains = [(a - b if less_is_better else b - a) for a, b in zip(first, last, strict=True)]
    spread = max(max(first) - min(first), max(last) - min(last))
    return {"first_5": first, "last_5": last, "gains": gains, "spread": spread, "ok": min(gains) > spread}


def body(checks: Checks, args) -> None:
    work = args.work.resolve()
    model = smollm2_model.make(work / "smollm2")
    curves: dict[str, list[list[float]]] = {}
    report: dict = {}

    def learns(recipe: str) -> str:
        def run(seed: int) -> list[float]:
            world = work / f"learning-world-{seed}"
            make_world(world, model, seed)
            curve = run_recipe(recipe, world, server, args.steps or RECIPES[recipe][2])
            print(f"{recipe} seed {seed}: {' '.join(f'{v:.3f}' for v in curve)}", flush=True)
            return curve

        # At once: the server puts the three into common passes.
        with ThreadPoolExecutor(args.seeds) as pool:
            runs = curves[recipe] = list(pool.map(run, range(args.seeds)))
        figures = judge(runs, RECIPES[recipe][4])
        report[recipe] = {**figures, "curves": runs}
        (work / "learning.json").write_text(json.dumps(report, indent=1) + "\n")
        if args.steps:
            return f"{args.steps} steps, not judged: {json.dumps(figures)}"
        assert figures["ok"], json.dumps(figures)
        return json.dumps(figures)

    data = work / "learning-data"
    shutil.rmtree(data, ignore_errors=True)
    with Server(args.tinderbox, data, {NAME: model}, RAYON_NUM_THREADS=str(args.threads)) as server:
        for recipe in RECIPES:
            checks.run(recipe, learns, recipe)
    draw({TITLES[recipe]: runs for recipe, runs in curves.items()}, work / "learning.svg")


if __name__ == "__main__":
    parser = arguments(__doc__, model_dir=False)
    parser.add_argument("--work", type=Path, required=True, help="for the model, which is made there, data and figures")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="fewer steps, to try the script; then nothing is judged")
    main(parser, body)
