"""What the checks share: clients, the model's tokenizer, and a checkpoint that was taught a few answers."""

from __future__ import annotations

import functools

import anthropic
import numpy as np
import openai
import tinker
from tinker import types
from transformers import AutoTokenizer

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"days": {"type": "integer"}, "city": {"type": "string"}}}},
}
SEARCH = {"role": "user", "content": "weather?"}
THINK = {"role": "user", "content": "think"}
GREET = {"role": "user", "content": "hi"}
CALL = 'I look.\n<tool_call>\n{"name": "weather", "arguments": {"days": 2, "city": "Zürich"}}\n</tool_call>'
THOUGHT = "<think>\na b\n\nc\n</think>\n\nyes"
GREETING = "hé 世 you"
# A token above one half is the greedy one; this is 0.78.
SURE = -0.25
RESULT = {"role": "tool", "tool_call_id": "call_x", "content": "sun"}


def close(a: list[float], b: list[float]) -> bool:
    """Equal as the 32-bit numbers that the engine computed."""
    return np.array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))


class World:
    def __init__(self, args) -> None:
        self.args = args
        self.model = args.model_name
        self.tokenizer = AutoTokenizer.from_pretrained(args.model_dir)

    def openai(self, path: str = "/v1", key: str | None = None, **more) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.args.base_url + path, api_key=key or self.args.api_key, timeout=120, **more)

    def anthropic(self, path: str = "", key: str | None = None, **more) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.args.base_url + path, api_key=key or self.args.api_key, timeout=120, **more)

    @functools.cached_property
    def service(self) -> tinker.ServiceClient:
        return tinker.ServiceClient(base_url=self.args.base_url, api_key=self.args.api_key)

    @functools.cached_property
    def sampler(self) -> tinker.SamplingClient:
        return self.service.create_sampling_client(base_model=self.model).result()

    def sample(self, ids: list[int], sampler: tinker.SamplingClient | None = None, n: int = 1, **params) -> list:
        """The same through the SDK: sequences with tokens and logprobs."""
        prompt = types.ModelInput.from_ints(ids)
        response = (sampler or self.sampler).sample(prompt, num_samples=n, sampling_params=types.SamplingParams(**params)).result()
        return response.sequences

    def prompt(self, messages: list[dict], **more) -> list[int]:
        return list(self.tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, **more))

    def text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def lesson(self, *turns: tuple[list[int], str]) -> types.Datum:
        """Prompts, each with what came before it, and the answers to them: one datum that weighs the answers' tokens alone."""
        full: list[int] = []
        weights: list[float] = []
        for prompt, answer in turns:
            assert prompt[: len(full)] == full, "a prompt must go on where the answer before it ended"
            ids = self.tokenizer.encode(answer + "<|im_end|>", add_special_tokens=False)
            weights += [0.0] * (len(prompt) - len(full)) + [1.0] * len(ids)
            full = prompt + ids
        inputs = {"target_tokens": full[1:], "weights": weights[1:]}
        return types.Datum(model_input=types.ModelInput.from_ints(full[:-1]), loss_fn_inputs=inputs)

    @functools.cached_property
    def trainer(self) -> tinker.TrainingClient:
        return self.service.create_lora_training_client(base_model=self.model, rank=32, seed=1).result()

    @functools.cached_property
    def taught(self) -> str:
        """Path of a checkpoint that gives these answers greedily."""
        if self.args.taught:
            return self.args.taught
        called = [SEARCH, {"role": "assistant", "content": CALL}, RESULT]
        data = [
            self.lesson((self.prompt([SEARCH], tools=[WEATHER]), CALL), (self.prompt(called, tools=[WEATHER]), "sunny")),
            self.lesson((self.prompt([THINK]), THOUGHT)),
            self.lesson((self.prompt([GREET]), GREETING)),
        ]
        asked = [np.array(d.loss_fn_inputs["weights"].to_numpy()) > 0 for d in data]
        for step in range(100):
            done = self.trainer.forward_backward(data, "cross_entropy")
            self.trainer.optim_step(types.AdamParams(learning_rate=1e-2))
            worst = min(np.min(o["logprobs"].to_numpy()[a]) for o, a in zip(done.result().loss_fn_outputs, asked, strict=True))
            if worst > SURE:
                break
        print(f"the checkpoint was taught in {step + 1} steps; its least likely token has logprob {worst:.4f}", flush=True)
        assert worst > SURE, f"the checkpoint did not learn its answers: {worst}"
        return self.trainer.save_weights_for_sampler("taught").result().path
