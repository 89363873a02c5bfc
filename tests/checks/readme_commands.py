#!/usr/bin/env python3
"""Runs the commands of our pages as they are written: every ```bash block that stands right after `<!-- tested -->`.

    readme_commands.py README.md… [--base-url http://127.0.0.1:PORT]          default: TINKER_BASE_URL

All blocks of a page run in one shell, in order, in the checkout's root, and must succeed. A server must be up that offers the model
`my-model`, with a chat template; only its address is put in place of the page's http://127.0.0.1:8000. A page is a check of its own:
later blocks need the earlier ones.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import threading
from pathlib import Path

from runner import Checks, main

BLOCK = re.compile(r"<!-- tested -->\n```bash\n(.*?)```", re.S)
ADDRESS = "http://127.0.0.1:8000"
ROOT = Path(__file__).resolve().parents[2]
BLOCK_S = 300
"""A block must end within this time."""


class Shell:
    """One bash that ends at the first command that fails."""

    def __init__(self) -> None:
        command = ["bash", "-c", "set -euo pipefail; while IFS= read -r -d '' block; do eval \"$block\" </dev/null; printf '\\0'; done"]
        self.bash = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, name: str, block: str) -> None:
        """Prints what the block says."""
        late = threading.Timer(BLOCK_S, self.bash.kill)
        late.start()
        try:
            self.bash.stdin.write(block.encode() + b"\0")
            self.bash.stdin.flush()
            said = b""
            while (byte := self.bash.stdout.read(1)) not in (b"", b"\0"):
                said += byte
        finally:
            late.cancel()
        print(said.decode(errors="replace"), flush=True)
        assert byte, f"{name}: exit {self.bash.wait()}"
        assert b'"error"' not in said, f"{name}: a command answered with an error"

    def close(self) -> None:
        self.bash.stdin.close()
        self.bash.wait(BLOCK_S)


def check_page(checks: Checks, page: Path, base_url: str) -> None:
    text = page.read_text()
    blocks = [(text.count("\n", 0, found.start()) + 1, found[1]) for found in BLOCK.finditer(text)]
    assert any(ADDRESS in block for _, block in blocks), f"no tested block names {ADDRESS}"
    shell = Shell()
    for line, block in blocks:
        shell.run(f"{page}:{line}", block.replace(ADDRESS, base_url))
        checks.that(f"{page}:{line}", True)
    shell.close()


def body(checks: Checks, args: argparse.Namespace) -> None:
    for page in args.pages:
        checks.run(str(page), check_page, checks, page, args.base_url)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--base-url", default=os.environ.get("TINKER_BASE_URL"), required="TINKER_BASE_URL" not in os.environ)
    main(parser, body)
