#!/usr/bin/env python3
"""Writes the reference values that the Rust tests compare with: five tiny models, their logprobs and gradients, AdamW, losses.

Regenerate (needs no network; the same seed gives the same values up to the platform's rounding):

    "$(tests/python_env)" tests/golden/make_golden.py

For each ARCH a Hugging Face directory tests/golden/ARCH (config.json, model.safetensors) and in it expected.safetensors:

    datum.I.tokens, datum.I.targets (T,) i32; datum.I.weights (T,)        three datums of 1, 7 and 13 tokens
    datum.I.logprobs.base, datum.I.logprobs.lora (T,)                     logprob of each target without / with the adapter
    loss.base, loss.lora (1,)                                             -sum of weights * logprobs over all datums
    lora.alpha, lora.rank (1,)                                            the product B A counts alpha / rank
    lora.MODULE.lora_A.weight (R, in), lora.MODULE.lora_B.weight (out, R) a trained-looking adapter: B is not zero
    lora_grad.MODULE.lora_A.weight, lora_grad.MODULE.lora_B.weight        d loss.lora / d A, d B
    grad.NAME                                                             d loss.base / d every weight; a tied embedding counts once
    greedy.prompt, greedy.tokens i32, greedy.margins                      greedy continuation and best minus second logit
    rope.inv_freq (H/2,)

adamw.safetensors and losses.safetensors: see `adamw` and `losses` below. All is computed in float64 from float32 inputs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "conformance"))
import refmath  # noqa: E402

RANK, ALPHA = 3, 32.0
LENGTHS = (1, 7, 13)
SQUARE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=64)
ODD = dict(hidden_size=36, intermediate_size=53, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, vocab_size=71)
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
ARCHS: dict[str, dict] = {
    "llama": dict(model_type="llama", tie_word_embeddings=False, head_dim=8, rms_norm_eps=1e-5, rope_theta=10000.0, **SQUARE),
    "qwen2": dict(model_type="qwen2", tie_word_embeddings=True, rms_norm_eps=1e-6, rope_theta=1000000.0, **SQUARE),
    "qwen3": dict(model_type="qwen3", tie_word_embeddings=True, head_dim=16, rms_norm_eps=1e-6, rope_theta=1000000.0, **SQUARE),
    "qwen3_untied": dict(model_type="qwen3", tie_word_embeddings=False, head_dim=16, rms_norm_eps=1e-6, rope_theta=1000000.0, **SQUARE),
    "llama_rope": dict(model_type="llama", tie_word_embeddings=True, head_dim=10, rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=LLAMA3_ROPE, **ODD),
}
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def normal(rng: np.random.Generator, shape, gain: float) -> torch.Tensor:
    return torch.from_numpy((rng.standard_normal(tuple(shape)) * gain).astype(np.float32))


def write_model(out: Path, spec: dict, rng: np.random.Generator) -> None:
    """A random model whose every tensor matters: norms off one, biases off zero, sharp attention."""
    import transformers

    out.mkdir(parents=True, exist_ok=True)
    config = {**spec, "architectures": [CLASSES[spec["model_type"]]], "torch_dtype": "float32", "hidden_act": "silu", "max_position_embeddings": 512,
              "eos_token_id": 1,
              # The library leaves the embedding of a padding token out of the gradient; ours is the whole gradient.
              "pad_token_id": None, "bos_token_id": None, "attention_dropout": 0.0}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    model = getattr(transformers, CLASSES[spec["model_type"]])(transformers.AutoConfig.from_pretrained(out))
    tensors = {}
    for name, p in model.named_parameters():
        if name.endswith("norm.weight"):
            tensors[name] = 1.0 + normal(rng, p.shape, 0.3)
        elif name.endswith("bias"):
            tensors[name] = normal(rng, p.shape, 0.4)
        elif "embed_tokens" in name:
            tensors[name] = normal(rng, p.shape, 0.35)
        else:
            tensors[name] = normal(rng, p.shape, 1.3 / np.sqrt(p.shape[1]))
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


class Norm64(torch.nn.Module):
    """RMSNorm without the float32 casts of the library's own."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Rope64(torch.nn.Module):
    """Rope tables in float64, from the library's inverse frequencies."""

    def __init__(self, rope):
        super().__init__()
        self.inv_freq, self.scaling = rope.inv_freq.double(), rope.attention_scaling

    def forward(self, _x, position_ids):
        angle = position_ids[..., None].double() * self.inv_freq
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos() * self.scaling, angle.sin() * self.scaling


def load64(directory: Path) -> refmath.RefModel:
    """The library's model in float64 throughout; checked against its own float32 forward pass."""
    plain = refmath.RefModel(directory)
    ref = refmath.RefModel(directory)
    inv_freq = ref.model.model.rotary_emb.inv_freq.clone()
    ref.model.double()
    ref.dtype = torch.float64
    ref.model.model.rotary_emb.inv_freq = inv_freq
    ref.model.model.rotary_emb = Rope64(ref.model.model.rotary_emb)
    for parent in list(ref.model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                setattr(parent, name, Norm64(child))
    ref.model.set_attn_implementation("sdpa")
    ids = list(range(2, 30))
    gap = (plain.logits(ids).double() - ref.logits(ids)).abs().max()
    assert gap < 2e-5, f"{directory}: float64 copy differs by {gap}"
    return ref


def make_data(rng: np.random.Generator, vocab: int) -> list[refmath.Ex]:
    out = []
    for n in LENGTHS:
        seq = [int(x) for x in rng.integers(0, vocab, size=n + 1)]
        weights = np.float32(rng.uniform(-0.5, 2.0, size=n) * (rng.random(n) > 0.2))
        out.append(refmath.Ex(seq[:-1], seq[1:], weights=[float(w) or (0.75 if n == 1 else 0.0) for w in weights]))
    return out


def make_adapter(rng: np.random.Generator, ref: refmath.RefModel) -> refmath.Adapter:
    modules = {}
    for name, linear in sorted(ref.linears().items()):
        a = normal(rng, (RANK, linear.in_features), 1.0 / np.sqrt(linear.in_features))
        b = normal(rng, (linear.out_features, RANK), 0.03)
        modules[name] = (a, b)
    return refmath.Adapter(modules, {n: ALPHA / RANK for n in modules})


def loss_and_logprobs(ref: refmath.RefModel, data: list[refmath.Ex], adapter) -> tuple[torch.Tensor, list[torch.Tensor]]:
    lps = [ref.target_logprobs(e.tokens, e.target_tokens, adapter) for e in data]
    return sum(refmath.loss_cross_entropy(lp, e, {}) for lp, e in zip(lps, data, strict=True)), lps


def expected(ref: refmath.RefModel, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    data, adapter = make_data(rng, ref.vocab), make_adapter(rng, ref)
    out: dict[str, torch.Tensor] = {"lora.alpha": torch.tensor([ALPHA]), "lora.rank": torch.tensor([float(RANK)])}
    ref.model.requires_grad_(True)
    loss, lps = loss_and_logprobs(ref, data, None)
    loss.backward()
    out["loss.base"] = loss.detach()[None]
    for name, p in ref.model.named_parameters():
        out[f"grad.{name}"] = p.grad
    ref.model.requires_grad_(False)

    lora = adapter.clone(dtype=torch.float64, requires_grad=True)
    loss, lora_lps = loss_and_logprobs(ref, data, lora)
    loss.backward()
    out["loss.lora"] = loss.detach()[None]
    for name, (a, b) in lora.modules.items():
        for side, t in (("A", a), ("B", b)):
            out[f"lora.{name}.lora_{side}.weight"] = t.detach()
            out[f"lora_grad.{name}.lora_{side}.weight"] = t.grad
    for i, (e, base, adapted) in enumerate(zip(data, lps, lora_lps, strict=True)):
        out |= {f"datum.{i}.tokens": torch.tensor(e.tokens), f"datum.{i}.targets": torch.tensor(e.target_tokens),
                f"datum.{i}.weights": e.t("weights"), f"datum.{i}.logprobs.base": base.detach(), f"datum.{i}.logprobs.lora": adapted.detach()}
    tokens, margins = ref.greedy(data[1].tokens, 12)
    out |= {"greedy.prompt": torch.tensor(data[1].tokens), "greedy.tokens": torch.tensor(tokens), "greedy.margins": torch.tensor(margins)}
    out["rope.inv_freq"] = ref.model.model.rotary_emb.inv_freq
    return out


def adamw(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Three steps over `p0` (5, 3) and `p1` (4,) with `hyper` = lr, beta1, beta2, eps, weight decay, clip norm.

    step.S.grad0/grad1: gradients as accumulated; step.S.norm: their global norm before clipping; step.S.p0/p1: parameters after.
    The second step's gradients are too small for the clip; its eps shows.
    """
    lr, b1, b2, eps, decay, clip = hyper = (0.02, 0.9, 0.95, 1e-3, 0.1, 1.5)
    start = [normal(rng, (5, 3), 1.0), normal(rng, (4,), 1.0)]
    params = [torch.nn.Parameter(p.double()) for p in start]
    opt = torch.optim.AdamW(params, lr=lr, betas=(b1, b2), eps=eps, weight_decay=decay)
    out = {"p0": start[0], "p1": start[1], "hyper": torch.tensor(hyper)}
    for step, gain in enumerate((1.0, 0.003, 2.0)):
        grads = [normal(rng, p.shape, gain) for p in params]
        norm = torch.sqrt(sum((g.double() ** 2).sum() for g in grads))
        for p, g in zip(params, grads, strict=True):
            p.grad = g.double() * min(1.0, clip / float(norm))
        opt.step()
        out |= {f"step.{step}.grad0": grads[0], f"step.{step}.grad1": grads[1], f"step.{step}.norm": norm[None],
                f"step.{step}.p0": params[0].detach().clone(), f"step.{step}.p1": params[1].detach().clone()}
    return out


LOSS_CONFIGS = {
    "cross_entropy": {}, "importance_sampling": {}, "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "cispo": {"clip_low_threshold": 0.7, "clip_high_threshold": 1.3}, "dro": {"beta": 0.05},
    "gspo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.05},
}


def losses(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """One datum of 16 positions: `lp`, `q` (sampler's logprobs), `weights`, `advantages`, `mask`; per loss its value and d value / d lp.

    LOSS.value (1,), LOSS.grad (16,), and LOSS.config: its settings in the order of LOSS_CONFIGS. Ratios span 0.4 to 2.5, away
    from every clip limit by 1e-3.
    """
    n = 16
    ratio = np.float64([0.4, 0.55, 0.69, 0.72, 0.79, 0.85, 0.95, 1.0, 1.05, 1.15, 1.19, 1.25, 1.31, 1.6, 2.0, 2.5])
    rng.shuffle(ratio)
    lp = torch.from_numpy(np.float32(-rng.uniform(0.05, 4.0, n)))
    q = torch.from_numpy(np.float32(lp.numpy() - np.log(ratio)))
    advantages = np.float32(rng.standard_normal(n))
    advantages[3] = 0.0
    mask = np.float32(rng.random(n) > 0.3)
    weights = np.float32(rng.uniform(-0.5, 2.0, n))
    ex = refmath.Ex([0] * n, [0] * n, weights=list(weights), logprobs=list(q.numpy()), advantages=list(advantages), sequence_ratio_mask=list(mask))
    out = {"lp": lp, "q": q, "weights": torch.from_numpy(weights), "advantages": torch.from_numpy(advantages), "mask": torch.from_numpy(mask)}
    for name, config in LOSS_CONFIGS.items():
        x = lp.double().requires_grad_(True)
        value = refmath.LOSSES[name](x, ex, config)
        value.backward()
        out |= {f"{name}.value": value.detach()[None], f"{name}.grad": x.grad, f"{name}.config": torch.tensor(list(config.values()) or [0.0])}
    return out


def store(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    small = {k: (v.to(torch.int32) if v.dtype == torch.int64 else v.float()).contiguous().clone() for k, v in tensors.items()}
    save_file(small, path)
    print(f"{path.relative_to(HERE)}: {path.stat().st_size / 1000:.0f} kB, {len(small)} tensors")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for i, (arch, spec) in enumerate(ARCHS.items()):
        rng = np.random.default_rng(1000 + i)
        write_model(HERE / arch, spec, rng)
        store(HERE / arch / "expected.safetensors", expected(load64(HERE / arch), rng))
    store(HERE / "adamw.safetensors", adamw(np.random.default_rng(2000)))
    store(HERE / "losses.safetensors", losses(np.random.default_rng(2001)))


if __name__ == "__main__":
    main()
