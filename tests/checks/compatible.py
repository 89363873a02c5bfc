#!/usr/bin/env python3
"""The stock `openai` and `anthropic` packages against a running server.

    "$(tests/python_env)" tests/checks/compatible.py --base-url URL --model-name chat --model-dir OUT/chat --other-api-key KEY --bare-model bare

compatible_models.py makes OUT. The model's directory must hold a chat template with tools and thoughts, such as
tests/golden/chat/qwen3.jinja, and a tokenizer with `<|im_end|>` as its end of turn. A checkpoint is trained for the checks,
through the tinker SDK: it calls a tool, thinks, and ends its turns.
"""

from __future__ import annotations

import compatible_anthropic
import compatible_openai
import compatible_serving
from address import arguments
from compatible_world import World
from runner import Checks, main


def body(checks: Checks, args) -> None:
    world = World(args)
    for module in (compatible_openai, compatible_anthropic, compatible_serving):
        checks.every(module, world, prefix=module.__name__.removeprefix("compatible_") + ": ")


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--other-api-key", required=True, help="a key of another account: it sees nothing of ours")
    parser.add_argument("--bare-model", required=True, help="a served model without a chat template: this is said")
    parser.add_argument("--taught", help="a checkpoint of an earlier run of these checks on the same server, instead of training one")
    main(parser, body)
