#!/usr/bin/env python3
"""How much memory does a run take beyond its weights and its cache?

Runs the generate program on a checkpoint and compares its peak resident memory, less that of the
program doing nothing, with the weights' bytes plus the cache's. Exit status 1 where the rest is
above 20% of them.

    python3 benchmarks/memory.py [--model DIR] [--program FILE] [--tokens N ...] [--dtype bfloat16]
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
MODELS = pathlib.Path(os.environ.get("KVCACHE_MODELS") or CACHE / "kvcache/models")
LIMIT = 1.2


def run(command):
    """Runs a command; its standard output and its peak resident memory in bytes."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"error: {command[0]} ended with status {process.returncode}")
        out.seek(0)
        return out.read().decode(), usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, default=MODELS / "SmolLM2-135M-Instruct")
    parser.add_argument("--program", default=ROOT / "build/release/examples/generate")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 256, 1500])
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()

    weights = (arguments.model / "model.safetensors").stat().st_size
    weights *= 2 if arguments.dtype == "float32" else 1
    _, idle = run([arguments.program, "--version"])
    print(f"{'prompt':>8} {'weights':>9} {'cache':>9} {'peak':>9} {'ratio':>6}   MB, {arguments.dtype}; "
          f"peak without the {idle / 1e6:.0f} of the idle program")
    met = True
    for tokens in arguments.tokens:
        ids = random.Random(tokens).choices(range(3, 40000), k=tokens)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as prompt:
            json.dump({"input_ids": [ids]}, prompt)
            prompt.flush()
            text, peak = run([
                arguments.program, "--model", arguments.model, "--input-ids", prompt.name, "--dtype",
                arguments.dtype, "--threads", str(arguments.threads), "--max-new-tokens",
                str(arguments.new_tokens), "--json", "--quiet"])
        cache = json.loads(text)["cache"]["bytes"]
        ratio = (peak - idle) / (weights + cache)
        met = met and ratio < LIMIT
        print(f"{tokens:8} {weights / 1e6:9.1f} {cache / 1e6:9.1f} {(peak - idle) / 1e6:9.1f} {ratio:6.3f}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
