#!/usr/bin/env python3
"""Checks on a real trained model, SmolLM2-135M-Instruct: its numbers, an answer, supervised training, and RL on one-digit sums.

    "$(tests/python_env)" tests/smollm2_checks.py --tinderbox target/release/tinderbox --work target/full

1. logprobs of a paragraph, from the sampler and from the trainer, equal PyTorch's within 1e-4
2. the greedy answer to "What is the capital of France?" contains Paris
3. supervised training on some files of Python's standard library lowers the loss on others
4. GRPO on `a + b = ` (8 prompts x 16 samples a step): the mean reward of the last 10 of 40 steps is at least twice that of the first 5,
   for each of three seeds; all curves go into WORK/grpo_smollm2.svg

Exit 0 when all hold; figures in WORK/smollm2.json.
"""

from __future__ import annotations

import argparse
import email
import json
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "bench"))
from contestants import Server  # noqa: E402
from tinker import types  # noqa: E402

import smollm2_model  # noqa: E402

PARAGRAPH = (
    "The harbour was quiet in the morning. A few boats lay at the quay, and an old man mended his nets while the gulls waited for the first "
    "catch of the day. Nobody spoke, because there was nothing to say: the sea had been calm for a week and would be calm for another."
)
PROMPTS, GROUP, STEPS = 8, 16, 40


def check_logprobs(server: Server, trainer, tokenizer) -> dict:
    import torch
    from transformers import AutoModelForCausalLM

    ids = tokenizer.encode(PARAGRAPH)
    sampler = server.service.create_sampling_client(base_model=server.model).result()
    ours = sampler.compute_logprobs(types.ModelInput.from_ints(ids)).result()[1:]
    datum = types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)})
    trained = trainer.forward([datum], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()
    model = AutoModelForCausalLM.from_pretrained(server.model, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    want = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    gap = max(abs(a - b) for a, b in zip(ours, want, strict=True))
    trainer_gap = max(abs(float(a) - b) for a, b in zip(trained, want, strict=True))
    return {"tokens": len(ids), "sampler_gap": gap, "trainer_gap": trainer_gap, "ok": max(gap, trainer_gap) <= 1e-4}


def check_answer(server: Server, tokenizer) -> dict:
    text = tokenizer.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}], tokenize=False, add_generation_prompt=True)
    sampler = server.service.create_sampling_client(base_model=server.model).result()
    prompt = types.ModelInput.from_ints(tokenizer.encode(text, add_special_tokens=False))
    got = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=24, temperature=0.0)).result().sequences[0]
    answer = tokenizer.decode(got.tokens, skip_special_tokens=True)
    return {"answer": answer, "ok": "Paris" in answer}


def check_sft(server: Server, tokenizer) -> dict:
    def chunks(names: list[str], n: int) -> list[types.Datum]:
        folder = Path(email.__file__).parent
        ids = tokenizer.encode("\n".join((folder / name).read_text() for name in names))
        rows = [ids[i : i + 129] for i in range(0, len(ids) - 129, 129)][:n]
        return [types.Datum(model_input=types.ModelInput.from_ints(r[:-1]), loss_fn_inputs={"target_tokens": r[1:], "weights": [1.0] * 128}) for r in rows]

    train, held_out = chunks(["message.py", "feedparser.py"], 64), chunks(["header.py", "generator.py"], 12)
    trainer = server.service.create_lora_training_client(server.model, rank=8, seed=0).result()

    def held_out_loss() -> float:
        return trainer.forward(held_out, "cross_entropy").result().metrics["loss:sum"] / (128 * len(held_out))

    losses = [held_out_loss()]
    for step in range(16):
        batch = [train[(8 * step + i) % len(train)] for i in range(8)]
        backward = trainer.forward_backward(batch, "cross_entropy")
        trainer.optim_step(types.AdamParams(learning_rate=3e-4)).result()
        loss = backward.result().metrics["loss:sum"] / (128 * len(batch))
        if step % 4 == 3:
            losses.append(held_out_loss())
            print(f"sft step {step + 1:2d}  loss {loss:.3f}  held out {losses[-1]:.3f}", flush=True)
    return {"held_out_losses": losses, "ok": losses[-1] < 0.97 * losses[0]}


def grpo(server: Server, tokenizer, seed: int) -> list[float]:
    """Mean reward per step."""
    rng = random.Random(seed)
    sums = [(a, b) for a in range(1, 9) for b in range(1, 9) if a + b < 10]
    trainer = server.service.create_lora_training_client(server.model, rank=8, seed=seed).result()
    rewards = []
    for step in range(STEPS):
        sampler = trainer.save_weights_and_get_sampling_client().result()
        problems = [rng.choice(sums) for _ in range(PROMPTS)]
        prompts = [tokenizer.encode(f"{a} + {b} = ") for a, b in problems]
        params = types.SamplingParams(max_tokens=1, temperature=1.0, seed=1000 * seed + step)
        pending = [sampler.sample(types.ModelInput.from_ints(p), GROUP, params) for p in prompts]
        data, all_rewards = [], []
        for (a, b), prompt, future in zip(problems, prompts, pending, strict=True):
            sequences = future.result().sequences
            rewards_G = [float(tokenizer.decode(s.tokens[:1]).strip() == str(a + b)) for s in sequences]
            mean = statistics.mean(rewards_G)
            all_rewards += rewards_G
            for s, r in zip(sequences, rewards_G, strict=True):
                silent = [0.0] * (len(prompt) - 1)
                inputs = {"target_tokens": prompt[1:] + list(s.tokens), "logprobs": silent + list(s.logprobs), "advantages": silent + [r - mean]}
                data.append(types.Datum(model_input=types.ModelInput.from_ints(prompt), loss_fn_inputs=inputs))
        backward = trainer.forward_backward(data, "importance_sampling")
        trainer.optim_step(types.AdamParams(learning_rate=2e-4)).result()
        backward.result()
        rewards.append(statistics.mean(all_rewards))
        if step % 5 == 4:
            print(f"grpo seed {seed} step {step + 1:2d}  mean reward of the last five {statistics.mean(rewards[-5:]):.3f}", flush=True)
    return rewards


def curves_svg(curves: dict[int, list[float]], path: Path) -> None:
    """Mean reward per step, a thin line per seed and its 5-step average on top."""
    width, height, left, bottom = 640, 320, 50, 40
    colours = ["#1f6feb", "#d1242f", "#1a7f37"]

    def at(step: float, reward: float) -> str:
        x = left + step / (STEPS - 1) * (width - left - 10)
        return f"{x:.1f},{height - bottom - reward * (height - bottom - 20):.1f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>', '<g stroke="#ddd">']
    for tick in (0, 0.25, 0.5, 0.75, 1):
        a, b = at(0, tick), at(STEPS - 1, tick)
        parts.append(f'<polyline points="{a} {b}"/><text x="8" y="{a.split(",")[1]}" stroke="none">{tick:g}</text>')
    parts.append("</g>")
    for (seed, rewards), colour in zip(sorted(curves.items()), colours, strict=False):
        smooth = [statistics.mean(rewards[max(0, i - 4) : i + 1]) for i in range(len(rewards))]
        for values, style in ((rewards, 'stroke-width="1" stroke-opacity="0.35"'), (smooth, 'stroke-width="2"')):
            points = " ".join(at(i, r) for i, r in enumerate(values))
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" {style}/>')
        parts.append(f'<text x="{left + 10}" y="{16 + 16 * seed}" fill="{colour}">seed {seed}</text>')
    caption = "SmolLM2-135M, one-digit sums: mean reward per step (thin) and its 5-step average"
    parts += [f'<text x="{left}" y="{height - 12}">{caption}</text>', "</svg>"]
    path.write_text("\n".join(parts) + "\n")


def check_grpo(server: Server, tokenizer, work: Path) -> dict:
    curves = {seed: grpo(server, tokenizer, seed) for seed in range(3)}
    curves_svg(curves, work / "grpo_smollm2.svg")
    first = {s: statistics.mean(c[:5]) for s, c in curves.items()}
    last = {s: statistics.mean(c[-10:]) for s, c in curves.items()}
    return {"first_5": first, "last_10": last, "curves": curves, "ok": all(last[s] >= 2 * first[s] for s in curves)}


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tinderbox", type=Path, required=True)
    ap.add_argument("--work", type=Path, required=True)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--only", default="logprobs,answer,sft,grpo")
    a = ap.parse_args()
    work = a.work.resolve()
    model = smollm2_model.make(work / "smollm2")
    report, wanted = {}, a.only.split(",")
    with Server(a.tinderbox.resolve(), model, work / "smollm2-data", a.threads) as server:
        trainer = server.service.create_lora_training_client(server.model, rank=4, seed=0).result()
        tokenizer = trainer.get_tokenizer()
        checks = {
            "logprobs": lambda: check_logprobs(server, trainer, tokenizer), "answer": lambda: check_answer(server, tokenizer),
            "sft": lambda: check_sft(server, tokenizer), "grpo": lambda: check_grpo(server, tokenizer, work),
        }
        for name in wanted:
            start = time.perf_counter()
            report[name] = {**checks[name](), "seconds": round(time.perf_counter() - start, 1)}
            shown = {k: v for k, v in report[name].items() if k != "curves"}
            print(f"{'PASS' if report[name]['ok'] else 'FAIL'}  {name}: {json.dumps(shown)}", flush=True)
            (work / "smollm2.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(report[n]["ok"] for n in wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
