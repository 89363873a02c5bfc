"""A server that is killed and started again: same port, same data; what its log says about the moment it is in is told as it happens."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "checks"))

from server import Server  # noqa: E402

MODEL = "tiny"
MOMENT = re.compile(rb'moment="?([a-z]+)')
DRAINED_S = 20
"""The longest that a server may take that was asked to end."""
LOUD = re.compile(r"\b(WARN|ERROR)\b|panicked")
VARIABLES = {"RUST_LOG": "info,tinderbox::durability=debug", "TINDERBOX_RUN_SNAPSHOT_SECONDS": "0.2", "NO_COLOR": "1"}
"""States of runs are written often, so that many a kill strikes between two of them or inside one."""


class Moments:
    """Words as they are said, counted; who waits for one hears it at once."""

    def __init__(self):
        self.counts: dict[str, int] = {}
        self.changed = threading.Condition()

    def say(self, word: str) -> None:
        with self.changed:
            self.counts[word] = self.count(word) + 1
            self.changed.notify_all()

    def count(self, word: str) -> int:
        return self.counts.get(word, 0)

    def wait(self, word: str, since: int, limit: float, otherwise=lambda: False) -> bool:
        """Until it was said more than `since` times; false after `limit` seconds, or as soon as `otherwise` is true."""
        end = time.monotonic() + limit
        with self.changed:
            while self.count(word) <= since:
                if time.monotonic() > end or otherwise():
                    return False
                self.changed.wait(0.05)
        return True


class World(Server):
    """Its data directory lies in `work`, which has to be empty; a database may lie elsewhere."""

    def __init__(self, binary: Path, work: Path, model_dir: Path, database_url: str | None, how: signal.Signals = signal.SIGKILL):
        options = ["--database-url", database_url] if database_url else []
        super().__init__(binary, work / "data", {MODEL: model_dir}, *options, **VARIABLES)
        self.how, self.moments, self.ended = how, Moments(), False
        self.log.touch()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        with self.log.open("rb") as log:
            while not self.ended:
                line = log.readline()
                if not line.endswith(b"\n"):
                    log.seek(-len(line), 1)
                    time.sleep(0.001)
                elif found := MOMENT.search(line):
                    self.moments.say(found[1].decode())

    def end(self) -> None:
        """Kills it, or asks it to end. An error where it was gone before, or takes too long: nobody else ends it."""
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended by itself with {self.process.returncode}; its log ends:\n{self.tail()}")
        self.process.send_signal(self.how)
        self.process.wait(DRAINED_S)

    def loud(self) -> list[str]:
        """Warnings and errors of the whole log."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if LOUD.search(line)]

    def final_files(self, run: str) -> Path:
        """Where the run's last checkpoint lies; there must be one directory of it, and no half ones."""
        kind = self.data / "checkpoints" / run.replace(":", "-") / "weights"
        found = [d for d in kind.iterdir() if d.name.startswith("final")]
        assert len(found) == 1, f"{[d.name for d in kind.iterdir()]} in {kind}"
        return found[0]

    def remove(self) -> None:
        self.ended = True
        shutil.rmtree(self.data.parent)
