#!/usr/bin/env python3
"""Writes tests/golden/proto/*.bin: protobuf messages as the SDK's own classes serialise them, every field away from its default.

    "$(tests/python_env)" tests/golden/make_proto.py

tests/proto.rs decodes each file, looks at the values named there, and encodes it again to the same bytes: a field that
our messages lack, or give another number or type, would be dropped or changed on the way.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tinker.proto import tinker_public_pb2 as pb

HERE = Path(__file__).resolve().parent


def i32(*x: int) -> bytes:
    return np.array(x, dtype="<i4").tobytes()


def i64(*x: int) -> bytes:
    return np.array(x, dtype="<i8").tobytes()


def f32(*x: float) -> bytes:
    return np.array(x, dtype="<f4").tobytes()


def span(kind: str, sequence_id: str, offset: int, length: int) -> pb.ProvenanceSpan:
    arm = {"prompt_tokens": pb.PromptProvenanceSpan, "sampled_tokens": pb.SampledProvenanceSpan}[kind]
    return pb.ProvenanceSpan(**{kind: arm(sequence_id=sequence_id, offset=offset, length=length)})


def request() -> pb.ForwardBackwardRequest:
    text = pb.Chunk(encoded_text=pb.EncodedTextChunk(tokens=i32(5, 6, 151643)))
    image = pb.Chunk(image=pb.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=4,
                                         override_dimensions=pb.ImageDimensions(width=640, height=480)))
    dmel = pb.Chunk(dmel=pb.DmelChunk(dmel=b"\x01\x02"))
    dense = pb.Datum(
        model_input=[text, image, dmel],
        loss_fn_inputs={
            "target_tokens": pb.Tensor(dense=i64(6, 7, 8), dtype=pb.DTYPE_INT64, shape=[3]),
            "weights": pb.Tensor(dense=f32(0.0, 1.0, -0.5), dtype=pb.DTYPE_FLOAT32, shape=[3]),
        },
        model_input_spans=[span("prompt_tokens", "seq-a", 1, 2), span("sampled_tokens", "seq-a", 3, 1)],
        loss_fn_input_spans=[span("sampled_tokens", "seq-b", 9, 3)],
    )
    csr = pb.SparseCsr(values=i64(11, 12, 13), crow_indices=i64(0, 2, 3), col_indices=i64(0, 2, 1))
    sparse = pb.Datum(
        model_input=[pb.Chunk(encoded_text=pb.EncodedTextChunk(tokens=i32(1, 2)))],
        loss_fn_inputs={"target_tokens": pb.Tensor(sparse_csr=csr, dtype=pb.DTYPE_INT64, shape=[2, 3])},
    )
    return pb.ForwardBackwardRequest(
        model_id="session:train:1", seq_id=7, data=[dense, sparse], loss_fn="ppo", forward_only=True,
        loss_fn_config={"clip_high_threshold": 1.25, "clip_low_threshold": 0.75},
        loss_fn_config_v2={"clip_high_threshold": pb.LossConfigValue(number=1.25), "loss_id": pb.LossConfigValue(text="l-1")},
    )


def output() -> pb.ForwardBackwardOutput:
    logprobs = pb.BatchedTensor(data=f32(-1.5, -2.5, -3.5), offsets=i64(0, 4, 12), dtype=pb.DTYPE_FLOAT32)
    wide = pb.BatchedTensor(data=f32(-1.0, -2.0), offsets=i64(0, 8), dtype=pb.DTYPE_FLOAT32, trailing_shape=[2])
    return pb.ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord",
        loss_fn_outputs=[
            pb.ArrayRecord(type_tag="array", fields={"logprobs": logprobs}, num_datums=2),
            pb.ArrayRecord(type_tag="array", fields={"elementwise_loss": wide, "logprobs": wide}, num_datums=1),
        ],
        metrics={"loss:sum": 12.5, "tokens:sum": 3.0},
    )


def sample() -> pb.SampleResponse:
    top = pb.TopkLogprobs(token_ids=i32(3, 4), logprobs=f32(-0.25, -1.75), k=2, length=1)
    return pb.SampleResponse(
        sequences=[
            pb.SampledSequence(stop_reason=pb.STOP_REASON_LENGTH, tokens=i32(3), logprobs=f32(-0.25), topk_sampled_logprobs=top),
            pb.SampledSequence(stop_reason=pb.STOP_REASON_STOP, tokens=i32(4, 2), logprobs=b""),
        ],
        prompt_logprobs=f32(float("nan"), -2.0),
        topk_prompt_logprobs=pb.TopkLogprobs(token_ids=i32(0, 9), logprobs=f32(-99999.0, -0.5), k=1, length=2),
        prompt_cache_hit_tokens=6,
        target_prompt_logprobs=pb.Tensor(dense=f32(0.0, -2.0), dtype=pb.DTYPE_FLOAT32, shape=[2, 1]),
        prompt_alt_tokens=pb.PromptAltTokens(
            tokens=pb.Tensor(dense=i64(8), dtype=pb.DTYPE_INT64, shape=[1, 1]),
            logprobs=pb.Tensor(dense=f32(-0.125), dtype=pb.DTYPE_FLOAT32, shape=[1, 1]),
        ),
    )


def main() -> None:
    for name, message in (("forward_backward_request", request()), ("forward_backward_output", output()), ("sample_response", sample())):
        data = message.SerializeToString(deterministic=True)
        (HERE / "proto" / f"{name}.bin").write_bytes(data)
        print(f"{name}: {len(data)} bytes")


if __name__ == "__main__":
    main()
