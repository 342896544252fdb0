#!/usr/bin/env python3
"""What quantized caches cost SmolLM2 in quality, beside Transformers' own.

The mean negative log-likelihood (NLL) of English text (Debian's common licenses) in windows of 4,096
tokens fed in pieces of 64: Transformers hands out dense states on a cache's first update, so a
single pass measures nothing. Both sides in float32, one process a row and side; a row's two sides,
and the dense caches that they are compared with, are over the same tokens.

Every piece's sum is kept in --results, so that a run can be ended and gone on with, or done in
parts (--only, --tokens); what is there is not measured again (but see --again). Transformers' caches
without a recent window quantize all that they hold anew with each piece: --limit ends such a row
after so many seconds, and it is then compared over what was reached. A later run with a larger
limit goes on from its last whole window. The table, in Markdown, is printed at the end, or with
--table alone.

    ~/.cache/kvcache/oracle/bin/python benchmarks/quantization_loss.py [--only "hqq 3 bits"]

Needs torch and transformers where it runs (scripts/make_oracle.sh), and scripts/fetch_model.py.
"""

import argparse
import concurrent.futures
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import fetch_model  # noqa: E402

LICENSES = Path("/usr/share/common-licenses")
TEXTS = ("GPL-3", "Apache-2.0", "GFDL-1.3", "MPL-2.0", "Artistic", "LGPL-2.1")
WINDOW, PIECE = 4096, 64  # as in quantization_loss.cpp
SIDES = ("ours", "oracle")
OURS_ALONE = ("rotate_keys", "pinned_tokens")  # what Transformers has no word for


# ---- the rows -----------------------------------------------------------------------------------


def grouped(backend, nbits, axes, residual, **more):
    return {
        "backend": backend,
        "nbits": nbits,
        "axis_key": axes[0],
        "axis_value": axes[1],
        "residual_length": residual,
        **more,
    }


def configs():
    """Each backend, nbits and its usual axes; then what Transformers has not."""
    yield None
    for residual in (0, 128):
        for nbits in (4, 2):
            for axes in ((0, 0), (-1, 0)):
                yield grouped("quanto", nbits, axes, residual)
        for nbits in (8, 4, 3, 2, 1):
            yield grouped("hqq", nbits, (1, 1), residual)
        for nbits in (4, 3, 2):
            yield grouped("hqq", nbits, (0, 1), residual)
    yield {"backend": "fp8"}
    for residual in (0, 128):
        for nbits in (8, 4):
            yield {"backend": "int", "nbits": nbits, "residual_length": residual}
    for axes in ((1, 1), (0, 1)):
        for more in (
            {"rotate_keys": True},
            {"pinned_tokens": 4},
            {"rotate_keys": True, "pinned_tokens": 4},
        ):
            yield grouped("hqq", 3, axes, 0, **more)


def name_of(config):
    if config is None:
        return "dense"
    name = config["backend"]
    if "nbits" in config:
        name += f" {config['nbits']} bits"
    if "axis_key" in config:
        name += f", axes {config['axis_key']} {config['axis_value']}"
    if "residual_length" in config:
        name += f", residual {config['residual_length']}"
    if config.get("rotate_keys"):
        name += ", keys rotated"
    if config.get("pinned_tokens"):
        name += f", {config['pinned_tokens']} pinned"
    return name


def has_oracle(config):
    return config is None or (
        config["backend"] != "int" and not any(field in config for field in OURS_ALONE)
    )


# ---- measuring: both sides print a line a piece, its sum and its number of tokens ---------------


def serve(options):
    """The oracle's side of one row."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    ids = json.loads(options.worker[0].read_text())
    config = json.loads(options.worker[1].read_text())
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    with torch.inference_mode():
        for first in range(0, len(ids), WINDOW):
            window = torch.tensor(ids[first : first + WINDOW])
            if config is None:
                cache = transformers.DynamicCache(config=model.config)
            else:
                settings = dict(config)
                backend = settings.pop("backend")
                cache = transformers.QuantizedCache(backend, model.config, **settings)
            for at in range(0, len(window), PIECE):
                piece = window[at : at + PIECE]
                logits = model(piece[None], past_key_values=cache, use_cache=True).logits[0]
                targets = window[at + 1 : at + 1 + len(piece)]
                chosen = logits[: len(targets)].log_softmax(-1).gather(1, targets[:, None])
                print(f"{-chosen.double().sum().item():.8f} {len(targets)}", flush=True)


def command_of(options, side, folder, ids, config):
    """The process that measures `ids`, whose files lie in `folder`."""
    (folder / "ids.json").write_text(json.dumps(ids))
    if side == "oracle":
        (folder / "config.json").write_text(json.dumps(config))
        command = [sys.executable, "-W", "ignore", __file__, "--model", str(options.model)]
        command += ["--threads", str(options.threads)]
        return [*command, "--worker", str(folder / "ids.json"), str(folder / "config.json")]
    fields = {}
    if config is not None:
        fields = {"cache_implementation": "quantized", "cache_config": config}
    (folder / "config.json").write_text(json.dumps(fields))
    return [
        str(options.program),
        str(options.model),
        str(folder / "ids.json"),
        str(folder / "config.json"),
    ]


def measure(options, side, ids, config, on_window):
    """The pieces that were done, and why it ended: "" (all), "too slow", the error's line or a
    signal. `on_window` is handed the pieces so far at the end of each window."""
    limit = options.limit if side == "oracle" else None
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
    pieces, late = [], threading.Event()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        command = command_of(options, side, Path(folder), ids, config)
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
        timer = threading.Timer(limit or 0, lambda: (late.set(), child.kill()))
        if limit:
            timer.start()
        try:
            for line in child.stdout:
                if len(words := line.split()) == 2 and line.endswith("\n"):
                    pieces.append([float(words[0]), int(words[1])])
                    if len(pieces) * PIECE % WINDOW == 0:
                        on_window(pieces)
            child.wait()
        finally:
            timer.cancel()
            child.kill()
            child.wait()
        if late.is_set():
            return pieces, "too slow"
        if child.returncode < 0:
            return pieces, f"ended by signal {-child.returncode}"
        if child.returncode != 0:
            errors.seek(0)
            lines = errors.read().strip().splitlines() or [f"exit code {child.returncode}"]
            return pieces, "fails: " + lines[-1]
    return pieces, ""


# ---- results ------------------------------------------------------------------------------------


class Results:
    """By row and side: `pieces`, [sum, tokens] each, `ended`, `limit`, and the seconds it took."""

    def __init__(self, path, facts):
        self.path, self.facts, self.rows, self.lock = path, facts, {}, threading.Lock()
        if path.exists():
            kept = json.loads(path.read_text())
            if kept["facts"] != facts:
                sys.exit(f"error: {path} is of {kept['facts']}, not of {facts}; name another file")
            self.rows = kept["rows"]

    def row(self, config, side):
        empty = {"pieces": [], "ended": "", "limit": None, "seconds": 0}
        return self.rows.setdefault(name_of(config), {}).setdefault(side, empty)

    def save(self):
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"facts": self.facts, "rows": self.rows}) + "\n")
        new.replace(self.path)


def is_done(row, options):
    if len(row["pieces"]) * PIECE >= options.tokens or row["ended"].startswith("fails"):
        return True
    limit = options.limit or math.inf
    return row["ended"] == "too slow" and limit <= (row["limit"] or math.inf)


def fill(options, results, ids, config, side):
    """Measures what the row lacks, from its last whole window on."""
    with results.lock:
        row = results.row(config, side)
    if side in options.again:
        row.update(pieces=[], ended="", limit=None, seconds=0)
    if is_done(row, options):
        return
    kept = len(row["pieces"]) * PIECE // WINDOW * WINDOW
    first, start = row["pieces"][: kept // PIECE], time.monotonic()

    def keep(pieces, ended=""):
        with results.lock:
            if len(first) + len(pieces) >= len(row["pieces"]):
                row["pieces"] = first + pieces
            row.update(ended=ended, limit=options.limit if side == "oracle" else None)
            results.save()

    pieces, ended = measure(options, side, ids[kept:], config, keep)
    row["seconds"] += time.monotonic() - start
    keep(pieces, ended)
    done = f"{len(row['pieces'])} pieces, {time.monotonic() - start:.0f} s {ended}"
    print(f"{name_of(config)}, {side}: {done}", file=sys.stderr, flush=True)


# ---- the table ----------------------------------------------------------------------------------


def mean(pieces):
    return sum(piece[0] for piece in pieces) / sum(piece[1] for piece in pieces)


def loss_cells(row, dense, count):
    """NLL and the loss over dense ones, over the first `count` pieces."""
    if not row or count == 0:
        return ["", ""]
    loss = mean(row["pieces"][:count])
    if not math.isfinite(loss):
        return ["not finite", ""]
    if len(dense["pieces"]) < count:
        return [f"{loss:.4f}", ""]
    return [f"{loss:.4f}", f"{loss - mean(dense['pieces'][:count]):+.4f}"]


def difference_cell(ours, theirs):
    """Of two lists of pieces, with the standard error of the mean over pieces."""
    gaps = [(a[0] - b[0]) / a[1] for a, b in zip(ours, theirs)]
    if len(gaps) < 2 or not math.isfinite(sum(gaps)):
        return ""
    middle = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - middle) ** 2 for gap in gaps) / (len(gaps) - 1))
    return f"{mean(ours) - mean(theirs):+.4f} ± {spread / math.sqrt(len(gaps)):.4f}"


def table_line(results, config, pieces):
    """Over the first `pieces`, or as many as both sides have."""
    name = name_of(config)
    rows = {side: results.rows.get(name, {}).get(side) for side in SIDES}
    dense = {side: results.rows.get("dense", {}).get(side, {"pieces": []}) for side in SIDES}
    counts = {side: min(pieces, len(row["pieces"])) for side, row in rows.items() if row}
    if not any(counts.values()):
        return None
    count = min(n for n in counts.values() if n)
    ours = loss_cells(rows["ours"], dense["ours"], min(count, counts.get("ours", 0)))
    theirs = loss_cells(rows["oracle"], dense["oracle"], min(count, counts.get("oracle", 0)))
    ended = rows["oracle"]["ended"] if rows["oracle"] and counts["oracle"] < pieces else ""
    gap = ""
    if rows["ours"] and rows["oracle"] and counts["oracle"]:
        gap = difference_cell(rows["ours"]["pieces"][:count], rows["oracle"]["pieces"][:count])
    elif ended:
        theirs = [ended, ""]
    measured = next(side for side in SIDES if counts.get(side))
    tokens = sum(piece[1] for piece in rows[measured]["pieces"][:count])
    note = f"{tokens:,}" + (f" ({ended})" if ended and counts["oracle"] else "")
    return "| " + " | ".join([name, *ours, *theirs, gap, note]) + " |"


def print_table(options, results):
    head = ["cache", "NLL, ours", "over dense", "NLL, Transformers", "over dense"]
    head += ["ours - Transformers", "tokens"]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for config in configs():
        line = table_line(results, config, options.tokens // PIECE)
        if line and is_chosen(options, config):
            print(line)


# ---- the program --------------------------------------------------------------------------------


def is_chosen(options, config):
    return config is None or not options.only or any(o in name_of(config) for o in options.only)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=fetch_model.default_output())
    parser.add_argument(
        "--program", type=Path, default=ROOT / "build/release/benchmarks/quantization_loss"
    )
    parser.add_argument(
        "--results", type=Path, default=ROOT / "build/quantization_loss.json", metavar="FILE"
    )
    parser.add_argument("--tokens", type=int, default=5 * WINDOW, help="a multiple of 64 [20480]")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="of rows' names")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--again", nargs="+", choices=SIDES, default=[], help="forget these first")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="of the oracle, a row")
    parser.add_argument("--threads", type=int, default=2, help="of a process [2]")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time [1]")
    parser.add_argument("--table", action="store_true", help="print the table of --results alone")
    parser.add_argument("--worker", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tokens < PIECE or options.tokens % PIECE:
        parser.error(f"--tokens must be a multiple of {PIECE}")
    options.program = options.program.resolve()
    measures = not (options.table or options.worker)
    if measures and "ours" in options.sides and not options.program.is_file():
        parser.error(f"{options.program} is missing; build it or set --program")
    return options


def text_ids(options):
    import transformers

    transformers.logging.set_verbosity_error()  # of a text longer than the model takes
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    text = "\n\n".join((LICENSES / name).read_text() for name in TEXTS)
    ids = tokenizer(text)["input_ids"]
    if len(ids) < options.tokens:
        sys.exit(f"error: the licenses have {len(ids)} tokens only, less than --tokens")
    digest = hashlib.sha256(json.dumps(ids).encode()).hexdigest()
    return ids, {"model": options.model.name, "text": digest[:16], "window": WINDOW}


def main():
    options = parse_arguments()
    if options.worker:
        return serve(options)
    ids, facts = text_ids(options)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    results = Results(options.results, facts)
    if not options.table:
        runs = [
            (config, side)
            for config in configs()
            for side in options.sides
            if is_chosen(options, config) and (side == "ours" or has_oracle(config))
        ]
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda run: fill(options, results, ids[: options.tokens], *run), runs))
    print_table(options, results)


if __name__ == "__main__":
    main()
