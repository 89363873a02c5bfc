#!/usr/bin/env python3
"""Runs the README's commands as they are written: every ```bash block that stands right after `<!-- tested -->`.

    readme_commands.py README.md [--base-url http://127.0.0.1:PORT]          default: TINKER_BASE_URL

All blocks run in one shell, in order, and must succeed. A server must be up that offers the model `my-model`; only its address
is put in place of the README's http://127.0.0.1:8000.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"<!-- tested -->\n```bash\n(.*?)```", re.S)
ADDRESS = "http://127.0.0.1:8000"


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("readme", type=Path)
    ap.add_argument("--base-url", default=os.environ.get("TINKER_BASE_URL"), required="TINKER_BASE_URL" not in os.environ)
    a = ap.parse_args()
    blocks = BLOCK.findall(a.readme.read_text())
    if not blocks or not any(ADDRESS in b for b in blocks):
        print(f"{a.readme} has no tested block that names {ADDRESS}")
        return 1
    script = "set -euo pipefail\n" + "\n".join(blocks).replace(ADDRESS, a.base_url)
    p = subprocess.run(["bash", "-c", script], cwd=a.readme.resolve().parent, timeout=300, capture_output=True, text=True)
    print(p.stdout, p.stderr, sep="")
    if p.returncode == 0 and '"error"' in p.stdout + p.stderr:
        print("a command answered with an error")
        return 1
    print(f"{len(blocks)} README blocks: exit {p.returncode}")
    return p.returncode


if __name__ == "__main__":
    sys.exit(main())
