"""`/v1/messages` and `/v1/messages/count_tokens` through the `anthropic` package."""

from __future__ import annotations

import anthropic
from compatible_world import GREET, GREETING, SEARCH, THINK, WEATHER, World, close
from runner import refused

TOOL = {"name": "weather", "input_schema": WEATHER["function"]["parameters"]}
IDS = {"return_token_ids": True}
# The package has no argument for these any more.
GREEDY = {"temperature": 0}


def parts(message) -> list[tuple]:
    kinds = {"text": lambda b: b.text, "thinking": lambda b: b.thinking, "tool_use": lambda b: (b.name, b.input)}
    return [(b.type, kinds[b.type](b)) for b in message.content]


def both(client: anthropic.Anthropic, **request) -> anthropic.types.Message:
    """A message in one piece and streamed: both must say the same."""
    extra = IDS | request.pop("extra_body", {})
    whole = client.messages.create(extra_body=extra, **request)
    with client.messages.stream(extra_body=extra, **request) as stream:
        final = stream.get_final_message()
    assert parts(final) == parts(whole) and final.usage == whole.usage, f"{final} is not {whole}"
    assert (final.stop_reason, final.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    return whole


def check_a_message_is_the_sdks_sample(w: World) -> None:
    ids = w.prompt([{"role": "system", "content": "Sei höflich."}, GREET])
    (want,) = w.sample(ids, max_tokens=12, seed=9, temperature=0.8)
    got = w.anthropic().messages.create(model=w.model, system="Sei höflich.", messages=[GREET], max_tokens=12, extra_body=IDS | {"seed": 9, "temperature": 0.8})
    extra = got.model_extra
    assert extra["prompt_token_ids"] == ids and extra["token_ids"] == list(want.tokens) and close(extra["logprobs"], want.logprobs)
    assert got.stop_reason == ("max_tokens" if want.stop_reason == "length" else "end_turn") and got.role == "assistant"
    assert (got.usage.input_tokens, got.usage.output_tokens) == (len(ids), len(want.tokens))


def check_events_come_in_their_order(w: World) -> None:
    request = dict(model=w.taught, messages=[GREET], max_tokens=40, extra_body=IDS | GREEDY)
    with w.anthropic().messages.create(stream=True, **request) as stream:
        events = list(stream)
    kinds = [e.type for e in events if e.type != "ping"]
    deltas = kinds.count("content_block_delta")
    assert deltas > 1 and kinds == ["message_start", "content_block_start", *["content_block_delta"] * deltas, "content_block_stop", "message_delta", "message_stop"]
    assert "".join(e.delta.text for e in events if e.type == "content_block_delta") == GREETING
    start, last = events[0].message, events[-2]
    assert start.usage.input_tokens == len(w.prompt([GREET])) == len(start.model_extra["prompt_token_ids"]) and start.content == []
    assert last.delta.stop_reason == "end_turn" and last.usage.output_tokens == len(last.model_extra["token_ids"]) == len(last.model_extra["logprobs"])
    whole = w.anthropic().messages.create(**request)
    assert last.model_extra["token_ids"] == whole.model_extra["token_ids"] and last.model_extra["logprobs"] == whole.model_extra["logprobs"]


def check_tools_are_called_and_answered(w: World) -> None:
    client = w.anthropic()
    got = both(client, model=w.taught, messages=[SEARCH], tools=[TOOL], max_tokens=200, extra_body=GREEDY)
    assert parts(got) == [("text", "I look."), ("tool_use", ("weather", {"days": 2, "city": "Zürich"}))] and got.stop_reason == "tool_use", got
    assert got.model_extra["prompt_token_ids"] == w.prompt([SEARCH], tools=[WEATHER])
    content = got.to_dict()["content"]
    result = {"type": "tool_result", "tool_use_id": content[1]["id"], "content": [{"type": "text", "text": "sun"}]}
    messages = [SEARCH, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    then = both(client, model=w.taught, messages=messages, tools=[TOOL], max_tokens=50, extra_body=GREEDY)
    assert parts(then) == [("text", "sunny")] and then.stop_reason == "end_turn"
    sampled = got.model_extra["prompt_token_ids"] + got.model_extra["token_ids"]
    assert then.model_extra["prompt_token_ids"][: len(sampled)] == sampled


def check_thoughts_are_blocks(w: World) -> None:
    got = both(w.anthropic(), model=w.taught, messages=[THINK], max_tokens=60, extra_body=GREEDY)
    assert parts(got) == [("thinking", "a b\n\nc"), ("text", "yes")]
    count = w.anthropic().messages.count_tokens(model=w.model, messages=[THINK], thinking={"type": "disabled"})
    assert count.input_tokens == len(w.prompt([THINK], enable_thinking=False))


def check_stop_sequences(w: World) -> None:
    for stop, text, reason, found in [(["世"], "hé ", "stop_sequence", "世"), (["absent"], GREETING, "end_turn", None)]:
        got = both(w.anthropic(), model=w.taught, messages=[GREET], max_tokens=40, extra_body=GREEDY, stop_sequences=stop)
        assert (parts(got), got.stop_reason, got.stop_sequence) == ([("text", text)], reason, found)
    got = both(w.anthropic(), model=w.taught, messages=[GREET], max_tokens=2, extra_body=GREEDY)
    assert got.stop_reason == "max_tokens" and got.usage.output_tokens == 2


def check_tokens_are_counted_as_they_are_spent(w: World) -> None:
    client = w.anthropic()
    for more in ({}, {"system": "be kind"}, {"tools": [TOOL]}, {"system": [{"type": "text", "text": "be kind"}], "tools": [TOOL]}):
        count = client.messages.count_tokens(model=w.model, messages=[GREET], **more).input_tokens
        assert count == client.messages.create(model=w.model, messages=[GREET], max_tokens=1, **more).usage.input_tokens


def check_an_answer_can_be_begun(w: World) -> None:
    begun = [GREET, {"role": "assistant", "content": "hé"}]
    got = w.anthropic().messages.create(model=w.taught, messages=begun, max_tokens=1, extra_body=IDS)
    assert got.model_extra["prompt_token_ids"] == list(w.tokenizer.apply_chat_template(begun, tokenize=True, continue_final_message=True))


def check_errors_name_what_is_wrong(w: World) -> None:
    client = w.anthropic(max_retries=0)
    image = {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "xx"}}]}
    cases = [
        (["messages[0].content[0]", "image", w.model], {"messages": [image]}),
        (["max_tokens is 0"], {"max_tokens": 0}),
        (["max_tokens is 99999", "context length"], {"max_tokens": 99999}),
        (["temperature is -1"], {"extra_body": {"temperature": -1}}),
        (["stop_sequences", "empty string"], {"stop_sequences": [""]}),
        (["tool_choice", "any"], {"tools": [TOOL], "tool_choice": {"type": "any"}}),
        (["tools[0].type", "web_search"], {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ]
    for words, change in cases:
        for stream in (False, True):
            e = refused(anthropic.BadRequestError, lambda: client.messages.create(**{"model": w.model, "messages": [GREET], "max_tokens": 5, "stream": stream} | change), *words)
            assert e.body["type"] == "error" and e.body["error"]["type"] == "invalid_request_error"
    e = refused(anthropic.NotFoundError, lambda: client.messages.create(model="claude-nothing", messages=[GREET], max_tokens=5), "claude-nothing")
    assert e.body["error"]["type"] == "not_found_error"
    refused(anthropic.BadRequestError, lambda: client.post("/v1/messages", cast_to=object, body={"model": w.model, "messages": [GREET]}), "max_tokens")
