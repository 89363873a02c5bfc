"""When the server is killed: moments of each kind in turn, told by the server's own log, and times that nothing chose."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import asdict, dataclass

from world import World

KINDS = ("accept", "pass", "snapshot", "save", "delete", "replay", "time")
AFTER_S = 0.03
"""A kill follows its moment by up to so long; half of them by less than a tenth of it, since most moments are short."""
GAP_S = 0.7
SEEN_S = 30
LONG_EVERY, LONG_S = 10, (5.0, 15.0)
"""Of many kills each tenth leaves the server down for so many seconds, the others for none."""


@dataclass
class Strike:
    kind: str
    after_s: float
    down_s: float = 0.0
    up_s: float = 0.0
    round: int = 0
    amid: bool = False
    """A replay that was not over yet."""

    def told(self) -> dict:
        return asdict(self)


def budget(kills: int, rng: random.Random) -> dict[str, int]:
    """So many of each kind that they add up."""
    order = rng.sample(KINDS, len(KINDS))
    return {kind: kills // len(KINDS) + (i < kills % len(KINDS)) for i, kind in enumerate(order)}


class Killer:
    def __init__(self, world: World, kills: int, seed: int):
        self.world, self.kills, self.rng = world, kills, random.Random(seed)
        self.left = budget(kills, self.rng)
        self.struck: list[Strike] = []

    def done(self) -> bool:
        return not any(self.left.values())

    def plan(self) -> list[str]:
        """The kinds of the next three to six kills: those first of which most are left. A replay follows another kill."""
        left, chosen = dict(self.left), []
        for _ in range(min(self.rng.randint(3, 6), sum(left.values()))):
            most = max(left.values())
            kind = self.rng.choice([k for k, n in left.items() if n == most])
            left[kind] -= 1
            chosen.append(kind)
        self.rng.shuffle(chosen)
        if chosen[0] == "replay":
            other = next((i for i, kind in enumerate(chosen) if kind != "replay"), None)
            if other is None:
                chosen[0] = "time"
                self.left["replay"] -= 1
                self.left["time"] += 1
            else:
                chosen[0], chosen[other] = chosen[other], chosen[0]
        return chosen

    def round(self, number: int, over) -> None:
        """Strikes as planned until `over()`; what was not struck stays for the next round."""
        plan = self.plan()
        while plan and not over():
            kind = plan.pop(0)
            if kind == "replay" or not self._reached(kind, over):
                continue
            self._strike(kind, number)
            while plan and plan[0] == "replay":
                self._say("struck again as it starts")
                self._strike(plan.pop(0), number)
            self.world.start()
            self.struck[-1].up_s = self.world.ready_s
            self._say(f"up again in {self.world.ready_s:.2f} s")

    def _reached(self, kind: str, over) -> bool:
        time.sleep(self.rng.uniform(0, GAP_S))
        moments = self.world.moments
        return not over() and (kind == "time" or moments.wait(kind, moments.count(kind), SEEN_S, over))

    def _strike(self, kind: str, number: int) -> None:
        after = self.rng.uniform(0, AFTER_S) * self.rng.choice((0.1, 1.0)) if kind != "time" else 0.0
        strike = Strike(kind, after, round=number)
        if kind == "replay":
            self._strike_start(strike)
        else:
            time.sleep(after)
            self.world.end()
        self.left[kind] -= 1
        self.struck.append(strike)
        if self.kills >= 2 * LONG_EVERY and len(self.struck) % LONG_EVERY == 0:
            strike.down_s = self.rng.uniform(*LONG_S)
            time.sleep(strike.down_s)

    def _strike_start(self, strike: Strike) -> None:
        """Starts the server and kills it while it takes up what was there."""

        def start() -> None:
            try:
                self.world.start()
            except AssertionError:
                pass

        moments = self.world.moments
        begun, ended = moments.count("replay"), moments.count("replayed")
        starting = threading.Thread(target=start)
        starting.start()
        seen = moments.wait("replay", begun, SEEN_S)
        time.sleep(strike.after_s)
        strike.amid = seen and moments.count("replayed") == ended
        self.world.end()
        starting.join()

    def _say(self, what: str) -> None:
        last = self.struck[-1]
        after = f", {1000 * last.after_s:.0f} ms after" if last.kind != "time" else ""
        down = f"; down for {last.down_s:.0f} s" if last.down_s else ""
        print(f"kill {len(self.struck)}/{self.kills}: {last.kind}{after}{down}; {what}", flush=True)
