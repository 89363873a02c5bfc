"""Requests: errors that stay where they belong, order without waiting, many at once."""

import numpy as np
import tinker

import harness
import refmath
from harness import close_lists, expect_user_error, wait

STEP = dict(learning_rate=0.01, eps=1e-2)


def test_steps_sent_without_waiting_equal_awaited_ones(api, svc, ref, rng):
    batches = [[refmath.ce_example(rng, 12, ref.vocab)] for _ in range(4)]
    awaited, burst = api.train(svc, seed=3), api.train(svc, seed=3)
    for batch in batches:
        api.forward_backward(awaited, batch)
        api.optim(awaited, **STEP)
    sent = []
    for batch in batches:
        sent += [burst.forward_backward([e.datum() for e in batch], "cross_entropy"), burst.optim_step(tinker.AdamParams(**STEP))]
    for f in sent:
        wait(f, api.timeout)
    close_lists(api.logprobs(burst, batches[0]), api.logprobs(awaited, batches[0]), 0.0)


def test_interleaved_tenants_equal_tenants_alone(api, svc, other, ref, rng):
    """Two accounts, 100 gradients each in one another's way: every bit as alone."""
    batches = [[refmath.ce_example(rng, int(n), ref.vocab)] for n in rng.integers(3, 30, size=100)]

    def run(clients):
        sent = [c.forward_backward([e.datum() for e in b], "cross_entropy") for b in batches for c in clients]
        for f in sent:
            wait(f, api.timeout)
        sent = [c.optim_step(tinker.AdamParams(**STEP)) for c in clients]
        return [wait(f, api.timeout).metrics["grad_norm"] for f in sent]

    alone = api.train(svc, seed=4)
    norm = run([alone])[0]
    want = api.logprobs(alone, batches[0])
    pair = [api.train(svc, seed=4), other.train(seed=4)]
    assert run(pair) == [norm, norm]
    for client, who in zip(pair, (api, other), strict=True):
        close_lists(who.logprobs(client, batches[0]), want, 0.0)


def test_a_diverging_run_fails_alone(api, svc, other, ref, rng):
    exs = [refmath.ce_example(rng, 12, ref.vocab)]
    calm, twin, wild = other.train(seed=7), other.train(seed=7), api.train(svc)
    failures = 0
    for i in range(6):
        jobs = [calm.forward_backward([e.datum() for e in exs], "cross_entropy")]
        try:
            api.forward_backward(wild, exs)
            api.optim(wild, learning_rate=1e18, eps=1e-12)
        except Exception as e:  # noqa: BLE001
            assert harness.user_error(e) is not None, repr(e)
            failures += 1
        jobs.append(calm.optim_step(tinker.AdamParams(**STEP)))
        for f in jobs:
            wait(f, api.timeout)
        other.forward_backward(twin, exs)
        other.optim(twin, **STEP)
    assert failures > 0, "the run never diverged: the check is void"
    close_lists(other.logprobs(calm, exs), other.logprobs(twin, exs), 0.0)


def test_an_enormous_datum_is_refused_with_the_limit(api, svc, other, ref, rng):
    exs = [refmath.ce_example(rng, 12, ref.vocab)]
    theirs = other.train()
    before = other.logprobs(theirs, exs)
    tc = api.train(svc)
    huge = refmath.ce_example(rng, 200_000, ref.vocab)
    expect_user_error(lambda: api.forward_backward(tc, [huge]), api.timeout, mention="200000")
    close_lists(other.logprobs(theirs, exs), before, 0.0)


def test_tensors_among_the_settings_are_refused_by_the_request_itself(api, svc, ref, rng):
    tc = api.train(svc)
    datum = {"model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
             "loss_fn_inputs": {"target_tokens": {"data": [2, 3], "dtype": "int64"}, "logprobs": {"data": [-1, -1], "dtype": "float32"}}}
    body = {"model_id": tc.model_id, "seq_id": 1, "forward_backward_input": {
        "data": [datum], "loss_fn": "ppo", "loss_fn_config": {"advantages": [0.1, 0.2]}}}
    r = api.http("POST", "/api/v1/forward_backward", json=body)
    assert r.status_code == 400 and "advantages" in r.text and "loss_fn_inputs" in r.text, r.text


def test_a_hundred_sessions_are_all_served(api, ref, rng):
    exs = [refmath.ce_example(rng, 6, ref.vocab)]
    clients = [api.train(seed=i) for i in range(100)]
    sent = [c.forward_backward([e.datum() for e in exs], "cross_entropy") for c in clients]
    losses = [harness.loss_sum(wait(f, api.timeout)) for f in sent]
    assert len(losses) == 100 and np.ptp(losses) == 0.0, "fresh adapters change nothing, so all losses are equal"


def test_a_large_answer_delays_no_heartbeat(api, svc, other, ref, rng):
    session = other.service().holder.get_session_id()
    sampler = api.sampler(svc)
    prompt = refmath.random_tokens(rng, 200, ref.vocab)
    big = [sampler.sample(tinker.ModelInput.from_ints(prompt), 1, tinker.SamplingParams(max_tokens=1),
                          include_prompt_logprobs=True, topk_prompt_logprobs=min(500, ref.vocab)) for _ in range(20)]
    futures = [b.future() for b in big]
    beats = 0
    while not all(f.done() for f in futures):
        assert other.http("POST", "/api/v1/session_heartbeat", json={"session_id": session}).status_code == 200
        beats += not all(f.done() for f in futures)
    assert beats > 0, "no heartbeat was answered while samples were open"
    for b in big:
        wait(b, api.timeout)
