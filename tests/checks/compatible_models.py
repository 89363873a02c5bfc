#!/usr/bin/env python3
"""Two copies of a tiny model for compatible.py: OUT/chat with a template that has tools and thoughts, OUT/bare without any.

    "$(tests/python_env)" tests/checks/compatible_models.py MODEL_DIR OUT
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parents[1] / "golden" / "chat" / "qwen3.jinja"


def main() -> None:
    model, out = Path(sys.argv[1]), Path(sys.argv[2])
    for name in ("chat", "bare"):
        shutil.copytree(model, out / name, dirs_exist_ok=True)
    shutil.copy(TEMPLATE, out / "chat" / "chat_template.jinja")
    config = out / "bare" / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    settings.pop("chat_template")
    config.write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    main()
