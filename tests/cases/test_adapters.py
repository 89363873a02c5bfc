"""Adapters: their export, their limits, and that what is served is what was trained."""

import json

import pytest
import safetensors.torch
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

import refmath
from harness import close_lists, differs, expect_user_error, wait

BIG = dict(learning_rate=0.05, eps=1e-2)


def train(api, tc, exs, **params):
    api.forward_backward(tc, exs)
    api.optim(tc, **(BIG | params))


def peft_model(model_dir, adapter_dir):
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    return PeftModel.from_pretrained(base, str(adapter_dir)).eval()


@pytest.mark.parametrize("flags", [dict(train_unembed=True), dict(train_unembed=False)])
def test_an_export_gives_the_servers_greedy_tokens_in_peft(api, svc, ref, model_dir, tmp_path, rng, flags):
    """Tied embeddings included: the head's adapter must not move the input embedding."""
    exs = [refmath.ce_example(rng, 16, ref.vocab)]
    tc = api.train(svc, **flags)
    train(api, tc, exs)
    directory = api.adapter_dir(tc, tmp_path)
    keys = list(safetensors.torch.load_file(directory / "adapter_model.safetensors"))
    assert keys and all(k.startswith("base_model.model.") for k in keys)
    model = peft_model(model_dir, directory)
    prompt = refmath.random_tokens(rng, 7, ref.vocab)
    got = api.sample(api.snapshot(tc), prompt, max_tokens=32, temperature=0.0, stop=[]).sequences[0]
    tokens, margin = list(prompt), []
    with torch.no_grad():
        for token in got.tokens:
            top = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1).topk(2)
            margin.append((top.values[0] - top.values[1]).item())
            if margin[-1] < 1e-3:
                break
            assert token == int(top.indices[0]), f"token {len(tokens) - len(prompt)} differs, margin {margin[-1]:.3g}"
            tokens.append(token)
        own = model(torch.tensor([exs[0].tokens])).logits[0].log_softmax(-1)
    assert len(margin) >= 8, "the reference's own choice was too close to call at once"
    want = [own[i, t].item() for i, t in enumerate(exs[0].target_tokens)]
    close_lists(api.logprobs(tc, exs), [want], 1e-4, "logprobs of the trained example")


def test_the_exported_configuration_has_only_what_loaders_take(api, svc, tmp_path):
    config = json.loads((api.adapter_dir(api.train(svc), tmp_path) / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["bias"] == "none" and config.get("modules_to_save") is None
    assert config["task_type"] == "CAUSAL_LM" and config["r"] == 8 and config["lora_alpha"] == 32


@pytest.mark.parametrize("flag", ["train_attn", "train_mlp", "train_unembed"])
def test_the_trained_parts_are_reported(api, svc, flag):
    flags = {f: f == flag for f in ("train_attn", "train_mlp", "train_unembed")}
    path = wait(api.train(svc, **flags).save_state("flags"), api.timeout).path
    info = api.http("POST", "/api/v1/weights_info", json={"tinker_path": path}).json()
    assert {f: info[f] for f in flags} == flags


def test_a_rank_beyond_the_limit_is_refused_and_nobody_notices(api, svc, other, ref, rng):
    exs = [refmath.ce_example(rng, 10, ref.vocab)]
    theirs = other.train()
    before = other.logprobs(theirs, exs)
    expect_user_error(lambda: api.train(svc, rank=1_000_000), api.timeout, mention="4096")
    close_lists(other.logprobs(theirs, exs), before, 0.0)


def test_a_small_step_reaches_the_sampler_whole(api, svc, ref, rng):
    """Adapters are served unmerged: rounding would eat an update of this size."""
    exs = [refmath.ce_example(rng, 20, ref.vocab)]
    tc = api.train(svc)
    tokens = exs[0].tokens + exs[0].target_tokens[-1:]

    def both():
        return api.logprobs(tc, exs)[0], api.compute_logprobs(api.snapshot(tc), tokens)[1:]

    train0, sample0 = both()
    train(api, tc, exs, learning_rate=1e-3, eps=1e-8)
    train1, sample1 = both()
    moved = [b - a for a, b in zip(train0, train1, strict=True)]
    served = [b - a for a, b in zip(sample0, sample1, strict=True)]
    size = max(map(abs, moved))
    assert size > 1e-4, f"the step moved logprobs by {size:.2g} only: the check is void"
    gap = max(abs(a - b) for a, b in zip(moved, served, strict=True))
    assert gap < 0.05 * size, f"the sampler saw the step {gap:.2g} off, of {size:.2g}"


def test_the_base_model_is_the_same_after_many_swaps(api, svc, ref, rng):
    prompt = refmath.random_tokens(rng, 12, ref.vocab)
    base = api.sampler(svc)
    before = api.compute_logprobs(base, prompt)
    samplers = []
    for seed in (1, 2):
        tc = api.train(svc, seed=seed)
        train(api, tc, [refmath.ce_example(rng, 12, ref.vocab)])
        samplers.append(api.snapshot(tc))
    alone = [api.compute_logprobs(s, prompt) for s in samplers]
    assert differs([alone[0][1:]], [alone[1][1:]], 1e-3) and differs([alone[0][1:]], [before[1:]], 1e-3)
    for i in range(100):
        assert api.compute_logprobs(samplers[i % 2], prompt) == alone[i % 2]
    assert api.compute_logprobs(base, prompt) == before


def test_a_run_begins_clean_where_another_ended(api, svc, ref, rng):
    """No moment or gradient of an unloaded run is left for the next one."""
    exs = [refmath.ce_example(rng, 12, ref.vocab)]

    def first_step(seed):
        tc = api.train(svc, seed=seed)
        train(api, tc, exs)
        return tc, api.logprobs(tc, exs)

    _, want = first_step(5)
    old = api.train(svc, seed=6)
    for _ in range(5):
        train(api, old, exs)
    api.forward_backward(old, exs)
    api.http("POST", "/api/v1/unload_model", json={"model_id": old.model_id})
    close_lists(first_step(5)[1], want, 0.0, "first step of a new run")
