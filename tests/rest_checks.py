#!/usr/bin/env python3
"""The management side of the API through the SDK and the `tinker` command: two accounts on one server.

    "$(tests/python_env)" tests/rest_checks.py --tinderbox target/debug/tinderbox

Starts a server of its own with two keys on a tiny model. A line per check; exit 0 when all hold.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import urllib.request
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
HERE = Path(__file__).resolve().parent
NAME = "tiny/qwen3"
MINE, OTHERS = "tml-rest-mine", "tml-rest-other"


class Server:
    """`tinderbox serve` on a free port, which it keeps over a restart."""

    def __init__(self, binary: str, work: Path, model: Path):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.command = [binary, "serve", "--port", str(self.port), "--data-dir", str(work / "data"), "--model", f"{NAME}={model}", "--api-key", MINE, "--api-key", OTHERS]
        self.log = work / "server.log"
        self.data = work / "data"
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self, **environment: str) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env={**os.environ, **environment})
        for _ in range(600):
            try:
                urllib.request.urlopen(self.url + "/api/v1/healthz", timeout=2)
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        sys.exit(f"the server did not become ready; its log is {self.log}:\n{self.log.read_text()[-2000:]}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)

    def call(self, method: str, path: str, body=None, key: str = MINE, headers: dict | None = None):
        """Status and parsed answer of a plain request."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + "/api/v1" + path, data, method=method, headers={"X-API-Key": key, **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read() or b"{}")


class Checks:
    def __init__(self, server: Server, work: Path, model_dir: Path):
        import tinker

        self.tinker, self.server, self.work, self.model_dir = tinker, server, work, model_dir
        self.mine = self.service(MINE, user_metadata={"team": "a"}, project_id="proj-a")
        self.rest = self.mine.create_rest_client()
        self.other = self.service(OTHERS)
        self.other_rest = self.other.create_rest_client()
        self.trainer = self.mine.create_lora_training_client(NAME, rank=4, seed=1, user_metadata={"renderer_name": "r"}).result()
        self.step(self.trainer, 1)
        self.saved = self.trainer.save_state("one").result().path

    def service(self, key: str, **kwargs):
        return self.tinker.ServiceClient(base_url=self.server.url, api_key=key, **kwargs)

    def restart(self, **environment: str) -> None:
        """Runs are not kept over a restart, so that there is a new one afterwards."""
        self.server.stop()
        self.server.start(**environment)
        self.trainer = self.mine.create_training_client_from_state(self.saved).result()

    def datum(self, tokens):
        types = self.tinker.types
        return types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
        )

    def step(self, trainer, n: int) -> None:
        for i in range(n):
            trainer.forward_backward([self.datum([3 + i, 4, 5, 6])], "cross_entropy").result()
            trainer.optim_step(self.tinker.types.AdamParams(learning_rate=1e-2)).result()

    def logprobs(self, service, path: str, tokens) -> list[float]:
        return self.sampler_logprobs(service.create_sampling_client(model_path=path).result(), tokens)

    def sampler_logprobs(self, sampler, tokens) -> list[float]:
        return sampler.compute_logprobs(self.tinker.types.ModelInput.from_ints(tokens)).result()[1:]

    def refused(self, call, status: int, mention: str) -> None:
        try:
            value = call()
        except Exception as e:  # noqa: BLE001 - whatever it is, it must be this status
            assert getattr(e, "status_code", None) == status, f"expected {status}, got {type(e).__name__}: {e}"
            assert mention in str(e), f"{mention!r} is not in {e}"
            return
        raise AssertionError(f"expected {status}, got {value!r}")

    def cli(self, *args: str, key: str = MINE, code: int = 0) -> str:
        env = {**os.environ, "TINKER_BASE_URL": self.server.url, "TINKER_API_KEY": key, "TINKER_TELEMETRY": "0"}
        done = subprocess.run([str(Path(sys.executable).parent / "tinker"), *args], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, f"tinker {' '.join(args)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    # ------------------------------------------------------------------ runs, sessions

    def check_capabilities(self):
        names = [m.model_name for m in self.rest.get_server_capabilities().result().supported_models]
        assert NAME in names, names

    def check_runs_are_listed_by_owner_project_and_page(self):
        run = self.rest.get_training_run_by_tinker_path(self.saved).result()
        assert run.last_checkpoint.tinker_path == self.saved and run.user_metadata == {"renderer_name": "r"}
        assert run.training_run_id in [r.training_run_id for r in self.rest.list_training_runs(project_id="proj-a").result().training_runs]
        assert self.rest.list_training_runs(project_id="none").result().training_runs == []
        page = self.rest.list_training_runs(limit=1).result()
        assert len(page.training_runs) == 1 and page.cursor.total_count >= 1
        assert self.other_rest.list_training_runs(access_scope="accessible").result().training_runs == []
        self.refused(lambda: self.other_rest.get_training_run(run.training_run_id).result(), 404, "no training run")

    def check_sessions(self):
        session = self.saved.split("/")[2].split(":")[0]
        assert session in self.rest.list_sessions(limit=1000).result().sessions
        assert self.other_rest.list_sessions(access_scope="accessible").result().sessions.count(session) == 0
        got = self.rest.get_session(session).result()
        assert got.training_run_ids == [f"{session}:train:0"] and got.user_metadata == {"team": "a"}
        self.refused(lambda: self.other_rest.get_session(session).result(), 404, "no session")
        self.rest.assign_session_project(session, "proj-b").result()
        assert [r.training_run_id for r in self.rest.list_training_runs(project_id="proj-b").result().training_runs] == [f"{session}:train:0"]
        self.refused(lambda: self.other_rest.assign_session_project(session, "x").result(), 404, "no session")
        self.rest.assign_session_project(session, "proj-a").result()

    def check_session_search(self):
        from tinker.types.session_search_request import SessionSearchRequest as Request
        from tinker.types.session_status_query import ActiveSessionStatusQuery, ClientFinishedSessionStatusQuery

        made = []
        for i in range(3):
            service = self.service(MINE, user_metadata={"case": "search", "i": str(i)}, display_name=f"Search Case {i}", project_id="proj-s")
            sampler = service.create_sampling_client(base_model=NAME).result()
            made.append(sampler._sampling_session_id.split(":")[0])
            if i == 0:
                service.close("success").result()

        def found(**query):
            ids, cursor = [], None
            while True:
                page = self.rest.search_sessions(Request(cursor=cursor, **query)).result()
                ids += [s.session_id for s in page.sessions]
                cursor = page.next_cursor
                if cursor is None:
                    return ids

        newest_first = made[::-1]
        assert found(display_name="case search") == newest_first
        assert found(user_metadata={"case": "search"}, limit=1) == newest_first, "pages of one"
        assert found(user_metadata={"case": "search", "i": "1"}) == [made[1]]
        assert found(project_ids=["proj-s"], statuses=[ClientFinishedSessionStatusQuery(reasons=["success"])]) == [made[0]]
        assert found(project_ids=["proj-s"], statuses=[ActiveSessionStatusQuery()]) == newest_first[:2]
        assert set(found(session_id=made[0], display_name="case 2")) == {made[0], made[2]}
        summary = self.rest.search_sessions(Request(session_id=made[0])).result().sessions[0]
        assert summary.project_id == "proj-s" and summary.status.type == "client_finished" and summary.checkpoints_count == 0
        own = self.rest.search_sessions(Request(session_id=self.saved.split("/")[2].split(":")[0])).result().sessions[0]
        assert own.checkpoints_count >= 1 and own.checkpoint_storage_bytes > 0
        assert self.other_rest.search_sessions(Request(display_name="case")).result().sessions == []

    def check_trace_export(self):
        session = self.saved.split("/")[2].split(":")[0]
        url = self.rest.export_session_trace(session).result()
        with urllib.request.urlopen(url, timeout=30) as answer:
            trace = json.loads(answer.read())
        kinds = [e["name"] for e in trace["traceEvents"] if e["ph"] == "b"]
        assert {"create_model", "forward_backward", "optim_step", "save_weights"} <= set(kinds), kinds
        assert any(e["ph"] == "C" and e["name"] == "loss:sum" for e in trace["traceEvents"])
        assert trace["metadata"]["training_runs"][0]["checkpoints"][0]["tinker_path"] == self.saved
        file = self.work / "trace.pftrace"
        self.cli("session", "export-trace", session, "--output", str(file))
        assert json.loads(file.read_text())["metadata"]["session"]["id"] == session
        self.refused(lambda: self.other_rest.export_session_trace(session).result(), 404, "no session")

    # ------------------------------------------------------------------ checkpoints

    def check_checkpoint_rows(self):
        path = self.trainer.save_state("noted", user_metadata={"step": "1"}, ttl_seconds=7200).result().path
        row = next(c for c in self.rest.list_user_checkpoints(limit=1000).result().checkpoints if c.tinker_path == path)
        assert row.user_metadata == {"step": "1"} and row.expires_at is not None and row.size_bytes > 0 and not row.public
        raw = self.server.call("GET", "/checkpoints?limit=1000")[1]["checkpoints"]
        assert next(c for c in raw if c["tinker_path"] == path)["base_model"] == NAME
        run = path.split("/")[2]
        assert path in [c.tinker_path for c in self.rest.list_checkpoints(run).result().checkpoints]
        assert self.other_rest.list_user_checkpoints().result().checkpoints == []
        self.refused(lambda: self.other_rest.list_checkpoints(run).result(), 404, "no training run")
        self.rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
        row = next(c for c in self.rest.list_checkpoints(run).result().checkpoints if c.tinker_path == path)
        assert row.expires_at is None
        info = self.rest.get_weights_info_by_tinker_path(path).result()
        assert (info.base_model, info.is_lora, info.lora_rank) == (NAME, True, 4)

    def check_overwrite_replaces_weights_and_notes(self):
        path = self.trainer.save_state("again", user_metadata={"step": "1"}).result().path
        before = self.logprobs(self.mine, path, [3, 4, 5])
        self.step(self.trainer, 1)
        try:
            self.trainer.save_state("again").result()
            raise AssertionError("a taken name was accepted")
        except self.tinker.TinkerError as e:
            assert "exists" in str(e), e
        assert self.trainer.save_state("again", overwrite=True).result().path == path
        row = next(c for c in self.rest.list_checkpoints(path.split("/")[2]).result().checkpoints if c.tinker_path == path)
        assert not row.user_metadata, "an overwriting save without metadata removes the old"
        assert self.logprobs(self.mine, path, [3, 4, 5]) != before

    def check_checkpoint_search(self):
        path = self.trainer.save_state("Needle-1", user_metadata={"find": "me"}).result().path

        def found(key=MINE, **query):
            status, answer = self.server.call("POST", "/checkpoints/search", query, key)
            assert status == 200, answer
            return [c["tinker_path"] for c in answer["checkpoints"]]

        assert found(name="needle") == [path] and found(user_metadata={"find": "me"}) == [path]
        assert found(base_model="other") == [] and path in found(base_model=NAME, checkpoint_types=["training"])
        assert found(OTHERS, name="needle") == []
        first = self.server.call("POST", "/checkpoints/search", {"limit": 1})[1]
        second = self.server.call("POST", "/checkpoints/search", {"limit": 1, "cursor": first["next_cursor"]})[1]
        assert first["checkpoints"][0]["tinker_path"] != second["checkpoints"][0]["tinker_path"]

    def check_publish_reads_but_never_writes(self):
        path = self.trainer.save_state("open").result().path
        run = path.split("/")[2]
        self.refused(lambda: self.other_rest.get_weights_info_by_tinker_path(path).result(), 404, "no checkpoint")
        self.rest.publish_checkpoint_from_tinker_path(path).result()
        self.rest.publish_checkpoint_from_tinker_path(path).result()
        assert self.other_rest.get_weights_info_by_tinker_path(path).result().lora_rank == 4
        assert self.logprobs(self.other, path, [3, 4, 5]) == self.logprobs(self.mine, path, [3, 4, 5])
        listed = self.other_rest.list_training_runs(access_scope="accessible").result().training_runs
        assert [r.training_run_id for r in listed] == [run] and listed[0].last_checkpoint.tinker_path == path
        assert listed[0].user_metadata is None, "what the owner noted on the run is not published"
        assert self.other_rest.get_training_run(run, access_scope="accessible").result().training_run_id == run
        self.refused(lambda: self.other_rest.get_training_run(run).result(), 404, "no training run")
        rows = self.server.call("GET", "/checkpoints?access_scope=accessible", key=OTHERS)[1]["checkpoints"]
        assert [c["tinker_path"] for c in rows] == [path]
        self.refused(lambda: self.other_rest.delete_checkpoint_from_tinker_path(path).result(), 404, "no checkpoint")
        self.refused(lambda: self.other_rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result(), 404, "no checkpoint")
        sampler = self.other.create_sampling_client(model_path=path).result()
        self.sampler_logprobs(sampler, [3, 4, 5])
        self.rest.unpublish_checkpoint_from_tinker_path(path).result()
        try:
            self.sampler_logprobs(sampler, [3, 4, 5])
            raise AssertionError("a withdrawn checkpoint was sampled from")
        except self.tinker.BadRequestError as e:
            assert "withdrawn" in str(e), e

    def check_files_stay_while_a_sampler_reads_them(self):
        service = self.service(MINE)
        path = self.trainer.save_weights_for_sampler("going").result().path
        sampler = service.create_sampling_client(model_path=path).result()
        before = self.sampler_logprobs(sampler, [3, 4, 5])
        directory = next((self.server.data / "checkpoints").glob("*/sampler_weights/going.*"))
        self.rest.delete_checkpoint_from_tinker_path(path).result()
        assert self.sampler_logprobs(sampler, [3, 4, 5]) == before
        self.refused(lambda: service.create_sampling_client(model_path=path).result(), 404, "no checkpoint")
        self.refused(lambda: self.rest.delete_checkpoint_from_tinker_path(path).result(), 404, "no checkpoint")
        # Also over a restart, which removes what nobody needs.
        self.restart()
        assert self.sampler_logprobs(sampler, [3, 4, 5]) == before
        assert directory.exists()
        service.close("success").result()
        self.restart()
        assert not directory.exists(), "its session has ended"

    def check_copies(self):
        for path in (self.saved, self.trainer.save_weights_for_sampler("s").result().path):
            copy = self.rest.copy_weights(path, "proj-copy", ttl_seconds=7200).result()
            assert copy.split("/")[3:] == path.split("/")[3:], "same kind and name"
            assert copy.split("/")[2] != path.split("/")[2]
            assert self.logprobs(self.mine, copy, [3, 4, 5]) == self.logprobs(self.mine, path, [3, 4, 5])
        runs = self.rest.list_training_runs(project_id="proj-copy").result().training_runs
        assert len(runs) == 2
        plain = self.rest.copy_weights(self.saved, "proj-copy").result()
        row = next(c for c in self.rest.list_checkpoints(plain.split("/")[2]).result().checkpoints)
        assert row.expires_at is None and not row.public
        assert self.service(MINE, project_id="proj-2").copy_weights(self.saved).result() != plain
        trained = self.mine.create_training_client_from_state_with_optimizer(plain).result()
        self.step(trained, 1)
        self.refused(lambda: self.other_rest.copy_weights(self.saved, "p").result(), 404, "no checkpoint")
        self.rest.publish_checkpoint_from_tinker_path(self.saved).result()
        theirs = self.other_rest.copy_weights(self.saved, "p").result()
        self.rest.unpublish_checkpoint_from_tinker_path(self.saved).result()
        assert self.other_rest.get_weights_info_by_tinker_path(theirs).result().lora_rank == 4
        body = {"source_path": self.saved, "destination_project_id": "p"}
        once = [self.server.call("POST", "/copy_weights", body, headers={"X-Idempotency-Key": "one"}) for _ in range(2)]
        assert once[0] == once[1] and once[0][0] == 200, once
        run = plain.split("/")[2]
        status, answer = self.server.call("POST", "/optim_step", {"model_id": run, "seq_id": 1, "adam_params": {}})
        assert status == 400 and "cannot be trained" in answer["detail"], answer

    # ------------------------------------------------------------------ downloads, uploads

    def check_download_and_archive(self):
        target = self.work / "download"
        self.cli("checkpoint", "download", self.saved, "--output", str(target))
        names = {p.name for p in target.rglob("*") if p.is_file()}
        assert {"adapter_config.json", "adapter_model.safetensors"} <= names, names
        export = self.trainer.save_weights_external("e", ttl_seconds=3600).result()
        urls = self.rest.get_external_weights_urls(export.path).result().urls
        url = urls["adapter_model.safetensors"]
        with urllib.request.urlopen(url, timeout=30) as answer:
            whole = answer.read()
            assert int(answer.headers["Content-Length"]) == len(whole) > 0
        forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "t.example"}
        route = "/training_runs/{2}/checkpoints/{3}/{4}".format(*export.path.split("/"))
        links = self.server.call("GET", route + "/external_weights_urls", headers=forwarded)[1]["urls"]
        assert all(link.startswith("https://t.example/api/v1/download/") for link in links.values()), links

        class Redirect(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *args):
                return None

        request = urllib.request.Request(self.server.url + "/api/v1/training_runs/{2}/checkpoints/{3}/{4}/archive".format(*self.saved.split("/")), headers={"X-API-Key": MINE})
        try:
            urllib.request.build_opener(Redirect).open(request)
            raise AssertionError("no redirect")
        except urllib.error.HTTPError as e:
            assert e.code == 302 and e.headers["Expires"].endswith("GMT"), e.headers
            with urllib.request.urlopen(e.headers["Location"], timeout=30) as answer, tarfile.open(fileobj=answer, mode="r|*") as tar:
                assert {"adapter_config.json", "adapter_model.safetensors", "checkpoint_complete"} <= set(tar.getnames())

    def upload(self, directory: Path, **wish):
        """Status and answer of the finish."""
        files = [directory / "adapter_config.json", directory / "adapter_model.safetensors"]
        announced = [{"name": f.name, "size_bytes": f.stat().st_size} for f in files]
        status, started = self.server.call("POST", "/external_weights_upload_start", {"files": announced, **wish})
        if status != 200:
            return status, started
        for file in files:
            request = urllib.request.Request(started["urls"][file.name], file.read_bytes(), method="PUT")
            urllib.request.urlopen(request, timeout=60).read()
        finish = {"upload_id": started["upload_id"]}
        assert self.server.call("POST", "/external_weights_upload_finish", finish, OTHERS)[0] == 404
        first = self.server.call("POST", "/external_weights_upload_finish", finish)
        if first[0] == 200:
            assert self.server.call("POST", "/external_weights_upload_finish", finish) == first, "a repeat gets the same"
        return first

    def peft_model(self, **config):
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_pretrained(self.model_dir, dtype=torch.float32)
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **config))
        return model.eval()

    def reference_logprobs(self, model, tokens) -> list[float]:
        import torch

        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, :-1]
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()

    def check_an_uploaded_adapter_is_the_one_that_peft_made(self):
        import torch

        cases = {
            "attention, alpha 16": dict(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"]),
            "everywhere, rslora": dict(r=4, lora_alpha=6, use_rslora=True, target_modules="all-linear"),
            "one layer": dict(r=2, lora_alpha=64, target_modules=["down_proj", "o_proj"], layers_to_transform=[0]),
            "half precision": dict(r=8, lora_alpha=32, target_modules=["gate_proj", "k_proj"]),
        }
        tokens = [3, 9, 27, 14, 5, 40, 8]
        for name, config in cases.items():
            model = self.peft_model(**config)
            if name == "half precision":
                for key, p in model.named_parameters():
                    if "lora_" in key:
                        p.data = p.data.to(torch.bfloat16).to(torch.float32)
            directory = self.work / "peft" / name.replace(" ", "-")
            model.save_pretrained(directory)
            if name == "half precision":
                from safetensors.torch import load_file, save_file

                file = directory / "adapter_model.safetensors"
                save_file({k: v.to(torch.bfloat16) for k, v in load_file(file).items()}, file, metadata={"format": "pt"})
            status, answer = self.upload(directory, base_model=NAME, name="adapter", project_id="proj-up", user_metadata={"from": "peft"})
            assert status == 200, answer
            path = answer["tinker_path"]
            want = self.reference_logprobs(model, tokens)
            gap = max(abs(a - b) for a, b in zip(self.logprobs(self.mine, path, tokens), want, strict=True))
            base = self.mine.create_sampling_client(base_model=NAME).result()
            moved = max(abs(a - b) for a, b in zip(self.sampler_logprobs(base, tokens), want, strict=True))
            assert gap < 2e-5 < moved, f"{name}: {gap} from peft, {moved} from the base model"
            trainer = self.mine.create_training_client_from_state(path).result()
            out = trainer.forward([self.datum(tokens)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()
            assert max(abs(float(a) - b) for a, b in zip(out, want, strict=True)) < 2e-5, name
            self.step(trainer, 2)
            export = trainer.save_weights_external("again").result().path
            assert len(self.rest.get_external_weights_urls(export).result().urls) >= 2
            row = self.rest.list_checkpoints(path.split("/")[2]).result().checkpoints[0]
            assert row.user_metadata == {"from": "peft"} and row.checkpoint_id == "weights/adapter"
            print(f"    {name}: {gap:.1e} from peft, {moved:.1e} from the base model")
        assert len(self.rest.list_training_runs(project_id="proj-up").result().training_runs) == len(cases)
        assert not any((self.server.data / "uploads").iterdir()), "nothing is left of what was sent"

    def check_an_upload_that_does_not_fit_is_refused_by_name(self):
        import torch
        from safetensors.torch import load_file, save_file

        directory = self.work / "peft" / "broken"
        self.peft_model(r=4, lora_alpha=8, target_modules=["q_proj"]).save_pretrained(directory)
        config, weights = directory / "adapter_config.json", directory / "adapter_model.safetensors"
        good_config, good = json.loads(config.read_text()), load_file(weights)

        def broken(mention: str, change_config=None, change=None, **wish):
            changed = {**good_config, **(change_config or {})}
            config.write_text(json.dumps(changed))
            tensors = {k: v.clone() for k, v in good.items()}
            if change:
                change(tensors)
            save_file(tensors, weights, metadata={"format": "pt"})
            status, answer = self.upload(directory, **{"base_model": NAME, **wish})
            assert status == 400 and mention in answer["detail"], f"{mention!r}: {status} {answer}"

        key = sorted(good)[0]
        broken("r is 5000", {"r": 5000})
        broken("rank and base model need [8,", {"r": 8})
        broken("target_modules names c_attn", {"target_modules": ["q_proj", "c_attn"]})
        broken("use_dora is true", {"use_dora": True})
        broken("is no matrix of a LoRA adapter", change=lambda t: t.update({"base_model.model.lm_head.weight": torch.zeros(2, 2)}))
        broken("has no module model.layers.99.self_attn.q_proj", change=lambda t: t.update({key.replace("layers.0", "layers.99"): t[key].clone()}))
        broken("has dtype F64", change=lambda t: t.update({key: t[key].double()}))
        broken("holds the value NaN", change=lambda t: t[key].fill_(float("nan")))
        broken("alone", change=lambda t: t.pop(key))
        broken("\"another/model\" is not served here", {"base_model_name_or_path": "another/model"}, base_model=None)
        broken("is not served here", base_model="another/model")
        status, answer = self.server.call("POST", "/external_weights_upload_start", {"files": [{"name": "../x", "size_bytes": 1}]})
        assert status == 400 and "adapter_config.json" in answer["detail"], answer
        assert not any((self.server.data / "uploads").iterdir()), "a refused upload vanishes"

    # ------------------------------------------------------------------ samples

    def check_clones_get_numbers_of_their_own(self):
        import pickle

        sampler = self.mine.create_sampling_client(base_model=NAME).result()
        clones = [pickle.loads(pickle.dumps(sampler)) for _ in range(3)]
        assert len({str(self.sampler_logprobs(c, [3, 4, 5])) for c in [sampler, *clones]}) == 1
        ids = [self.server.call("POST", "/join_sampling_session", {"sampling_session_id": sampler._sampling_session_id})[1] for _ in range(2)]
        assert ids[0]["client_counter"] + 1 == ids[1]["client_counter"] > 3, ids

    def check_many_samples(self, bulk: bool = False, samples: int = 2000):
        types = self.tinker.types
        service = self.service(MINE)
        sampler = service.create_sampling_client(base_model=NAME).result()
        prompt = types.ModelInput.from_ints([3, 4, 5])
        params = types.SamplingParams(max_tokens=4, temperature=1.0)
        begin = time.monotonic()
        futures = [sampler.sample(prompt, 1, params) for _ in range(samples)]
        done = [f.result(300) for f in futures]
        seconds = time.monotonic() - begin
        assert all(len(d.sequences) == 1 and 1 <= len(d.sequences[0].tokens) <= 4 for d in done)
        cpu = sum(map(int, Path(f"/proc/{self.server.process.pid}/stat").read_text().rsplit(")")[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")
        print(f"    {samples} samples at once, {'bulk' if bulk else 'single'} polling: {seconds:.1f} s; server's CPU so far {cpu:.1f} s")
        service.close("success").result()

    def check_bulk_polling(self):
        self.restart(TINDERBOX_BULK_POLLING="true")
        self.check_many_samples(bulk=True)
        sampler = self.service(MINE).create_sampling_client(base_model=NAME).result()
        ask = lambda **more: self.server.call("POST", "/retrieve_futures", {"target": {"type": "sampling_session", "sampling_session_id": sampler._sampling_session_id}, **more}, headers={"x-stainless-read-timeout": "12"})  # noqa: E731
        begin = time.monotonic()
        assert ask(prev_cursor=5, timeout=0.0) == (200, {"completions": [], "cursor": 5})
        assert time.monotonic() - begin < 1
        assert ask(prev_cursor=5)[1] == {"completions": [], "cursor": 5}
        assert 1.5 < time.monotonic() - begin < 10, "without a timeout it waits"
        assert ask(timeout=-1)[0] == 400
        assert self.server.call("POST", "/retrieve_futures", {"target": {"type": "sampling_session", "sampling_session_id": "x:sample:0"}})[0] == 404
        self.restart()

    def check_a_cancelled_sample_frees_the_server(self):
        types = self.tinker.types
        assert self.server.call("POST", "/client/dynamic_config", {})[1]["sample_cancel_enabled"] is True
        sampler = self.mine.create_sampling_client(base_model=NAME).result()
        sampler.sample(types.ModelInput.from_ints([3]), 1, types.SamplingParams(max_tokens=1)).result(60)
        future = sampler.sample(types.ModelInput.from_ints([3, 4, 5]), 64, types.SamplingParams(max_tokens=200, stop=[])).future()
        time.sleep(0.3)
        assert future.cancel(), "the sample was done at once"
        for _ in range(300):
            if "the request was cancelled" in self.server.log.read_text():
                return
            time.sleep(0.1)
        raise AssertionError("the server did not hear of it")

    # ------------------------------------------------------------------ the command line

    def check_commands(self):
        run = self.saved.split("/")[2]
        assert NAME in self.cli("model", "list")
        assert run in self.cli("--format", "json", "run", "list", "--limit", "0")
        assert run in self.cli("run", "info", run)
        assert self.saved in self.cli("--format", "json", "checkpoint", "list")
        assert self.saved in self.cli("--format", "json", "checkpoint", "list", "--run-id", run)
        assert self.saved in self.cli("--format", "json", "checkpoint", "info", self.saved)
        for command in (["publish"], ["unpublish"], ["set-ttl", "--ttl", "7200"], ["set-ttl", "--remove"]):
            self.cli("checkpoint", command[0], self.saved, *command[1:])
        gone = self.trainer.save_state("gone").result().path
        self.cli("checkpoint", "delete", gone, "-y")
        self.refused(lambda: self.rest.get_weights_info_by_tinker_path(gone).result(), 404, "no checkpoint")
        assert run not in self.cli("--format", "json", "run", "list", key=OTHERS)

    def run(self, only: str | None) -> int:
        failed = 0
        for name in [n for n in vars(Checks) if n.startswith("check_") and (only is None or only in n)]:
            begin, reason = time.monotonic(), ""
            try:
                getattr(self, name)()
            except BaseException as e:  # noqa: BLE001 - a line per check, whatever happens in one
                if isinstance(e, KeyboardInterrupt):
                    raise
                failed += 1
                reason = "".join(traceback.format_exception(e)[-3:])
            word = "FAILED" if reason else "ok"
            print(f"{word:6} {time.monotonic() - begin:6.1f} s  {name[6:].replace('_', ' ')}{reason and chr(10)}{reason}", flush=True)
        return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tinderbox", required=True)
    parser.add_argument("--only", help="checks whose name holds this")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        subprocess.run([sys.executable, str(HERE / "conformance" / "make_tiny_model.py"), str(work / "models")], check=True, stdout=subprocess.DEVNULL)
        model = work / "models" / "qwen3"
        server = Server(args.tinderbox, work, model)
        server.start()
        try:
            with concurrent.futures.ThreadPoolExecutor(1):
                failed = Checks(server, work, model).run(args.only)
        finally:
            server.stop()
        print(f"{failed} failed" if failed else "all hold")
        sys.stdout.flush()
        # The SDK's own threads would wait for servers that are gone.
        os._exit(1 if failed else 0)


if __name__ == "__main__":
    sys.exit(main())
