"""A tinderbox server with keys for the checks: started, asked and stopped; used by accounts_checks.py."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import tinker

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "conformance"))
from harness import free_port  # noqa: E402

MODEL = "my-model"


class Server:
    """A server on a free port of this machine, over a data directory that outlives it."""

    def __init__(self, binary: str, model_dir: str, data: Path, *flags: str, **variables: str):
        self.binary, self.data = binary, data
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [binary, "serve", "--port", str(self.port), "--data-dir", str(data), "--model", f"{MODEL}={model_dir}", *flags]
        self.env = {**os.environ, "RUST_LOG": "debug,sqlx=warn,hyper=warn", **variables}

    def __enter__(self) -> Server:
        self.log = (self.data.parent / f"{self.data.name}.log").open("ab")
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log, env=self.env)
        for _ in range(300):
            try:
                if httpx.get(f"{self.url}/api/v1/healthz", timeout=2).status_code == 200:
                    return self
            except httpx.HTTPError:
                assert self.process.poll() is None, f"the server ended: {self.data.name}.log"
                time.sleep(0.1)
        raise AssertionError("the server did not become ready")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.log.close()

    def key(self, *words: str, ok: bool = True) -> str:
        """What `tinderbox key WORDS` prints."""
        p = subprocess.run([self.binary, "key", *words, "--data-dir", str(self.data)], capture_output=True, text=True, timeout=60)
        assert (p.returncode == 0) == ok, p.stderr
        return p.stdout.strip() if ok else p.stderr

    def http(self, method: str, path: str, key: str | None, **kw) -> httpx.Response:
        headers = {**kw.pop("headers", {}), **({"X-API-Key": key} if key else {})}
        return httpx.request(method, f"{self.url}/api/v1/{path}", headers=headers, timeout=30, **kw)

    def status(self, key: str | None) -> int:
        return self.http("GET", "training_runs", key).status_code

    def becomes(self, key: str, status: int) -> float:
        """Seconds until the key is answered so."""
        start = time.monotonic()
        while self.status(key) != status:
            assert time.monotonic() - start < 10, f"not {status} after 10 s"
            time.sleep(0.05)
        return time.monotonic() - start

    def service(self, key: str) -> tinker.ServiceClient:
        return tinker.ServiceClient(base_url=self.url, api_key=key)

    def rest(self, key: str) -> tinker.RestClient:
        return tinker.RestClient(base_url=self.url, api_key=key)

    def cli(self, key: str, *words: str) -> subprocess.CompletedProcess:
        env = {**os.environ, "TINKER_BASE_URL": self.url, "TINKER_API_KEY": key}
        command = [str(Path(sys.executable).parent / "tinker"), *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
