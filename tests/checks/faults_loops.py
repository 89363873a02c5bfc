"""A loop of the SDK beside which something goes wrong, and the same loop undisturbed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "chaos"))

from process import LoopProcess  # noqa: E402
from verdict import differences, digest  # noqa: E402
from world import MODEL, World  # noqa: E402

STEPS = 30


class Reference:
    """A server on which the loop ran once already."""

    def __init__(self, args, work: Path, database_url: str | None = None):
        work.mkdir(parents=True, exist_ok=True)
        self.world, self.work, self.begun = World(args.tinderbox, work, args.model_dir, database_url), work, 0

    def begin(self) -> LoopProcess:
        self.begun += 1
        return LoopProcess("sft", self.world, self.work, self.begun, STEPS, 0.05)

    def reach(self, loop: LoopProcess, step: int) -> None:
        while loop.alive() and loop.step != f"step {step}":
            time.sleep(0.005)
        assert loop.alive(), loop.finish()

    def same(self, loop: LoopProcess) -> None:
        got = self.got(loop)
        assert not (faults := differences(self.expected, got)), faults

    def got(self, loop: LoopProcess) -> dict:
        assert not (why := loop.finish()), why
        got = json.loads(loop.out.read_text())
        return got | {"files": digest(self.world.final_files(got["run"]))}

    def __enter__(self) -> Reference:
        self.world.start()
        self.expected = self.got(self.begin())
        return self

    def __exit__(self, *_: object) -> None:
        self.world.ended = True
        self.world.process.kill()
        self.world.process.wait()
