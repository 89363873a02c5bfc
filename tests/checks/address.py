"""A server at its address: asked by plain HTTP, by the SDK and by the SDK's command line; and what it is asked to train on."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

# The SDK itself is imported where it is used: the environment of the OpenAPI checks has none.
os.environ.setdefault("TINKER_TELEMETRY", "0")


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


class Address:
    """Every call is made with `api_key` unless it names another key."""

    def __init__(self, url: str, api_key: str):
        self.url, self.api_key = url.rstrip("/"), api_key

    def request(self, method: str, path: str, body=None, key: str | None = "", headers: dict | None = None):
        """Status, headers and bytes of the answer, whatever the status. A body that is not bytes goes as JSON; the key None is no key."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        keyed = {} if key is None else {"X-API-Key": key or self.api_key}
        sent = {"Content-Type": "application/json"} | keyed | (headers or {})
        request = urllib.request.Request(self.url + path, data, sent, method=method.upper())
        try:
            with urllib.request.build_opener(NoRedirect).open(request, timeout=60) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as e:
            return e.code, e.headers, e.read()

    def call(self, method: str, path: str, body=None, key: str = "", headers: dict | None = None) -> tuple[int, dict]:
        """Status and parsed answer of a path below /api/v1/."""
        status, _, data = self.request(method, f"/api/v1/{path}", body, key, headers)
        return status, json.loads(data or b"{}")

    def service(self, key: str = "", **about):
        import tinker

        return tinker.ServiceClient(base_url=self.url, api_key=key or self.api_key, **about)

    def rest(self, key: str = ""):
        import tinker

        return tinker.RestClient(base_url=self.url, api_key=key or self.api_key)

    def admin(self, key: str = ""):
        import tinker

        return tinker.AdminClient(base_url=self.url, api_key=key or self.api_key)

    def cli(self, *words: str, key: str = "", code: int = 0) -> str:
        """What `tinker WORDS` prints, in a process of its own."""
        env = {**os.environ, "TINKER_BASE_URL": self.url, "TINKER_API_KEY": key or self.api_key, "COLUMNS": "300"}
        command = [str(Path(sys.executable).parent / "tinker"), *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, f"tinker {' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout


def datum(tokens: list[int]):
    """All tokens but the last, and for each the next one as its target, for `cross_entropy`."""
    from tinker import types

    inputs = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def arguments(doc: str) -> argparse.ArgumentParser:
    """The options of checks that ask a server which is already up."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    url = os.environ.get("TINKER_BASE_URL")
    parser.add_argument("--base-url", default=url, required=url is None, help="default: TINKER_BASE_URL")
    parser.add_argument("--api-key", default=os.environ.get("TINKER_API_KEY", "tml-test"), help="default: TINKER_API_KEY, or tml-test")
    parser.add_argument("--model-name", required=True, help="under which the server offers the model")
    parser.add_argument("--model-dir", type=Path, required=True, help="the model's folder")
    return parser
