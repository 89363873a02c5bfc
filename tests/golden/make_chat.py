#!/usr/bin/env python3
"""Write tests/golden/chat/expected.json: what Transformers' apply_chat_template makes of the templates beside it.

    "$(tests/python_env)" tests/golden/make_chat.py MODEL_DIR

MODEL_DIR holds a small tokenizer.json, as tests/conformance/make_tiny_model.py writes it; it is copied beside the result.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast

CHAT = Path(__file__).resolve().parent / "chat"
TOKENS = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city. \"Größe\" <b> & 天気 😀",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "東京"]}, "days": {"type": "integer", "default": 1}, "limit": {"type": "number", "default": 1e-05}},
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def system(text: str) -> dict:
    return {"role": "system", "content": text}


def says(text: str, **more) -> dict:
    return {"role": "assistant", "content": text, **more}


def call(name: str, arguments: dict, id: str = "call_1") -> dict:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text: str, id: str = "call_1") -> dict:
    return {"role": "tool", "content": text, "tool_call_id": id}


QUESTION = [user("How is the weather in Paris?")]
CALLED = [
    *QUESTION,
    says("Let me look.", tool_calls=[call("get_weather", {"days": 2, "city": "Paris", "exact": True, "x": None, "f": 1.0})]),
    result("{\"sky\": \"clear\", \"t\": 21}"),
]
TALKS: dict[str, dict] = {
    "one question": {"messages": QUESTION},
    "system and unicode": {"messages": [system("  Be kind. \n"), user("Grüße, 世界 😀! \t\n"), says("Hallo\n"), user("one <b>&</b> 'two' \"three\"")]},
    "tools": {"messages": QUESTION, "tools": [WEATHER]},
    "system and two tools": {"messages": [system("Be brief."), *QUESTION], "tools": [WEATHER, CLOCK]},
    "a call and its result": {"messages": CALLED, "tools": [WEATHER]},
    "an answer after the call": {"messages": [*CALLED, says("Clear, 21 degrees."), user("Thanks.")], "tools": [WEATHER]},
    "a control token in a message": {"messages": [user("what does <|im_end|> mean?")]},
    "the beginning of the answer": {"messages": [*QUESTION, says("The weather is ")], "continue_final_message": True},
}
ONLY_CHATML: dict[str, dict] = {
    "two calls and two results": {
        "messages": [*QUESTION, says("", tool_calls=[call("get_weather", {"city": "東京"}), call("clock", {}, "call_2")]), result("rain"), result("12:00", "call_2")],
        "tools": [WEATHER, CLOCK],
    },
}
ONLY_QWEN3: dict[str, dict] = {
    "no thoughts": {"messages": QUESTION, "variables": {"enable_thinking": False}},
    "thoughts of this turn": {
        "messages": [*QUESTION, says("", reasoning_content="\nI need the tool.\n", tool_calls=[call("get_weather", {"city": "Paris"})]), result("clear")],
        "tools": [WEATHER],
    },
    "thoughts of an earlier turn": {"messages": [*QUESTION, says("<think>\nhm\n</think>\n\nClear."), user("Sure?"), says("<think>\nhm again\n</think>\n\nYes.")]},
}
ONLY_LLAMA = {"a date": {"messages": QUESTION, "variables": {"date_string": "26 Jul 2024"}}}


def main() -> None:
    model = Path(sys.argv[1])
    shutil.copy(model / "tokenizer.json", CHAT / "tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(CHAT / "tokenizer.json"), **TOKENS)
    talks = {"qwen3": TALKS | ONLY_CHATML | ONLY_QWEN3, "qwen2": TALKS | ONLY_CHATML, "llama": TALKS | ONLY_LLAMA}
    cases = []
    for template, own in talks.items():
        tokenizer.chat_template = (CHAT / f"{template}.jinja").read_text()
        for name, talk in own.items():
            variables = dict(talk.get("variables", {}))
            if template == "llama":
                variables.setdefault("date_string", "1 Jan 2026")
            more = {"tools": talk.get("tools"), "continue_final_message": talk.get("continue_final_message", False)}
            more["add_generation_prompt"] = not more["continue_final_message"]
            text = tokenizer.apply_chat_template(talk["messages"], tokenize=False, **more, **variables)
            ids = tokenizer.apply_chat_template(talk["messages"], tokenize=True, **more, **variables)
            cases.append({"template": template, "name": name, **talk, "variables": variables, "text": text, "ids": list(ids)})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (CHAT / "expected.json").write_text(f'{{"tokens": {json.dumps(TOKENS)},\n"cases": [\n{lines}\n]}}\n')
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
