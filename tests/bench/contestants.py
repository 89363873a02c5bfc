"""The two sides of side_by_side.py as handles: a tinderbox server with its SDK clients, and the PyTorch worker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from functools import cached_property
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "checks"))
import server  # noqa: E402


class Server(server.Server):
    """`tinderbox serve` over one model and an empty data directory, with a given number of compute threads."""

    def __init__(self, binary: Path, model_dir: Path, data_dir: Path, threads: int):
        shutil.rmtree(data_dir, ignore_errors=True)
        self.model = str(model_dir)
        super().__init__(binary, data_dir, {self.model: model_dir}, RAYON_NUM_THREADS=str(threads))

    def start(self, **variables: str) -> Server:
        super().start(**variables)
        self.stats = psutil.Process(self.process.pid)
        return self

    @cached_property
    def client(self):
        """One SDK client for the life of the server."""
        return self.service()

    def stop(self) -> None:
        try:
            if "client" in vars(self):
                self.client.close("success").result(30)
        finally:
            super().stop()

    def trainer(self, seed: int, rank: int = 32):
        return self.client.create_lora_training_client(self.model, rank=rank, seed=seed, train_unembed=False).result()

    def cpu_s(self) -> float:
        t = self.stats.cpu_times()
        return t.user + t.system

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    def export_adapter(self, trainer, dest: Path) -> Path:
        """The run's current adapter as a PEFT directory."""
        path = trainer.save_weights_external("bench").result().path
        urls = self.rest().get_external_weights_urls(path).result().urls
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
