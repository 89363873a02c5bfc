"""A loop of `loops.py` as a process: how far it is, and how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from world import MODEL, World

SILENT_S = 150
"""A loop that says nothing for so long hangs: the longest the server is down, and what clients wait afterwards, is a fraction of it."""


class LoopProcess:
    def __init__(self, kind: str, world: World, work: Path, number: int, steps: int, pause: float):
        self.kind, self.world, self.begun, self.heard = kind, world, threading.Event(), time.monotonic()
        self.step = "nothing"
        self.out, self.errors = work / f"{kind}-{number}.json", work / f"{kind}-{number}.err"
        command = [sys.executable, str(Path(__file__).with_name("loops.py")), kind, "--base-url", world.url, "--model", MODEL]
        command += ["--steps", str(steps), "--pause", str(pause), "--out", str(self.out)]
        environment = {**os.environ, "TINKER_TELEMETRY": "0", "HF_HUB_OFFLINE": "1"}
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def alive(self) -> bool:
        return self.process.poll() is None and time.monotonic() - self.heard < SILENT_S

    def finish(self) -> str | None:
        """Waits for its end → why it failed."""
        while self.alive():
            time.sleep(0.02)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            self.process.kill()
            self.process.wait()
            return f"hangs for {SILENT_S} s after {self.step!r}: {self._last_words()}"
        self.reader.join()
        return None if self.process.returncode == 0 else f"after {self.step!r}: {self._last_words()}"

    def _read(self) -> None:
        for line in self.process.stdout:
            self.heard = time.monotonic()
            self.step = line.strip()
            if self.step == "begin":
                self.begun.set()
            if self.step.startswith("deleting"):
                self.world.moments.say("delete")
        self.begun.set()

    def _last_words(self) -> str:
        return self.errors.read_text(errors="replace").strip()[-2500:]
