#!/usr/bin/env python3
"""Custom losses through the official SDK: run by the server, they must equal the same function run by the client.

    "$(tests/python_env)" tests/checks/custom_losses.py --base-url http://127.0.0.1:8000 --model-name my-model --model-dir DIR

The same traced loss is run twice on runs of one seed: on the server, by its id, and on the client (protocol 14.7). Value, metrics, logprobs
and the weights after an optimizer step must agree; where a built-in loss exists, with that too.
"""

from __future__ import annotations

import dataclasses
import json
import math
import urllib.error

import tinker
import torch
import torch.nn.functional as F
from address import Address, arguments
from runner import main
from sdk_numbers import flat, near
from tinker import types

# With so large an eps Adam's first step is proportional to small derivatives, not their sign.
STEP = types.AdamParams(learning_rate=1e-2, eps=1e-2)


def pg_clip(logprobs, old_logprobs, advantages):
    ratio = torch.exp(logprobs - old_logprobs)
    clipped = torch.clamp(ratio, 0.8, 1.2)
    loss = -torch.min(ratio * advantages, clipped * advantages).sum()
    changed = (ratio != clipped).float()
    return loss, {"custom/clip_fraction:mean": changed.mean(), "custom/tokens:sum": (advantages != 0).sum()}


PG_CLIP_RANKS = {"logprobs": 1, "old_logprobs": 1, "advantages": 1}


def kl_penalty(logprobs, reference, weights, beta):
    gap = logprobs - reference
    k3 = torch.exp(-gap) - 1 + gap
    loss = -(logprobs * weights).sum() + beta * (k3 * weights).sum()
    return loss, {"custom/k3:sum": (k3 * weights).sum(), "custom/k3:mean": k3.mean()}


def sequence_ratio(logprobs, old_logprobs, advantages, mask):
    count = mask.sum().clamp(min=1)
    level = ((logprobs - old_logprobs).detach() * mask).sum() / count
    ratio = torch.exp(level + logprobs - logprobs.detach())
    clipped = ratio.clamp(0.8, 1.2)
    loss = -torch.minimum(ratio * advantages, clipped * advantages).sum()
    return loss, {"custom/sequence_ratio:mean": torch.exp(level)}


def soft_targets(logprobs, weights):
    """(N, K) logprobs: soft labels, and a regulariser over the K of each position."""
    among = F.softmax(logprobs, dim=-1)
    entropy = -(among * torch.log(among)).sum(-1)
    best, _ = logprobs.max(dim=1)
    loss = -(weights * logprobs).sum() - 0.1 * entropy.mean() + 0.01 * (best**2).sum()
    return loss, {"custom/entropy:mean": entropy.mean()}


def margins(logprobs, advantages, labels):
    """Indexing, integers, shapes, branches on data."""
    taken = logprobs[advantages > 0]
    per_token = F.softplus(-logprobs / logprobs.shape[0]) * (labels % 3 == 1)
    spread = (logprobs[:, None] - logprobs[None, :]).abs().mean()
    tail = torch.where(labels > 100, logprobs, logprobs.detach() * 2)[-2:].sum()
    loss = per_token.sum() - taken.logsumexp(0) + spread + 0.1 * tail + math.sqrt(logprobs.shape[0]) * 0
    return loss, {"custom/spread:mean": spread, "custom/taken:sum": (advantages > 0).sum()}


def cross_entropy(logprobs, weights):
    loss = -(logprobs * weights).sum()
    return loss, {"custom/nll:sum": loss}


def pairwise_dpo(data, logprobs_list):
    """Over two datums at once: a plain Python function, which the client runs itself."""
    chosen, rejected = (lp.sum() for lp in logprobs_list)
    return -F.logsigmoid(0.1 * (chosen - rejected)), {"margin": float(chosen - rejected)}


def tensor(values, dtype="float32", shape=None):
    return types.TensorData(data=list(values), dtype=dtype, shape=shape)


def datum(tokens: list[int], targets, **inputs) -> types.Datum:
    return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs={"target_tokens": targets, **inputs})


def rl_data(logprobs: list[list[float]]) -> list[types.Datum]:
    """Datums around the model's own logprobs, so that ratios lie on both sides of the limits and some tie."""
    data = []
    for i, own in enumerate(logprobs):
        n = len(own)
        moved = [lp + [0.3, -0.3, 0.05, 0.0][t % 4] for t, lp in enumerate(own)]
        advantages = [0.0 if t < 2 else (1.0, -0.7, 0.4)[t % 3] for t in range(n)]
        data.append(
            datum(
                prompt(i, n),
                tensor(target(i, n), "int64"),
                old_logprobs=tensor(moved),
                logprobs=tensor(moved),
                reference=tensor(moved),
                advantages=tensor(advantages),
                mask=tensor([float(t >= 2) for t in range(n)]),
                weights=tensor([float(t >= 1) for t in range(n)]),
                labels=tensor([(7 * t + i) % 200 for t in range(n)], "int64"),
                beta=types.TensorData(data=[0.05], dtype="float32", shape=[]),
            )
        )
    return data


LENGTHS = (5, 9, 16, 7)


def prompt(i: int, n: int) -> list[int]:
    return [1 + (17 * i + 5 * t) % 90 for t in range(n)]


def target(i: int, n: int) -> list[int]:
    return [1 + (17 * i + 5 * (t + 1)) % 90 for t in range(n)]


class CustomLosses:
    def __init__(self, args) -> None:
        self.server, self.model = Address(args.base_url, args.api_key), args.model_name
        self.service = self.server.service()
        self.ids: dict[str, str] = {}
        self.logprobs = self.own_logprobs()

    def trainer(self, service: tinker.ServiceClient | None = None) -> tinker.TrainingClient:
        return (service or self.service).create_lora_training_client(base_model=self.model, rank=4, seed=11).result()

    def handle(self, fn, ranks: dict):
        uploaded = self.service.create_custom_loss(fn, ranks).result()
        assert uploaded.loss_id, "the server did not take the loss"
        self.ids[uploaded.name] = uploaded.loss_id
        return uploaded

    def own_logprobs(self) -> list[list[float]]:
        data = [datum(prompt(i, n), tensor(target(i, n), "int64"), weights=tensor([1.0] * n)) for i, n in enumerate(LENGTHS)]
        return [list(o["logprobs"].data) for o in self.trainer().forward(data, "cross_entropy").result().loss_fn_outputs]

    def equal_to_client(self, fn, ranks: dict, data, built_in=None) -> str:
        """Server against client, and against a built-in loss (its name and configuration)."""
        uploaded = self.handle(fn, ranks)
        ways = {
            "server": lambda t: t.forward_backward_custom(data, uploaded),
            "client": lambda t: t.forward_backward_custom(data, dataclasses.replace(uploaded, loss_id=None)),
        }
        if built_in:
            ways["built-in"] = lambda t: t.forward_backward(data, *built_in)
        results, after = {}, {}
        for way, call in ways.items():
            trainer = self.trainer()
            first = call(trainer).result()
            norm = trainer.optim_step(STEP).result().metrics["grad_norm"]
            results[way] = first
            after[way] = [norm] + flat(trainer.forward(plain(data), "cross_entropy").result())
        server = results["server"]
        for way, other in results.items():
            near(server.metrics["loss:sum"], other.metrics["loss:sum"], f"loss:sum, {way}")
            near(flat(server), flat(other), f"logprobs, {way}")
            near(after["server"][:1], after[way][:1], f"grad_norm, {way}")
            near(after["server"][1:], after[way][1:], f"logprobs after a step, {way}")
        custom = {k: v for k, v in server.metrics.items() if k.startswith("custom/")}
        assert custom and custom.keys() == {k for k in results["client"].metrics if k.startswith("custom/")}, server.metrics
        for key, value in custom.items():
            near(value, results["client"].metrics[key], key)
        worst = max(abs(a - b) for a, b in zip(after["server"], after["client"]))
        return f"loss {server.metrics['loss:sum']:.6f}, after a step within {worst:.1e}"

    def check_cross_entropy_as_a_custom_loss(self) -> str:
        return self.equal_to_client(cross_entropy, {"logprobs": 1, "weights": 1}, rl_data(self.logprobs), ("cross_entropy", {}))

    def check_ppos_clipped_objective(self) -> str:
        return self.equal_to_client(pg_clip, PG_CLIP_RANKS, rl_data(self.logprobs), ("ppo", {}))

    def check_policy_gradient_with_a_kl_penalty_and_a_scalar_input(self) -> str:
        ranks = {"logprobs": 1, "reference": 1, "weights": 1, "beta": 0}
        return self.equal_to_client(kl_penalty, ranks, rl_data(self.logprobs))

    def check_gspo_one_ratio_for_a_sequence(self) -> str:
        ranks = {"logprobs": 1, "old_logprobs": 1, "advantages": 1, "mask": 1}
        data = rl_data(self.logprobs)
        for d in data:
            d.loss_fn_inputs["sequence_ratio_mask"] = d.loss_fn_inputs["mask"]
        return self.equal_to_client(sequence_ratio, ranks, data, ("gspo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}))

    def check_several_targets_per_position(self) -> str:
        data = []
        for i, n in enumerate(LENGTHS):
            ids = [[t, 1 + (t + 7) % 90, 1 + (t + 31) % 90] for t in target(i, n)]
            weights = torch.tensor([[0.6, 0.3, 0.1]] * n)
            data.append(datum(prompt(i, n), torch.tensor(ids), weights=weights))
        return self.equal_to_client(soft_targets, {"logprobs": 2, "weights": 2}, data)

    def check_indexing_integers_shapes_pairs_of_positions(self) -> str:
        return self.equal_to_client(margins, {"logprobs": 1, "advantages": 1, "labels": 1}, rl_data(self.logprobs))

    def check_forward_alone_leaves_no_gradient(self) -> str:
        trainer, data = self.trainer(), rl_data(self.logprobs)
        config = self.clipped()
        before = trainer.forward(data, "custom", config).result()
        norm = trainer.optim_step(types.AdamParams(learning_rate=1e-2)).result().metrics["grad_norm"]
        assert norm == 0.0, norm
        after = trainer.forward_backward(data, "custom", config).result()
        near(before.metrics["loss:sum"], after.metrics["loss:sum"], "loss:sum")
        assert before.metrics.keys() == after.metrics.keys(), before.metrics
        return f"loss {before.metrics['loss:sum']:.6f}, gradient norm {norm}"

    def clipped(self) -> dict[str, str]:
        """The configuration that asks for `pg_clip`; a session takes each loss once."""
        return {"loss_id": self.ids.get("pg_clip") or self.handle(pg_clip, PG_CLIP_RANKS).loss_id}

    def check_metrics_over_chunks(self) -> str:
        data = rl_data(self.logprobs)
        many = [data[i % len(data)] for i in range(1030)]
        together = self.trainer().forward(many, "custom", self.clipped()).result()
        single = self.trainer().forward(data, "custom", self.clipped()).result()
        # 1030 = 257 times the four, and the first two again, in two chunks of 1024 and 6.
        two = self.trainer().forward(data[:2], "custom", self.clipped()).result()
        metric = lambda r, k: r.metrics[k]
        near(metric(together, "loss:sum"), 257 * metric(single, "loss:sum") + metric(two, "loss:sum"), "loss:sum", 1e-4)
        want = (257 * 4 * metric(single, "custom/clip_fraction:mean") + 2 * metric(two, "custom/clip_fraction:mean")) / 1030
        near(metric(together, "custom/clip_fraction:mean"), want, "clip_fraction", 1e-4)
        tokens = 257 * metric(single, "custom/tokens:sum") + metric(two, "custom/tokens:sum")
        near(metric(together, "custom/tokens:sum"), tokens, "tokens", 1e-6)
        return f"clip fraction {want:.4f} over 1030 datums in 2 chunks"

    def check_what_the_tracer_refuses_runs_on_the_client(self) -> str:
        """A function the tracer refuses still runs on the client, when given as it is."""

        def branches(logprobs):
            if logprobs.sum() > 0:
                return logprobs.sum(), {}
            return -logprobs.sum(), {}

        try:
            self.service.create_custom_loss(branches, {"logprobs": 1})
            raise AssertionError("the tracer took a branch on data")
        except ValueError as e:
            assert "cannot be traced" in str(e), e
        data = rl_data(self.logprobs)[:2]
        trainer = self.trainer()
        result = trainer.forward_backward_custom(data, pairwise_dpo).result()
        assert "margin" in result.metrics and math.isfinite(result.metrics["loss:sum"]), result.metrics
        assert trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result().metrics["grad_norm"] > 0
        return f"DPO over a pair: {result.metrics['loss:sum']:.6f}"

    def check_operations_that_are_not_allowed_and_losses_that_do_not_exist(self) -> str:
        def random(logprobs):
            return (logprobs * torch.rand_like(logprobs)).sum(), {}

        try:
            self.service.create_custom_loss(random, {"logprobs": 1}).result()
            raise AssertionError("a random loss was taken")
        except tinker.BadRequestError as e:
            for part in ("rand_like", "not allowed", "log_softmax"):
                assert part in str(e), e
        try:
            self.trainer().forward(rl_data(self.logprobs), "custom", {"loss_id": "loss-none"}).result()
            raise AssertionError("an unknown loss ran")
        except tinker.NotFoundError as e:
            return str(e)[:100]

    def check_another_sessions_loss_does_not_exist(self) -> str:
        trainer = self.trainer(self.server.service())
        try:
            trainer.forward(rl_data(self.logprobs), "custom", self.clipped()).result()
            raise AssertionError("another session's loss ran")
        except tinker.NotFoundError as e:
            return str(e)[:100]

    def check_a_loss_that_is_not_finite(self) -> str:
        def bad(logprobs, advantages):
            return torch.log(advantages).sum() + logprobs.sum(), {}

        uploaded = self.handle(bad, {"logprobs": 1, "advantages": 1})
        data = rl_data(self.logprobs)[:2]
        data[0].loss_fn_inputs["advantages"] = tensor([1.0] * LENGTHS[0])
        trainer = self.trainer()
        try:
            trainer.forward_backward_custom(data, uploaded).result()
            raise AssertionError("a loss that is no number was taken")
        except tinker.RequestFailedError as e:
            assert "datum 1" in str(e) and "bad" in str(e), e
        norm = trainer.optim_step(types.AdamParams(learning_rate=1e-2)).result().metrics["grad_norm"]
        assert norm == 0.0, f"the failed request left a gradient of norm {norm}"
        return "names the datum, gradient untouched"

    def check_too_many_nodes(self) -> str:
        """A million nodes: refused at the door, by a server that is well afterwards."""
        node = {"op": "call_function", "name": "a", "target": "torch.exp", "args": [{"ref": "a"}], "kwargs": {}}
        answers = []
        for count in (3000, 1_000_000):
            body = {"session_id": self.service.holder.get_session_id(), "custom_loss_seq_id": 9999, "name": "f"}
            body |= {"inputs": [{"name": "logprobs", "rank": 1}], "graph": {"format": 1, "nodes": []}}
            text = json.dumps(body).replace('"nodes": []', '"nodes": [' + ", ".join([json.dumps(node)] * count) + "]")
            try:
                status, _, _ = self.server.request("POST", "/api/v1/create_custom_loss", text.encode())
                assert status in (400, 413), f"{count} nodes: {status}"
                answers.append(f"{count} nodes: {status}")
            except (BrokenPipeError, ConnectionResetError, urllib.error.URLError) as e:
                assert not isinstance(getattr(e, "reason", e), TimeoutError), f"{count} nodes: no answer"
                answers.append(f"{count} nodes: refused before all was sent")
            assert self.server.call("GET", "healthz")[0] == 200
        return ", ".join(answers)


def plain(data) -> list[types.Datum]:
    keys = ("target_tokens",)
    return [types.Datum(model_input=d.model_input, loss_fn_inputs={k: d.loss_fn_inputs[k] for k in keys}) for d in data]


if __name__ == "__main__":
    main(arguments(__doc__), lambda checks, args: checks.every(CustomLosses(args)))
