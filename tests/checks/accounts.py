#!/usr/bin/env python3
"""Accounts and keys through the SDK, its command line and plain HTTP. Serves by itself.

    "$(tests/python_env)" tests/checks/accounts.py --tinderbox target/debug/tinderbox --model-dir DIR [--only WORD]
"""

from __future__ import annotations

import base64
import datetime
import io
import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import httpx
import openai
import tinker
from accounts_server import MODEL, KeyedServer
from address import datum
from runner import Checks, main, refused
from server import arguments
from tinker import types

HONOURED_S = 2.0
"""A running server must honour a change of keys within this time."""


def trained(server: KeyedServer, key: str, name: str) -> tuple[object, str]:
    """A run with one step, saved under this name: its client and the path."""
    trainer = server.service(key).create_lora_training_client(base_model=MODEL, rank=4, seed=1).result(120)
    trainer.forward_backward([datum([1, 2, 3, 4])], "cross_entropy").result(120)
    trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result(120)
    return trainer, trainer.save_state(name).result(120).path


def claims(jwt: str) -> dict:
    part = jwt.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def check_without_keys(new) -> None:
    """Open on this machine only, until the first key; what was made before stays with the account `local`."""
    with new("open") as s:
        _, path = trained(s, "tml-anything", "first")
        assert s.status("tml-other") == 200 and s.status(None) == 401 and s.status("sk-x") == 401
        assert s.http("DELETE", "auth/apikey/me", "tml-x").status_code == 403
        me = s.http("GET", "auth/apikey/me", "tml-x").json()
        assert me["key_id"] == 0 and me["details"]["org_details"]["name"] == "local", me
        token = s.http("POST", "auth/token", "tml-x", json={}).json()["jwt"]
        assert s.status(token) == 200
        secret = s.key("create", "--name", "ann")
        took = s.becomes("tml-anything", 401)
        assert took < HONOURED_S, f"a key closed the server after {took:.1f} s"
        assert s.status(secret) == 200 and s.status(token) == 401
        assert s.rest(secret).list_user_checkpoints().result(60).checkpoints == []
        owner = s.key("create", "--name", "root", "--owner", "local")
        s.becomes(owner, 200)
        paths = [c.tinker_path for c in s.rest(owner).list_user_checkpoints().result(60).checkpoints]
        assert paths == [path], paths
        s.key("revoke", "root")
        s.key("revoke", "ann")
        s.becomes(secret, 401)
        assert s.status("tml-anything") == 401, "without a usable key the server must not open again"


def check_network(new) -> None:
    """Beyond this machine only with a key, from a flag or from the table."""
    s = new("network")
    command = [*s.command, "--host", "0.0.0.0"]
    # However little is logged.
    for log in ("info", "", "off"):
        p = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "RUST_LOG": log})
        assert p.returncode != 0 and "tinderbox key create" in p.stderr and "--api-key" in p.stderr, (log, p.stderr)
    secret = s.key("create", "--name", "ann")
    s.command = command
    with s:
        assert s.status(secret) == 200 and s.status("tml-other") == 401


def check_lifecycle(new) -> None:
    """Create, list, rotate, expire and revoke beside a running server; nothing at rest or in the log gives a key away, and
    nobody else can read what is at rest."""
    with new("lifecycle", "--api-key", "tml-flagflagflag") as s:
        ann = s.key("create", "--name", "ann", "--max-runs", "3", "--weight", "2")
        assert re.fullmatch(r"tml-[0-9a-f]{64}", ann)
        took = s.becomes(ann, 200)
        assert took < HONOURED_S, f"a new key was accepted after {took:.1f} s"
        assert "exists" in s.key("create", "--name", "ann", ok=False)
        assert s.status("tml-flagflagflag") == 200 and s.status("tml-guess") == 401
        me = s.http("GET", "auth/apikey/me", ann).json()
        assert (me["key_id"], me["name"], me["quotas"]["max_runs"], me["quotas"]["weight"]) == (1, "ann", 3, 2.0), me

        account = me["details"]["org_details"]["name"]
        newer = s.key("rotate", "ann", "--keep-old-for", "3")
        assert s.becomes(newer, 200) < HONOURED_S and s.status(ann) == 200
        assert s.http("GET", "auth/apikey/me", newer).json()["details"]["org_details"]["name"] == account
        s.becomes(ann, 401)
        brief = s.key("create", "--name", "brief", "--expires-in", "3")
        s.becomes(brief, 200)
        s.becomes(brief, 401)
        assert "expired" in s.http("GET", "training_runs", brief).json()["detail"]

        gone = s.key("create", "--name", "gone")
        s.becomes(gone, 200)
        token = s.http("POST", "auth/token", gone, json={}).json()["jwt"]
        s.key("revoke", "gone")
        took = s.becomes(gone, 401)
        assert took < HONOURED_S, f"a revoked key was refused after {took:.1f} s"
        assert "revoked" in s.http("GET", "training_runs", gone).json()["detail"]
        assert s.status(token) == 401
        assert s.http("DELETE", "auth/apikey/me", newer).status_code == 200
        assert s.status(newer) == 401, "deleted by its holder"
        assert s.http("DELETE", "auth/apikey/me", "tml-flagflagflag").status_code == 403
        listed = s.key("list")
        assert "brief" in listed and "expired" in listed and "weight 2, max-runs 3" in listed, listed
        secrets = [ann, newer, brief, gone, token, "tml-flagflagflag", "tml-guess"]
    assert re.search(r"\bann\b.* 20\d\d-\S+Z +20\d\d-\S+Z ", s.key("list")), "last use of a key is written at the end"
    for file in [*s.data.glob("*"), s.log]:
        text = file.read_bytes().decode("latin-1") if file.is_file() else ""
        assert not any(secret in text for secret in secrets), f"{file.name} holds a key"
    opened = [f"{file.name} {file.stat().st_mode:o}" for file in [s.data, *s.data.rglob("*")] if file.stat().st_mode & 0o077]
    assert not opened, f"others can read {opened}"


def check_accounts(new) -> None:
    """What is another account's does not exist; publishing makes it readable; a token of the other account too."""
    s = new("accounts")
    ann, bob = s.key("create", "--name", "ann"), s.key("create", "--name", "bob")
    with s:
        trainer, path = trained(s, ann, "a")
        run = path.split("/")[2]
        assert s.rest(bob).list_training_runs().result(60).training_runs == []
        refused(tinker.NotFoundError, lambda: s.rest(bob).get_training_run(run).result(60))
        refused(tinker.NotFoundError, lambda: s.rest(bob).delete_checkpoint_from_tinker_path(path).result(60))

        def load(**kw):
            return s.service(bob).create_training_client_from_state(path, **kw).result(120)

        refused(Exception, load, "no checkpoint")
        refused(Exception, lambda: load(weights_access_token="tml-wrong"), "not known")
        jwt = s.http("POST", "auth/token", ann, json={}).json()["jwt"]
        for token in (ann, jwt):
            assert load(weights_access_token=token).get_info().lora_rank == 4
        s.rest(ann).publish_checkpoint_from_tinker_path(path).result(60)
        assert load().get_info().lora_rank == 4
        refused(tinker.NotFoundError, lambda: s.rest(bob).delete_checkpoint_from_tinker_path(path).result(60))
        s.rest(ann).unpublish_checkpoint_from_tinker_path(path).result(60)
        refused(Exception, load)


def check_tokens(new) -> None:
    """The exchange of keys for tokens, as the SDK does it; they end with their time, their key and nothing else."""
    s = new("tokens")
    ann = s.key("create", "--name", "ann@lab.example")
    with s:
        account = s.http("GET", "auth/apikey/me", ann).json()["details"]["org_details"]["name"]
        me = s.rest(ann).whoami().result(60)
        want = (f"tml:user:{account}", f"tml:organization:{account}", "ann@lab.example")
        assert (me.user_urn, me.org_urn, me.email) == want, me
        assert json.loads(s.cli("--format", "json", "auth", "whoami", key=ann))["user_urn"] == want[0]
        s.cli("auth", "status", key=ann)
        jwt = s.http("POST", "auth/token", ann, json={}).json()["jwt"]
        said = claims(jwt)
        assert said["exp"] - said["iat"] == 3600 and said["iss"].startswith("passport-"), said
        direct = s.rest(jwt)
        assert direct.whoami().result(60) == me and direct.list_training_runs().result(60).training_runs == []
        second = s.http("POST", "auth/token", jwt, json={}).json()["jwt"]
        assert claims(second)["exp"] == said["exp"], "a token got with a token lives on"
        trainer, path = trained(s, jwt, "by-token")
        assert [c.tinker_path for c in s.rest(ann).list_user_checkpoints().result(60).checkpoints] == [path]
    with new("tokens") as s:
        assert s.status(jwt) == 200, "tokens survive a restart"
    with new("tokens", TINDERBOX_TOKEN_SECONDS="3") as s:
        short = s.http("POST", "auth/token", ann, json={}).json()["jwt"]
        assert s.status(short) == 200
        s.becomes(short, 401)
        for token in (short, jwt[:-2], jwt.split(".")[0] + ".e30.x"):
            r = s.http("GET", "training_runs", token)
            assert r.status_code == 401 and 'error="invalid_token"' in r.headers["WWW-Authenticate"], r.headers
        for key in (None, "tml-wrong"):
            assert "WWW-Authenticate" not in s.http("GET", "training_runs", key).headers
    # The server's secret changes under a client: it exchanges its key again and goes on.
    with new("tokens") as s:
        rest = s.rest(ann)
        rest.list_training_runs().result(60)
    (s.data / "links.key").unlink()
    with s:
        assert s.status(jwt) == 401
        assert len(rest.list_training_runs().result(120).training_runs) == 1
        s.key("revoke", "ann@lab.example")
        s.becomes(ann, 401)
        refused(tinker.AuthenticationError, lambda: rest.list_training_runs().result(60), "revoked")


def check_login(new) -> None:
    """`tinker auth login`, which asks for the key in a terminal."""
    with new("login", "--api-key", "tml-flag") as s, tempfile.TemporaryDirectory() as home:
        env = {k: v for k, v in os.environ.items() if k != "TINKER_API_KEY"}
        env.update(TINKER_BASE_URL=s.url, HOME=home)
        binary = str(Path(sys.executable).parent / "tinker")
        ours, theirs = pty.openpty()
        p = subprocess.Popen([binary, "auth", "login"], stdin=theirs, stdout=theirs, stderr=theirs, env=env)
        os.close(theirs)
        said = b""
        while True:
            try:
                said += os.read(ours, 4096)
            except OSError:
                break
            if b"Paste" in said and b"*" not in said:
                os.write(ours, b"tml-flag\r")
        assert p.wait(60) == 0 and b"Logged in as api-key-1" in said, said
        out = subprocess.run([binary, "auth", "whoami"], env=env, capture_output=True, text=True, timeout=60)
        assert out.returncode == 0 and "api-key-1" in out.stdout, out


def check_audit(new) -> None:
    """What an account did is in its own log and in no other; failed attempts cannot fill it."""
    s = new("audit")
    ann, bob = s.key("create", "--name", "ann"), s.key("create", "--name", "bob")
    with s:
        trainer, path = trained(s, ann, "kept")
        rest = s.rest(ann)
        rest.publish_checkpoint_from_tinker_path(path).result(60)
        rest.unpublish_checkpoint_from_tinker_path(path).result(60)
        rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result(60)
        export = trainer.save_weights_external("out").result(120).path
        for url in rest.get_external_weights_urls(export).result(60).urls.values():
            httpx.get(url)
        rest.delete_checkpoint_from_tinker_path(path).result(60)
        with s.service(ann) as service:
            service.create_sampling_client(base_model=MODEL)
        admin = tinker.AdminClient(base_url=s.url, api_key=ann)
        entries = admin.get_audit_log().result(60).entries
        assert [e.timestamp for e in entries] == sorted(e.timestamp for e in entries)
        events = [e.event for e in entries]
        for event in (
            "key_created session_created run_created checkpoint_saved checkpoint_published checkpoint_unpublished"
            " checkpoint_ttl_set checkpoint_downloaded checkpoint_deleted session_finished"
        ).split():
            assert event in events, f"{event} is missing in {events}"
        of_path = [e.event for e in entries if e.tinker_path == path]
        order = "checkpoint_saved checkpoint_published checkpoint_unpublished checkpoint_ttl_set checkpoint_deleted".split()
        assert of_path == order, of_path
        downloaded = next(e for e in entries if e.event == "checkpoint_downloaded")
        assert (downloaded.tinker_path, downloaded.purpose) == (export, "download"), downloaded
        checkpoints = admin.get_audit_log("checkpoints").result(60).entries
        assert {e.event.split("_")[0] for e in checkpoints} == {"checkpoint"}
        yesterday = datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=1)
        assert admin.get_audit_log(day=yesterday).result(60).entries == []
        others = tinker.AdminClient(base_url=s.url, api_key=bob).get_audit_log().result(60).entries
        assert [e.event for e in others] == ["key_created"], others
        for query in ("", "?event_type=none", "?event_type=all&day=never"):
            assert s.http("GET", f"audit{query}", ann).status_code == 400, query
        s.key("revoke", "bob")
        s.becomes(bob, 401)
        for _ in range(300):
            s.status("tml-guess")
    rows = sqlite3.connect(s.data / "tinderbox.db").execute("SELECT owner, details FROM audit WHERE event = 'key_refused'").fetchall()
    assert 1 <= len(rows) <= 130, f"{len(rows)} refusals in the log"
    assert not any("tml-" in details for _, details in rows)


def check_streams(new) -> None:
    """A stream that runs when its key is revoked ends with an error that says so; another key's goes on."""
    with new("streams", "--api-key", "tml-flag") as s:
        ann, bob = (s.key("create", "--name", name) for name in ("ann", "bob"))
        s.becomes(bob, 200)
        asked = {"model": MODEL, "max_tokens": 3500, "n": 128, "stream": True, "extra_body": {"ignore_eos": True}}
        client = {key: openai.OpenAI(base_url=f"{s.url}/v1", api_key=key, max_retries=0) for key in (ann, bob)}
        running = [
            client[ann].completions.create(prompt="x", **asked),
            client[ann].chat.completions.create(messages=[{"role": "user", "content": "x"}], **asked),
        ]
        others = client[bob].completions.create(prompt="x", **asked)
        for stream in (*running, others):
            next(stream)
        s.key("revoke", "ann")
        for stream in running:
            start = time.monotonic()
            error = refused(openai.APIError, lambda stream=stream: list(stream), "revoked")
            assert error.body["type"] == "authentication_error", error.body
            took = time.monotonic() - start
            # It would run for minutes. What lies in the sockets' buffers is read first, and that can be some megabytes.
            assert took < 30, f"a stream ended {took:.1f} s after its key"
        for _ in range(100):
            next(others)
        others.close()


def check_links(new) -> None:
    """Download links: no credentials, the address clients know, parts, HEAD, the archive form; and no CORS."""
    with new("links", "--api-key", "tml-a") as s:
        trainer, path = trained(s, "tml-a", "a")
        export = trainer.save_weights_external("out").result(120).path
        run, _, name = export.removeprefix("tinker://").split("/")
        place = f"training_runs/{run}/checkpoints/external_weights/{name}"

        def urls(**headers: str) -> dict[str, str]:
            return s.http("GET", f"{place}/external_weights_urls", "tml-a", headers=headers).json()["urls"]

        proxy = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "t.example", "X-Forwarded-Prefix": "/tb"}
        assert all(u.startswith("https://t.example/tb/api/v1/download/") for u in urls(**proxy).values())
        assert all(u.startswith("https://f.example/api/") for u in urls(Forwarded="proto=https;host=f.example").values())
        archive = s.http("GET", f"{place}/archive", "tml-a", headers=proxy)
        assert archive.status_code == 302 and archive.headers["Location"].startswith("https://t.example/tb/api/")
        plain = urls()
        url = next(u for n, u in plain.items() if n.endswith(".safetensors"))
        assert url.startswith(s.url + "/api/")
        archive = s.http("GET", f"{place}/archive", "tml-a").headers["Location"]
        for one in (url, archive):
            whole = httpx.get(one)
            size = len(whole.content)
            assert whole.status_code == 200 and int(whole.headers["Content-Length"]) == size > 2000
            head = httpx.head(one)
            assert (head.status_code, int(head.headers["Content-Length"]), head.content) == (200, size, b"")
            for wanted, part in (("1000-1999", slice(1000, 2000)), ("1500-", slice(1500, None)), ("-7", slice(-7, None))):
                r = httpx.get(one, headers={"Range": f"bytes={wanted}"})
                assert r.status_code == 206 and r.content == whole.content[part] and r.headers["Content-Range"].endswith(f"/{size}")
            assert httpx.get(one, headers={"Range": f"bytes={size}-"}).status_code == 416
            stale = httpx.get(one, headers={"Range": "bytes=0-9", "If-Range": '"other"'})
            assert stale.status_code == 200 and stale.content == whole.content
            fresh = httpx.get(one, headers={"Range": "bytes=0-9", "If-Range": whole.headers["ETag"]})
            assert fresh.status_code == 206 and len(fresh.content) == 10
        with tarfile.open(fileobj=io.BytesIO(httpx.get(archive).content)) as tar:
            assert "checkpoint_complete" in tar.getnames()
        assert httpx.get(url.replace("/download/", "/download/x")).status_code == 404
        for method in ("GET", "OPTIONS"):
            asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "GET"}
            for target in ("training_runs", "healthz"):
                r = s.http(method, target, "tml-a", headers=asked)
                assert not [h for h in r.headers if h.startswith("access-control")], r.headers
        streamed(s, url)
        trainer.save_weights_external("out").result(120)
        s.rest("tml-a").delete_checkpoint_from_tinker_path(export).result(60)
        assert httpx.get(url).status_code == 404, "a link outlives its checkpoint"
    with new("links", "--api-key", "tml-a", "--public-url", "https://tinker.example/x/") as s:
        trainer, _ = trained(s, "tml-a", "b")
        export = trainer.save_weights_external("out").result(120).path
        answer = s.rest("tml-a").get_external_weights_urls(export).result(60)
        assert all(u.startswith("https://tinker.example/x/api/v1/download/") for u in answer.urls.values()), answer
        assert 3000 < answer.expires.timestamp() - time.time() <= 3600


def streamed(server: KeyedServer, url: str) -> None:
    """A file of 512 MiB passes through without being held, whole and from a byte deep inside."""
    size = 1 << 29
    file = next(server.data.glob("checkpoints/*/external_weights/*/" + url.rsplit("/", 1)[1]))
    with file.open("r+b") as f:
        f.truncate(size)
        f.seek(size - 4)
        f.write(b"last")

    def most() -> int:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10

    before, got = most(), 0
    with httpx.stream("GET", url, timeout=60) as r:
        for part in r.iter_bytes():
            got += len(part)
    assert got == size and part.endswith(b"last"), got
    tail = httpx.get(url, headers={"Range": f"bytes={size - 4}-"})
    assert (tail.status_code, tail.content) == (206, b"last")
    assert most() - before < 64 << 20, f"memory grew by {(most() - before) >> 20} MiB"


def body(checks: Checks, args) -> None:
    with tempfile.TemporaryDirectory() as work:

        def new(name: str, *options: str, **variables: str) -> KeyedServer:
            return KeyedServer(args.tinderbox, args.model_dir, Path(work) / name, *options, **variables)

        checks.every(sys.modules[__name__], new)


if __name__ == "__main__":
    main(arguments(__doc__), body)
