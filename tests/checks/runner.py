"""Runs checks, a line with verdict, time and figures for each, and tells the whole: what broke, or did not run at all, has failed."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from types import ModuleType


class Checks:
    def __init__(self, only: str = ""):
        """`only`: parts of names, separated by commas; other checks are left out."""
        self.only, self.ran, self.failed = only.split(","), 0, []

    def run(self, name: str, check: Callable, *args) -> None:
        """A check that holds when it raises nothing and each of its statements holds; what it returns are figures for its line."""
        if not any(part in name for part in self.only):
            return
        self.ran += 1
        begin, before, figures = time.monotonic(), len(self.failed), ""
        try:
            figures = check(*args)
        except KeyboardInterrupt:
            raise
        except BaseException as e:  # noqa: BLE001  whatever breaks in one check, the next ones are run
            traceback.print_exc(file=sys.stdout)
            self.failed.append(name)
            figures = f"{type(e).__name__}: {str(e)[:600]}"
        held = len(self.failed) == before
        print(f"{'PASS' if held else 'FAIL'} {time.monotonic() - begin:6.1f} s  {name}  {'' if figures is None else figures}".rstrip(), flush=True)

    def that(self, name: str, holds: bool, figures: object = "") -> None:
        """One statement, inside a check or alone; after one that does not hold the next are still tried."""
        self.ran += 1
        if not holds:
            self.failed.append(name)
        print(f"{'ok  ' if holds else 'FAIL'} {name}  {figures}".rstrip(), flush=True)

    def every(self, holder, *args, prefix: str = "") -> None:
        """All functions `check_…` of a module or methods of an object, in the order in which they are written."""
        spaces = [vars(holder)] if isinstance(holder, ModuleType) else [vars(kind) for kind in type(holder).__mro__]
        for name in [name for space in spaces for name in space if name.startswith("check_")]:
            self.run(prefix + name.removeprefix("check_").replace("_", " "), getattr(holder, name), *args)


def refused(kind: type[BaseException], call: Callable, *words: str, status: int | None = None) -> BaseException:
    """The error of a call that must end with this class of error; every word is in its message, and the HTTP status is this one."""
    try:
        value = call()
    except kind as e:
        assert all(word in str(e) for word in words), f"{type(e).__name__}: {e} lacks one of {words}"
        assert status in (None, getattr(e, "status_code", None)), f"expected {status}, got {type(e).__name__}: {e}"
        return e
    raise AssertionError(f"expected {kind.__name__} {status or ''} with {words}, got {value!r}")


def main(parser: argparse.ArgumentParser, body: Callable[[Checks, argparse.Namespace], None]) -> None:
    """Runs `body` with the parsed arguments and ends the process: 0 when at least one check ran and all held."""
    parser.add_argument("--only", default="", metavar="A,B", help="the checks whose names contain one of these")
    args = parser.parse_args()
    checks = Checks(args.only)
    try:
        body(checks, args)
    except BaseException as e:  # noqa: BLE001  what breaks between two checks keeps others from running
        traceback.print_exc(file=sys.stdout)
        checks.failed.append(f"{type(e).__name__} outside of a check")
    if not checks.ran:
        checks.failed.append("no check ran")
    print(f"{checks.ran} checks, {len(checks.failed)} failed" + "".join(f"\n  FAILED: {name}" for name in checks.failed))
    sys.stdout.flush()
    sys.stderr.flush()
    # The SDK's own threads would wait for servers that are gone.
    os._exit(1 if checks.failed else 0)
