#!/usr/bin/env python3
"""`tinderbox serve` in a process of its own: started on a free port, waited for, stopped. As a script it does so around a command:

    server.py SERVE-OPTION… -- COMMAND…

The command gets TINKER_BASE_URL and TINKER_API_KEY; its status is this script's. The binary is $tinderbox, or target/debug/tinderbox.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from address import Address

READY_S, STOP_S = 120, 60
"""How long a start may take, with the loading of a model on a busy machine, and the end."""


class Server(Address):
    """A context manager, and again after its end: port and data directory stay the same. The log lies beside the data directory."""

    def __init__(self, binary, data: Path, models: dict[str, object], *options: str, keys: tuple[str, ...] = (), **variables: str):
        """The models by the names they are offered under; environment variables of the process. Calls use the first key."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        super().__init__(f"http://127.0.0.1:{port}", keys[0] if keys else "tml-test")
        self.binary, self.data, self.variables = str(binary), data, variables
        self.log = data.with_name(data.name + ".log")
        offered = [word for name, folder in models.items() for word in ("--model", f"{name}={folder}")]
        allowed = [word for key in keys for word in ("--api-key", key)]
        self.command = [self.binary, "serve", "--port", str(port), "--data-dir", str(data), *offered, *allowed, *options]
        self.process: subprocess.Popen | None = None

    def start(self, **variables: str) -> Server:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env={**os.environ, **self.variables, **variables})
        while not self._healthy():
            ended, late = self.process.poll() is not None, time.perf_counter() - begin > READY_S
            if ended or late:
                self.process.kill()
                what = f"ended with {self.process.wait()}" if ended else f"was not ready after {READY_S} s"
                raise AssertionError(f"the server {what}; its log ends:\n{self.tail()}")
            time.sleep(0.005)
        self.ready_s = time.perf_counter() - begin
        return self

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=5):
                return True
        except OSError:
            return False

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, kind, *_: object) -> None:
        try:
            self.stop()
        finally:
            if kind is not None:
                print(f"the server's log ends:\n{self.tail()}", file=sys.stderr, flush=True)


def arguments(doc: str, model_dir: bool = True) -> argparse.ArgumentParser:
    """The options of checks that start servers of their own, most of them on a model that is given."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tinderbox", type=Path, default=Path("target/debug/tinderbox"), help="the binary")
    if model_dir:
        parser.add_argument("--model-dir", type=Path, required=True, help="a tiny model, of tests/conformance/make_tiny_model.py")
    return parser


def main() -> int:
    if "--" not in sys.argv:
        sys.exit(__doc__)
    middle = sys.argv.index("--")
    options, command = sys.argv[1:middle], sys.argv[middle + 1 :]
    # Also a script that is told to end must stop its server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = Path(tempfile.mkdtemp())
    with Server(os.environ.get("tinderbox", "target/debug/tinderbox"), work / "data", {}, *options) as server:
        status = subprocess.call(command, env={**os.environ, "TINKER_BASE_URL": server.url, "TINKER_API_KEY": server.api_key})
    if status == 0:
        shutil.rmtree(work)
    else:
        print(f"the server's log is kept: {server.log}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
