#!/usr/bin/env python3
"""Faults that other servers had in gradients and losses, each as a small case that must go right here.

    "$(tests/python_env)" tests/checks/gradient_cases.py --base-url http://127.0.0.1:8000 --model-name my-model --model-dir DIR

The numbers are compared between two ways to get them, so no reference model is needed.
"""

from __future__ import annotations

import hashlib
import math

import tinker
from address import Address, arguments
from runner import main
from sdk_numbers import flat, near
from tinker import types

# Its eps makes Adam's first step proportional to small derivatives.
SMOOTH = types.AdamParams(learning_rate=1e-2, eps=1e-2)


def tokens(seed: int, n: int) -> list[int]:
    return [1 + (17 * seed + 5 * t + t * t) % 90 for t in range(n + 1)]


def floats(values) -> types.TensorData:
    return types.TensorData(data=[float(v) for v in values], dtype="float32")


def datum(seed: int, n: int, **inputs) -> types.Datum:
    ids = tokens(seed, n)
    target = types.TensorData(data=ids[1:], dtype="int64")
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs={"target_tokens": target, **inputs})


def supervised(seed: int, n: int, weights=None) -> types.Datum:
    return datum(seed, n, weights=floats(weights or [1.0] * n))


def policy(seed: int, n: int, ratio: float, advantages=None, own=None, at_2=None) -> types.Datum:
    """Sampler's logprobs so that the policy's ratio to them is `ratio` everywhere; `at_2` is written over position 2."""
    q = [lp - math.log(ratio) for lp in own] if own else [-4.5] * n
    q = [at_2 if at_2 is not None and t == 2 else x for t, x in enumerate(q)]
    return datum(seed, n, logprobs=floats(q), advantages=floats(advantages or [1.0] * n))


class GradientCases:
    def __init__(self, args) -> None:
        self.server, self.model, self.model_dir = Address(args.base_url, args.api_key), args.model_name, args.model_dir
        self.service = self.server.service()

    def trainer(self, **config) -> tinker.TrainingClient:
        return self.service.create_lora_training_client(base_model=self.model, **{"rank": 4, "seed": 7, **config}).result()

    def step(self, trainer, adam=SMOOTH) -> float:
        return trainer.optim_step(adam).result().metrics["grad_norm"]

    def probe(self, trainer) -> list[float]:
        return flat(trainer.forward([supervised(99, 12)], "cross_entropy").result())

    def own(self, seed: int, n: int) -> list[float]:
        return flat(self.trainer().forward([supervised(seed, n)], "cross_entropy").result())

    def check_several_requests_before_a_step_add_up(self) -> str:
        data = [supervised(1, 6), supervised(2, 9), supervised(3, 5, [0.0] * 5)]
        apart, together = self.trainer(), self.trainer()
        for d in data:
            apart.forward_backward([d], "cross_entropy").result()
        together.forward_backward(data, "cross_entropy").result()
        norms = self.step(apart), self.step(together)
        near(norms[0], norms[1], "grad_norm")
        assert norms[0] > 1e-3, norms
        near(self.probe(apart), self.probe(together), "logprobs after the step")
        return f"grad_norm {norms[0]:.4f} both ways"

    def check_sums_over_tokens_not_means(self) -> str:
        short, long = supervised(1, 40, [0.0] * 38 + [1.0] * 2), supervised(2, 40)
        both, one = self.trainer(), self.trainer()
        result = both.forward_backward([short, long], "cross_entropy").result()
        parts = [one.forward_backward([d], "cross_entropy").result() for d in (short, long)]
        near(result.metrics["loss:sum"], sum(p.metrics["loss:sum"] for p in parts), "loss:sum")
        near(self.step(both), self.step(one), "grad_norm")

    def check_results_in_the_order_of_the_request(self) -> str:
        trainer, lengths = self.trainer(), (3, 200, 5, 180, 4)
        data = [supervised(i, n) for i, n in enumerate(lengths)]
        together = trainer.forward_backward(data, "cross_entropy").result()
        assert [len(o["logprobs"].data) for o in together.loss_fn_outputs] == list(lengths)
        for d, o in zip(data, together.loss_fn_outputs):
            near(o["logprobs"].data, flat(trainer.forward([d], "cross_entropy").result()), "alone and together")

    def check_logprobs_at_their_own_positions(self) -> str:
        trainer = self.trainer()
        whole = trainer.forward([supervised(4, 5)], "cross_entropy").result()
        masked = trainer.forward([supervised(4, 5, [0, 0, 1, 1, 1]), supervised(5, 9)], "cross_entropy").result()
        near(masked.loss_fn_outputs[0]["logprobs"].data, flat(whole), "logprobs at masked positions too")

    def check_as_many_logprobs_as_targets(self) -> str:
        trainer = self.trainer()
        for loss, d in (("cross_entropy", supervised(6, 6)), ("importance_sampling", policy(6, 6, 1.0))):
            for call in (trainer.forward, trainer.forward_backward):
                assert [len(o["logprobs"].data) for o in call([d], loss).result().loss_fn_outputs] == [6], loss

    def check_the_loss_that_was_asked_for(self) -> str:
        n, own = 6, self.own(8, 6)
        d = policy(8, n, 3.0, own=own)
        d.loss_fn_inputs["weights"] = floats([1.0] * n)
        losses = [self.trainer().forward([d], name).result().metrics["loss:sum"] for name in ("cross_entropy", "importance_sampling", "ppo")]
        near(losses, [-sum(own), -3.0 * n, -1.2 * n], "cross_entropy, importance_sampling, ppo", 1e-4)
        for name, config in (("no_such_loss", {}), ("ppo", {"epsilon": 0.2})):
            try:
                self.trainer().forward([d], name, config).result()
                raise AssertionError(f"{name} {config} was taken")
            except (tinker.BadRequestError, ValueError) as e:
                assert name in str(e) or "epsilon" in str(e), e
        return ", ".join(f"{x:.3f}" for x in losses)

    def check_clip_limits_from_the_configuration(self) -> str:
        d, trainer = policy(8, 6, 3.0, own=self.own(8, 6)), self.trainer()
        value = lambda config: trainer.forward([d], "ppo", config).result().metrics["loss:sum"]
        near([value({}), value({"clip_high_threshold": 2.0})], [-1.2 * 6, -2.0 * 6], "limits of the ratio", 1e-4)

    def check_infinities_under_a_mask(self) -> str:
        own = self.own(9, 5)
        trainer, advantages = self.trainer(), [1.0, 1.0, 0.0, 1.0, 1.0]
        clean = policy(9, 5, 1.1, advantages, own)
        broken = policy(9, 5, 1.1, advantages, own, -math.inf)
        try:
            trainer.forward_backward([clean, broken], "importance_sampling").result()
            raise AssertionError("an infinite input was taken")
        except (tinker.BadRequestError, tinker.RequestFailedError) as e:
            for part in ("datum 1", "logprobs", "position 2"):
                assert part in str(e), e
            assert self.step(trainer) == 0.0, "a refused request left a gradient"
            note = "refused by datum and position, nothing changed"
        far = policy(9, 5, 1.1, advantages, own, -1e30)
        results = [self.trainer().forward_backward([d], "importance_sampling").result() for d in (clean, far)]
        near(results[0].metrics["loss:sum"], results[1].metrics["loss:sum"], "any filler under the mask")
        return note

    def check_no_clipping_unless_asked_for(self) -> str:
        many = [supervised(i, 100) for i in range(20)]
        off, tight, default = self.trainer(), self.trainer(), self.trainer()
        norms = []
        for trainer, clip in ((off, 0.0), (tight, 1.0), (default, None)):
            trainer.forward_backward(many, "cross_entropy").result()
            extra = {} if clip is None else {"grad_clip_norm": clip}
            norms.append(self.step(trainer, types.AdamParams(learning_rate=1e-2, eps=1e-2, **extra)))
        near(norms, [norms[0]] * 3, "the norm is told as it was before clipping")
        assert norms[0] > 2.0, norms
        near(self.probe(off), self.probe(default), "no clipping unless asked for")
        moved = max(abs(a - b) for a, b in zip(self.probe(off), self.probe(tight)))
        assert moved > 1e-4, "a limit of 1 must change the step"
        return f"norm {norms[0]:.2f} over 2000 tokens"

    def check_what_a_step_tells(self) -> str:
        trainer = self.trainer()
        trainer.forward_backward([supervised(1, 8)], "cross_entropy").result()
        metrics = trainer.optim_step(types.AdamParams(learning_rate=3e-3)).result().metrics
        assert metrics["learning_rate"] == 3e-3 and metrics["step"] == 1 and metrics["grad_norm"] > 0, metrics
        before = self.probe(trainer)
        trainer.optim_step(types.AdamParams(learning_rate=0.5, weight_decay=0.5)).result()
        assert before != self.probe(trainer), "weight decay moves weights without a gradient"

    def check_missing_weights_and_empty_batches(self) -> str:
        trainer = self.trainer()
        bare = trainer.forward([supervised(1, 4), datum(2, 5)], "cross_entropy").result()
        full = trainer.forward([supervised(1, 4), supervised(2, 5)], "cross_entropy").result()
        near(bare.metrics["loss:sum"], full.metrics["loss:sum"], "missing weights are ones")
        status, answer = self.server.call("POST", "forward_backward", self.json_request(trainer, [], "cross_entropy"))
        assert status == 400 and "empty" in answer["detail"], (status, answer)

    def check_forward_alone_and_real_values_at_once(self) -> str:
        trainer, d = self.trainer(), [supervised(1, 8)]
        forward, before = trainer.forward(d, "cross_entropy").result(), self.probe(trainer)
        norm = self.step(trainer)
        both = trainer.forward_backward(d, "cross_entropy").result()
        assert norm == 0.0 and before == self.probe(trainer), norm
        near(forward.metrics["loss:sum"], both.metrics["loss:sum"], "loss:sum")
        near(flat(forward), flat(both), "logprobs, there before any step")
        assert all(x < 0 for x in flat(both)), "no placeholders"

    def check_many_targets_per_position(self) -> str:
        ids, k = tokens(3, 6), 21
        cells = [[1 + (t + 3 * j) % 90 for j in range(k)] for t in ids[1:]]
        target = types.TensorData(data=[c for row in cells for c in row], dtype="int64", shape=[6, k])
        weights = types.TensorData(data=[0.1] * 6 * k, dtype="float32", shape=[6, k])
        d = types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs={"target_tokens": target, "weights": weights})
        trainer = self.trainer()
        out = trainer.forward([d], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
        assert list(out.shape) == [6, k], out.shape
        column = [row[4] for row in cells]
        single = types.Datum(
            model_input=d.model_input, loss_fn_inputs={"target_tokens": types.TensorData(data=column, dtype="int64")}
        )
        near(out.to_torch()[:, 4].tolist(), flat(trainer.forward([single], "cross_entropy").result()), "column 4")

    def check_an_adapter_on_the_head_counts_everywhere(self) -> str:
        trainer = self.trainer(train_unembed=True, train_attn=False, train_mlp=False)
        trainer.forward_backward([supervised(1, 20)], "cross_entropy").result()
        trainer.optim_step(types.AdamParams(learning_rate=0.1)).result()
        ids = tokens(5, 16)
        target = types.TensorData(data=ids[1:], dtype="int64")
        d = types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs={"target_tokens": target})
        trained = flat(trainer.forward([d], "cross_entropy").result())
        sampler = trainer.save_weights_and_get_sampling_client().result()
        served = sampler.compute_logprobs(types.ModelInput.from_ints(ids)).result()[1:]
        near(trained, served, "trainer and sampler", 1e-4)
        fresh = flat(self.trainer().forward([d], "cross_entropy").result())
        moved = max(abs(a - b) for a, b in zip(fresh, trained))
        assert moved > 0.1, moved
        return f"the head moved logprobs by up to {moved:.2f}"

    def check_base_weights_stay_as_they_are(self) -> str:
        files = sorted(self.model_dir.glob("*.safetensors"))
        digest = lambda: [hashlib.sha256(f.read_bytes()).hexdigest() for f in files]
        before, base = digest(), self.service.create_sampling_client(base_model=self.model).result()
        prompt = types.ModelInput.from_ints(tokens(5, 16))
        told = base.compute_logprobs(prompt).result()
        trainer = self.trainer(rank=8)
        assert trainer.get_info().model_data.model_name == self.model
        trainer.forward_backward([supervised(1, 20)], "cross_entropy").result()
        trainer.optim_step(types.AdamParams(learning_rate=0.1)).result()
        assert files and digest() == before
        again = self.service.create_sampling_client(base_model=self.model).result().compute_logprobs(prompt).result()
        assert told == again, "the base model's logprobs changed"

    def check_images_are_refused_by_name(self) -> str:
        trainer = self.trainer()
        body = self.json_request(trainer, [supervised(1, 3)], "cross_entropy")
        chunks = body["forward_backward_input"]["data"][0]["model_input"]["chunks"]
        chunks.append({"type": "image", "data": "", "format": "png", "expected_tokens": 63})
        status, answer = self.server.call("POST", "forward_backward", body)
        assert status == 400 and "image" in answer["detail"], (status, answer)
        return answer["detail"][:90]

    def json_request(self, trainer, data, loss: str, config=None) -> dict:
        tensor = lambda t: {"data": list(t.data), "dtype": t.dtype}
        row = lambda d: {
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": d.model_input.to_ints()}]},
            "loss_fn_inputs": {name: tensor(t) for name, t in d.loss_fn_inputs.items()},
        }
        rows = [row(d) for d in data]
        given = {"data": rows, "loss_fn": loss, "loss_fn_config": config or {}}
        return {"model_id": trainer.get_info().model_id, "seq_id": 1, "forward_backward_input": given}


if __name__ == "__main__":
    main(arguments(__doc__), lambda checks, args: checks.every(GradientCases(args)))
