#!/usr/bin/env python3
"""In-flight samplers through the official SDK: running generations move to newer weights, and every token says which.

    "$(tests/python_env)" tests/checks/inflight.py --base-url http://127.0.0.1:8000 --model-name tiny --model-dir DIR --other-key KEY

A generation of an in-flight sampler and one of a snapshot run while three more steps are saved; every check looks at what came of it.
"""

from __future__ import annotations

import json

import tinker
from address import Address, arguments, datum
from runner import Checks, main
from tinker import types

PROMPT = types.ModelInput.from_ints([5, 9, 13, 4, 7])
DATA = datum([i * 7 % 50 + 3 for i in range(24)])


class InFlight:
    """`running` and `beside` are the sequences that grew during the saves, `told` the versions of the first; `seen` are those of a request
    right after each save."""

    def __init__(self, args) -> None:
        self.server, self.other_key = Address(args.base_url, args.api_key), args.other_key
        config = json.loads((args.model_dir / "config.json").read_text())
        length = min(config["max_position_embeddings"] - 8, 1500)
        self.trainer = self.server.service().create_lora_training_client(base_model=args.model_name, rank=8, seed=1).result()
        self.train()
        self.snapshot = self.trainer.save_weights_and_get_sampling_client(kind="snapshot").result()
        self.before = self.sample(self.snapshot, 30).result().sequences[0]
        self.first = self.save()
        self.oldest = self.versions_now(self.first)[0]
        running, beside = self.sample(self.first, length, n=8), self.sample(self.snapshot, length)
        self.later, self.seen = [], []
        for _ in range(3):
            self.train()
            self.later.append(self.save())
            self.seen.append(self.versions_now(self.later[-1]))
        self.running, self.beside = running.result().sequences, beside.result().sequences[0]
        self.told = [self.versions(s.sequence_id) for s in self.running]

    def train(self) -> None:
        """One step, and nothing is waited for."""
        self.trainer.forward_backward([DATA], "cross_entropy")
        self.trainer.optim_step(types.AdamParams(learning_rate=0.02))

    def save(self) -> tinker.SamplingClient:
        return self.trainer.save_weights_and_get_sampling_client(kind="inflight").result()

    def sample(self, client: tinker.SamplingClient, tokens: int, n: int = 1):
        return client.sample(PROMPT, n, types.SamplingParams(max_tokens=tokens, seed=3, temperature=1.0, stop=[]))

    def versions(self, sequence_id: str) -> list[int]:
        status, answer = self.server.call("GET", f"sequences/{sequence_id}")
        assert status == 200, (status, answer)
        return answer["weight_versions"]

    def versions_now(self, client: tinker.SamplingClient) -> list[int]:
        return self.versions(self.sample(client, 3).result().sequences[0].sequence_id)

    def check_every_token_has_a_version(self) -> None:
        assert all(len(v) == len(s.tokens) for v, s in zip(self.told, self.running, strict=True))

    def check_versions_never_fall(self) -> None:
        assert all(v == sorted(v) for v in self.told)

    def check_one_generation_spans_several_updates(self) -> str:
        assert max(len(set(v)) for v in self.told) >= 3, self.told
        return str(sorted({x for v in self.told for x in v}))

    def check_versions_are_numbers_of_saves(self) -> None:
        saves = {self.oldest} | {v[0] for v in self.seen}
        assert {x for v in self.told for x in v} <= saves and len(saves) == 4, saves

    def check_a_clients_requests_are_at_least_as_new_as_its_save(self) -> None:
        assert all(v == [v[0]] * 3 for v in self.seen), self.seen
        firsts = [self.oldest, *(v[0] for v in self.seen)]
        assert firsts == sorted(firsts), firsts

    def check_older_clients_move_along(self) -> None:
        assert set(self.versions_now(self.first)) == {self.seen[-1][0]}

    def check_every_save_gives_a_sampler_of_its_own(self) -> None:
        sequences = [self.sample(client, 1).result().sequences[0] for client in [self.first, *self.later]]
        assert len({s.sequence_id.rsplit(":", 2)[0] for s in sequences}) == 4

    def check_a_snapshot_is_untouched(self) -> None:
        """The same tokens as before, and one version, in a long generation too."""
        after = self.sample(self.snapshot, 30).result().sequences[0]
        assert (after.tokens, after.logprobs) == (self.before.tokens, self.before.logprobs)
        assert len({*self.versions(self.beside.sequence_id), *self.versions(after.sequence_id)}) == 1

    def check_a_sequence_by_its_id_is_what_the_sdk_got(self) -> None:
        one = self.running[0]
        status, answer = self.server.call("GET", f"sequences/{one.sequence_id}")
        assert status == 200 and answer["tokens"] == one.tokens, (status, answer)
        assert answer["training_run_id"] == self.trainer.model_id and one.sequence_id.startswith(answer["sampler_id"]), answer

    def check_a_sequence_is_not_found_by_others_and_under_other_ids(self) -> None:
        sequence_id = self.running[0].sequence_id
        for missing in (sequence_id + "9", "nothing"):
            assert self.server.call("GET", f"sequences/{missing}")[0] == 404, missing
        assert self.server.call("GET", f"sequences/{sequence_id}", key=self.other_key)[0] == 404

    def check_the_json_form_has_the_versions(self) -> None:
        sampler = self.server.call("GET", f"sequences/{self.running[0].sequence_id}")[1]["sampler_id"]
        prompt = {"chunks": [{"tokens": [5, 9], "type": "encoded_text"}]}
        request = {"sampling_session_id": sampler, "seq_id": 77, "prompt": prompt, "sampling_params": {"max_tokens": 4}}
        promise = self.server.call("POST", "asample", request)[1]
        answer = self.server.call("POST", "retrieve_future", {"request_id": promise["request_id"]})[1]
        assert set(answer["sequences"][0]["weight_versions"]) == {self.seen[-1][0]}, answer


def body(checks: Checks, args) -> None:
    checks.every(InFlight(args))


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--other-key", required=True, help="a key of somebody else")
    main(parser, body)
