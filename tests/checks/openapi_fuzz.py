"""Hostile and random requests after the OpenAPI document: no status 5xx, no answer that is not as described.

    "$(tests/python_env openapi)" tests/checks/openapi_fuzz.py --tinderbox target/debug/tinderbox --model-dir DIR --seconds 240

Schemathesis makes the requests, with a fixed seed. Most ids in them are replaced by those of a session, a run and a
sampler that exist, and token ids by ones there are, so that requests get past the first look-up. This file is also the
hooks' module.
"""

import itertools
import json
import os
import random
import subprocess
import sys
import tempfile

import schemathesis
from openapi_server import KEY, MODEL, serving
from runner import main
from server import arguments

SEED = 20260102
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "ignored_auth",
    "unsupported_method",
]
# These would end what the other requests need.
LAST = {"finish_session", "unload_model", "delete_checkpoint"}
DATUM = {
    "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
    "loss_fn_inputs": {
        "target_tokens": {"data": [2, 3, 4], "dtype": "int64"},
        "weights": {"data": [1, 0, 0.5], "dtype": "float32"},
        "logprobs": {"data": [-1, -2, -3], "dtype": "float32"},
        "advantages": {"data": [1, -1, 0], "dtype": "float32"},
    },
}
LOSSES = ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce"]

known = json.loads(os.environ.get("TINDERBOX_FUZZ_IDS", "{}"))
draw = random.Random(SEED)
numbers = itertools.count(2)


def bolder(operation, name, value):
    """A value of the same type that gets further than the one that was drawn: ids that exist, tokens there are."""
    if isinstance(value, str):
        if name == "path" and operation == "load_weights":
            return known["tinker_path"]
        if name == "loss_fn":
            return draw.choice(LOSSES)
        return known.get(name, value) if name != "kind" else value
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 63:
        if name == "seq_id" and operation != "asample":
            return next(numbers)
        return {"rank": value % 64 + 1, "max_tokens": value % 64 + 1, "num_samples": value % 8 + 1}.get(name, value)
    if isinstance(value, dict) and name in ("forward_input", "forward_backward_input"):
        keys = ["target_tokens", "weights"] if value.get("loss_fn") == "cross_entropy" else ["target_tokens", "logprobs", "advantages"]
        return value | {"data": [DATUM | {"loss_fn_inputs": {key: DATUM["loss_fn_inputs"][key] for key in keys}}]}
    if isinstance(value, dict) and name == "prompt":
        return DATUM["model_input"]
    # To JSON Schema 3.0 is an integer, to the server it is none.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def emboldened(operation, values):
    if isinstance(values, list):
        return [emboldened(operation, value) for value in values]
    if not isinstance(values, dict):
        return values
    mostly = lambda name, value: bolder(operation, name, value) if draw.random() < 0.75 else value
    return {name: emboldened(operation, mostly(name, value)) for name, value in values.items()}


def hook(context, values):
    operation = context.operation.definition.raw.get("operationId") if context.operation else None
    return values if operation in LAST else emboldened(operation, values)


@schemathesis.hook
def map_body(context, body):
    return hook(context, body)


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    return hook(context, path_parameters)


def ids(server):
    """A session with a run, a checkpoint and a sampler, as values for the fields that name them."""

    def post(operation, /, **body):
        status, answer = server.call("POST", operation, body)
        assert status == 200, f"{operation}: {status} {answer}"
        return answer

    session = post("create_session")["session_id"]
    run = post("create_model", session_id=session, model_seq_id=0, base_model=MODEL, lora_config={"rank": 4})["model_id"]
    saved = post("save_weights", model_id=run, seq_id=1, path="fuzz")["request_id"]
    while "path" not in (result := post("retrieve_future", request_id=saved)):
        assert "error" not in result, result
    sampler = post("create_sampling_session", session_id=session, sampling_session_seq_id=0, base_model=MODEL)
    return {
        "session_id": session,
        "model_id": run,
        "run_id": run,
        "request_id": saved,
        "sampling_session_id": sampler["sampling_session_id"],
        "sampler_id": sampler["sampling_session_id"],
        "base_model": MODEL,
        "tinker_path": result["path"],
        "name": "fuzz",
    }


def schemathesis_run(server, checks, extra, **environment):
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--no-color"]
    command += ["-H", f"X-API-Key: {KEY}", "--seed", str(SEED), "--generation-database=none", "--continue-on-failure"]
    # An answer whose length nobody limits may have 4096 tokens.
    command += ["--request-timeout", "120", "--suppress-health-check=all", "--checks", ",".join(checks), *extra]
    # The hooks' module lies beside this file.
    path = os.path.dirname(os.path.abspath(__file__))
    # It keeps notes of its own where it is started.
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": path} | environment, check=True)


def body(checks, args):
    with serving(args, TINDERBOX_LONG_POLL_SECONDS="1") as server:
        # Bolder requests would mend some of what the document forbids.
        strict, phases = [*CHECKS, "negative_data_rejection"], ["--phases", "coverage"]
        checks.run("what the document forbids is refused", schemathesis_run, server, strict, phases)
        checks.run("random requests with ids that exist", bold, server, args.seconds)
        checks.run("the server is well afterwards", healthy, server)


def bold(server, seconds):
    hooks = {"SCHEMATHESIS_HOOKS": "openapi_fuzz", "TINDERBOX_FUZZ_IDS": json.dumps(ids(server))}
    schemathesis_run(server, CHECKS, ["--max-time", str(seconds)], **hooks)


def healthy(server):
    status, answer = server.call("GET", "healthz")
    assert status == 200, (status, answer)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=int, default=240, help="how long, about")
    main(parser, body)
