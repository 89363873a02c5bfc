"""Kills right after what a start could stumble over: what was loaded is deleted or replaced, what samples outlived its run, answers that were given."""

from __future__ import annotations

from pathlib import Path

from faults_files import Pair


def missing() -> str | None:
    return None


def restarted(pair: Pair) -> str:
    pair.kill()
    return pair.start()


def delete(pair: Pair, path: str) -> int:
    run, kind, name = path.removeprefix("tinker://").split("/")
    return pair.server.call("DELETE", f"training_runs/{run}/checkpoints/{kind}/{name}")[0]


def load(pair: Pair, path: str) -> None:
    pair.a.result(pair.a.numbered("load_weights", path=path, optimizer=True))


def steps(pair: Pair, n: int) -> None:
    pair.of_a += [pair.a.step() for _ in range(n)]


def compared(pair: Pair, act) -> None:
    """`act` on a run that is disturbed and on one that is not: both end the same. It is told which run, and calls `disturb` where it may be killed."""
    given, twin = act(pair.a, lambda: restarted(pair)), act(pair.run("a"), lambda: None)
    assert given == twin, f"{str(given)[:300]} instead of {str(twin)[:300]}"


def check_kill_after_what_was_loaded_is_deleted(args, work: Path):
    def act(run, disturb):
        run.step()
        path = run.save("loaded")
        run.step()
        run.result(run.numbered("load_weights", path=path, optimizer=True))
        assert delete(pair, path) == 200
        disturb()
        return run.step()

    with Pair(args, work / "deleted") as pair:
        compared(pair, act)


def check_kill_after_what_was_loaded_is_replaced(args, work: Path):
    def act(run, disturb):
        run.step()
        path = run.save("loaded")
        run.step()
        run.result(run.numbered("load_weights", path=path, optimizer=True))
        run.step()
        run.save("loaded", overwrite=True)
        disturb()
        return run.step()

    with Pair(args, work / "replaced") as pair:
        compared(pair, act)


def check_kill_after_a_runs_origin_is_deleted(args, work: Path):
    """A run that was made from a checkpoint, as downloads are."""

    def act(run, disturb):
        run.step()
        path = run.save("origin")
        run.result(run.ask("load_weights", session_id=run.session, model_seq_id=1, path=path, optimizer=True))
        assert delete(pair, path) == 200
        disturb()
        made = run.run.replace(":train:0", ":train:1")
        promise = run.ask("optim_step", model_id=made, seq_id=1, adam_params={"learning_rate": 1e-2})
        return run.result(promise)

    with Pair(args, work / "origin") as pair:
        compared(pair, act)


def check_a_snapshot_outlives_its_run(args, work: Path):
    def act(run, disturb):
        run.step()
        sampler = run.snapshot()
        run.result(run.ask("unload_model", model_id=run.run))
        disturb()
        return drawn(run, sampler)

    with Pair(args, work / "unloaded") as pair:
        compared(pair, act)


def check_a_sampler_outlives_its_checkpoint(args, work: Path):
    def act(run, disturb):
        run.step()
        path = run.result(run.numbered("save_weights_for_sampler", path="sampled"))["path"]
        sampler = run.ask("create_sampling_session", session_id=run.session, sampling_session_seq_id=5, model_path=path)["sampling_session_id"]
        assert delete(pair, path) == 200
        disturb()
        return drawn(run, sampler)

    with Pair(args, work / "sampled") as pair:
        compared(pair, act)


def check_inflight_samplers_follow(args, work: Path):
    """The same target, moved on after the restart."""

    def act(run, disturb):
        run.step()
        first = run.result(run.numbered("save_weights_for_sampler", sampling_session_seq_id=1, kind="inflight"))["sampling_session_id"]
        run.step()
        second = run.result(run.numbered("save_weights_for_sampler", sampling_session_seq_id=2, kind="inflight"))["sampling_session_id"]
        before = drawn(run, first)
        disturb()
        after = drawn(run, first), drawn(run, second)
        run.step()
        run.result(run.numbered("save_weights_for_sampler", sampling_session_seq_id=3, kind="inflight"))
        return before, after, drawn(run, first), drawn(run, second)

    with Pair(args, work / "inflight") as pair:
        compared(pair, act)


def check_writes_are_told_done_again(args, work: Path):
    """A client that got no answer asks once more; the SDK takes 404 for the user's fault."""
    with Pair(args, work / "again") as pair:
        pair.a.step()
        path = pair.a.save("twice")
        run, kind, name = path.removeprefix("tinker://").split("/")
        place = f"training_runs/{run}/checkpoints/{kind}/{name}"
        calls = [("POST", f"{place}/publish", None), ("PUT", f"{place}/ttl", {"ttl_seconds": 3600}), ("DELETE", f"{place}/publish", None), ("DELETE", place, None)]
        calls += [("POST", f"sessions/{pair.a.session}/finish", {"reason": {"type": "success"}, "detail": None})]
        refused = []
        for method, where, body in calls:
            first = pair.server.call(method, where, body)[0]
            restarted(pair)
            again = pair.server.call(method, where, body)
            refused += [f"{method} {where.removeprefix(place)}: {first}, again {again}"] if (first, again[0]) != (200, 200) else []
        assert not refused, refused


def drawn(run, sampler: str) -> list:
    """A sample with a seed."""
    run.sampled += 1
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [40, 50, 60]}]}
    params = {"max_tokens": 8, "seed": 3}
    promise = run.ask("asample", sampling_session_id=sampler, seq_id=run.sampled, num_samples=1, prompt=prompt, sampling_params=params)
    return [(s["tokens"], s["logprobs"]) for s in run.result(promise)["sequences"]]
