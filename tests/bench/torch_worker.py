#!/usr/bin/env python3
"""The PyTorch + PEFT side of side_by_side.py: a process that does one repetition for each line it reads, and is idle in between.

Reads one JSON object per line on stdin, answers with one per line on stdout:
    {"do": "load", "model": DIR, "adapter": DIR or null}   -> {}
    {"do": "step", "sequences": [[ids]], "lr": 1e-4}        -> {"wall", "cpu", "loss"}   LoRA step over all sequences together
    {"do": "generate", "prompt": [ids], "n": 1, "tokens": 128, "adapter": true} -> {"wall", "cpu"}
    {"do": "bandwidth", "bytes": 1e9}                       -> {"bytes_per_s"}           reads of one large buffer, best of 7
    {"do": "peak"}                                          -> {"bytes"}
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

import torch

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
torch.set_num_interop_threads(1)


class Worker:
    def __init__(self) -> None:
        self.model = self.opt = None

    def load(self, model: str, adapter: str | None) -> dict:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
        self.model.requires_grad_(False)
        if adapter is not None:
            import peft

            self.model = peft.PeftModel.from_pretrained(self.model, adapter, is_trainable=True)
            trainable = [p for p in self.model.parameters() if p.requires_grad]
            self.opt = torch.optim.AdamW(trainable, lr=1e-4, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0)
        return {}

    def step(self, sequences: list[list[int]], lr: float) -> dict:
        ids = torch.tensor(sequences)
        self.model.train()
        self.opt.param_groups[0]["lr"] = lr
        with timed() as out:
            logits = self.model(input_ids=ids[:, :-1], use_cache=False).logits
            targets = ids[:, 1:].reshape(-1)
            loss = torch.nn.functional.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), targets, reduction="sum")
            loss.backward()
            self.opt.step()
            self.opt.zero_grad(set_to_none=True)
        return {**out, "loss": float(loss.detach())}

    @torch.no_grad()
    def generate(self, prompt: list[int], n: int, tokens: int, adapter: bool) -> dict:
        ids = torch.tensor([prompt] * n)
        self.model.eval()
        with contextlib.nullcontext() if adapter or self.opt is None else self.model.disable_adapter(), timed() as out:
            got = self.model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                min_new_tokens=tokens, max_new_tokens=tokens, pad_token_id=0,
            )
        assert got.shape == (n, len(prompt) + tokens), got.shape
        return out

    def bandwidth(self, bytes: float) -> dict:
        buffer = torch.ones(int(bytes) // 4)
        best = 0.0
        for _ in range(7):
            start = time.perf_counter()
            buffer.sum()
            best = max(best, buffer.numel() * 4 / (time.perf_counter() - start))
        return {"bytes_per_s": best}

    def peak(self) -> dict:
        with open("/proc/self/status") as f:
            return {"bytes": next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))}


@contextlib.contextmanager
def timed():
    """Fills the dict it yields with wall and CPU seconds when the block ends."""
    out: dict = {}
    wall, cpu = time.perf_counter(), time.process_time()
    yield out
    out.update(wall=time.perf_counter() - wall, cpu=time.process_time() - cpu)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    worker = Worker()
    torch.manual_seed(0)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(getattr(worker, order.pop("do"))(**order)), file=answers, flush=True)


if __name__ == "__main__":
    main()
