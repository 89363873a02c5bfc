#!/usr/bin/env python3
"""One walk through the API with whatever version of the tinker SDK this interpreter has: sdk_matrix.py runs it in each.

    TINKER_API_KEY=tml-x python sdk_walk.py --base-url URL --model NAME [--refused]

create -> train -> sample -> save -> load (with optimizer) -> download, and the numbers must fit at every stage. Prints one JSON
object; exit 0 when all holds. With --refused the session itself must fail, with the version to upgrade to.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
import urllib.request
import warnings

warnings.filterwarnings("ignore")

import tinker  # noqa: E402
from safetensors.numpy import load as load_safetensors  # noqa: E402
from tinker import types  # noqa: E402

TOKENS = [[(7 * i + 3 * j) % 90 + 5 for i in range(24)] for j in range(4)]
"""Four sequences of 24 token ids that every vocabulary has."""
CLOSE = 1e-4
"""Logprobs that two ways of computing the same in f32 may be apart."""
RANK = 8


def got(value):
    """A client or result, whether this version hands it out at once or as a future."""
    return value.result() if hasattr(value, "result") else value


def datum(ids: list[int]) -> types.Datum:
    inputs = {
        "target_tokens": types.TensorData(data=ids[1:], dtype="int64", shape=[len(ids) - 1]),
        "weights": types.TensorData(data=[1.0] * (len(ids) - 1), dtype="float32", shape=[len(ids) - 1]),
    }
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)


def step(trainer) -> float:
    """One training step, pipelined; its loss per token before the step."""
    backward = trainer.forward_backward([datum(t) for t in TOKENS], "cross_entropy")
    update = trainer.optim_step(types.AdamParams(learning_rate=0.01, beta1=0.9, beta2=0.95, eps=1e-4))
    loss = backward.result().metrics["loss:sum"] / sum(len(t) - 1 for t in TOKENS)
    update.result()
    return loss


def trained_logprobs(trainer, ids: list[int]) -> list[float]:
    """Of ids[1:], by the trainer."""
    output = trainer.forward([datum(ids)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
    return [float(x) for x in output.data]


def gap(a: list[float], b: list[float]) -> float:
    assert len(a) == len(b), f"{len(a)} and {len(b)} numbers"
    return max(abs(x - y) for x, y in zip(a, b))


def check_sampling(service, trainer, out: dict) -> str:
    path = trainer.save_weights_for_sampler("walk").result().path
    sampler = got(service.create_sampling_client(model_path=path))
    ids = TOKENS[0]
    whole = got(sampler.compute_logprobs(types.ModelInput.from_ints(ids)))
    out["prompt_gap"] = gap(whole[1:], trained_logprobs(trainer, ids))
    params = types.SamplingParams(max_tokens=6, temperature=1.0, seed=3)
    prompt = ids[:10]
    sequences = got(sampler.sample(types.ModelInput.from_ints(prompt), 2, params)).sequences
    assert len(sequences) == 2 and all(0 < len(s.tokens) == len(s.logprobs) <= 6 for s in sequences), "two samples of 1 to 6 tokens"
    gaps = [gap(list(s.logprobs), trained_logprobs(trainer, prompt + list(s.tokens))[len(prompt) - 1 :]) for s in sequences]
    out["sample_gap"] = max(gaps)
    assert max(out["prompt_gap"], out["sample_gap"]) <= CLOSE, f"trainer and sampler disagree: {out}"
    greedy = types.SamplingParams(max_tokens=6, temperature=0.0)
    first, second = (list(got(sampler.sample(types.ModelInput.from_ints(prompt), 1, greedy)).sequences[0].tokens) for _ in range(2))
    assert first == second, f"greedy twice: {first} and {second}"
    return path


def check_loading(service, trainer, out: dict) -> None:
    path = trainer.save_state("walk").result().path
    saved = trained_logprobs(trainer, TOKENS[1])
    whole = got(service.create_training_client_from_state_with_optimizer(path))
    weights_only = got(service.create_training_client_from_state(path))
    out["loaded_gap"] = max(gap(saved, trained_logprobs(t, TOKENS[1])) for t in (whole, weights_only))
    for client in (trainer, whole, weights_only):
        step(client)
    after = [trained_logprobs(client, TOKENS[1]) for client in (trainer, whole, weights_only)]
    out["next_step_gap"], without = gap(after[0], after[1]), gap(after[0], after[2])
    assert max(out["loaded_gap"], out["next_step_gap"]) <= CLOSE, f"what was loaded is not what was saved: {out}"
    assert without > 10 * CLOSE, f"the optimizer's state makes no difference ({without}), so nothing shows that it was loaded"
    trainer.load_state_with_optimizer(path).result()
    out["loaded_again_gap"] = gap(saved, trained_logprobs(trainer, TOKENS[1]))
    assert out["loaded_again_gap"] <= CLOSE, f"load_state_with_optimizer: {out}"


def read(url: str) -> bytes:
    """As the SDK's command line does it: a plain GET, without a key."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()


def check_adapter(files: dict[str, bytes]) -> dict:
    """The tensors of a PEFT adapter among downloaded files."""
    by_name = {name.rsplit("/", 1)[-1]: content for name, content in files.items()}
    assert json.loads(by_name["adapter_config.json"])["r"] == RANK
    tensors = load_safetensors(by_name["adapter_model.safetensors"])
    for name, tensor in tensors.items():
        assert RANK in tensor.shape and abs(tensor).max() > 0, f"{name}: shape {tensor.shape}, all zero or not of rank {RANK}"
    return tensors


def check_download(service, trainer, sampler_path: str, out: dict) -> None:
    rest, found = service.create_rest_client(), {}
    if hasattr(rest, "get_checkpoint_archive_url_from_tinker_path"):
        url = rest.get_checkpoint_archive_url_from_tinker_path(sampler_path).result().url
        with tarfile.open(fileobj=io.BytesIO(read(url))) as tar:
            found["archive"] = check_adapter({m.name: tar.extractfile(m).read() for m in tar.getmembers() if m.isfile()})
    if hasattr(trainer, "save_weights_external"):
        path = trainer.save_weights_external("walk").result().path
        urls = rest.get_external_weights_urls(path).result().urls
        found["external"] = check_adapter({name: read(url) for name, url in urls.items()})
    assert found, "this version downloads neither archives nor external weights"
    first, *others = found.values()
    for other in others:
        assert first.keys() == other.keys() and all((first[k] == other[k]).all() for k in first), "archive and external weights differ"
    out["download"] = "+".join(found)


def walk(base_url: str, model: str) -> dict:
    out = {}
    service = tinker.ServiceClient(base_url=base_url)
    trainer = got(service.create_lora_training_client(base_model=model, rank=RANK, seed=5))
    losses = [step(trainer) for _ in range(5)]
    out["loss_first"], out["loss_last"] = losses[0], losses[-1]
    assert losses[-1] < 0.9 * losses[0], f"the loss does not fall: {losses}"
    sampler_path = check_sampling(service, trainer, out)
    check_loading(service, trainer, out)
    check_download(service, trainer, sampler_path, out)
    return out


def refused(base_url: str, model: str) -> dict:
    try:
        got(tinker.ServiceClient(base_url=base_url).create_lora_training_client(base_model=model, rank=RANK))
    except tinker.BadRequestError as e:
        assert "upgrade tinker to 0.16.0" in str(e), f"the refusal does not name the version to upgrade to: {e}"
        return {"refused": str(e)}
    raise AssertionError(f"tinker {tinker.__version__} was not refused")


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--base-url", required=True)
    ap.add_argument("--model", required=True)
    ap.add_argument("--refused", action="store_true")
    a = ap.parse_args()
    print(json.dumps({"version": tinker.__version__, **(refused if a.refused else walk)(a.base_url, a.model)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
