#!/usr/bin/env python3
"""Does without Docker what docker/Dockerfile and docker/compose.yaml say, and checks that the result serves.

    tests/postgres run "$(tests/python_env)" docker/check.py --model-dir DIR [--release] [--target-dir DIR]

Every stage gets a folder as its root. COPY copies into it, RUN runs in its working directory (so RUN lines keep to relative paths), and what the
image would start is started from it with the image's environment and, where this runs as root, its user. Then the compose file's environment is
added, with the throw-away Postgres for its host: health check, keys, a model created and saved, a stop, a second start that still knows it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
IMAGE_LIBRARIES = {"linux-vdso.so.1", "libc.so.6", "libm.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
"""What debian:bookworm-slim has of the libraries a Rust program may ask for."""


@dataclass
class Stage:
    base: str
    root: Path
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)

    def path(self, inside: str) -> Path:
        """Where a path of the image lies here."""
        return Path(f"{self.root}{inside}") if inside.startswith("/") else Path(f"{self.root}{self.workdir}") / inside


def instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in joined.splitlines()]


def flags(rest: str) -> tuple[dict[str, str], str]:
    """`--from=build /a /b` -> ({"from": "build"}, "/a /b")."""
    found = {}
    while m := re.match(r"--([a-z-]+)=(\S+)\s+", rest):
        found[m[1]] = m[2]
        rest = rest[m.end() :]
    return found, rest


def ignored(source: str) -> bool:
    """True for what Dockerfile.dockerignore keeps from the build: all but the lines that begin with `!`."""
    allowed = [line[1:] for line in (HERE / "Dockerfile.dockerignore").read_text().split() if line.startswith("!")]
    return not any(source == a or source.startswith(a + "/") for a in allowed)


def copy(stage: Stage, stages: dict[str, Stage], rest: str) -> None:
    options, rest = flags(rest)
    *sources, target = shlex.split(rest)
    owner = options.get("chown")
    for source in sources:
        if "from" not in options and ignored(source):
            raise SystemExit(f"COPY {source}: Dockerfile.dockerignore keeps it out")
        start = stages[options["from"]].path(source) if "from" in options else CHECKOUT / source
        end = stage.path(target)
        if start.is_dir():
            shutil.copytree(start, end, dirs_exist_ok=True, ignore=shutil.ignore_patterns("target"))
        else:
            end = end / start.name if target.endswith("/") else end
            end.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(start, end)
        if owner and os.geteuid() == 0:
            os.chown(end, *map(int, owner.split(":")))


def run_build(folder: Path, arguments: dict[str, str], target_dir: Path) -> Stage:
    """Goes through the Dockerfile; the last stage is the image."""
    stages: dict[str, Stage] = {}
    stage = None
    for word, rest in instructions((HERE / "Dockerfile").read_text()):
        print(f"{word} {rest}", flush=True)
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = stages[name or "image"] = Stage(base, folder / (name or "image"))
            stage.root.mkdir()
        elif word == "ARG":
            name, _, default = rest.partition("=")
            stage.env[name] = arguments.get(name, default)
        elif word == "ENV":
            name, _, value = rest.partition("=")
            stage.env[name] = value
        elif word == "WORKDIR":
            stage.workdir = rest
            stage.path(rest).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            copy(stage, stages, rest)
        elif word == "RUN":
            env = {**os.environ, **stage.env, "CARGO_TARGET_DIR": str(target_dir)}
            subprocess.run(["sh", "-euc", rest], cwd=stage.path(stage.workdir), env=env, check=True)
        elif word == "HEALTHCHECK":
            stage.healthcheck = json.loads(flags(rest)[1].removeprefix("CMD"))
        elif word in ("USER", "ENTRYPOINT", "CMD"):
            setattr(stage, {"CMD": "command"}.get(word, word.lower()), rest if word == "USER" else json.loads(rest))
        elif word not in ("VOLUME", "EXPOSE", "STOPSIGNAL"):
            raise SystemExit(f"docker/check.py does not know {word}: teach it, or do without")
    toolchain = re.search(r'rust-version = "([\d.]+)"', (CHECKOUT / "Cargo.toml").read_text())[1]
    assert stages["build"].base.startswith(f"rust:{toolchain}-"), f"{stages['build'].base}: Cargo.toml wants Rust {toolchain}"
    return stage


def substituted(value: str, given: dict[str, str]) -> str:
    """`${NAME:?why}` in the compose file."""
    return re.sub(r"\$\{(\w+)[^}]*\}", lambda m: given[m[1]], value)


class Container:
    """What the image starts, from the image's folder, as the image's user."""

    def __init__(self, image: Stage, extra: dict[str, str]):
        self.image = image
        # The image's paths lie below its folder here.
        inside = {k: str(image.path(v)) if v.startswith("/") else v for k, v in image.env.items()}
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TINDERBOX_") and k not in ("DATABASE_URL", "RUST_LOG")}
        self.env = {**kept, **inside, **extra, "PATH": f"{image.path('/usr/local/bin')}:{os.environ['PATH']}"}
        self.url = f"http://127.0.0.1:{self.env['TINDERBOX_PORT']}"
        self.process: subprocess.Popen | None = None

    def as_user(self, command: list[str]) -> list[str]:
        if os.geteuid() != 0:
            return command
        uid, gid = self.image.user.split(":")
        assert uid != "0", "the image runs as root"
        return ["setpriv", "--reuid", uid, "--regid", gid, "--clear-groups", "--no-new-privs", *command]

    def start(self) -> None:
        self.process = subprocess.Popen(self.as_user([*self.image.entrypoint, *self.image.command]), env=self.env)
        for _ in range(150):
            if self.healthy():
                return
            if self.process.poll() is not None:
                raise SystemExit(f"the image's command ended with {self.process.returncode}")
            time.sleep(0.2)
        raise SystemExit("the health check does not pass")

    def healthy(self) -> bool:
        return subprocess.run(self.as_user(self.image.healthcheck), env=self.env, stderr=subprocess.DEVNULL, timeout=5).returncode == 0

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, f"stopped with {self.process.returncode}"
        assert not self.healthy(), "the health check passes without a server"

    def call(self, path: str, body: dict | None, key: str | None) -> tuple[int, dict]:
        headers = {"Content-Type": "application/json", **({"X-API-Key": key} if key else {})}
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", None if body is None else json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read() or b"{}")

    def promised(self, path: str, body: dict, key: str) -> dict:
        status, promise = self.call(path, body, key)
        assert status == 200, f"{path}: {status} {promise}"
        status, result = self.call("retrieve_future", {"request_id": promise["request_id"]}, key)
        assert status == 200 and "error" not in result, f"{path}: {status} {result}"
        return result


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def compose_environment(model_dir: Path, key: str, database: str) -> dict[str, str]:
    """The server's environment by the compose file; Postgres is the throw-away one, and the model lies where it lies."""
    services = yaml.safe_load((HERE / "compose.yaml").read_text())["services"]
    ours = services["tinderbox"]
    assert (HERE / ours["build"]["context"]).resolve() == CHECKOUT and (CHECKOUT / ours["build"]["dockerfile"]).is_file()
    given = {"TINDERBOX_MODEL": "my-model=/models/my-model", "TINDERBOX_API_KEY": key, "POSTGRES_PASSWORD": "secret", "MODELS": str(model_dir.parent)}
    env = {k: substituted(v, given) for k, v in ours["environment"].items()}
    account = services["postgres"]["environment"]
    wanted = f"postgres://{account['POSTGRES_USER']}:secret@postgres/{account['POSTGRES_DB']}"
    assert env["TINDERBOX_DATABASE_URL"] == wanted, f"the server is told {env['TINDERBOX_DATABASE_URL']}, Postgres is {wanted}"
    mounts = [substituted(v, given) for v in ours["volumes"]]
    assert "data:/data" in mounts and f"{model_dir.parent}:/models:ro" in mounts, mounts
    return {**env, "TINDERBOX_DATABASE_URL": database, "TINDERBOX_MODEL": f"my-model={model_dir}", "TINDERBOX_HOST": "127.0.0.1", "TINDERBOX_PORT": str(free_port())}


def check_served(container: Container, key: str) -> None:
    container.start()
    assert container.call("healthz", None, None)[0] == 200
    status, _ = container.call("get_server_capabilities", None, "tml-somebody-else")
    assert status == 401, f"a wrong key is answered with {status}"
    session = container.call("create_session", {"tags": [], "sdk_version": "0.38.0"}, key)[1]["session_id"]
    container.promised("create_model", {"session_id": session, "model_seq_id": 0, "base_model": "my-model", "lora_config": {"rank": 2, "seed": 1}}, key)
    run = f"{session}:train:0"
    container.promised("save_weights", {"model_id": run, "seq_id": 1, "path": "kept"}, key)
    container.stop()
    container.start()
    listed = container.call(f"training_runs/{run}/checkpoints", None, key)[1]["checkpoints"]
    assert [c["checkpoint_id"] for c in listed] == ["weights/kept"], listed
    files = [p for p in container.image.path("/data").rglob("*") if p.is_file()]
    assert any("kept" in str(p) for p in files), "the checkpoint is not on the volume"
    assert not any(p.name == "tinderbox.db" for p in files), "the database is a file, not Postgres"
    container.stop()


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model-dir", type=Path, required=True)
    ap.add_argument("--release", action="store_true", help="build as the image is built, not with the dev profile")
    ap.add_argument("--target-dir", type=Path, default=CHECKOUT / "target", help="cargo's, so that dependencies are built once")
    a = ap.parse_args()
    server = os.environ.get("POSTGRES_SERVER") or sys.exit("run this through: tests/postgres run")
    key = "tml-docker-check"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        model = folder / "models/my-model"
        # Readable to the image's user, whatever they are here.
        shutil.copytree(a.model_dir, model, copy_function=shutil.copyfile)
        for file in model.rglob("*"):
            file.chmod(0o755 if file.is_dir() else 0o644)
        arguments = {} if a.release else {"PROFILE": "dev"}
        image = run_build(folder, arguments, a.target_dir.resolve())
        linked = subprocess.run(["ldd", image.path("/usr/local/bin/tinderbox")], capture_output=True, text=True, check=True).stdout
        missing = {Path(line.split()[0]).name for line in linked.splitlines()} - IMAGE_LIBRARIES
        assert not missing, f"the image lacks {missing}"
        database = subprocess.run([CHECKOUT / "tests/postgres", "create", "docker"], capture_output=True, text=True, check=True, env={**os.environ, "POSTGRES_SERVER": server})
        container = Container(image, compose_environment(model, key, database.stdout.strip()))
        try:
            check_served(container, key)
        finally:
            if container.process is not None and container.process.poll() is None:
                container.process.kill()
    print("docker/check.py: the image's steps ran, and what they made serves")
    return 0


if __name__ == "__main__":
    sys.exit(main())
