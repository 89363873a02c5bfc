"""Numbers out of the SDK's results, and whether two ways to compute them agree."""

from __future__ import annotations

TOLERANCE = 1e-5
"""Relative to values above 1, absolute below: what 32-bit sums in another order may differ by."""


def flat(result) -> list[float]:
    """The logprobs of all datums of a forward, one after another."""
    return [x for o in result.loss_fn_outputs for x in o["logprobs"].data]


def near(got, want, what: str, tolerance: float = TOLERANCE) -> None:
    """Asserts that two numbers, or two lists of them, agree; `what` they are stands in the message."""
    got, want = ([x] if isinstance(x, (int, float)) else list(x) for x in (got, want))
    assert len(got) == len(want), f"{what}: {len(got)} values, not {len(want)}"
    for i, (a, b) in enumerate(zip(got, want)):
        assert abs(a - b) <= tolerance * max(1.0, abs(b)), f"{what}, at {i}: {a}, not {b}"
