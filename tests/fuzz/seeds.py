#!/usr/bin/env python3
"""Writes what fuzzing starts from: DIR/<target>/<name> for each target, and DIR/<target>.dict with words to try.

    seeds.py DIR
"""

import json
import random
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"

# As in targets/json.rs: the byte that stands before a body, by route.
KINDS = {
    "create_session": 0, "session_heartbeat": 1, "sessions/{session_id}/finish": 2, "sessions/{session_id}/project": 3,
    "create_model": 4, "get_info": 5, "forward_backward": 6, "forward": 7, "optim_step": 8, "unload_model": 9,
    "save_weights": 10, "load_weights": 11, "save_weights_for_sampler": 12, "save_weights_external": 13,
    "weights_info": 14, "copy_weights": 15, "training_runs/{run_id}/checkpoints/{kind}/{name}/ttl": 16,
    "external_weights_upload_start": 17, "external_weights_upload_finish": 18, "create_sampling_session": 19,
    "join_sampling_session": 20, "asample": 21, "retrieve_future": 22, "retrieve_futures": 23, "cancel_future": 24,
    "sessions/search": 25, "checkpoints/search": 26, "telemetry": 27, "create_custom_loss": 28, "client/config": 31,
}  # fmt: skip
CHATS = {"/v1/chat/completions": 29, "/v1/completions": 30, "/v1/messages": 32}

# Bodies that the examples of the OpenAPI document do not show.
MORE = {
    4: [{"session_id": "s", "model_seq_id": 0, "base_model": "m:full", "lora_config": None}],
    6: [
        {"model_id": "m", "seq_id": 1, "forward_backward_input": {
            "loss_fn": loss, "loss_fn_config": config, "data": [{
                "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
                "loss_fn_inputs": {
                    "target_tokens": {"data": [2, 3], "dtype": "int64", "shape": [2]},
                    "logprobs": {"data": [-1.0, -0.5], "dtype": "float32", "shape": [2]},
                    "advantages": {"data": [0.5, 1], "dtype": "float32"},
                    "sequence_ratio_mask": {"data": [1, 1], "dtype": "float32"}}}]}}
        for loss, config in [("ppo", {"clip_low_threshold": 0.8}), ("gspo", {}), ("dro", {"beta": 0.1}), ("custom", {"loss_id": "l"})]
    ] + [
        {"model_id": "m", "seq_id": 1, "forward_backward_input": {"loss_fn": "cross_entropy", "data": [{
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
            "loss_fn_inputs": {"target_tokens": {
                "data": [5], "dtype": "int64", "shape": [2, 3], "sparse_crow_indices": [0, 0, 1],
                "sparse_col_indices": [1]}}}]}},
    ],
    21: [
        {"sampling_session_id": "s", "seq_id": 1, "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
         "sampling_params": {"stop": stop, "top_k": 3}, "prompt_logprobs": True, "prompt_logprobs_last_n": 2,
         "target_prompt_logprobs": {"data": [1, -1], "dtype": "int64", "shape": [2, 1]}}
        for stop in ["x", ["a", "b"], [4, 5], []]
    ],
    29: [{"model": "m", "messages": [
        {"role": "system", "content": [{"type": "text", "text": "a"}]}, {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "1"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "stop": ["x"], "chat_template_kwargs": {"a": [1, None]}, "continue_final_message": False}],
    30: [{"model": "m", "prompt": p, "echo": True, "logprobs": 2} for p in (["a", "b"], [1, 2], [[1], [2]])],
    32: [{"model": "m", "max_tokens": 4, "system": "s", "thinking": {"type": "enabled"}, "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "1"}]}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}]}],
}  # fmt: skip

TEMPLATES = [
    "{% for m in messages %}{{ m.role }}: {{ m['content']|trim }}\n{% endfor %}",
    "{%- if tools %}{{ tools|tojson(indent=4) }}{% endif %}{% for m in messages %}{{ m|tojson }}{% endfor %}",
    "{% macro f(a, b='z') %}{{ a ~ b }}{% endmacro %}{{ f(messages[0].content, b=messages|length) }}",
    "{% set n = namespace(x=0) %}{% for i in range(9) %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}{{ bos_token }}",
    "{{ messages[::-1]|map(attribute='role')|join(', ') }}{{ raise_exception('no') if not messages else 'a'.upper() }}",
    "{% generation %}{{ messages[-1].content.split('a')[-1].lstrip('b') }}{% endgeneration %}{{ strftime_now('%Y') }}",
]


def body(value) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def json_seeds():
    paths = json.loads((ROOT / "openapi/openapi.json").read_text())["paths"]
    routes = {f"/api/v1/{route}": kind for route, kind in KINDS.items()} | CHATS
    for route, kind in routes.items():
        operation = paths[route].get("post") or paths[route]["put"]
        yield bytes([kind]) + body(operation["requestBody"]["content"]["application/json"]["example"])
    for kind, bodies in MORE.items():
        yield from (bytes([kind]) + body(b) for b in bodies)


def json_words():
    schemas = json.loads((ROOT / "openapi/openapi.json").read_text())["components"]["schemas"]
    words = {name for schema in schemas.values() for name in schema.get("properties", {})}
    return sorted(f'"{word}":' for word in words) + ["null", "1e308", "-0.0", "18446744073709551615", '"float32"', "tinker://"]


def safetensors(tensors) -> bytes:
    """Of (name, dtype, shape), all zeros."""
    header, at = {}, 0
    for name, dtype, shape in tensors:
        size = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8}[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    head = body(header)
    return struct.pack("<Q", len(head)) + head + bytes(at)


def model(dtype):
    """The model of targets/safetensors.rs."""
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": [3, 2], "model.norm.weight": [2], layer + "input_layernorm.weight": [2],
        layer + "post_attention_layernorm.weight": [2], layer + "self_attn.q_norm.weight": [2],
        layer + "self_attn.k_norm.weight": [2],
    } | {f"{layer}self_attn.{p}_proj.weight": [2, 2] for p in "qkvo"} | {
        f"{layer}mlp.{p}_proj.weight": [2, 2] for p in ("gate", "up", "down")}  # fmt: skip
    return [(name, dtype, shape) for name, shape in shapes.items()]


def adapters():
    q = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    head = "base_model.model.lm_head.lora_{}.weight"
    plain = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    arrays = [(q.format("A"), "F32", [2, 2]), (q.format("B"), "F32", [2, 2])]
    yield body(plain) + b"\0" + safetensors(arrays)
    halves = [(name, "BF16", shape) for name, _, shape in arrays]
    yield body(plain | {"use_rslora": True, "target_modules": "all-linear"}) + b"\0" + safetensors(halves)
    heads = [(head.format("A"), "F16", [2, 2]), (head.format("B"), "F16", [3, 2])]
    yield body(plain | {"target_modules": ["lm_head"], "lora_alpha": 1e308, "r": 2}) + b"\0" + safetensors(heads)


def tokenizers():
    letters = [chr(c) for c in range(0x21, 0x7F)] + ["Ġ", "Ċ"]
    vocab = {c: i for i, c in enumerate(letters)} | {"he": 96, "hel": 97}
    end = {"id": 98, "content": "<|e|>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    part = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
             "pre_tokenizer": part, "post_processor": None, "decoder": part,
             "model": {"type": "BPE", "vocab": vocab, "merges": [["h", "e"], ["he", "l"]]}}  # fmt: skip
    yield whole
    yield whole | {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "▁"},
                       {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": "▁"}]},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\p{N}"}, "behavior": "Isolated", "invert": False},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|e|>", "type_id": 0}},
                           {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
                           "special_tokens": {"<|e|>": {"id": "<|e|>", "ids": [98], "tokens": ["<|e|>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                    {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}}  # fmt: skip
    yield whole | {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["h", -1.5], ["he", -2.0]], "byte_fallback": False}}
    yield whole | {"model": {"type": "WordPiece", "unk_token": "h", "continuing_subword_prefix": "##",
                             "max_input_chars_per_word": 9, "vocab": {"h": 0, "##e": 1}}}  # fmt: skip
    yield whole | {"model": {"type": "WordLevel", "vocab": {"hello": 0, "there": 1}, "unk_token": "hello"},
                   "pre_tokenizer": {"type": "Whitespace"}, "decoder": None,
                   "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
                   "padding": {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                               "pad_type_id": 0, "pad_token": "hello"}}  # fmt: skip


def zstd_frame(block: bytes, size: int) -> bytes:
    """A frame of one given block that says it unpacks to `size` bytes."""
    return b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", size) + block


def zstd_seeds():
    raw = struct.pack("<I", 1 | 5 << 3)[:3] + b"hello"
    run = struct.pack("<I", 1 | 1 << 1 | 100_000 << 3)[:3] + b"x"
    # Without a size, with a window of 128 MiB.
    windowed = b"\x28\xb5\x2f\xfd\x00" + bytes([(27 - 10) << 3]) + raw
    for frame in (zstd_frame(raw, 5), zstd_frame(run, 100_000), zstd_frame(raw, 1 << 30), windowed, b"{}" * 40):
        yield struct.pack("<II", 1 << 20, 3) + frame
        yield struct.pack("<II", 4, 1) + frame + frame


def varint(n: int) -> bytes:
    out = b""
    while n > 0x7F:
        out, n = out + bytes([n & 0x7F | 0x80]), n >> 7
    return out + bytes([n])


def field(number: int, value) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def protobuf_seeds():
    yield (GOLDEN / "proto/forward_backward_request.bin").read_bytes()
    ints, floats = struct.pack("<2q", 2, 3), struct.pack("<2f", -1.0, 0.5)

    def tensor(dtype: int, dense: bytes, shape=b"\x02") -> bytes:
        return field(1, dense) + field(3, dtype) + field(4, shape)

    inputs = {b"target_tokens": tensor(2, ints), b"logprobs": tensor(1, floats), b"advantages": tensor(1, floats),
              b"sequence_ratio_mask": tensor(1, floats)}  # fmt: skip
    csr = field(2, field(1, struct.pack("<q", 5)) + field(2, struct.pack("<3q", 0, 0, 1)) + field(3, struct.pack("<q", 1)))
    sparse = {b"target_tokens": csr + field(3, 2) + field(4, b"\x02\x03")}
    span = field(1, field(1, b"s") + field(3, 2))
    for loss, given in ((b"ppo", inputs), (b"gspo", inputs), (b"stable_reinforce", inputs), (b"cross_entropy", sparse)):
        chunk = field(1, field(1, struct.pack("<2i", 1, 2)))
        datum = field(1, chunk) + b"".join(field(2, field(1, k) + field(2, v)) for k, v in given.items())
        datum += field(3, span) + field(4, span)
        config = field(7, field(1, b"kl_coeff") + field(2, b"\x09" + struct.pack("<d", 0.5))) if loss[0] == ord("s") else b""
        yield field(1, b"m") + field(2, 4) + field(3, datum) * 2 + field(4, loss) + config


def chats():
    conversations = [body(MORE[29][0]), body(MORE[32][0])]
    for template in [*TEMPLATES, "l", "q", "t"]:
        yield from (template.encode() + b"\0" + c for c in conversations)


def seeds():
    noise = random.Random(0)
    return {
        "adapter": list(adapters()),
        "chat_template": list(chats()),
        "custom_loss": [noise.randbytes(n) for n in (16, 40, 80, 120, 160, 200, 240) for _ in range(6)],
        "http_text": [
            struct.pack("<Q", 100) + text
            for text in (
                b"bytes=0-3", b"bytes=4-", b"bytes=-5", b"bytes=99-200", b"limit=20&offset=3", b"0.38.0", b"2026-11-03",
                b"limit=5&access_scope=accessible&project_id=p", b"2026-11-03T04:00:00Z 2026-11-05T00:00:00Z",
                b'{"model_id":"m","seq_id":"4"}', b"day=2026-11-03&limit=5", b"start_date=2026-11-01&end_date=2026-11-03",
            )  # fmt: skip
        ],
        "json": list(json_seeds()),
        "protobuf": list(protobuf_seeds()),
        "safetensors": [safetensors(model(d)) for d in ("F32", "BF16", "F16")] + [safetensors([("a", "I64", [2]), ("b", "F32", [0, 3])])],
        "tinker_path": [
            b"tinker://s:train:0/weights/step_1", b"tinker://s:train:0/sampler_weights/a.b-c", b"a-train-7", b"..",
            b"tinker://0a4c1f5e:train:12/external_weights/x",
        ],  # fmt: skip
        "tokenizer": [body(t) + b"\0hello there" for t in tokenizers()] + [b"\x01" + "hé 世界 😀 <|im_end|>".encode()],
        "zstd": list(zstd_seeds()),
    }


WORDS = {
    "adapter": ["lora_alpha", "use_rslora", "data_offsets", ".lora_A.weight", "lm_head", "BF16", "1e308"],
    "chat_template": ["{%", "%}", "{{", "}}", "{% for ", "{% set ", "{% endfor %}", "|tojson", "messages", "range(", "namespace("],
    "http_text": ["bytes=", "limit=", "offset=", "access_scope=", "T00:00:00Z", '"seq_id":', '"model_id":'],
    "protobuf": ["target_tokens", "weights", "cross_entropy", "importance_sampling", "clip_low_threshold", "advantages"],
    "safetensors": ["data_offsets", "dtype", "shape", "F8_E4M3", "BF16", "__metadata__", "18446744073709551615"],
    "tinker_path": ["tinker://", "/weights/", "/sampler_weights/", "/external_weights/", ":train:", "-train-"],
    "tokenizer": ["byte_fallback", "Metaspace", "Unigram", "BertNormalizer", "Precompiled", "Split", "Digits", "CTC", "merges"],
}  # fmt: skip


def main():
    out = Path(sys.argv[1])
    words = WORDS | {"json": json_words()}
    for target, inputs in seeds().items():
        (out / target).mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(inputs):
            (out / target / f"seed-{i:02}").write_bytes(data)
        lines = ["".join(f"\\x{b:02x}" for b in word.encode()) for word in words.get(target, [])]
        (out / f"{target}.dict").write_text("".join(f'"{line}"\n' for line in lines))


main()
