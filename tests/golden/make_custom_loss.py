#!/usr/bin/env python3
"""Writes tests/golden/custom_loss.json: small graphs as the SDK sends them, with the values and derivatives that PyTorch gives.

    "$(tests/python_env)" tests/golden/make_custom_loss.py

Each case is a function of `x` (logprobs, shape [6]) or `X` (the same as [3, 2]) and of some of `q`, `adv`, `n`, `s`, `w`. Stored are its nodes
without placeholders and output, the shape and kind of its result, the sum of the result times the seeds 0.7, -0.4, 1.3, 0.2, -0.9 (over
and over), and that sum's derivative at each logprob.
"""

import inspect
import json
import math
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.fx
import torch.nn.functional as F
from custom_loss_edges import EDGES
from tinker.lib.public_interfaces.custom_loss import encode_graph

LP = [-0.5, -1.25, -0.5, -2.0, -0.125, -3.0]
INPUTS = {
    "q": torch.tensor([-0.75, -1.25, -0.3, -2.5, -0.125, -2.0]),
    "adv": torch.tensor([1.0, -0.5, 0.0, 2.0, -1.5, 0.25]),
    "n": torch.tensor([3, 1, 0, 5, 1, 2]),
    "s": torch.tensor(0.3),
    "w": torch.tensor([[0.5, -1.0], [2.0, 0.0], [0.25, 1.5]]),
}
SEEDS = [0.7, -0.4, 1.3, 0.2, -0.9]

CASES = """
x: torch.exp(x)
x: x.exp2()
x: torch.expm1(x)
x: torch.log(-x)
x: torch.log2(-x) + torch.log10(-x)
x: torch.log1p(-x)
x: torch.sqrt(-x) + torch.rsqrt(-x)
x: torch.reciprocal(x)
x: torch.sigmoid(x)
x: torch.special.expit(x)
x: F.logsigmoid(x)
x: torch.tanh(x) + torch.sin(x) + torch.cos(x)
x: torch.tan(x / 3)
x: torch.asin(x / 4) + torch.acos(x / 4) + torch.atan(x)
x: torch.sinh(x) + torch.cosh(x)
x: torch.asinh(x) + torch.acosh(2 - x) + torch.atanh(x / 4)
x: torch.erf(x) + torch.erfc(x / 2)
x: torch.lgamma(0.5 - x)
x: torch.lgamma(x - 0.3)
x: torch.sinc(x + 0.5)
x: torch.special.entr(-x)
x: F.silu(x) + F.mish(x)
x: F.softsign(x) + F.tanhshrink(x)
x: F.selu(x + 1)
x: F.hardsigmoid(x) + F.hardswish(x + 0.5)
x: F.relu6(x + 1.25)
x: F.relu(x + 0.5)
x: torch.relu(x + 1.0) + (x + 1.0).relu()
x: -x + +x * 2
x: torch.abs(x + 0.5)
x: abs(x + 1.25)
x: torch.sign(x + 0.5) * x
x: torch.square(x)
x: x.floor() + x.ceil() * x + x.trunc()
x: torch.frac(x)
x: torch.isnan(x) | torch.isinf(x) | ~torch.isfinite(x)
x: torch.isposinf(-x / 0.0) + torch.isneginf(x / 0.0)
x: torch.signbit(x)
x: torch.logical_not(x + 0.5)
x, n: ~n + (~(x > -1)).long()
x: torch.round(x * 1.5)
x: torch.round(x, decimals=1) + x
x: torch.nan_to_num(torch.log(x + 0.4), nan=1.5)
x: torch.nan_to_num(torch.where(x < -1, x, -math.inf), neginf=-2.0)
x: torch.logit(torch.exp(x))
x: torch.logit(torch.exp(x), eps=0.3)
x: F.softplus(x)
x: F.softplus(x * 4, beta=2.0, threshold=3.0)
x: F.gelu(x)
x: F.gelu(x, approximate="tanh")
x: F.elu(x + 1, alpha=0.7) + F.celu(x + 1, alpha=1.3)
x: F.leaky_relu(x + 0.5, 0.1)
x: F.hardtanh(x, -1.25, -0.5)
x: F.threshold(x, -1.0, 9.0)
x: F.softshrink(x + 1) + F.hardshrink(x + 1)
x, q: x * q
x, q: torch.mul(x, q) - x.multiply(2)
x, q: torch.maximum(x, q)
x, q: torch.minimum(x, q)
x, q: torch.fmax(x, q) + torch.fmin(x, q) * 2
x, q: torch.max(x, q) + x.min(q) * 3
x, q: torch.remainder(x, q) + x % 0.7
x, q: torch.fmod(x, q)
x, q: x.detach() // q
x, n: (n // 2) + n % 3
x, q: torch.atan2(x, q) + torch.hypot(x, q)
x, q: torch.logaddexp(x, q) + torch.logaddexp2(x, q)
x, q: torch.xlogy(-x, -q) + torch.special.xlogy(q, -x)
x, n: torch.xlogy(n, -x)
x, q: torch.special.xlog1py(q, -x)
x, adv: torch.copysign(x, adv + 0.1)
x, q: (x == q) + (x != -0.5) * 2 + (x < q) * 3
x, q: (x <= q) & (x >= -2.0) | (x > -0.2)
x, q: torch.logical_and(x, q) ^ torch.logical_or(x > -1, q > -1) ^ torch.logical_xor(x < 0, q < 0)
x, q: torch.eq(x, q) + torch.ge(x, q).float() * x
x, q: torch.add(x, q, alpha=2) + x.sub(q, alpha=0.5)
x: 1 - x + torch.rsub(x, 3)
x, n: x + n
x, n: n / 2 + x
x, q: torch.div(x, q) + x.div(q, rounding_mode="floor")
x, q: torch.div(x, q, rounding_mode="trunc")
x: 1 / x + 2 ** x
x: x ** 2 + torch.pow(x, 3)
x: torch.pow(-x, 0.5) + (x + 0.5) ** 0
x, q: torch.pow(-x, q)
x, n: n ** 2 + (n & 1) + (n | 4) + (n ^ 3)
x: torch.float_power(-x, 1.5)
x, q: torch.isclose(x, q)
x: torch.clamp(x, -1.25, -0.5)
x: x.clamp(min=-1.25)
x: torch.clip(x, max=-0.5)
x, q: torch.clamp(x, q - 0.2, q + 0.2)
x, q: torch.clamp(q, min=x, max=x + 0.3)
x: torch.clamp_min(x, -1.25) + x.clamp_max(-0.5)
x, n: n.clamp(1, 3) + n.clamp(max=2.5)
x, q: torch.where(x > q, x, q * 2)
x: torch.where(x > -1, x, 0.0) + torch.where(x < -1, 2.0, x)
x, q: x.where(x < q, q)
x, adv: x.masked_fill(adv == 0, 5.0)
x, q, s: torch.lerp(x, q, 0.3) + torch.lerp(q, x, s)
x, q, adv: torch.addcmul(x, q, adv, value=0.5) + torch.addcdiv(x, adv, q)
x: x.sum()
X: X.sum(0)
X: torch.sum(X, dim=-1, keepdim=True)
X: X.sum(dim=(0, 1))
x: (x > -1).sum()
X: X.mean()
X: X.mean(1)
X: torch.mean(X, (0, 1), keepdim=True)
X: torch.nansum(torch.where(X < -1, X, math.nan), 0)
X: torch.nanmean(torch.where(X < -1, X, math.nan), dim=1)
x: x.prod()
X: torch.prod(X + 0.5, 0)
x, n: n.sum() * x
X: X.amax(1) + X.amin(1)
x: torch.amax(x) + x.amax()
X: X.max(0).values + X.min(dim=0).values
X: torch.max(X, 1, keepdim=True)[0] + torch.min(X, 1, keepdim=True)[1]
x: torch.max(x) + x.min()
x: torch.where(x == -0.5, 0.0, x).max()
X: X.argmax() + X.argmin(1) + torch.argmax(X, dim=1)
X: (X > -1).any(1) + (X < 0).all() + torch.all(X > -2, dim=1)
x, adv: torch.count_nonzero(adv) + x
x: torch.logsumexp(x, 0)
X: X.logsumexp(dim=1, keepdim=True)
X: torch.logsumexp(torch.where(X < -2.5, -math.inf, X), (0, 1))
x: x.var() + x.std()
X: X.var(0) + torch.std(X, dim=0, unbiased=False)
X: torch.var(X, dim=1, correction=0, keepdim=True)
x: x.var(False)
x: (x * 0).std()
X: torch.var_mean(X, 0)[1] + torch.std_mean(X, dim=0)[0]
x: x.norm() + torch.norm(x, p=1)
X: torch.norm(X, dim=1)
X: torch.linalg.vector_norm(X, ord=3, dim=0) + torch.linalg.vector_norm(X, ord=math.inf)
x: (x * 0).norm()
x: torch.cumsum(x, 0)
X: X.cumsum(dim=1) + X.cumsum(0)
x: torch.cumprod(x + 0.5, 0)
X: torch.logcumsumexp(X, dim=0)
x: torch.cummax(x, 0).values + x.cummin(0)[1]
X: X.sort(dim=0).values + torch.sort(X, 1, descending=True)[0]
x: x.argsort() + x.sort(descending=True, stable=True).indices
x, q: torch.topk(x + q, 3)[0] + x.mul(q).topk(3, largest=False).values
x: torch.kthvalue(x, 4).values + x.median()
X: torch.median(X, 0).values
x: x.reshape(2, 3) + x.view(2, -1)
X: X.flatten() + X.ravel()
X: X.view_as(X) + X.reshape_as(X)
X: X.unflatten(0, (3, 1)).squeeze(1)
X: torch.flatten(X, 0, 1).unsqueeze(0).squeeze()
x: x.unsqueeze(-1) - x[None]
X: X.t() + X.T + X.transpose(0, 1) + torch.swapaxes(X, 0, 1)
X: X.permute(1, 0) + torch.permute(X, (1, 0))
X: torch.movedim(X, 0, 1)
x: x.expand(2, 6) + x.broadcast_to(2, 6)
X, s: s.expand_as(X) * X
X: torch.flip(X, [0]) + X.flip(0, 1)
x: torch.roll(x, 2)
X: X.roll(1, dims=0)
X: X.repeat(2, 1)
x: torch.tile(x, (2,)) + x.repeat(2)
X: torch.repeat_interleave(X, 2, dim=1)
x, n: x.repeat_interleave(n)
x, q: torch.exp(x - x.detach()) * q
x: x.clone().contiguous().float().double().to(torch.float32).cpu()
x, n: n.to(x.dtype) * x.to("cpu") + n.type_as(x)
x: (x > -1).float().long().int().bool()
x: x / x.shape[0] + x.size(0) + x.numel() - x.dim()
X: X / (X.shape[1] * 2) + X.ndim + math.sqrt(X.shape[0])
x: x.data * x
X: torch.diff(X, dim=0)
x: torch.diff(x, n=2)
x: x[1:] - x[:-1]
x: x[-1] + x[2] * x[::2]
X: X[:, 0] + X[..., -1]
X: X[1] + X[1, 0] - X[0:2, 1:]
x, adv: x[adv > 0]
X, w: X[w > 0]
x, n: x[n] + x[[0, 2, 2, 1, 0, 5]]
X, n: X[n[1:3]]
X: X[[0, 2], [1, 0]]
X: X[:, None, 1]
X: X.select(0, 1) + X.narrow(0, 1, 2)[0]
X: torch.index_select(X, 1, torch.arange(X.shape[1]))
X, w: torch.gather(X, 1, (w > 0).long())
X: torch.take_along_dim(X, X.argsort(dim=1), dim=1)
x, n: torch.take(x, n)
x, adv: torch.masked_select(x, adv != 0)
x, adv: torch.nonzero(adv).squeeze(1) + x[adv.nonzero(as_tuple=True)[0]]
X: torch.diagonal(X[:2]) + torch.diag(X[:2])
x: torch.diag(x[:3]).sum(0)
X: torch.tril(X) + X.triu(1) * 2
x: F.pad(x, (1, 2), value=3.0)
X: F.pad(X, (1, -1, 0, 1))
x: x.unfold(0, 3, 2)
x, q: torch.cat([x, q]) + torch.concat((q, x), dim=0)
x, q: torch.stack([x, q], dim=1)
x, q: torch.hstack([x, q]) + torch.vstack([x, q]).flatten()
x: x.split(2)[1] + torch.split(x, [1, 2, 3])[1]
x: torch.chunk(x, 3)[2] + x.unbind()[0]
x: x[:2].unbind(0)[1]
X, s: torch.broadcast_tensors(X, s)[1] * X
x: x * torch.zeros_like(x) + torch.ones_like(x) + torch.full_like(x, 2.5)
x: x.new_zeros(x.shape) + x.new_ones(6) + x.new_full((6,), 0.5) + x.new_tensor(2.0)
x: torch.zeros(x.shape[0]) + torch.ones(x.shape[0]) * x + torch.full((x.shape[0],), 2.0)
x: torch.arange(x.shape[0]) * x + torch.arange(0, x.shape[0], 2.0)[:1]
x, n: F.one_hot(n, 6) * x
x, q: torch.matmul(x, q) + x @ q + torch.dot(x, q) + x.inner(q)
X, w: torch.mm(X.t(), w) + X.T @ w
X, x0: X @ x0
X, w: torch.mv(X, w[0]) + w @ X[1]
x, q: torch.outer(x[:2], q)
X, w: torch.bmm(X[None], w.t()[None])
X: torch.log_softmax(X, dim=-1) + F.log_softmax(X, 0)
x: torch.softmax(x, 0) + F.softmin(x, dim=0)
X: F.softmax(X, dim=1) * X.softmax(-1)
X: F.normalize(X) + F.normalize(X, p=1.0, dim=0)
X, w: F.cosine_similarity(X, w)
X, w: F.pairwise_distance(X, w)
x: F.glu(x)
x, q: F.mse_loss(x, q) + F.mse_loss(x, q, reduction="sum")
x, q: F.l1_loss(x, q, reduction="none")
x, q: F.smooth_l1_loss(x, q, beta=0.2)
x, q: F.huber_loss(x, q, delta=0.4, reduction="sum")
x, adv: F.soft_margin_loss(x, adv)
x, q: F.kl_div(x, torch.exp(q)) + F.kl_div(q, x, log_target=True, reduction="batchmean")
x, q: F.binary_cross_entropy(torch.exp(x), torch.exp(q))
x, q, adv: F.binary_cross_entropy_with_logits(x, torch.exp(q), adv, pos_weight=q.exp())
x, q: F.poisson_nll_loss(x, -q)
x, q: x.add(1).mul_(q).clamp_(-1, 1)
x, s: x * s + math.log(x.shape[0]) * math.pow(2, s) - math.floor(2.7)
X, w: X.scatter(1, (w > 0).long(), w) + torch.scatter(X, 0, (w[:2] > 0).long(), 2.5)
X, w: w.scatter_add(0, (w > 0).long(), X)
X, n: torch.index_add(X, 0, n[1:3], X[:2], alpha=0.5) + X.index_fill(1, n[1:2], -1.0)
x, q: torch.einsum("i,i->", x, q) + torch.einsum("i,j->j", x, q)
X, w: torch.einsum("ik,jk->ij", X, w) @ torch.einsum("ij->ji", X).t()
x: torch.quantile(x, 0.3) + x.quantile(0.75, dim=0, keepdim=True)
x: x.new_empty(6) * 0 + torch.empty(x.shape[0]) * 0 + x * torch.linspace(0, x.shape[0], 6)
x, q: torch.heaviside(x.detach() + 0.5, q) + torch.isin(x, q) * x
x, n: torch.isin(n, 1, invert=True) + torch.dist(x, n * 0.5, p=1) + torch.dist(x, n.float())
x, q, adv: -torch.min(torch.exp(x - q) * adv, torch.clamp(torch.exp(x - q), 0.8, 1.2) * adv)
""".strip().splitlines()


def in_place(x, q):
    y = x * 2
    y += q
    y.clamp_(-3, 0)
    z = y * 2
    z -= 1
    return z * y


def ranked(x):
    values, indices = torch.sort(x)
    return values[indices] * indices


def read(case: str):
    head, body = case.split(": ", 1)
    return eval(f"lambda {head}: {body}"), case


def tensor(name: str) -> torch.Tensor:
    if name in ("x", "X"):
        return torch.tensor(LP).reshape((6,) if name == "x" else (3, 2)).requires_grad_()
    return INPUTS["w"][0] if name == "x0" else INPUTS[name].clone()


def record(fn, source: str, finite: bool = True) -> dict:
    names = list(inspect.signature(fn).parameters)
    graph = torch.fx.symbolic_trace(fn)
    sent = encode_graph(SimpleNamespace(name="f", graph=graph)).nodes
    *_, output = sent
    nodes = [n for n in sent if n.op.startswith("call")]
    tensors = [tensor(name) for name in names]
    result = graph(*tensors)
    seeds = torch.tensor([SEEDS[i % len(SEEDS)] for i in range(result.numel())])
    total = (result.reshape(-1).double() * seeds).sum() + tensors[0].sum() * 0
    total.backward()
    assert torch.isfinite(total) and (not finite or torch.isfinite(tensors[0].grad).all()), source
    # JSON has no infinities and no NaN; Rust reads these words.
    short = lambda values: [float(f"{v:.8g}") if math.isfinite(v) else str(v) for v in values]
    return {
        "source": source,
        "inputs": names,
        "nodes": [[n.op[5:], n.name, n.target, n.args, n.kwargs] for n in nodes],
        "result": output.args[0]["ref"],
        "shape": list(result.shape),
        "float": result.is_floating_point(),
        "total": short([total.item()])[0],
        "grad": short(tensors[0].grad.reshape(-1).tolist()),
    }


def main() -> None:
    cases = [record(*read(line)) for line in CASES]
    cases += [record(*read(line), finite=False) for line in EDGES]
    cases += [record(in_place, "in_place"), record(ranked, "ranked")]
    shown = {name: [list(t.shape), t.is_floating_point(), t.reshape(-1).tolist()] for name, t in INPUTS.items()}
    shown["x0"] = [[2], True, INPUTS["w"][0].tolist()]
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    text = f'{{"logprobs":{json.dumps(LP)},"seeds":{json.dumps(SEEDS)},"inputs":{json.dumps(shown)},"cases":[\n{lines}\n]}}\n'
    path = Path(__file__).with_name("custom_loss.json")
    path.write_text(text)
    print(f"{len(cases)} cases, {len(text)} bytes in {path.name}")


if __name__ == "__main__":
    main()
