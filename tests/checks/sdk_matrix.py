#!/usr/bin/env python3
"""Walks through the API with several versions of the tinker SDK, each in an environment of its own (sdk_walk.py), and prints a table.

    "$(tests/python_env)" tests/checks/sdk_matrix.py --tinderbox target/debug/tinderbox --model-dir DIR [VERSION…]

Without versions: all of the table, and 0.15.0, which must be refused. An environment takes 0.4 GB.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from runner import Checks, main
from server import Server, arguments

HERE = Path(__file__).resolve().parent
VERSIONS = "0.16.0 0.18.2 0.22.7 0.24.1 0.25.0 0.26.0 0.30.0 0.35.0 0.36.0 0.38.0".split()
TOO_OLD = "0.15.0"
GAPS = {"trainer:prompt": "prompt_gap", "trainer:sample": "sample_gap", "reloaded": "loaded_gap", "next-step": "next_step_gap"}


def walk(version: str, server: Server) -> dict:
    """What the walk found."""
    python = subprocess.run([HERE.parent / "python_env", "sdk", version], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    command = [python, str(HERE / "sdk_walk.py"), "--base-url", server.url, "--model", "matrix"]
    command += ["--refused"] if version == TOO_OLD else []
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TINKER_API_KEY": server.api_key}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, f"exit {done.returncode}:\n{done.stderr[-3000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def row(version: str, found: dict) -> str:
    if "refused" in found:
        return f"{version:8} refused at create_session, with the version to upgrade to"
    gaps = "  ".join(f"{found[gap]:14.1e}" for gap in GAPS.values())
    return f"{version:8} {found['loss_first']:6.2f} ->{found['loss_last']:5.2f}  {gaps}  {found['download']}"


def body(checks: Checks, args) -> None:
    table = [f"{'SDK':8} {'loss':15}" + "  ".join(f"{title:>14}" for title in GAPS) + "  download"]

    def walked(version: str) -> None:
        table.append(row(version, walk(version, server)))

    with tempfile.TemporaryDirectory() as folder:
        with Server(args.tinderbox, Path(folder) / "data", {"matrix": args.model_dir}) as server:
            for version in args.versions or [*VERSIONS, TOO_OLD]:
                checks.run(version, walked, version)
    print("\n".join(table))


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    main(parser, body)
