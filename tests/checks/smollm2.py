#!/usr/bin/env python3
"""Checks on a real trained model, SmolLM2-135M-Instruct: its numbers, an answer, supervised training, and RL on one-digit sums.

    "$(tests/python_env)" tests/checks/smollm2.py --tinderbox target/release/tinderbox --work target/full

1. logprobs of a paragraph, from the sampler and from the trainer, equal PyTorch's within 1e-4
2. the greedy answer to "What is the capital of France?" contains Paris
3. supervised training on some files of Python's standard library lowers the loss on others
4. GRPO on `a + b = ` (8 prompts x 16 samples a step): the mean reward of the last 10 of 40 steps is at least twice that of the first 5,
   for each of three seeds; all curves go into WORK/grpo_smollm2.svg

Figures go into WORK/smollm2.json.
"""

from __future__ import annotations

import email
import json
import random
import shutil
import statistics
from pathlib import Path

import smollm2_model
from address import datum
from curves import draw
from runner import Checks, main
from server import Server, arguments
from tinker import types

PARAGRAPH = (
    "The harbour was quiet in the morning. A few boats lay at the quay, and an old man mended his nets while the gulls waited for the first "
    "catch of the day. Nobody spoke, because there was nothing to say: the sea had been calm for a week and would be calm for another."
)
PROMPTS, GROUP, STEPS = 8, 16, 40


class SmolLM2:
    def __init__(self, server: Server, model: Path, work: Path, steps: int | None) -> None:
        self.model, self.work, self.report = str(model), work, {}
        self.steps, self.judged = steps or STEPS, steps is None
        self.service = server.service()
        self.trainer = self.service.create_lora_training_client(self.model, rank=4, seed=0).result()
        self.tokenizer = self.trainer.get_tokenizer()

    def told(self, name: str, ok: bool, **figures) -> str:
        """Writes the figures to the report, and says them when they are as they must be."""
        self.report[name] = {**figures, "ok": ok}
        (self.work / "smollm2.json").write_text(json.dumps(self.report, indent=1) + "\n")
        shown = json.dumps({k: v for k, v in figures.items() if k != "curves"})
        assert ok, shown
        return shown

    def check_logprobs(self) -> str:
        import torch
        from transformers import AutoModelForCausalLM

        ids = self.tokenizer.encode(PARAGRAPH)
        sampler = self.service.create_sampling_client(base_model=self.model).result()
        ours = sampler.compute_logprobs(types.ModelInput.from_ints(ids)).result()[1:]
        trained = self.trainer.forward([datum(ids)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()
        model = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1]
        want = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        gap = max(abs(a - b) for a, b in zip(ours, want, strict=True))
        trainer_gap = max(abs(float(a) - b) for a, b in zip(trained, want, strict=True))
        return self.told("logprobs", max(gap, trainer_gap) <= 1e-4, tokens=len(ids), sampler_gap=gap, trainer_gap=trainer_gap)

    def check_answer(self) -> str:
        text = self.tokenizer.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}], tokenize=False, add_generation_prompt=True)
        sampler = self.service.create_sampling_client(base_model=self.model).result()
        prompt = types.ModelInput.from_ints(self.tokenizer.encode(text, add_special_tokens=False))
        got = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=24, temperature=0.0)).result().sequences[0]
        answer = self.tokenizer.decode(got.tokens, skip_special_tokens=True)
        return self.told("answer", "Paris" in answer, answer=answer)

    def check_sft(self) -> str:
        def chunks(names: list[str], n: int) -> list[types.Datum]:
            folder = Path(email.__file__).parent
            ids = self.tokenizer.encode("\n".join((folder / name).read_text() for name in names))
            rows = [ids[i : i + 129] for i in range(0, len(ids) - 129, 129)][:n]
            return [datum(r) for r in rows]

        train, held_out = chunks(["message.py", "feedparser.py"], 64), chunks(["header.py", "generator.py"], 12)
        trainer = self.service.create_lora_training_client(self.model, rank=8, seed=0).result()

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
        return self.told("sft", losses[-1] < 0.97 * losses[0], held_out_losses=losses)

    def grpo(self, seed: int) -> list[float]:
        """Mean reward per step."""
        rng = random.Random(seed)
        sums = [(a, b) for a in range(1, 9) for b in range(1, 9) if a + b < 10]
        trainer = self.service.create_lora_training_client(self.model, rank=8, seed=seed).result()
        rewards = []
        for step in range(self.steps):
            sampler = trainer.save_weights_and_get_sampling_client().result()
            problems = [rng.choice(sums) for _ in range(PROMPTS)]
            prompts = [self.tokenizer.encode(f"{a} + {b} = ") for a, b in problems]
            params = types.SamplingParams(max_tokens=1, temperature=1.0, seed=1000 * seed + step)
            pending = [sampler.sample(types.ModelInput.from_ints(p), GROUP, params) for p in prompts]
            data, all_rewards = [], []
            for (a, b), prompt, future in zip(problems, prompts, pending, strict=True):
                sequences = future.result().sequences
                rewards_G = [float(self.tokenizer.decode(s.tokens[:1]).strip() == str(a + b)) for s in sequences]
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

    def check_grpo(self) -> str:
        curves = [self.grpo(seed) for seed in range(3)]
        draw({"SmolLM2, one-digit sums: mean reward": curves}, self.work / "grpo_smollm2.svg", between=(0, 1))
        first, last = [statistics.mean(c[:5]) for c in curves], [statistics.mean(c[-10:]) for c in curves]
        learnt = all(b >= 2 * a for a, b in zip(first, last, strict=True))
        figures = self.told("grpo", learnt or not self.judged, first_5=first, last_10=last, curves=curves)
        return figures if self.judged else f"{self.steps} steps, not judged: {figures}"


def body(checks: Checks, args) -> None:
    work = args.work.resolve()
    model = smollm2_model.make(work / "smollm2")
    data = work / "smollm2-data"
    shutil.rmtree(data, ignore_errors=True)
    with Server(args.tinderbox, data, {str(model): model}, RAYON_NUM_THREADS=str(args.threads)) as server:
        checks.every(SmolLM2(server, model, work, args.steps))


if __name__ == "__main__":
    parser = arguments(__doc__, model_dir=False)
    parser.add_argument("--work", type=Path, required=True, help="for the model, which is made there, data and figures")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, help="of GRPO, fewer than 40, to try the script; then its rewards are not judged")
    main(parser, body)
