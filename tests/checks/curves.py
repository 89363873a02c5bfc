"""Draws curves of training runs as SVG: per panel a thin line for each run and its average over five steps on top."""

from __future__ import annotations

import statistics
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 360, 300, 50, 30, 40
"""Of one panel, with the room around its axes."""
COLOURS = ["#1f6feb", "#d1242f", "#1a7f37"]


def draw(panels: dict[str, list[list[float]]], path: Path, between: tuple[float, float] | None = None) -> None:
    """Title -> the runs' value per step, one panel beside another; the value axis spans `between`, or what the values span."""
    width = WIDTH * len(panels)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" font-size="12">']
    parts.append(f'<rect width="{width}" height="{HEIGHT}" fill="white"/>')
    for i, (title, runs) in enumerate(panels.items()):
        low, high = between or (min(min(run) for run in runs), max(max(run) for run in runs))
        parts += panel(title, runs, WIDTH * i, low, high)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def panel(title: str, runs: list[list[float]], at_x: int, low: float, high: float) -> list[str]:
    steps = len(runs[0])

    def at(step: int, value: float) -> str:
        x = at_x + LEFT + step / max(1, steps - 1) * (WIDTH - LEFT - 20)
        return f"{x:.1f},{HEIGHT - BOTTOM - (value - low) / (high - low or 1) * (HEIGHT - BOTTOM - TOP):.1f}"

    parts = [f'<text x="{at_x + LEFT}" y="18">{title}</text>']
    for tick in (low + i / 4 * (high - low) for i in range(5)):
        parts.append(f'<polyline points="{at(0, tick)} {at(steps - 1, tick)}" stroke="#ddd"/>')
        parts.append(f'<text x="{at_x + 4}" y="{at(0, tick).split(",")[1]}">{tick:.2f}</text>')
    for number, (run, colour) in enumerate(zip(runs, COLOURS, strict=False)):
        parts.append(f'<text x="{at_x + WIDTH - 60 + 15 * number}" y="18" fill="{colour}">{number}</text>')
        smooth = [statistics.mean(run[max(0, i - 4) : i + 1]) for i in range(steps)]
        for values, style in ((run, 'stroke-width="1" stroke-opacity="0.35"'), (smooth, 'stroke-width="2"')):
            points = " ".join(at(i, value) for i, value in enumerate(values))
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" {style}/>')
    parts.append(f'<text x="{at_x + LEFT}" y="{HEIGHT - 14}">steps 1 to {steps}; each run and its 5-step average</text>')
    return parts
