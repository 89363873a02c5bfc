#!/usr/bin/env python3
"""The stock `openai` and `anthropic` packages against a running server: one line per check, exit 0 when all hold.

    "$(tests/python_env)" tests/compatible_checks.py --base-url URL --model-name NAME --model-dir DIR [options]

The model's directory must hold a chat template with tools and thoughts, such as tests/golden/chat/qwen3.jinja, and a tokenizer with
`<|im_end|>` as its end of turn. A checkpoint is trained for the checks, through the tinker SDK: it calls a tool, thinks, and ends its turns.

    --api-key KEY        the key to use (default tml-test)
    --other-api-key KEY  a key of another account: check that it sees nothing of ours
    --bare-model NAME    a served model without a chat template: check that this is said
    --taught PATH        a checkpoint of an earlier run of these checks on the same server, instead of training one
    --only TEXT          only checks whose name contains TEXT
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "compatible"))
import anthropic_checks  # noqa: E402
import openai_checks  # noqa: E402
import serving_checks  # noqa: E402
from world import Skip, World  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model-name", required=True)
    parser.add_argument("--model-dir", required=True)
    parser.add_argument("--api-key", default="tml-test")
    parser.add_argument("--other-api-key")
    parser.add_argument("--bare-model")
    parser.add_argument("--taught")
    parser.add_argument("--only", default="")
    world = World(parser.parse_args())
    failed = 0
    for module in (openai_checks, anthropic_checks, serving_checks):
        for name, check in list(vars(module).items()):
            if not name.startswith("check_") or world.args.only not in name:
                continue
            start = time.monotonic()
            try:
                check(world)
                verdict = "passed"
            except Skip as reason:
                verdict = f"skipped: {reason}"
            except Exception:
                traceback.print_exc()
                verdict, failed = "FAILED", failed + 1
            label = f"{module.__name__.removesuffix('_checks')}: {name.removeprefix('check_').replace('_', ' ')}"
            print(f"{label:74s} {time.monotonic() - start:5.1f} s  {verdict}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
