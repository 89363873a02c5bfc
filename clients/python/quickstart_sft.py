#!/usr/bin/env python3
"""Supervised fine-tuning in one page: the official Tinker SDK aimed at a tinderbox server.

    export TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-anything
    python quickstart_sft.py --model MODEL

MODEL is a name the server offers (`tinker model list`). Its tokenizer must be found without a hub: see README.md beside this file.
"""

from __future__ import annotations

import argparse

import tinker
from tinker import types

FACTS = [
    ("Who keeps the lighthouse?", "Ada keeps the lighthouse."),
    ("What is the cat called?", "The cat is called Turing."),
    ("Where is the key?", "The key is under the blue stone."),
    ("When does the ferry leave?", "The ferry leaves at seven."),
]


def prompt_text(question: str) -> str:
    return f"Question: {question}\nAnswer:"


def make_datum(tokenizer, question: str, answer: str) -> types.Datum:
    """Next-token prediction in which only the answer's tokens count."""
    prompt = tokenizer.encode(prompt_text(question))
    completion = tokenizer.encode(" " + answer + "\n", add_special_tokens=False)
    tokens = prompt + completion
    weights = [0.0] * (len(prompt) - 1) + [1.0] * len(completion)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": weights},
    )


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", required=True)
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--rank", type=int, default=16)
    ap.add_argument("--learning-rate", type=float, default=5e-3)
    ap.add_argument("--must-improve", action="store_true", help="exit with 1 unless the loss falls by half")
    a = ap.parse_args()

    service = tinker.ServiceClient()
    trainer = service.create_lora_training_client(base_model=a.model, rank=a.rank, seed=0).result()
    tokenizer = trainer.get_tokenizer()
    data = [make_datum(tokenizer, q, answer) for q, answer in FACTS]
    counted = sum(sum(d.loss_fn_inputs["weights"].data) for d in data)

    losses = []
    for step in range(a.steps):
        # Both requests are on their way before the first answer is waited for.
        backward = trainer.forward_backward(data, "cross_entropy")
        update = trainer.optim_step(types.AdamParams(learning_rate=a.learning_rate))
        losses.append(backward.result().metrics["loss:sum"] / counted)
        update.result()
        print(f"step {step:3d}  loss per token {losses[-1]:.4f}", flush=True)

    sampler = trainer.save_weights_and_get_sampling_client().result()
    for question, answer in FACTS:
        prompt = types.ModelInput.from_ints(tokenizer.encode(prompt_text(question)))
        params = types.SamplingParams(max_tokens=24, temperature=0.0, stop=["\n"])
        reply = sampler.sample(prompt, 1, params).result().sequences[0]
        print(f"{question}  model: {tokenizer.decode(reply.tokens).strip()!r}  taught: {answer!r}")
    path = trainer.save_state("quickstart-sft").result().path
    print(f"loss per token {losses[0]:.4f} -> {losses[-1]:.4f}; saved as {path}")
    service.close("success").result(30)
    if a.must_improve and losses[-1] > 0.5 * losses[0]:
        raise SystemExit("the loss did not fall by half")


if __name__ == "__main__":
    main()
