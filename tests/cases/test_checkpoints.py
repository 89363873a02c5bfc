"""Checkpoints and resuming: what is kept, who may read it, what a load may touch."""

import io
import json
import signal
import tarfile
from pathlib import Path

import pytest

import harness
import refmath
from harness import close_lists, expect_user_error, wait

STEP = dict(learning_rate=0.01, eps=1e-2)


def example(rng, ref, n=12):
    return refmath.ce_example(rng, n, ref.vocab)


def step(api, tc, exs):
    api.forward_backward(tc, exs)
    return api.optim(tc, **STEP).metrics


def test_the_step_count_and_metadata_survive_a_resume(api, svc, ref, rng):
    """A client can tell whether a batch was applied already."""
    exs = [example(rng, ref)]
    tc = api.train(svc, user_metadata={"batch": "2", "note": "ä"})
    assert [step(api, tc, exs)["step"] for _ in range(2)] == [1, 2]
    path = wait(tc.save_state("two"), api.timeout).path
    run = path.removeprefix("tinker://").split("/")[0]
    assert wait(api.rest().get_training_run(run), api.timeout).user_metadata == {"batch": "2", "note": "ä"}
    resumed = wait(svc.create_training_client_from_state_with_optimizer(path), api.timeout)
    assert step(api, resumed, exs)["step"] == 3
    fresh = wait(svc.create_training_client_from_state(path), api.timeout)
    assert step(api, fresh, exs)["step"] == 1


def test_loading_changes_nobody_elses_weights(api, svc, other, ref, rng):
    exs = [example(rng, ref)]
    mine = api.train(svc)
    step(api, mine, exs)
    before = api.logprobs(mine, exs)
    theirs = other.train()
    step(other, theirs, exs)
    path = wait(theirs.save_state("theirs"), api.timeout).path
    for _ in range(3):
        wait(other.service().create_training_client_from_state_with_optimizer(path), api.timeout)
    close_lists(api.logprobs(mine, exs), before, 0.0, "logprobs beside loads of another account")


def test_an_archive_is_a_tar_with_the_adapter(api, svc, tmp_path, ref, rng):
    tc = api.train(svc)
    step(api, tc, [example(rng, ref)])
    path = wait(tc.save_weights_for_sampler("archived"), api.timeout).path
    run, kind, name = path.removeprefix("tinker://").split("/")
    link = api.http("GET", f"/api/v1/training_runs/{run}/checkpoints/{kind}/{name}/archive")
    assert link.status_code == 302
    body = harness.httpx.get(link.headers["location"], timeout=api.timeout)
    assert body.status_code == 200 and int(body.headers["content-length"]) == len(body.content)
    with tarfile.open(fileobj=io.BytesIO(body.content)) as tar:
        files = {m.name: tar.extractfile(m).read() for m in tar.getmembers()}
    assert json.loads(files["adapter_config.json"])["r"] == 8
    assert len(files["adapter_model.safetensors"]) > 1000 and any(files["adapter_model.safetensors"])


def readers(api, path):
    """Every way to read a checkpoint, by name; each returns or raises."""
    run, kind, name = path.removeprefix("tinker://").split("/")
    at = f"/api/v1/training_runs/{run}/checkpoints/{kind}/{name}"

    def http(method, url, **kw):
        r = api.http(method, url, **kw)
        if r.status_code >= 400:
            raise harness.httpx.HTTPStatusError(str(r.status_code), request=r.request, response=r)
        return r

    ways = {"weights_info": lambda: http("POST", "/api/v1/weights_info", json={"tinker_path": path})}
    if kind == "weights":
        ways["load"] = lambda: wait(api.service().create_training_client_from_state(path), api.timeout)
    if kind in ("weights", "sampler_weights"):
        ways["sample"] = lambda: api.sample(api.sampler(model_path=path), [1, 2, 3], max_tokens=2)
        ways["archive"] = lambda: http("GET", at + "/archive", follow_redirects=True)
    if kind == "external_weights":
        ways["urls"] = lambda: http("GET", at + "/external_weights_urls")
    return ways


@pytest.mark.parametrize("kind", ["weights", "sampler_weights", "external_weights"])
def test_a_published_checkpoint_can_be_read_in_every_way_and_a_private_one_in_none(api, svc, other, ref, rng, kind):
    tc = api.train(svc)
    step(api, tc, [example(rng, ref)])
    save = {"weights": tc.save_state, "sampler_weights": tc.save_weights_for_sampler, "external_weights": tc.save_weights_external}
    path = wait(save[kind]("shared"), api.timeout).path
    ways = readers(other, path)
    for way, read in ways.items():
        with pytest.raises(Exception) as e:
            read()
        status = [s for x in harness.error_chain(e.value) if (s := getattr(getattr(x, "response", None), "status_code", None))]
        assert 404 in status, f"{way} of a private checkpoint: {e.value!r}"
    wait(api.rest().publish_checkpoint_from_tinker_path(path), api.timeout)
    for way, read in ways.items():
        try:
            read()
        except Exception as e:  # noqa: BLE001
            raise AssertionError(f"{way} of a published checkpoint: {e!r}") from e


def test_a_name_without_its_kind_deletes_nothing(api, svc, ref, rng):
    tc = api.train(svc)
    paths = [wait(save("same"), api.timeout).path for save in (tc.save_state, tc.save_weights_for_sampler)]
    run = paths[0].removeprefix("tinker://").split("/")[0]
    r = api.http("DELETE", f"/api/v1/training_runs/{run}/checkpoints/same")
    assert 400 <= r.status_code < 500, r.text
    listed = {c.tinker_path for c in wait(api.rest().list_checkpoints(run), api.timeout).checkpoints}
    assert set(paths) <= listed
    wait(api.rest().delete_checkpoint_from_tinker_path(paths[0]), api.timeout)
    listed = {c.tinker_path for c in wait(api.rest().list_checkpoints(run), api.timeout).checkpoints}
    assert paths[0] not in listed and paths[1] in listed
    step(api, tc, [example(rng, ref)])


def test_the_owner_is_known_after_a_restart(new_server, make_api, opt, ref, rng):
    server = new_server()
    api = make_api(url=server.url)
    tc = api.train()
    step(api, tc, [example(rng, ref)])
    path = wait(tc.save_state("kept"), api.timeout).path
    api.close()
    server.restart(signal.SIGKILL)
    wait(make_api(url=server.url).service().create_training_client_from_state(path), api.timeout)
    stranger = make_api(key=opt("other-api-key"), url=server.url)
    expect_user_error(lambda: wait(stranger.service().create_training_client_from_state(path), api.timeout), api.timeout)


def rss_kib(server) -> int:
    text = Path(f"/proc/{server.proc.pid}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS")))


@pytest.mark.limit(300)
def test_a_thousand_snapshots_cost_disk_and_not_memory(new_server, make_api, monkeypatch, ref, rng):
    """Snapshots beyond the budget are moved to disk, and come back when they are sampled from."""
    monkeypatch.setenv("TINDERBOX_SNAPSHOT_BYTES", "8MiB")
    server = new_server()
    api = make_api(url=server.url)
    tc = api.train(rank=32)
    first = api.snapshot(tc)
    prompt = refmath.random_tokens(rng, 6, ref.vocab)
    greedy = dict(max_tokens=4, temperature=0.0, stop=[])
    want = api.sample(first, prompt, **greedy).sequences[0].tokens
    step(api, tc, [example(rng, ref)])

    for _ in range(200):
        api.snapshot(tc)
    early = rss_kib(server)
    for _ in range(800):
        api.snapshot(tc)
    grown = rss_kib(server) - early
    assert grown < 0.25 * early, f"{grown} KiB more after 800 further snapshots, on {early}"
    assert api.sample(first, prompt, **greedy).sequences[0].tokens == want
