#!/usr/bin/env python3
"""Reinforcement learning in one page: groups of samples, advantages against the group's mean, a policy gradient step.

    export TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-anything
    python quickstart_rl.py --model MODEL

The reward is a toy that any model can raise: the share of vowels among the letters of a reply. Put your own in `reward`.
"""

from __future__ import annotations

import argparse
import statistics

import tinker
from tinker import types

PROMPTS = ["The river was near", "A small model learns", "Every number is", "Our server answers"]


def reward(text: str) -> float:
    """Share of vowels among the reply's characters, 0 to 1."""
    return sum(c in "aeiou" for c in text) / max(len(text), 1)


def make_datum(prompt: list[int], sequence, advantage: float) -> types.Datum:
    """A played sequence: the prompt's positions carry no advantage, the sampled ones all carry the sequence's."""
    tokens = prompt + list(sequence.tokens)
    silent = [0.0] * (len(prompt) - 1)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "logprobs": silent + list(sequence.logprobs),
            "advantages": silent + [advantage] * len(sequence.tokens),
        },
    )


def play(sampler, tokenizer, a: argparse.Namespace) -> tuple[list[types.Datum], list[float]]:
    """All prompts at once, `group` samples each; returns the datums and every reward."""
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    params = types.SamplingParams(max_tokens=a.max_tokens, temperature=1.0, stop=[])
    pending = [sampler.sample(types.ModelInput.from_ints(p), a.group, params) for p in prompts]
    data, rewards = [], []
    for prompt, future in zip(prompts, pending, strict=True):
        sequences = future.result().sequences
        rewards_G = [reward(tokenizer.decode(s.tokens)) for s in sequences]
        mean, spread = statistics.mean(rewards_G), statistics.pstdev(rewards_G)
        rewards += rewards_G
        if spread > 0:
            data += [make_datum(prompt, s, (r - mean) / spread) for s, r in zip(sequences, rewards_G, strict=True)]
    return data, rewards


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", required=True)
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--group", type=int, default=16, help="samples per prompt")
    ap.add_argument("--max-tokens", type=int, default=16)
    ap.add_argument("--rank", type=int, default=16)
    ap.add_argument("--learning-rate", type=float, default=2e-3)
    ap.add_argument("--must-improve", action="store_true", help="exit with 1 unless the reward rises by a third")
    a = ap.parse_args()

    service = tinker.ServiceClient()
    trainer = service.create_lora_training_client(base_model=a.model, rank=a.rank, seed=0).result()
    tokenizer = trainer.get_tokenizer()
    means = []
    for step in range(a.steps):
        sampler = trainer.save_weights_and_get_sampling_client().result()
        data, rewards = play(sampler, tokenizer, a)
        means.append(statistics.mean(rewards))
        print(f"step {step:3d}  mean reward {means[-1]:.3f}  datums {len(data)}", flush=True)
        if data:
            backward = trainer.forward_backward(data, "importance_sampling")
            update = trainer.optim_step(types.AdamParams(learning_rate=a.learning_rate))
            backward.result()
            update.result()
    first, last = statistics.mean(means[:3]), statistics.mean(means[-3:])
    print(f"mean reward of the first three steps {first:.3f}, of the last three {last:.3f}")
    service.close("success").result(30)
    if a.must_improve and last < 4 / 3 * first:
        raise SystemExit("the reward did not rise by a third")


if __name__ == "__main__":
    main()
