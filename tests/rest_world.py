"""A server on a tiny model with two accounts, and what the checks of the REST side do with it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
NAME = "tiny/qwen3"
MINE, OTHERS = "tml-rest-mine", "tml-rest-other"


def becomes(true, otherwise: str) -> None:
    """Asks again until it is true; a minute is long enough for a machine that is busy."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, otherwise
        time.sleep(0.05)


class Server:
    """`tinderbox serve` on a free port, which it keeps over a restart."""

    def __init__(self, binary: str, work: Path, model: Path):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.command = [binary, "serve", "--port", str(self.port), "--data-dir", str(work / "data"), "--model", f"{NAME}={model}", "--api-key", MINE, "--api-key", OTHERS]
        self.log = work / "server.log"
        self.data = work / "data"
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self, **environment: str) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env={**os.environ, **environment})
        for _ in range(600):
            try:
                urllib.request.urlopen(self.url + "/api/v1/healthz", timeout=2)
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        sys.exit(f"the server did not become ready; its log is {self.log}:\n{self.log.read_text()[-2000:]}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)

    def call(self, method: str, path: str, body=None, key: str = MINE, headers: dict | None = None):
        """Status and parsed answer of a plain request."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + "/api/v1" + path, data, method=method, headers={"X-API-Key": key, **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read() or b"{}")


class World:
    """Both accounts' clients, and a run of the first with a checkpoint."""

    def __init__(self, server: Server, work: Path, model_dir: Path):
        import tinker

        self.tinker, self.server, self.work, self.model_dir = tinker, server, work, model_dir
        self.mine = self.service(MINE, user_metadata={"team": "a"}, project_id="proj-a")
        self.rest = self.mine.create_rest_client()
        self.other = self.service(OTHERS)
        self.other_rest = self.other.create_rest_client()
        self.trainer = self.mine.create_lora_training_client(NAME, rank=4, seed=1, user_metadata={"renderer_name": "r"}).result()
        self.step(self.trainer, 1)
        self.saved = self.trainer.save_state("one").result().path

    def service(self, key: str, **kwargs):
        return self.tinker.ServiceClient(base_url=self.server.url, api_key=key, **kwargs)

    def restart(self, **environment: str) -> None:
        """Runs are not kept over a restart, so that there is a new one afterwards."""
        self.server.stop()
        self.server.start(**environment)
        self.trainer = self.mine.create_training_client_from_state(self.saved).result()

    def datum(self, tokens):
        types = self.tinker.types
        return types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
        )

    def step(self, trainer, n: int) -> None:
        for i in range(n):
            trainer.forward_backward([self.datum([3 + i, 4, 5, 6])], "cross_entropy").result()
            trainer.optim_step(self.tinker.types.AdamParams(learning_rate=1e-2)).result()

    def logprobs(self, service, path: str, tokens) -> list[float]:
        return self.sampler_logprobs(service.create_sampling_client(model_path=path).result(), tokens)

    def sampler_logprobs(self, sampler, tokens) -> list[float]:
        return sampler.compute_logprobs(self.tinker.types.ModelInput.from_ints(tokens)).result()[1:]

    def refused(self, call, status: int, mention: str) -> None:
        try:
            value = call()
        except Exception as e:  # noqa: BLE001 - whatever it is, it must be this status
            assert getattr(e, "status_code", None) == status, f"expected {status}, got {type(e).__name__}: {e}"
            assert mention in str(e), f"{mention!r} is not in {e}"
            return
        raise AssertionError(f"expected {status}, got {value!r}")

    def command(self, *args: str) -> str:
        """Output of the `tinker` command, run in this process: one of its own takes seconds to import the SDK.

        For one key alone, since the SDK keeps its client for the life of a process.
        """
        from click.testing import CliRunner
        from tinker.cli.__main__ import main_cli

        done = CliRunner().invoke(main_cli, args, env={"TINKER_BASE_URL": self.server.url, "TINKER_API_KEY": MINE, "TINKER_TELEMETRY": "0"})
        assert done.exit_code == 0, f"tinker {' '.join(args)}: {done.exit_code}\n{done.output}{done.exception or ''}"
        return done.stdout

    def cli(self, *args: str, key: str = MINE, code: int = 0) -> str:
        """The same in a process of its own."""
        env = {**os.environ, "TINKER_BASE_URL": self.server.url, "TINKER_API_KEY": key, "TINKER_TELEMETRY": "0"}
        done = subprocess.run([str(Path(sys.executable).parent / "tinker"), *args], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, f"tinker {' '.join(args)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout
