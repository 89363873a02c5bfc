"""Samples: logprobs that agree, seeds under load, snapshots that stay, prompts beside each other."""

import threading
import time

import refmath
from harness import close_lists, wait

BIG = dict(learning_rate=0.05, eps=1e-2)


def trained(api, svc, ref, rng, seed=1):
    tc = api.train(svc, seed=seed)
    api.forward_backward(tc, [refmath.ce_example(rng, 14, ref.vocab)])
    api.optim(tc, **BIG)
    return tc


def test_three_ways_to_a_logprob(api, svc, ref, rng):
    """Drawn, scored as a prompt, and computed by the trainer: one number."""
    tc = trained(api, svc, ref, rng)
    sampler = api.snapshot(tc)
    prompt = refmath.random_tokens(rng, 6, ref.vocab)
    drawn = api.sample(sampler, prompt, max_tokens=64, stop=[], seed=3).sequences[0]
    whole = prompt + drawn.tokens
    scored = api.compute_logprobs(sampler, whole)
    forward = api.logprobs(tc, [refmath.Ex(whole[:-1], whole[1:])])[0]
    close_lists([drawn.logprobs], [scored[len(prompt):]], 1e-4, "drawn and scored")
    close_lists([scored[1:]], [forward], 1e-4, "scored and trained")
    assert scored[0] is None and all(lp != 0.0 for lp in drawn.logprobs)


class Load:
    """Samples of another account, as long as the block lasts."""

    def __init__(self, api, ref, rng):
        self.api, self.stop, self.done = api, threading.Event(), 0
        self.sampler = api.sampler()
        self.prompt = refmath.random_tokens(rng, 40, ref.vocab)

    def run(self):
        while not self.stop.is_set():
            self.api.sample(self.sampler, self.prompt, n=4, max_tokens=30, stop=[])
            self.done += 1

    def __enter__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def test_a_seed_repeats_under_anothers_load_and_samples_differ(api, svc, other, ref, rng):
    sampler = api.sampler(svc)
    prompt = refmath.random_tokens(rng, 5, ref.vocab)

    def draw(n):
        return [s.tokens for s in api.sample(sampler, prompt, n=n, max_tokens=50, stop=[], seed=42).sequences]

    alone = draw(32)
    assert len(set(map(tuple, alone))) == 32
    assert draw(5) == alone[:5]
    with Load(other, ref, rng) as load:
        while load.done == 0:
            time.sleep(0.01)
        for _ in range(5):
            assert draw(32) == alone


def test_prompts_of_other_lengths_beside_change_no_token(api, svc, ref, rng):
    sampler = api.sampler(svc)
    prompts = [refmath.random_tokens(rng, n, ref.vocab) for n in (2, 40, 3, 17)]
    greedy = dict(max_tokens=20, temperature=0.0, stop=[])
    alone = [api.sample(sampler, p, **greedy).sequences[0] for p in prompts]
    import tinker

    together = [
        sampler.sample(tinker.ModelInput.from_ints(p), 1, tinker.SamplingParams(**greedy)) for p in prompts
    ]
    for a, b in zip(alone, together, strict=True):
        b = wait(b, api.timeout).sequences[0]
        assert b.tokens == a.tokens and b.logprobs == a.logprobs


def test_a_prompt_scored_twice_after_one_that_shares_its_start(api, svc, ref, rng):
    sampler = api.sampler(svc)
    shared = refmath.random_tokens(rng, 20, ref.vocab)
    tails = [refmath.random_tokens(rng, 20, ref.vocab) for _ in range(2)]
    api.compute_logprobs(sampler, shared + tails[0])
    first, again = (api.compute_logprobs(sampler, shared + tails[1]) for _ in range(2))
    assert first == again and None not in first[1:]
    close_lists([first[1:]], [ref.sequence_logprobs(shared + tails[1])[1:]], 1e-4)


def test_new_weights_never_meet_old_keys_and_values(api, svc, ref, rng):
    tc = api.train(svc)
    prompt = refmath.random_tokens(rng, 30, ref.vocab)
    scores = []
    for _ in range(3):
        api.forward_backward(tc, [refmath.ce_example(rng, 14, ref.vocab)])
        api.optim(tc, **BIG)
        scores.append(api.compute_logprobs(api.snapshot(tc), prompt)[1:])
        close_lists([scores[-1]], api.logprobs(tc, [refmath.Ex(prompt[:-1], prompt[1:])]), 1e-4)
    assert scores[0] != scores[1] != scores[2]


def test_the_base_model_beside_everybodys_adapters(api, svc, other, ref, rng):
    base = api.sampler(svc)
    prompt = refmath.random_tokens(rng, 8, ref.vocab)
    greedy = dict(max_tokens=20, temperature=0.0, stop=[])
    before = api.sample(base, prompt, **greedy).sequences[0]
    adapters = [other.snapshot(trained(other, None, ref, rng, seed)) for seed in range(4)]
    alone = [other.sample(s, prompt, **greedy).sequences[0].tokens for s in adapters]
    import tinker

    mixed = [s.sample(tinker.ModelInput.from_ints(prompt), 1, tinker.SamplingParams(**greedy)) for s in adapters]
    after = api.sample(base, prompt, **greedy).sequences[0]
    assert after.tokens == before.tokens and after.logprobs == before.logprobs
    assert [wait(m, api.timeout).sequences[0].tokens for m in mixed] == alone


def test_saving_for_the_sampler_while_long_samples_run(api, svc, ref, rng):
    import tinker

    tc = trained(api, svc, ref, rng)
    sampler = api.snapshot(tc)
    prompt = tinker.ModelInput.from_ints(refmath.random_tokens(rng, 8, ref.vocab))
    long = [sampler.sample(prompt, 1, tinker.SamplingParams(max_tokens=200, stop=[], seed=i)) for i in range(64)]
    api.snapshot(tc)
    assert not all(f.future().done() for f in long), "a save waited for samples that run"
    for _ in range(4):
        api.snapshot(tc)
    assert all(len(wait(f, 120).sequences[0].tokens) == 200 for f in long)


def test_samplers_in_turn_beyond_what_memory_keeps(new_server, make_api, monkeypatch, ref, rng):
    monkeypatch.setenv("TINDERBOX_SNAPSHOT_BYTES", "1MiB")
    api = make_api(url=new_server().url)
    tc = api.train(rank=32)
    samplers = []
    for _ in range(6):
        api.forward_backward(tc, [refmath.ce_example(rng, 10, ref.vocab)])
        api.optim(tc, **BIG)
        samplers.append(api.snapshot(tc))
    prompt = refmath.random_tokens(rng, 9, ref.vocab)
    first = [api.compute_logprobs(s, prompt) for s in samplers]
    for _ in range(2):
        assert [api.compute_logprobs(s, prompt) for s in samplers] == first
