"""`/v1/models`, `/v1/completions` and `/v1/chat/completions` through the `openai` package."""

from __future__ import annotations

import json

import openai
from compatible_world import CALL, GREET, GREETING, RESULT, SEARCH, THINK, WEATHER, World, close
from runner import refused
from tinker import types

IDS = {"return_token_ids": True}
PROMPT = "What is 2 + 3? Grüße 世界"


def joined(chunks: list, n: int = 1) -> list[dict]:
    """The choices of a streamed chat, put together."""
    choices = [{"content": "", "reasoning": "", "calls": [], "ids": [], "prompt": None, "logprobs": [], "finish": None} for _ in range(n)]
    for chunk in chunks:
        for c in chunk.choices:
            to, extra = choices[c.index], c.model_extra or {}
            assert to["finish"] is None, "a choice goes on behind its end"
            to["content"] += c.delta.content or ""
            to["reasoning"] += (c.delta.model_extra or {}).get("reasoning_content") or ""
            to["calls"] += [(x.function.name, x.function.arguments) for x in c.delta.tool_calls or []]
            to["ids"] += extra.get("token_ids", [])
            to["prompt"] = extra.get("prompt_token_ids", to["prompt"])
            to["logprobs"] += [x.logprob for x in c.logprobs.content] if c.logprobs else []
            to["finish"] = c.finish_reason
    return choices


def whole(response) -> list[dict]:
    """The choices of a chat that came in one piece, in the same form."""
    return [
        {
            "content": c.message.content or "",
            "reasoning": (c.message.model_extra or {}).get("reasoning_content", ""),
            "calls": [(x.function.name, x.function.arguments) for x in c.message.tool_calls or []],
            "ids": c.model_extra.get("token_ids", []),
            "prompt": c.model_extra.get("prompt_token_ids"),
            "logprobs": [x.logprob for x in c.logprobs.content] if c.logprobs else [],
            "finish": c.finish_reason,
        }
        for c in response.choices
    ]


def both(client: openai.OpenAI, n: int = 1, **request) -> tuple:
    """A chat in one piece and streamed: both must say the same."""
    extra = IDS | request.pop("extra_body", {})
    response = client.chat.completions.create(n=n, extra_body=extra, **request)
    streamed = client.chat.completions.create(n=n, extra_body=extra, stream=True, stream_options={"include_usage": True}, **request)
    chunks = list(streamed)
    assert chunks[-1].usage == response.usage and not chunks[-1].choices, (chunks[-1].usage, response.usage)
    assert all(c.usage is None for c in chunks[:-1]) and {c.object for c in chunks} == {"chat.completion.chunk"}
    assert joined(chunks, n) == whole(response), f"{joined(chunks, n)} is not {whole(response)}"
    return response, whole(response)


def check_models_are_listed_and_found(w: World) -> None:
    client = w.openai()
    assert w.model in [m.id for m in client.models.list()]
    assert client.models.retrieve(w.model).id == w.model
    assert client.models.retrieve(w.taught).id == w.taught
    refused(openai.NotFoundError, lambda: client.models.retrieve("gpt-nothing"), "gpt-nothing", w.model)


def check_a_completion_is_the_sdks_sample(w: World) -> None:
    ids = w.tokenizer.encode(PROMPT)
    want = w.sample(ids, n=3, max_tokens=12, seed=5, temperature=0.7)
    got = w.openai().completions.create(model=w.model, prompt=PROMPT, n=3, max_tokens=12, seed=5, temperature=0.7, logprobs=0, extra_body=IDS)
    assert got.object == "text_completion" and [c.index for c in got.choices] == [0, 1, 2]
    for c, s in zip(got.choices, want, strict=True):
        assert c.model_extra["prompt_token_ids"] == ids and c.model_extra["token_ids"] == list(s.tokens)
        assert close(c.logprobs.token_logprobs, s.logprobs) and c.text == w.text(s.tokens)
        assert c.finish_reason == ("length" if s.stop_reason == "length" else "stop")
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (len(ids), sum(len(s.tokens) for s in want))
    by_ids = w.openai().completions.create(model=w.model, prompt=ids, n=3, max_tokens=12, seed=5, temperature=0.7)
    assert [c.text for c in by_ids.choices] == [c.text for c in got.choices]


def check_completions_of_several_prompts_streamed_and_whole(w: World) -> None:
    request = dict(model=w.model, prompt=["one two", PROMPT], n=2, max_tokens=9, seed=3, logprobs=2, extra_body=IDS)
    got = w.openai().completions.create(**request)
    streamed = [dict(text="", ids=[], lp=[], top=[], offset=[], finish=None, prompt=None) for _ in range(4)]
    for chunk in w.openai().completions.create(**request, stream=True, stream_options={"include_usage": True}):
        for c in chunk.choices:
            to = streamed[c.index]
            to["text"] += c.text
            to["finish"] = c.finish_reason
            to["ids"] += c.model_extra["token_ids"]
            to["prompt"] = c.model_extra.get("prompt_token_ids", to["prompt"])
            if c.logprobs:
                to["lp"] += c.logprobs.token_logprobs
                to["top"] += c.logprobs.top_logprobs
                to["offset"] += c.logprobs.text_offset
        last = chunk
    assert last.usage == got.usage
    for c, s in zip(got.choices, streamed, strict=True):
        assert (c.text, c.finish_reason, c.model_extra["token_ids"], c.model_extra["prompt_token_ids"]) == (s["text"], s["finish"], s["ids"], s["prompt"])
        assert (c.logprobs.token_logprobs, c.logprobs.top_logprobs, c.logprobs.text_offset) == (s["lp"], s["top"], s["offset"])
        assert all(len(t) == 2 for t in c.logprobs.top_logprobs) and len(c.logprobs.tokens) == len(s["ids"])


def check_echo_scores_the_prompt(w: World) -> None:
    ids = w.tokenizer.encode(PROMPT)
    got = w.openai().completions.create(model=w.model, prompt=PROMPT, echo=True, max_tokens=0, logprobs=1).choices[0]
    assert got.text == PROMPT and len(got.logprobs.tokens) == len(ids) and got.logprobs.token_logprobs[0] is None
    want = w.sampler.compute_logprobs(types.ModelInput.from_ints(ids)).result()
    assert close(got.logprobs.token_logprobs[1:], want[1:])
    assert got.logprobs.text_offset[0] == 0 and PROMPT[got.logprobs.text_offset[1] :].startswith(got.logprobs.tokens[1])
    more = w.openai().completions.create(model=w.model, prompt=PROMPT, echo=True, max_tokens=3, seed=1).choices[0]
    alone = w.openai().completions.create(model=w.model, prompt=PROMPT, max_tokens=3, seed=1).choices[0]
    assert more.text == PROMPT + alone.text


def check_a_chat_is_the_sdks_sample_of_transformers_prompt(w: World) -> None:
    messages = [{"role": "system", "content": "Sei höflich."}, {"role": "user", "content": "世界 <b>?"}, {"role": "assistant", "content": "ja"}, {"role": "user", "content": "und?"}]
    ids = w.prompt(messages)
    want = w.sample(ids, n=2, max_tokens=10, seed=9)
    _, got = both(w.openai(), n=2, model=w.model, messages=messages, max_tokens=10, seed=9)
    for c, s in zip(got, want, strict=True):
        assert c["prompt"] == ids and c["ids"] == list(s.tokens) and close(c["logprobs"], s.logprobs)
    plain = w.openai().chat.completions.create(model=w.model, messages=messages, max_completion_tokens=10, seed=9)
    assert "token_ids" not in (plain.choices[0].model_extra or {}) and plain.choices[0].logprobs is None
    assert (plain.usage.prompt_tokens, plain.usage.completion_tokens) == (len(ids), len(want[0].tokens))


def check_seeds_and_temperature(w: World) -> None:
    def say(**more) -> str:
        return w.openai().chat.completions.create(model=w.model, messages=[GREET], max_tokens=16, **more).choices[0].message.content

    assert say(seed=1) == say(seed=1) != say(seed=2)
    assert say() != say(), "without a seed answers differ"
    assert say(temperature=0) == say(temperature=0, seed=3)
    assert say(temperature=1, seed=4, extra_body={"top_k": 1}) == say(temperature=0)
    assert say(top_p=1e-6, seed=4) == say(temperature=0)


def check_logprobs_of_alternatives(w: World) -> None:
    got = w.openai().chat.completions.create(model=w.model, messages=[GREET], max_tokens=5, seed=2, logprobs=True, top_logprobs=4, temperature=0)
    for entry in got.choices[0].logprobs.content:
        tops = [t.logprob for t in entry.top_logprobs]
        assert len(tops) == 4 and tops == sorted(tops, reverse=True) and close([tops[0]], [entry.logprob])
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token
    refused(openai.BadRequestError, lambda: w.openai().chat.completions.create(model=w.model, messages=[GREET], top_logprobs=2), "logprobs=true")


def check_stop_strings(w: World) -> None:
    request = dict(model=w.taught, messages=[GREET], temperature=0, max_tokens=40)
    full, _ = both(w.openai(), **request)
    assert full.choices[0].message.content == GREETING and full.choices[0].finish_reason == "stop"
    for stop, want in [("世", "hé "), (["zzz", " you"], "hé 世"), ("é 世 y", "h"), ("hé", ""), ("absent", GREETING)]:
        response, got = both(w.openai(), stop=stop, **request)
        assert (got[0]["content"], got[0]["finish"]) == (want, "stop"), got
    legacy = w.openai().completions.create(model=w.taught, prompt=w.prompt([GREET]), stop=[" you"], temperature=0, max_tokens=40)
    assert legacy.choices[0].text == "hé 世"


def check_the_models_own_ends_count_too(w: World) -> None:
    request = dict(model=w.taught, messages=[GREET], temperature=0, max_tokens=60)
    end = w.tokenizer.convert_tokens_to_ids("<|im_end|>")
    _, ended = both(w.openai(), stop="absent", **request)
    assert ended[0]["ids"][-1] == end and ended[0]["finish"] == "stop" and "<|" not in ended[0]["content"]
    _, on = both(w.openai(), extra_body={"ignore_eos": True}, **request)
    assert len(on[0]["ids"]) == 60 and on[0]["finish"] == "length" and on[0]["ids"][: len(ended[0]["ids"])] == ended[0]["ids"]
    first = ended[0]["ids"][2]
    _, cut = both(w.openai(), extra_body={"stop_token_ids": [first]}, **request)
    assert cut[0]["ids"] == ended[0]["ids"][:3] and cut[0]["finish"] == "stop"


def check_tools_are_called_and_answered(w: World) -> None:
    client = w.openai()
    response, got = both(client, model=w.taught, messages=[SEARCH], tools=[WEATHER], temperature=0, max_tokens=200)
    assert got[0]["finish"] == "tool_calls" and got[0]["content"] == "I look.", got
    assert got[0]["calls"] == [("weather", '{"days": 2, "city": "Zürich"}')] and got[0]["prompt"] == w.prompt([SEARCH], tools=[WEATHER])
    message = response.choices[0].message.to_dict()
    result = RESULT | {"tool_call_id": message["tool_calls"][0]["id"]}
    answer, then = both(client, model=w.taught, messages=[SEARCH, message, result], tools=[WEATHER], temperature=0, max_tokens=50)
    assert then[0]["content"] == "sunny"
    # The next turn's prompt begins with exactly what was sampled: a trace can be trained on as one sequence.
    assert then[0]["prompt"][: len(got[0]["prompt"]) + len(got[0]["ids"])] == got[0]["prompt"] + got[0]["ids"]
    withheld = client.chat.completions.create(model=w.taught, messages=[SEARCH], tools=[WEATHER], tool_choice="none", temperature=0, max_tokens=5)
    assert withheld.usage.prompt_tokens == len(w.prompt([SEARCH]))
    # Without tools the marks are text like any other.
    text = client.completions.create(model=w.taught, prompt=w.prompt([SEARCH], tools=[WEATHER]), temperature=0, max_tokens=200)
    assert text.choices[0].text == CALL


def check_thoughts_are_told_apart(w: World) -> None:
    _, got = both(w.openai(), model=w.taught, messages=[THINK], temperature=0, max_tokens=60)
    assert (got[0]["reasoning"], got[0]["content"], got[0]["finish"]) == ("a b\n\nc", "yes", "stop"), got
    for more in ({"reasoning_effort": "none"}, {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}):
        count = w.openai().chat.completions.create(model=w.model, messages=[THINK], max_tokens=1, **more).usage.prompt_tokens
        assert count == len(w.prompt([THINK], enable_thinking=False))


def check_every_form_of_a_model_name(w: World) -> None:
    sampler = w.service.create_sampling_client(model_path=w.taught).result()
    names = [w.taught, f"{w.model};{w.taught}", sampler._sampling_session_id]
    if not w.args.taught:
        training = w.trainer.save_state("state").result().path
        names += [training, f"{w.model};{training}"]
    for name in names:
        said = w.openai().chat.completions.create(model=name, messages=[GREET], temperature=0, max_tokens=40)
        assert said.choices[0].message.content == GREETING and said.model == name, name
    refused(openai.BadRequestError, lambda: w.openai().chat.completions.create(model=f"other;{w.taught}", messages=[GREET]), "other")


def check_an_answer_can_be_begun(w: World) -> None:
    begun = [GREET, {"role": "assistant", "content": "hé 世"}]
    got = w.openai().chat.completions.create(model=w.taught, messages=begun, temperature=0, max_tokens=10, extra_body={"continue_final_message": True} | IDS)
    want = list(w.tokenizer.apply_chat_template(begun, tokenize=True, continue_final_message=True))
    assert got.choices[0].model_extra["prompt_token_ids"] == want
    refused(openai.BadRequestError, lambda: w.openai().chat.completions.create(model=w.model, messages=[GREET], extra_body={"continue_final_message": True}), "continue_final_message")


def check_errors_name_what_is_wrong(w: World) -> None:
    client = w.openai(max_retries=0)
    image = {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,xx"}}]}
    cases = [
        (["messages[0].content[1]", "image", w.model, "text only"], {"messages": [image]}),
        (["messages is empty"], {"messages": []}),
        (["temperature is -1"], {"temperature": -1}),
        (["n is 0"], {"n": 0}),
        (["max_tokens is 0"], {"max_tokens": 0}),
        (["max_tokens is 99999", "context length"], {"max_tokens": 99999}),
        (["tool_choice", "required"], {"tools": [WEATHER], "tool_choice": "required"}),
        (["response_format", "json_object"], {"response_format": {"type": "json_object"}}),
        (["presence_penalty is 1"], {"presence_penalty": 1}),
        (["stop", "empty string"], {"stop": ""}),
        (["messages[0].role"], {"messages": [{"role": "poet", "content": "x"}]}),
        (["context length", "bytes"], {"messages": [{"role": "user", "content": "x" * 3_000_000}]}),
    ]
    for words, change in cases:
        for stream in (False, True):
            e = refused(openai.BadRequestError, lambda: client.chat.completions.create(**{"model": w.model, "messages": [GREET], "stream": stream} | change), *words)
            assert json.loads(e.response.content)["error"]["type"] == "invalid_request_error"
    e = refused(openai.NotFoundError, lambda: client.chat.completions.create(model="gpt-nothing", messages=[GREET]), "gpt-nothing")
    assert e.code == "not_found"
    refused(openai.BadRequestError, lambda: client.chat.completions.create(model="tinker://x", messages=[GREET]), "tinker://x")
    refused(openai.BadRequestError, lambda: client.completions.create(model=w.model, prompt=[1, 10**9]), "prompt", "1000000000")
    refused(openai.BadRequestError, lambda: client.completions.create(model=w.model, prompt=[]), "prompt")
    refused(openai.NotFoundError, lambda: client.post("/nothing", cast_to=object), "/v1/nothing")
    refused(openai.BadRequestError, lambda: client.post("/chat/completions", cast_to=object, body={"model": w.model}), "messages")
