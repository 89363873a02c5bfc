"""Hostile and random requests after the OpenAPI document: no status 5xx, no answer that is not as described.

    $(tests/openapi_env) tests/openapi_fuzz.py --tinderbox target/debug/tinderbox --seconds 240

Schemathesis makes the requests, with a fixed seed. Ids in them are replaced by those of a session, a run and a sampler
that exist, most of the time, so that requests get past the first look-up. This file is also the hooks' module.
"""

import argparse
import json
import os
import random
import subprocess
import sys

import schemathesis

from openapi_server import KEY, MODEL, arguments, serving

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

known = json.loads(os.environ.get("TINDERBOX_FUZZ_IDS", "{}"))
draw = random.Random(SEED)


def mostly_real(context, values):
    """Puts ids that exist in the place of three quarters of those drawn, whatever type they were drawn with."""
    operation = context.operation.definition.raw.get("operationId") if context.operation else None
    if isinstance(values, dict) and operation not in LAST:
        for name in values.keys() & known.keys():
            if draw.random() < 0.75:
                values[name] = known[name]
    return values


@schemathesis.hook
def map_body(context, body):
    return mostly_real(context, body)


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    return mostly_real(context, path_parameters)


def ids(server):
    """A session with a run, a checkpoint and a sampler, as values for the fields that name them."""

    def post(operation, /, **body):
        status, _, data = server.request("post", f"/api/v1/{operation}", body)
        assert status == 200, f"{operation}: {status} {data!r}"
        return json.loads(data)

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
        "kind": "weights",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments(parser)
    parser.add_argument("--seconds", type=int, default=240, help="how long, about")
    args, extra = parser.parse_known_args()
    os.environ["TINDERBOX_LONG_POLL_SECONDS"] = "1"
    with serving(args) as server:
        environment = os.environ | {"TINDERBOX_FUZZ_IDS": json.dumps(ids(server)), "SCHEMATHESIS_HOOKS": "openapi_fuzz"}
        environment["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--no-color"]
        command += ["-H", f"X-API-Key: {KEY}", "--seed", str(SEED), "--checks", ",".join(CHECKS), "--generation-database=none"]
        command += ["--max-time", str(args.seconds), "--continue-on-failure", "--suppress-health-check=all", *extra]
        status = subprocess.call(command, env=environment)
        server.get("/api/v1/healthz")
    sys.exit(status)


if __name__ == "__main__":
    main()
