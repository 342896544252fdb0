#!/usr/bin/env python3
"""Draws the pictures of docs/caches.md: one SVG a kind of cache, rows of cells that stand for slots.

    scripts/draw_caches.py            write docs/pictures/*.svg
    scripts/draw_caches.py --check    fail if a picture there is not what this draws
"""

import argparse
import html
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
CELL, GAP, LEFT, LINE = 34, 4, 170, 50
COLOURS = {  # fill, border, text
    "held": ("#cfe3ff", "#2f6fc4", "#10325e"),  # promised to the next query
    "new": ("#ffe2b8", "#c77a12", "#5e3505"),  # the step's own tokens
    "kept": ("#e4dcf7", "#7a5bc2", "#35215f"),  # recorded, or shared with others
    "spare": ("#f4f4f4", "#b9b9b9", "#8a8a8a"),  # reserved, empty
    "gone": ("#ffffff", "#dddddd", "#c4c4c4"),  # seen and dropped
}
LEGEND = [("held", "held"), ("new", "new in this step"), ("kept", "recorded or shared"),
          ("spare", "reserved"), ("gone", "dropped")]


def cells(kind, texts):
    return [(kind, str(text)) for text in texts]


def draw(title, rows, notes=()):
    """rows: (label, [(kind, text), ...]); a cell of kind None is a space."""
    width = LEFT + max(max(len(row) for _, row in rows) * (CELL + GAP) + 20, 470)
    height = 46 + LINE * len(rows) + 20 * len(notes) + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
           f'<text x="12" y="24" font-size="15" font-weight="bold">{html.escape(title)}</text>']
    y = 42
    for label, row in rows:
        out.append(f'<text x="12" y="{y + 22}">{html.escape(label)}</text>')
        for i, (kind, text) in enumerate(row):
            if kind is None:
                continue
            fill, border, ink = COLOURS[kind]
            x = LEFT + i * (CELL + GAP)
            dash = ' stroke-dasharray="4 3"' if kind in ("spare", "gone") else ""
            out.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="4" fill="{fill}" '
                       f'stroke="{border}"{dash}/>')
            out.append(f'<text x="{x + CELL / 2:g}" y="{y + 22}" text-anchor="middle" '
                       f'fill="{ink}">{html.escape(text)}</text>')
        y += LINE
    for note in notes:
        out.append(f'<text x="12" y="{y + 10}" fill="#555555">{html.escape(note)}</text>')
        y += 20
    used = {kind for _, row in rows for kind, _ in row}
    x = 12
    for kind, meaning in LEGEND:
        if kind in used:
            fill, border, _ = COLOURS[kind]
            out.append(f'<rect x="{x}" y="{y + 10}" width="14" height="14" rx="3" fill="{fill}" '
                       f'stroke="{border}"/>')
            out.append(f'<text x="{x + 20}" y="{y + 22}" fill="#555555">{meaning}</text>')
            x += 34 + 8 * len(meaning)
    return "\n".join(out + ["</svg>"]) + "\n"


def pictures():
    spare = cells("spare", "      ")
    yield "dynamic_full", draw("DynamicLayer: every token, in a buffer that doubles", [
        ("six tokens", cells("held", range(6)) + spare[:2]),
        ("one more", cells("held", range(6)) + cells("new", [6]) + spare[:1]),
        ("full: a copy, once", cells("held", range(8)) + cells("new", [8]) + spare + spare[:1]),
    ])
    yield "dynamic_sliding", draw("DynamicSlidingWindowLayer, window 4: three past tokens", [
        ("five tokens", cells("gone", [0, 1]) + cells("held", [2, 3, 4]) + spare[:3]),
        ("one more", cells("gone", [0, 1]) + cells("held", [2, 3, 4]) + cells("new", [5]) +
         spare[:2]),
        ("at the end: to the front", cells("held", [6, 7, 8]) + spare[:5]),
    ], ["The held slots move along the buffer; nothing is rolled token by token."])
    yield "static_full", draw("StaticLayer, max_cache_len 8: one address for life", [
        ("three tokens", cells("held", range(3)) + spare[:5]),
        ("two more", cells("held", range(3)) + cells("new", [3, 4]) + spare[:3]),
    ], ["A ninth token is refused before anything is written."])
    yield "static_sliding", draw("StaticSlidingWindowLayer, window 4: a ring", [
        ("five tokens", cells("held", [4]) + cells("gone", [1]) + cells("held", [2, 3])),
        ("one more", cells("held", [4]) + cells("new", [5]) + cells("held", [2, 3])),
        ("read in order", cells("held", [2, 3]) + [(None, "")] + cells("held", [4]) +
         cells("new", [5])),
    ], ["The slot of the token that left takes the new one; queries read two segments."])
    yield "chunked", draw("Chunked attention, chunks of 4: what a query sees", [
        ("query at 6", cells("gone", [0, 1, 2, 3]) + cells("held", [4, 5]) + cells("new", [6])),
        ("query at 8", cells("gone", range(8)) + cells("new", [8])),
    ], ["Held like a sliding window of the same size; the mask alone differs."])
    yield "recording", draw("activate_past_recording(2), window 4: two tokens can be taken back", [
        ("seven tokens", cells("gone", [0, 1]) + cells("kept", [2, 3]) + cells("held", [4, 5, 6])),
        ("crop(-2)", cells("gone", [0, 1]) + cells("held", [2, 3, 4])),
    ])
    yield "linear", draw("LinearAttentionLayer: states instead of tokens", [
        ("convolution, 4 taps", cells("held", ["x4", "x5", "x6"]) + cells("new", ["x7"])),
        ("recurrence", cells("held", ["h6"]) + cells("new", ["h7"])),
        ("recording", cells("kept", ["h3", "h4", "h5"]) + cells("held", ["h6"])),
    ], ["Taking two tokens back goes on from the recorded h4."])
    yield "hybrid", draw("Hybrid layer: keys and states of one layer, one length", [
        ("keys and values", cells("held", range(6)) + spare[:2]),
        ("convolution", cells("held", ["x3", "x4", "x5"])),
        ("recurrence", cells("held", ["h5"])),
    ])
    yield "shared", draw("SharedLayer: reads the keys of its donor", [
        ("layer 0", cells("held", range(4)) + cells("new", [4])),
        ("layer 1, donor 0", cells("kept", range(5))),
    ], ["Its query stands where the donor's did: at the length before the step."])
    yield "encoder_decoder", draw("EncoderDecoderCache: two caches", [
        ("self attention", cells("held", range(3)) + cells("new", [3])),
        ("cross attention", cells("held", ["e0", "e1", "e2", "e3", "e4"])),
    ], ["The encoder's keys are computed once an input; crop and windows leave them alone."])
    yield "fork", draw("expand(3): one prefix, three tails", [
        ("prefix, once", cells("kept", range(5))),
        ("row 0", [(None, "")] * 5 + cells("held", ["a", "b"])),
        ("row 1", [(None, "")] * 5 + cells("held", ["c", "d"])),
        ("row 2", [(None, "")] * 5 + cells("held", ["e", "f"])),
    ], ["Attention reads prefix and tail as two segments; reordering rows moves tails only."])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for name, text in pictures():
        path = FOLDER / f"{name}.svg"
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"draw_caches: not up to date: {', '.join(stale)}; run scripts/draw_caches.py")


if __name__ == "__main__":
    main()
