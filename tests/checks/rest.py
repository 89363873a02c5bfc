#!/usr/bin/env python3
"""The management side of the API through the SDK and the `tinker` command: two accounts on one server.

    "$(tests/python_env)" tests/checks/rest.py --tinderbox target/debug/tinderbox --model-dir DIR [--only WORD]

Starts a server of its own with two keys on the tiny model in DIR.
"""

from __future__ import annotations

import json
import tempfile
import time
import urllib.request
from pathlib import Path

from rest_checkpoints import CheckpointChecks
from rest_files import FileChecks
from rest_world import MINE, NAME, OTHERS, becomes
from runner import Checks, main
from server import Server, arguments


class RestChecks(CheckpointChecks, FileChecks):
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
            service = self.server.service(MINE, user_metadata={"case": "search", "i": str(i)}, display_name=f"Search Case {i}", project_id="proj-s")
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
        self.server.cli("session", "export-trace", session, "--output", str(file))
        assert json.loads(file.read_text())["metadata"]["session"]["id"] == session
        self.refused(lambda: self.other_rest.export_session_trace(session).result(), 404, "no session")

    def check_clones_get_numbers_of_their_own(self):
        import pickle

        sampler = self.mine.create_sampling_client(base_model=NAME).result()
        clones = [pickle.loads(pickle.dumps(sampler)) for _ in range(3)]
        assert len({str(self.sampler_logprobs(c, [3, 4, 5])) for c in [sampler, *clones]}) == 1
        ids = [self.server.call("POST", "join_sampling_session", {"sampling_session_id": sampler._sampling_session_id})[1] for _ in range(2)]
        assert ids[0]["client_counter"] + 1 == ids[1]["client_counter"] > 3, ids

    def check_many_samples(self):
        types = self.tinker.types
        service = self.server.service(MINE)
        sampler = service.create_sampling_client(base_model=NAME).result()
        prompt = types.ModelInput.from_ints([3, 4, 5])
        params = types.SamplingParams(max_tokens=4, temperature=1.0)
        futures = [sampler.sample(prompt, 1, params) for _ in range(500)]
        done = [f.result(300) for f in futures]
        assert all(len(d.sequences) == 1 and 1 <= len(d.sequences[0].tokens) <= 4 for d in done)
        service.close("success").result()

    def check_bulk_polling(self):
        self.restart(TINDERBOX_BULK_POLLING="true")
        self.check_many_samples()
        sampler = self.server.service(MINE).create_sampling_client(base_model=NAME).result()
        ask = lambda **more: self.server.call("POST", "retrieve_futures", {"target": {"type": "sampling_session", "sampling_session_id": sampler._sampling_session_id}, **more}, headers={"x-stainless-read-timeout": "12"})  # noqa: E731
        begin = time.monotonic()
        assert ask(prev_cursor=5, timeout=0.0) == (200, {"completions": [], "cursor": 5})
        at_once = time.monotonic() - begin
        assert ask(prev_cursor=5)[1] == {"completions": [], "cursor": 5}
        waited = time.monotonic() - begin - at_once
        assert waited > 1.5 and waited > at_once, f"without a timeout it waits: {waited:.1f} s after {at_once:.1f} s"
        assert ask(timeout=-1)[0] == 400
        assert self.server.call("POST", "retrieve_futures", {"target": {"type": "sampling_session", "sampling_session_id": "x:sample:0"}})[0] == 404
        self.restart()

    def check_a_cancelled_sample_frees_the_server(self):
        types = self.tinker.types
        assert self.server.call("POST", "client/dynamic_config", {})[1]["sample_cancel_enabled"] is True
        sampler = self.mine.create_sampling_client(base_model=NAME).result()
        sampler.sample(types.ModelInput.from_ints([3]), 1, types.SamplingParams(max_tokens=1)).result(60)
        future = sampler.sample(types.ModelInput.from_ints([3, 4, 5]), 64, types.SamplingParams(max_tokens=2000, stop=[])).future()

        def is_polled():
            """The SDK cancels what it has a number for: it has had time to get it and to ask."""
            told = self.server.call("GET", "status")[1]["waiting"]
            return any(sampler._sampling_session_id in w["request"] and w["waiting_seconds"] > 0.5 for w in told)

        becomes(is_polled, "the sample did not reach the server")
        assert future.cancel(), "the sample was done at once"
        becomes(lambda: "the request was cancelled" in self.server.log.read_text(), "the server did not hear of it")

    def check_commands(self):
        run = self.saved.split("/")[2]
        assert NAME in self.command("model", "list")
        assert run in self.command("--format", "json", "run", "list", "--limit", "0")
        assert run in self.command("run", "info", run)
        assert self.saved in self.command("--format", "json", "checkpoint", "list")
        assert self.saved in self.command("--format", "json", "checkpoint", "list", "--run-id", run)
        assert self.saved in self.command("--format", "json", "checkpoint", "info", self.saved)
        for command in (["publish"], ["unpublish"], ["set-ttl", "--ttl", "7200"], ["set-ttl", "--remove"]):
            self.command("checkpoint", command[0], self.saved, *command[1:])
        gone = self.trainer.save_state("gone").result().path
        self.command("checkpoint", "delete", gone, "-y")
        self.refused(lambda: self.rest.get_weights_info_by_tinker_path(gone).result(), 404, "no checkpoint")
        assert run not in self.server.cli("--format", "json", "run", "list", key=OTHERS)


def body(checks: Checks, args) -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        with Server(args.tinderbox, work / "data", {NAME: args.model_dir}, keys=(MINE, OTHERS)) as server:
            checks.every(RestChecks(server, work, args.model_dir))


if __name__ == "__main__":
    main(arguments(__doc__), body)
