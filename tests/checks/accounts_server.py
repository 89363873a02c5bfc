"""A server with keys for the checks of accounts.py: those of its database, and what is answered to whom."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import httpx
from server import Server

MODEL = "my-model"


class KeyedServer(Server):
    """Logs at debug, so that a key in its log would be found."""

    def __init__(self, binary: Path, model_dir: Path, data: Path, *options: str, **variables: str):
        super().__init__(binary, data, {MODEL: model_dir}, *options, **{"RUST_LOG": "debug,sqlx=warn,hyper=warn", **variables})

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
