"""A client by plain HTTP, for checks that need hundreds of them, or each request by itself: a session, its run, its samplers."""

from __future__ import annotations

import random

from address import Address

LORA = {"rank": 4, "seed": 1, "train_mlp": True, "train_attn": True, "train_unembed": True}


class PlainRun:
    """A session with one LoRA run. Tokens come from `rng`; every numbered request is kept in `sent`, by its number."""

    def __init__(self, server: Address, model: str, rng: random.Random):
        self.server, self.rng, self.sampled = server, rng, 0
        self.sent: dict[int, tuple[str, dict]] = {}
        self.session = self.ask("create_session", tags=[], user_metadata={}, sdk_version="0.38.0")["session_id"]
        self.run = self.result(self.ask("create_model", session_id=self.session, model_seq_id=0, base_model=model, lora_config=LORA))["model_id"]

    def step(self) -> tuple[dict, dict]:
        """Answers of a forward and backward pass and of the optimiser's step."""
        backward, update = self.train(), self.numbered("optim_step", adam_params={"learning_rate": 1e-2})
        return self.result(backward), self.result(update)

    def train(self, datums: int = 1, length: int = 24) -> dict:
        data = [self.datum(length) for _ in range(datums)]
        return self.numbered("forward_backward", forward_backward_input={"data": data, "loss_fn": "cross_entropy"})

    def datum(self, length: int) -> dict:
        tokens = [self.rng.randrange(20, 500) for _ in range(length)]
        inputs = {"target_tokens": tensor(tokens[1:], "int64"), "weights": tensor([1.0] * (length - 1), "float32")}
        return {"model_input": {"chunks": [text(tokens[:-1])]}, "loss_fn_inputs": inputs}

    def save(self, name: str, **more) -> str:
        return self.result(self.numbered("save_weights", path=name, **more))["path"]

    def snapshot(self) -> str:
        """The id of a sampler of the present weights."""
        return self.result(self.numbered("save_weights_for_sampler", sampling_session_seq_id=0))["sampling_session_id"]

    def sample(self, sampler: str) -> dict:
        self.sampled += 1
        prompt = {"chunks": [text([self.rng.randrange(20, 500) for _ in range(6)])]}
        asked = {"num_samples": 2, "sampling_params": {"max_tokens": 8}}
        return self.ask("asample", sampling_session_id=sampler, seq_id=self.sampled - 1, prompt=prompt, **asked)

    def loads(self, path: str) -> bool:
        """Whether a run can be made from it; in a session of its own."""
        session = self.ask("create_session", tags=[], user_metadata={}, sdk_version="0.38.0")["session_id"]
        return "path" in self.result(self.ask("load_weights", session_id=session, model_seq_id=0, path=path, optimizer=True))

    def numbered(self, path: str, /, **body) -> dict:
        number = len(self.sent) + 1
        self.sent[number] = path, {"model_id": self.run, "seq_id": number, **body}
        return self.again(number)

    def again(self, number: int) -> dict:
        """Sends a numbered request, once more if it was sent before."""
        path, body = self.sent[number]
        return self.ask(path, **body)

    def ask(self, path: str, /, **body) -> dict:
        status, answer = self.server.call("POST", path, body)
        assert status == 200, f"{path}: {status} {answer}"
        return answer

    def result(self, promise: dict) -> dict:
        answer = self.outcome(promise)
        assert "error" not in answer, answer
        return answer

    def outcome(self, promise: dict) -> dict:
        """As `result`, or what was told of a failure."""
        for _ in range(4):
            status, answer = self.server.call("POST", "retrieve_future", {"request_id": promise["request_id"]})
            if status != 408:
                assert status == 200, f"{status} {answer}"
                return answer
        raise AssertionError(f"{promise} is not kept")


def tensor(data: list, dtype: str) -> dict:
    return {"data": data, "dtype": dtype, "shape": [len(data)]}


def text(tokens: list[int]) -> dict:
    return {"type": "encoded_text", "tokens": tokens}
