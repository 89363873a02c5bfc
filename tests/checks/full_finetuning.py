#!/usr/bin/env python3
"""Full fine-tuning through the SDK against PyTorch: steps, export, sampler and resume of `MODEL:full`.

    "$(tests/python_env)" tests/checks/full_finetuning.py --base-url http://127.0.0.1:8000 --model-name my-model --model-dir DIR
"""

from __future__ import annotations

import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import refmath  # noqa: E402
from address import arguments  # noqa: E402
from harness import Api, close_lists, wait  # noqa: E402
from runner import main  # noqa: E402

STEP = dict(learning_rate=2e-3, beta1=0.8, beta2=0.9, eps=1e-2, weight_decay=0.1)
STEPS = 3


def reference_steps(directory: str, batches: list) -> refmath.RefModel:
    ref = refmath.RefModel(directory)
    ref.model.requires_grad_(True)
    params = list(ref.model.parameters())
    opt = torch.optim.AdamW(params, lr=STEP["learning_rate"], betas=(STEP["beta1"], STEP["beta2"]), eps=STEP["eps"], weight_decay=STEP["weight_decay"])
    for batch in batches:
        loss = sum(refmath.loss_cross_entropy(ref.target_logprobs(e.tokens, e.target_tokens), e, {}) for e in batch)
        loss.backward()
        opt.step()
        opt.zero_grad()
    return ref


def logprobs(ref: refmath.RefModel, probe: list) -> list[list[float]]:
    with torch.no_grad():
        return [ref.target_logprobs(e.tokens, e.target_tokens).tolist() for e in probe]


def download(api: Api, trainer, folder: Path) -> Path:
    path = wait(trainer.save_weights_external("full-export"), api.timeout).path
    for name, url in wait(api.rest().get_external_weights_urls(path), api.timeout).urls.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=api.timeout) as r:
            target.write_bytes(r.read())
    return folder


class FullFinetuning:
    """A run over all weights after three steps, and the same steps in PyTorch."""

    def __init__(self, args) -> None:
        torch.set_num_threads(1)
        self.model_dir = str(args.model_dir)
        self.api = Api(args.base_url, args.api_key, args.model_name)
        self.service = self.api.service()
        rng = np.random.default_rng(5)
        vocab = refmath.RefModel(self.model_dir).vocab
        # The library never trains the embedding of the padding token; keep it out of the data.
        pad = AutoModelForCausalLM.from_pretrained(self.model_dir).config.pad_token_id

        def example(n: int) -> refmath.Ex:
            e = refmath.ce_example(rng, n, vocab, "random")
            e.tokens = [t if t != pad else (t + 1) % vocab for t in e.tokens]
            return e

        self.batches = [[example(int(n)) for n in rng.integers(5, 25, size=2)] for _ in range(STEPS + 1)]
        self.probe = [example(n) for n in (9, 30)]
        self.trainer = self.api.train(self.service, model=f"{args.model_name}:full", rank=8)
        for batch in self.batches[:STEPS]:
            self.api.forward_backward(self.trainer, batch)
            self.api.optim(self.trainer, **STEP)
        self.ours = self.api.logprobs(self.trainer, self.probe)
        self.base = logprobs(refmath.RefModel(self.model_dir), self.probe)

    def check_get_info_says_that_the_run_is_no_adapter(self) -> None:
        info = self.trainer.get_info()
        assert info.is_lora is False, f"is_lora is {info.is_lora}"

    def check_three_steps_give_the_logprobs_of_pytorch(self) -> str:
        want = logprobs(reference_steps(self.model_dir, self.batches[:STEPS]), self.probe)
        close_lists(self.ours, want, 2e-3, "logprobs after three steps")
        moved, gap = furthest(self.ours, self.base), furthest(self.ours, want)
        assert moved > 0.05, f"the steps moved logprobs by {moved} only: the check is void"
        return f"largest difference {gap:.1e}, moved {moved:.2f}"

    def check_the_export_loads_in_transformers_with_the_same_logprobs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            exported = refmath.RefModel(download(self.api, self.trainer, Path(folder)))
        close_lists(logprobs(exported, self.probe), self.ours, 1e-4, "exported directory in transformers")

    def check_a_sampler_of_the_run_gives_the_trainers_logprobs(self) -> None:
        sampled = self.api.compute_logprobs(self.api.snapshot(self.trainer), whole(self.probe[1]))
        close_lists([sampled[1:]], [self.ours[1]], 1e-4, "sampler")

    def check_a_resumed_run_goes_on_bit_for_bit(self) -> None:
        path = wait(self.trainer.save_state("full-state"), self.api.timeout).path
        resumed = wait(self.api.service().create_training_client_from_state_with_optimizer(path), self.api.timeout)
        for client in (self.trainer, resumed):
            self.api.forward_backward(client, self.batches[STEPS])
            self.api.optim(client, **STEP)
        close_lists(self.api.logprobs(resumed, self.probe), self.api.logprobs(self.trainer, self.probe), 0.0, "resumed run")

    def check_the_base_model_and_its_adapters_are_untouched(self) -> None:
        reference, sampler = refmath.RefModel(self.model_dir), self.api.sampler(self.service)
        told = [self.api.compute_logprobs(sampler, whole(e))[1:] for e in self.probe]
        close_lists(told, [reference.sequence_logprobs(whole(e))[1:] for e in self.probe], 1e-4, "base model")
        fresh = self.api.train(self.service, rank=4)
        close_lists(self.api.logprobs(fresh, self.probe), self.base, 1e-4, "a fresh adapter")


def whole(e: refmath.Ex) -> list[int]:
    return e.tokens + e.target_tokens[-1:]


def furthest(a: list[list[float]], b: list[list[float]]) -> float:
    return max(abs(x - y) for u, v in zip(a, b, strict=True) for x, y in zip(u, v, strict=True))


if __name__ == "__main__":
    main(arguments(__doc__), lambda checks, args: checks.every(FullFinetuning(args)))
