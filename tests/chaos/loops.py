#!/usr/bin/env python3
"""The loops that a killed server must not disturb, as anybody would write them with the SDK; each runs as a process of its own.

    loops.py sft|rl|full|mixed --base-url URL --model NAME --steps N --pause SECONDS --out FILE

Everything the server answered goes into FILE as JSON. Lines on stdout say how far the loop is: `begin`, `step N`, `deleting PATH`, `end`.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import random
import signal
import time
import warnings
from pathlib import Path

import tinker
from tinker import types

# The old call that a loop of an older SDK makes; the server takes it.
warnings.filterwarnings("ignore", category=FutureWarning)
# How far a loop got that does not go on.
faulthandler.register(signal.SIGUSR1, all_threads=True)

SAMPLE_EVERY, SAVE_EVERY = 5, 10
ADAM = types.AdamParams(learning_rate=5e-3)


def say(line: str) -> None:
    print(line, flush=True)


def tokens(rng: random.Random, n: int) -> list[int]:
    """Ordinary tokens of the tiny models; the first ones are special."""
    return [rng.randrange(20, 500) for _ in range(n)]


def supervised(rng: random.Random, n: int) -> types.Datum:
    text = tokens(rng, n)
    inputs = {"target_tokens": text[1:], "weights": [1.0] * (n - 1)}
    return types.Datum(model_input=types.ModelInput.from_ints(text[:-1]), loss_fn_inputs=inputs)


def reinforced(prompt: list[int], sequence, advantage: float) -> types.Datum:
    """A played sequence; the prompt's positions carry no advantage."""
    text, silent = prompt + list(sequence.tokens), [0.0] * (len(prompt) - 1)
    return types.Datum(
        model_input=types.ModelInput.from_ints(text[:-1]),
        loss_fn_inputs={
            "target_tokens": text[1:],
            "logprobs": silent + list(sequence.logprobs),
            "advantages": silent + [advantage] * len(sequence.tokens),
        },
    )


class Loop:
    """A run, and what it was given: `record` must be the same however often the server was killed, `loose` need only make sense."""

    def __init__(self, args: argparse.Namespace, base_model: str):
        self.args, self.rng = args, random.Random(args.kind)
        self.record: list[dict] = []
        self.loose: list[dict] = []
        self.service = tinker.ServiceClient(base_url=args.base_url, api_key=args.api_key)
        self.rest = tinker.RestClient(base_url=args.base_url, api_key=args.api_key)
        self.trainer = self.service.create_lora_training_client(base_model, rank=8, seed=7).result()
        self.run = self.trainer.model_id
        self.saved: list[str] = []
        self.deleted: list[str] = []

    def note(self, step: int, what: str, value: object) -> None:
        self.record.append({"step": step, "what": what, "value": value})

    def name(self, path: str) -> str:
        """A path without the run's id, which is another each time."""
        return path.removeprefix(f"tinker://{self.run}/")

    def note_training(self, step: int, backward, update, of: str = "") -> None:
        output, stepped = backward.result(), update.result()
        self.note(step, of + "logprobs", [o["logprobs"].tolist() for o in output.loss_fn_outputs])
        self.note(step, of + "metrics", output.metrics)
        self.note(step, of + "optim_step", stepped.metrics)

    def sample(self, step: int, sampler, prompt: list[int], n: int, seed: int | None):
        params = types.SamplingParams(max_tokens=8, temperature=1.0, stop=[], seed=seed)
        response = sampler.sample(types.ModelInput.from_ints(prompt), n, params).result()
        drawn = [[list(s.tokens), list(s.logprobs), str(s.stop_reason)] for s in response.sequences]
        if seed is not None:
            self.note(step, f"sample, seed {seed}", drawn)
        else:
            again = sampler.compute_logprobs(types.ModelInput.from_ints(prompt + drawn[0][0])).result()[len(prompt) :]
            self.loose.append({"step": step, "logprobs": drawn[0][1], "again": again, "ids": [s.sequence_id for s in response.sequences]})
        return response.sequences

    def save(self, step: int) -> None:
        state, sampler = self.trainer.save_state(f"state-{step:03}"), self.trainer.save_weights_for_sampler(f"sampler-{step:03}")
        for path in (state.result().path, sampler.result().path):
            self.saved.append(path)
            self.note(step, "saved", self.name(path))

    def delete(self, step: int, path: str) -> None:
        say(f"deleting {path}")
        self.rest.delete_checkpoint_from_tinker_path(path).result()
        self.deleted.append(path)
        self.note(step, "deleted", self.name(path))

    def finish(self) -> None:
        """What the run has, whether all of it loads, and the checkpoint whose files are compared."""
        final = self.trainer.save_state("final").result().path
        self.saved.append(final)
        listed = sorted(c.tinker_path for c in self.rest.list_checkpoints(self.run).result().checkpoints)
        self.note(self.args.steps, "listed", [self.name(p) for p in listed])
        assert set(listed) == set(self.saved) - set(self.deleted), f"listed are {listed}, saved were {self.saved}, deleted {self.deleted}"
        probe = types.ModelInput.from_ints(tokens(random.Random("probe"), 12))
        for path in listed:
            sampler = self.service.create_sampling_client(model_path=path).result()
            self.note(self.args.steps, f"loaded {self.name(path)}", sampler.compute_logprobs(probe).result()[1:])
        resumed = self.service.create_training_client_from_state_with_optimizer(final).result()
        backward = resumed.forward_backward([supervised(random.Random("resumed"), 10)], "cross_entropy")
        self.note_training(self.args.steps, backward, resumed.optim_step(ADAM))
        self.service.close("success").result()


def supervised_loop(loop: Loop) -> None:
    """Requests are sent ahead: a step's results are fetched when the next one's requests are out."""
    pending, first_state = None, None
    for step in range(1, loop.args.steps + 1):
        data = [supervised(loop.rng, loop.rng.randrange(8, 24)) for _ in range(4)]
        sent = step, loop.trainer.forward_backward(data, "cross_entropy"), loop.trainer.optim_step(ADAM)
        if pending:
            loop.note_training(*pending)
        pending = sent
        if step % SAMPLE_EVERY == 0:
            sampler = loop.trainer.save_weights_and_get_sampling_client().result()
            prompt = tokens(loop.rng, 6)
            loop.sample(step, sampler, prompt, 2, seed=step)
            loop.sample(step, sampler, prompt, 1, seed=None)
        if step % SAVE_EVERY == 0:
            loop.save(step)
            first_state = first_state or loop.saved[-2]
            if step >= 2 * SAVE_EVERY:
                loop.delete(step, f"tinker://{loop.run}/sampler_weights/sampler-{step - SAVE_EVERY:03}")
        if step == loop.args.steps // 2 + 1:
            loop.note(step, "load_state", loop.name(loop.trainer.load_state_with_optimizer(first_state).result().path or first_state))
        time.sleep(loop.args.pause)
        say(f"step {step}")
    loop.note_training(*pending)


def reinforcement_loop(loop: Loop) -> None:
    """Each step samples from its own snapshot; the reward is the share of even tokens."""
    for step in range(1, loop.args.steps + 1):
        sampler = loop.trainer.save_weights_and_get_sampling_client().result()
        data = []
        for group in range(2):
            prompt = tokens(loop.rng, 5)
            played = loop.sample(step, sampler, prompt, 4, seed=1000 * step + group)
            rewards = [sum(t % 2 == 0 for t in s.tokens) / len(s.tokens) for s in played]
            mean = math.fsum(rewards) / len(rewards)
            data += [reinforced(prompt, s, r - mean) for s, r in zip(played, rewards, strict=True)]
        backward = loop.trainer.forward_backward(data, "importance_sampling")
        loop.note_training(step, backward, loop.trainer.optim_step(ADAM))
        if step % SAVE_EVERY == 0:
            loop.save(step)
            if step >= 2 * SAVE_EVERY:
                loop.delete(step, f"tinker://{loop.run}/weights/state-{step - SAVE_EVERY:03}")
        time.sleep(loop.args.pause)
        say(f"step {step}")


def margin(logprobs, weights):
    """A loss that is uploaded: run by the server, as data."""
    loss = -(logprobs * weights).sum() + 0.1 * (logprobs**2 * weights).sum()
    return loss, {"custom/margin:sum": loss}


def mixed_loop(loop: Loop) -> None:
    """What the other loops do not call: uploaded and own losses, requests in many parts, in-flight samplers, runs from states, exports."""
    handle = loop.service.create_custom_loss(margin, input_ranks={"logprobs": 1, "weights": 1}).result()
    base = loop.service.create_sampling_client(base_model=loop.args.model).result()
    for step in range(1, loop.args.steps + 1):
        data = [supervised(loop.rng, 8) for _ in range(3)]
        match step % 4:
            case 0:
                backward = loop.trainer.forward_backward_custom(data, handle)
            case 1:
                backward = loop.trainer.forward_backward_custom(data, lambda _, logprobs: (-sum(x.sum() for x in logprobs), {"own": len(logprobs)}))
            case 2:
                many = [supervised(loop.rng, 4) for _ in range(1500)]
                backward = loop.trainer.forward_backward(many, "cross_entropy")
            case 3:
                loop.note(step, "forward", [o["logprobs"].tolist() for o in loop.trainer.forward(data, "cross_entropy").result().loss_fn_outputs])
                backward = loop.trainer.forward_backward(data, "cross_entropy")
        loop.note_training(step, backward, loop.trainer.optim_step(ADAM))
        inflight = loop.trainer.save_weights_and_get_sampling_client(kind="inflight").result()
        for sampler in (inflight, base):
            loop.sample(step, sampler, tokens(loop.rng, 6), 2, seed=step)
        if step % SAVE_EVERY == 5:
            branch(loop, step)
        time.sleep(loop.args.pause)
        say(f"step {step}")


def branch(loop: Loop, step: int) -> None:
    """A run from a state of the first one, its export, and what can be done to a checkpoint."""
    origin = loop.trainer.save_state(f"origin-{step}").result().path
    loop.saved.append(origin)
    made = loop.service.create_training_client_from_state(origin).result()
    backward = made.forward_backward([supervised(loop.rng, 8)], "cross_entropy")
    loop.note_training(step, backward, made.optim_step(ADAM), of="branch's ")
    path = made.save_weights_external("export", ttl_seconds=3600).result().path
    urls = loop.rest.get_external_weights_urls(path).result().urls
    loop.note(step, "exported", sorted(urls))
    loop.rest.publish_checkpoint_from_tinker_path(path).result()
    loop.rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result()
    loop.rest.unpublish_checkpoint_from_tinker_path(path).result()
    say(f"deleting {path}")
    loop.rest.delete_checkpoint_from_tinker_path(path).result()


LOOPS = {"sft": supervised_loop, "rl": reinforcement_loop, "full": supervised_loop, "mixed": mixed_loop}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=tuple(LOOPS))
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--api-key", default="tml-chaos")
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    say("begin")
    loop = Loop(args, args.model + (":full" if args.kind == "full" else ""))
    LOOPS[args.kind](loop)
    loop.finish()
    args.out.write_text(json.dumps({"run": loop.run, "record": loop.record, "loose": loop.loose}))
    say("end")


if __name__ == "__main__":
    main()
