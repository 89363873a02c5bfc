"""The two sides of side_by_side.py as handles: a tinderbox server with its SDK clients, and the PyTorch worker."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

os.environ.setdefault("TINKER_TELEMETRY", "0")
KEY = "tml-benchmark"


class Server:
    """`tinderbox serve` over one model, with a given number of compute threads; a context manager."""

    def __init__(self, binary: Path, model_dir: Path, data_dir: Path, threads: int, name: str | None = None):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.model, self.url = name or str(model_dir), f"http://127.0.0.1:{port}"
        shutil.rmtree(data_dir, ignore_errors=True)
        data_dir.mkdir(parents=True)
        self.log = data_dir / "server.log"
        command = [str(binary), "serve", "--port", str(port), "--data-dir", str(data_dir), "--model", f"{self.model}={model_dir}"]
        start = time.perf_counter()
        with open(self.log, "wb") as log:
            env = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        self._wait(port, deadline=time.perf_counter() + 120)
        self.ready_s = time.perf_counter() - start
        self.stats = psutil.Process(self.process.pid)
        self._service = None

    def _wait(self, port: int, deadline: float) -> None:
        while time.perf_counter() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=5).read()
                return
            except OSError:
                time.sleep(0.005)
        raise RuntimeError(f"the server did not become ready: {self.log.read_text(errors='replace')[-2000:]}")

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_exc) -> None:
        if self._service is not None:
            self._service.close("success").result(30)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def service(self):
        if self._service is None:
            import tinker

            self._service = tinker.ServiceClient(base_url=self.url, api_key=KEY)
        return self._service

    def trainer(self, seed: int, rank: int = 32):
        return self.service.create_lora_training_client(self.model, rank=rank, seed=seed, train_unembed=False).result()

    def cpu_s(self) -> float:
        t = self.stats.cpu_times()
        return t.user + t.system

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    def export_adapter(self, trainer, dest: Path) -> Path:
        """The run's current adapter as a PEFT directory."""
        import tinker

        path = trainer.save_weights_external("bench").result().path
        urls = tinker.RestClient(base_url=self.url, api_key=KEY).get_external_weights_urls(path).result().urls
        for name, url in urls.items():
            target = dest / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with urllib.request.urlopen(url, timeout=60) as r:
                target.write_bytes(r.read())
        return next(iter(sorted(dest.rglob("adapter_config.json")))).parent


class Torch:
    """The worker process; does nothing but wait between two calls. A context manager."""

    def __init__(self, threads: int, model_dir: Path | None = None, adapter: Path | None = None):
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, str(Path(__file__).with_name("torch_worker.py"))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True)
        if model_dir is not None:
            self.ask("load", model=str(model_dir), adapter=str(adapter) if adapter else None)

    def ask(self, do: str, **order) -> dict:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the PyTorch worker ended with {self.process.wait()}")
        return json.loads(line)

    def __enter__(self) -> "Torch":
        return self

    def __exit__(self, *_exc) -> None:
        self.process.stdin.close()
        self.process.wait(20)
