#!/usr/bin/env python3
"""In-flight samplers through the official SDK: running generations move to newer weights, and every token says which.

    "$(tests/python_env)" tests/checks/inflight.py --base-url http://127.0.0.1:8000 --model-name tiny --model-dir DIR --other-key KEY

1. one generation spans several in-flight saves; its versions rise at the saves and are the saves' numbers
2. a client's requests use weights at least as new as those saved when it was made; older in-flight clients move along
3. a snapshot's sampler is untouched by all of it
4. GET /api/v1/sequences/ID gives what the SDK got, and is not found for other keys and unknown ids
5. the JSON form of a sample has `weight_versions`
"""

from __future__ import annotations

import json

import tinker
from address import Address, arguments
from runner import Checks, main
from tinker import types


def train(trainer: tinker.TrainingClient, tokens: list[int]) -> None:
    """One step, and nothing is waited for."""
    inputs = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}
    datum = types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)
    trainer.forward_backward([datum], "cross_entropy")
    trainer.optim_step(types.AdamParams(learning_rate=0.02))


def body(checks: Checks, o) -> None:
    check = checks.that
    config = json.loads((o.model_dir / "config.json").read_text())
    server = Address(o.base_url, o.api_key)
    trainer = server.service().create_lora_training_client(base_model=o.model_name, rank=8, seed=1).result()
    prompt = types.ModelInput.from_ints([5, 9, 13, 4, 7])
    length = min(config["max_position_embeddings"] - 8, 1500)
    data = [i * 7 % 50 + 3 for i in range(24)]

    def sample(client: tinker.SamplingClient, tokens: int, n: int = 1):
        params = types.SamplingParams(max_tokens=tokens, seed=3, temperature=1.0, stop=[])
        return client.sample(prompt, n, params)

    def versions(sequence_id: str) -> list[int]:
        status, answer = server.call("GET", f"sequences/{sequence_id}")
        assert status == 200, (status, answer)
        return answer["weight_versions"]

    def inflight() -> tinker.SamplingClient:
        return trainer.save_weights_and_get_sampling_client(kind="inflight").result()

    def versions_now(client: tinker.SamplingClient) -> list[int]:
        return versions(sample(client, 3).result().sequences[0].sequence_id)

    train(trainer, data)
    fixed = trainer.save_weights_and_get_sampling_client(kind="snapshot").result()
    before = sample(fixed, 30).result().sequences[0]
    first = inflight()
    oldest = versions_now(first)[0]
    running, beside = sample(first, length, n=8), sample(fixed, length)
    clients, seen = [], []
    for _ in range(3):
        train(trainer, data)
        clients.append(inflight())
        seen.append(versions_now(clients[-1]))
    newest = seen[-1][0]

    sequences = running.result().sequences
    told = [versions(s.sequence_id) for s in sequences]
    check("every token has a version", all(len(v) == len(s.tokens) for v, s in zip(told, sequences)))
    check("versions never fall", all(v == sorted(v) for v in told))
    check(f"one generation spans several updates: {sorted({x for v in told for x in v})}", max(len(set(v)) for v in told) >= 3)
    saves = {oldest} | {v[0] for v in seen}
    check("versions are numbers of saves", {x for v in told for x in v} <= saves and len(saves) == 4)
    check("a client's requests are at least as new as its save", all(v == [v[0]] * 3 for v in seen) and [oldest, *(v[0] for v in seen)] == sorted(saves))
    check("older in-flight clients move along", set(versions_now(first)) == {newest})
    ids = {s.sequence_id.rsplit(":", 2)[0] for s in [sample(c, 1).result().sequences[0] for c in [first, *clients]]}
    check("every save gives a sampler of its own", len(ids) == 4)

    after = sample(fixed, 30).result().sequences[0]
    check("the snapshot gives the same tokens", (after.tokens, after.logprobs) == (before.tokens, before.logprobs))
    check("and one version, in a long generation too", len({*versions(beside.result().sequences[0].sequence_id), *versions(after.sequence_id)}) == 1)

    one = sequences[0]
    status, body = server.call("GET", f"sequences/{one.sequence_id}")
    check("a sequence by its id is what the SDK got", status == 200 and body["tokens"] == one.tokens)
    check("and names its run and sampler", body["training_run_id"] == trainer.model_id and one.sequence_id.startswith(body["sampler_id"]))
    for missing in (one.sequence_id + "9", "nothing"):
        check(f"{missing[-12:]!r} is not found", server.call("GET", f"sequences/{missing}")[0] == 404)
    check("another key does not see it", server.call("GET", f"sequences/{one.sequence_id}", key=o.other_key)[0] == 404)
    request = {"sampling_session_id": body["sampler_id"], "seq_id": 77, "prompt": {"chunks": [{"tokens": [5, 9], "type": "encoded_text"}]}, "sampling_params": {"max_tokens": 4}}
    status, promise = server.call("POST", "asample", request)
    status, answer = server.call("POST", "retrieve_future", {"request_id": promise["request_id"]})
    check("the JSON form has the versions", set(answer["sequences"][0]["weight_versions"]) == {newest})


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--other-key", required=True, help="a key of somebody else")
    main(parser, body)
