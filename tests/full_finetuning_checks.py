#!/usr/bin/env python3
"""Full fine-tuning through the SDK against PyTorch: steps, export, sampler and resume of `MODEL:full`.

    TINKER_BASE_URL=... TINKER_API_KEY=... full_finetuning_checks.py --model-name my-model --model-dir DIR

1. `get_info` says that the run is no adapter
2. three AdamW steps over all weights give the logprobs of the same steps in PyTorch
3. the exported directory loads in transformers with the trainer's logprobs
4. a sampler of the run gives the trainer's logprobs
5. a run resumed with its optimiser goes on like the first one
6. the base model and its adapters are untouched
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "conformance"))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import refmath  # noqa: E402
from harness import Api, close_lists, wait  # noqa: E402

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
    import urllib.request

    path = wait(trainer.save_weights_external("full-export"), api.timeout).path
    for name, url in wait(api.rest().get_external_weights_urls(path), api.timeout).urls.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=api.timeout) as r:
            target.write_bytes(r.read())
    return folder


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model-name", required=True)
    ap.add_argument("--model-dir", required=True)
    a = ap.parse_args()
    torch.set_num_threads(1)
    api = Api(os.environ["TINKER_BASE_URL"], os.environ["TINKER_API_KEY"], a.model_name)
    service = api.service()
    rng = np.random.default_rng(5)
    vocab = refmath.RefModel(a.model_dir).vocab
    # The library never trains the embedding of the padding token; keep it out of the data.
    pad = AutoModelForCausalLM.from_pretrained(a.model_dir).config.pad_token_id

    def example(n: int) -> refmath.Ex:
        e = refmath.ce_example(rng, n, vocab, "random")
        e.tokens = [t if t != pad else (t + 1) % vocab for t in e.tokens]
        return e

    batches = [[example(int(n)) for n in rng.integers(5, 25, size=2)] for _ in range(STEPS + 1)]
    probe = [example(n) for n in (9, 30)]

    trainer = api.train(service, model=f"{a.model_name}:full", rank=8)
    info = trainer.get_info()
    assert info.is_lora is False, f"get_info: is_lora is {info.is_lora}"
    print("PASS get_info: no adapter")

    for batch in batches[:STEPS]:
        api.forward_backward(trainer, batch)
        api.optim(trainer, **STEP)
    ours = api.logprobs(trainer, probe)
    base = logprobs(refmath.RefModel(a.model_dir), probe)
    want = logprobs(reference_steps(a.model_dir, batches[:STEPS]), probe)
    close_lists(ours, want, 2e-3, "logprobs after three steps")
    moved = max(abs(x - y) for u, v in zip(ours, base, strict=True) for x, y in zip(u, v, strict=True))
    assert moved > 0.05, f"the steps moved logprobs by {moved} only: the check is void"
    gap = max(abs(x - y) for u, v in zip(ours, want, strict=True) for x, y in zip(u, v, strict=True))
    print(f"PASS steps: largest difference from PyTorch {gap:.1e}, moved {moved:.2f}")

    with tempfile.TemporaryDirectory() as tmp:
        exported = refmath.RefModel(download(api, trainer, Path(tmp)))
    close_lists(logprobs(exported, probe), ours, 1e-4, "exported directory in transformers")
    print("PASS export: transformers gives the trainer's logprobs")

    sampler = api.snapshot(trainer)
    sampled = api.compute_logprobs(sampler, probe[1].tokens + probe[1].target_tokens[-1:])
    close_lists([sampled[1:]], [ours[1]], 1e-4, "sampler")
    print("PASS sampler: the trainer's logprobs")

    path = wait(trainer.save_state("full-state"), api.timeout).path
    resumed = wait(api.service().create_training_client_from_state_with_optimizer(path), api.timeout)
    for client in (trainer, resumed):
        api.forward_backward(client, batches[STEPS])
        api.optim(client, **STEP)
    close_lists(api.logprobs(resumed, probe), api.logprobs(trainer, probe), 0.0, "resumed run")
    print("PASS resume: bit for bit")

    close_lists([api.compute_logprobs(api.sampler(service), e.tokens + e.target_tokens[-1:])[1:] for e in probe],
                [refmath.RefModel(a.model_dir).sequence_logprobs(e.tokens + e.target_tokens[-1:])[1:] for e in probe], 1e-4, "base model")
    fresh = api.train(service, rank=4)
    close_lists(api.logprobs(fresh, probe), base, 1e-4, "a fresh adapter")
    print("PASS base model untouched")
    api.close()
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)
