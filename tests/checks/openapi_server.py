"""A server of the model that the OpenAPI document's examples name, with one key."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile

from server import Server

MODEL = "Qwen/Qwen3-8B"
KEY = "tml-openapi"


@contextlib.contextmanager
def serving(args, **variables):
    with tempfile.TemporaryDirectory() as folder:
        with Server(args.tinderbox, pathlib.Path(folder) / "data", {MODEL: args.model_dir}, keys=(KEY,), **variables) as server:
            yield server


def get(server, path):
    """The body of a page or file that is open to everybody."""
    status, _, data = server.request("get", path, key=None)
    assert status == 200, f"{path}: {status} {data[:300]!r}"
    return data
