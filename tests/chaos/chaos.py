#!/usr/bin/env python3
"""Kills a server at chosen and at random moments while loops of the SDK run on it: they must end as if nothing had happened.

    chaos.py --tinderbox BINARY --model-dir DIR --kills N

The loops of `loops.py` run once undisturbed, then again and again until the server was killed N times, with SIGKILL, and started again each time.
Nothing may raise in a loop, and what it was given must be the same to the last bit: losses, metrics, samples, lists, files of the final checkpoint.
With --kills 0 two undisturbed rounds are compared. Exit status 0: all held.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from process import LoopProcess
from promises import Promises
from strikes import KINDS, Killer, Strike
from verdict import differences, digest
from world import World

STEPS_MAX = {"full": 20, "mixed": 20}
SELDOM = {"full": 0, "mixed": 1}
"""Loops that take part in each third round."""
IDLE_ROUNDS_MAX = 3


class Chaos:
    def __init__(self, args: argparse.Namespace, work: Path):
        self.args, self.work = args, work
        self.world = World(args.tinderbox.resolve(), work, args.model_dir, args.database_url, signal.Signals[f"SIG{args.signal}"])
        self.killer = Killer(self.world, args.kills, args.seed)
        self.reference: dict[str, dict] = {}
        self.faults: dict[int, list[str]] = {}
        """By round; of the loops and of the server."""
        self.number = 0

    def run(self) -> None:
        with self.world:
            self.round(0, self.args.loops)
            if not self.args.kills:
                self.round(1, self.args.loops)
            idle = 0
            while not self.killer.done() and idle < IDLE_ROUNDS_MAX:
                self.number += 1
                before = len(self.killer.struck)
                self.round(self.number, self.chosen(self.number), killed=True)
                idle = idle + 1 if len(self.killer.struck) == before else 0
            if idle:
                self.faults.setdefault(self.number, []).append(f"moments that never came: {self.killer.left}")

    def chosen(self, number: int) -> list[str]:
        seldom = [kind for kind in self.args.loops if SELDOM.get(kind, number % 3) != number % 3]
        return [kind for kind in self.args.loops if kind not in seldom] or self.args.loops

    def round(self, number: int, kinds: list[str], killed: bool = False) -> None:
        begin = time.monotonic()
        promises = Promises(self.world)
        loops = [LoopProcess(kind, self.world, self.work, number, self.steps(kind), self.args.pause) for kind in kinds]
        for loop in loops:
            loop.begun.wait(60)
        if killed:
            self.killer.round(number, lambda: not any(loop.alive() for loop in loops))
        faults = []
        for loop in loops:
            faults += [f"{loop.kind}: {fault}" for fault in self.ended(loop)]
        faults += promises.stop()
        struck = sum(s.round == number for s in self.killer.struck) if killed else 0
        held = "all as undisturbed" if number and not faults else "done" if not faults else f"{len(faults)} FAULTS"
        print(f"round {number}, {' + '.join(kinds)}: {struck} kills, {time.monotonic() - begin:.1f} s, {len(promises.kept)} promises by HTTP, {held}")
        for fault in faults:
            print(f"  FAULT {fault}")
        sys.stdout.flush()
        if faults:
            self.faults.setdefault(number, []).extend(faults)

    def steps(self, kind: str) -> int:
        return min(self.args.steps, STEPS_MAX.get(kind, self.args.steps))

    def ended(self, loop: LoopProcess) -> list[str]:
        if why := loop.finish():
            return [why]
        got = json.loads(loop.out.read_text())
        try:
            got["files"] = digest(self.world.final_files(got["run"]))
        except (AssertionError, OSError) as e:
            return [str(e)]
        return differences(self.reference.setdefault(loop.kind, got), got)

    def table(self) -> None:
        struck = self.killer.struck
        print(f"\n{'kind':10} {'kills':>5} {'held':>5} {'up again, median':>17} {'worst':>7}")
        for kind in KINDS:
            of_kind = [s for s in struck if s.kind == kind]
            if of_kind:
                amid = f"  ({sum(s.amid for s in of_kind)} before its end)" if kind == "replay" else ""
                print(f"{kind:10} {len(of_kind):5} {sum(self.held(s) for s in of_kind):5} {up(of_kind)}{amid}")
        if struck:
            print(f"{'all':10} {len(struck):5} {sum(self.held(s) for s in struck):5} {up(struck)}")
        loud = self.world.loud()
        print(f"{len(loud)} warnings and errors in the server's log" + "".join(f"\n  {line[:300]}" for line in loud[:20]))
        for number, faults in self.faults.items():
            print(f"FAILED round {number}: {faults[0][:600]}" + (f", and {len(faults) - 1} more" if faults[1:] else ""))
        print(f"{sum(self.held(s) for s in struck)} of {len(struck)} kills left no trace" if struck else "two rounds compared")

    def held(self, strike: Strike) -> bool:
        return strike.round not in self.faults

    def ok(self) -> bool:
        return not self.faults and len(self.killer.struck) == self.args.kills


def up(strikes: list[Strike]) -> str:
    times = [s.up_s for s in strikes if s.up_s]
    return f"{statistics.median(times):15.2f} s {max(times):5.2f} s" if times else f"{'':23}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tinderbox", type=Path, default=Path("target/debug/tinderbox"), help="the binary")
    parser.add_argument("--model-dir", type=Path, required=True, help="a tiny model, of tests/conformance/make_tiny_model.py")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--steps", type=int, default=50, help="of each loop; of full and mixed at most 20")
    parser.add_argument("--loops", type=lambda text: text.split(","), default=["sft", "rl", "full", "mixed"])
    parser.add_argument("--pause", type=float, default=0.06, help="seconds after each step, so that a loop lasts long enough to be struck")
    parser.add_argument("--database-url", help="default: SQLite in the data directory")
    parser.add_argument("--workdir", type=Path, help="kept; default: a temporary one, kept when something failed")
    parser.add_argument("--signal", choices=("KILL", "TERM"), default="KILL", help="TERM: it is asked to end, which no client may notice either")
    parser.add_argument("--json", type=Path, metavar="FILE", help="kills and faults")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    # Also a script that is told to end must stop its server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = args.workdir or Path(tempfile.mkdtemp(prefix="chaos-"))
    work.mkdir(parents=True, exist_ok=True)
    chaos = Chaos(args, work)
    try:
        chaos.run()
    except Exception as e:  # noqa: BLE001  what there is so far is told
        chaos.faults.setdefault(chaos.number, []).append(f"{type(e).__name__}: {e}")
    chaos.table()
    if args.json:
        args.json.write_text(json.dumps({"kills": [s.told() for s in chaos.killer.struck], "faults": chaos.faults}, indent=1))
    if chaos.ok() and not args.workdir:
        chaos.world.remove()
    else:
        print(f"logs and data: {work}")
    sys.stdout.flush()
    os._exit(0 if chaos.ok() else 1)


if __name__ == "__main__":
    main()
