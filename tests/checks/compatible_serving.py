"""What both APIs share: keys and owners, the hosted service's paths, many at once, and clients that go away."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import anthropic
import httpx
import openai
from compatible_world import GREET, GREETING, World
from runner import refused


def say(client: openai.OpenAI, model: str, **more) -> str:
    request = {"messages": [GREET], "max_tokens": 40, "temperature": 0} | more
    return client.chat.completions.create(model=model, **request).choices[0].message.content


def check_the_hosted_services_paths(w: World) -> None:
    assert say(w.openai("/oai/api/v1"), w.taught) == GREETING
    assert w.model in [m.id for m in w.openai("/oai/api/v1").models.list()]
    assert w.openai("/oai/api/v1").completions.create(model=w.model, prompt="x", max_tokens=1).usage.completion_tokens == 1
    client = w.anthropic("/anthropic/api")
    assert client.messages.create(model=w.taught, messages=[GREET], max_tokens=40, extra_body={"temperature": 0}).content[0].text == GREETING
    assert client.messages.count_tokens(model=w.model, messages=[GREET]).input_tokens == len(w.prompt([GREET]))
    refused(anthropic.NotFoundError, lambda: client.post("/v1/nothing", cast_to=object), "/anthropic/api/v1/nothing")


def check_keys_in_every_header(w: World) -> None:
    body = {"model": w.model, "messages": [GREET], "max_tokens": 1}
    key = w.args.api_key
    for headers in ({"Authorization": f"Bearer {key}"}, {"authorization": f"bearer {key}"}, {"X-API-Key": key}):
        for path in ("/v1/chat/completions", "/v1/messages"):
            assert httpx.post(w.args.base_url + path, json=body, headers=headers, timeout=60).status_code == 200, headers
    nobody = httpx.post(w.args.base_url + "/v1/chat/completions", json=body, timeout=60)
    assert nobody.status_code == 401 and nobody.json()["error"]["code"] == "invalid_api_key"
    nobody = httpx.post(w.args.base_url + "/v1/messages", json=body, timeout=60)
    assert nobody.status_code == 401 and nobody.json()["error"]["type"] == "authentication_error"
    refused(openai.AuthenticationError, lambda: say(w.openai(key="sk-wrong"), w.model))
    refused(anthropic.AuthenticationError, lambda: w.anthropic(key="sk-wrong").messages.create(**body))


def check_what_is_not_yours_does_not_exist(w: World) -> None:
    other, sampler = w.openai(key=w.args.other_api_key), w.service.create_sampling_client(model_path=w.taught).result()
    names = [w.taught, f"{w.model};{w.taught}", sampler._sampling_session_id]
    assert say(other, w.model, max_tokens=1) is not None
    for name in names:
        refused(openai.NotFoundError, lambda: say(other, name))
        refused(openai.NotFoundError, lambda: other.models.retrieve(name))
        refused(openai.NotFoundError, lambda: other.completions.create(model=name, prompt="x"))
        refused(anthropic.NotFoundError, lambda: w.anthropic(key=w.args.other_api_key).messages.create(model=name, messages=[GREET], max_tokens=1))
    rest = w.service.create_rest_client()
    rest.publish_checkpoint_from_tinker_path(w.taught).result()
    assert say(other, w.taught) == GREETING
    rest.unpublish_checkpoint_from_tinker_path(w.taught).result()
    refused(openai.NotFoundError, lambda: say(other, w.taught))


def check_a_model_without_a_template_says_so(w: World) -> None:
    refused(openai.BadRequestError, lambda: say(w.openai(), w.args.bare_model), w.args.bare_model, "no chat template")
    refused(anthropic.BadRequestError, lambda: w.anthropic().messages.count_tokens(model=w.args.bare_model, messages=[GREET]), "no chat template")
    assert w.openai().completions.create(model=w.args.bare_model, prompt="x", max_tokens=1).usage.completion_tokens == 1


def check_many_at_once_say_what_each_says_alone(w: World) -> None:
    client = w.openai()

    def streamed(seed: int) -> str:
        chunks = client.chat.completions.create(model=w.model, messages=[GREET], max_tokens=24, seed=seed, stream=True)
        return "".join(c.choices[0].delta.content or "" for c in chunks)

    def messages(seed: int) -> str:
        got = w.anthropic().messages.create(model=w.model, messages=[GREET], max_tokens=24, extra_body={"seed": seed})
        return "".join(b.text for b in got.content)

    alone = [say(client, w.model, seed=seed, temperature=1, max_tokens=24) for seed in range(6)]
    with ThreadPoolExecutor(32) as pool:
        tasks = [(pool.submit(f, seed), alone[seed]) for _ in range(8) for f in (streamed, messages) for seed in range(6)]
        for task, want in tasks:
            assert task.result() == want


def check_clients_that_go_away_free_their_places(w: World) -> None:
    """More long answers than there are places are begun and left: they are not run to their end, and one more is answered."""
    client = w.openai(max_retries=0)

    def sampled() -> int:
        answer = httpx.get(f"{w.args.base_url}/api/v1/usage", headers={"X-API-Key": w.args.api_key}, timeout=60)
        return answer.json()["total"]["sampled_tokens"]

    before = sampled()
    endless = dict(model=w.model, prompt="x", max_tokens=3500, extra_body={"ignore_eos": True}, stream=True)
    streams = []
    with ThreadPoolExecutor(16) as pool:
        streams = list(pool.map(lambda _: client.completions.create(**endless), range(72)))
    for stream in streams:
        stream.close()
    impatient = httpx.Client(timeout=0.2)
    for _ in range(8):
        try:
            body = {"model": w.model, "prompt": "x", "max_tokens": 3500, "ignore_eos": True, "n": 8}
            impatient.post(w.args.base_url + "/v1/completions", json=body, headers={"X-API-Key": w.args.api_key})
            raise AssertionError("3500 tokens in 0.2 s")
        except httpx.TimeoutException:
            pass
    assert say(client, w.model, max_tokens=20) is not None
    # Behind 136 answers that go on, it would have got a place only after more than half of them: what ends whole is counted.
    taken, whole = sampled() - before, 3500 * (72 + 8 * 8)
    assert 0 < taken < 0.4 * whole, f"{taken} of {whole} tokens were sampled for clients that are gone"
