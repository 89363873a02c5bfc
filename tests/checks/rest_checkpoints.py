"""Checks of checkpoints: rows, overwriting, search, publishing, deleting, copies."""

from __future__ import annotations

from rest_world import MINE, NAME, OTHERS, World


class CheckpointChecks(World):
    def check_checkpoint_rows(self):
        path = self.trainer.save_state("noted", user_metadata={"step": "1"}, ttl_seconds=7200).result().path
        row = next(c for c in self.rest.list_user_checkpoints(limit=1000).result().checkpoints if c.tinker_path == path)
        assert row.user_metadata == {"step": "1"} and row.expires_at is not None and row.size_bytes > 0 and not row.public
        raw = self.server.call("GET", "checkpoints?limit=1000")[1]["checkpoints"]
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
            status, answer = self.server.call("POST", "checkpoints/search", query, key)
            assert status == 200, answer
            return [c["tinker_path"] for c in answer["checkpoints"]]

        assert found(name="needle") == [path] and found(user_metadata={"find": "me"}) == [path]
        assert found(base_model="other") == [] and path in found(base_model=NAME, checkpoint_types=["training"])
        assert found(OTHERS, name="needle") == []
        first = self.server.call("POST", "checkpoints/search", {"limit": 1})[1]
        second = self.server.call("POST", "checkpoints/search", {"limit": 1, "cursor": first["next_cursor"]})[1]
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
        rows = self.server.call("GET", "checkpoints?access_scope=accessible", key=OTHERS)[1]["checkpoints"]
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
        service = self.server.service(MINE)
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
        assert self.server.service(MINE, project_id="proj-2").copy_weights(self.saved).result() != plain
        trained = self.mine.create_training_client_from_state_with_optimizer(plain).result()
        self.step(trained, 1)
        self.refused(lambda: self.other_rest.copy_weights(self.saved, "p").result(), 404, "no checkpoint")
        self.rest.publish_checkpoint_from_tinker_path(self.saved).result()
        theirs = self.other_rest.copy_weights(self.saved, "p").result()
        self.rest.unpublish_checkpoint_from_tinker_path(self.saved).result()
        assert self.other_rest.get_weights_info_by_tinker_path(theirs).result().lora_rank == 4
        body = {"source_path": self.saved, "destination_project_id": "p"}
        once = [self.server.call("POST", "copy_weights", body, headers={"X-Idempotency-Key": "one"}) for _ in range(2)]
        assert once[0] == once[1] and once[0][0] == 200, once
        run = plain.split("/")[2]
        status, answer = self.server.call("POST", "optim_step", {"model_id": run, "seq_id": 1, "adam_params": {}})
        assert status == 400 and "cannot be trained" in answer["detail"], answer
