#!/usr/bin/env python3
"""Is our generate() faster than Transformers' on the same checkpoint, prompt, threads and dtype?

Runs examples/generate and the oracle (Transformers, not compiled) in turn, A B A B ..., and prints
tokens/s of both and their ratio for prefill (the first forward pass up to the first new token) and
decode (the new tokens after it). Each side reports its own clock's seconds; the sums are done here.
The oracle is one worker process that holds the model; ours is one process a run, so its prefill
includes whatever a first pass must set up (--fresh-oracle gives the oracle a new process a run,
too).

In float32 both sides must give the same ids, a tie of the best two logits aside.

--beams compares beam search instead: 40 beams of one prompt, 20 of them returned, early_stopping.
Seconds are those of all of generate(); memory is what a process takes at its peak beyond one that
makes the same number of tokens without beams, against 40 full copies of the cache. In float32 the
best texts must have the same scores.

--cache quantized compares 4-bit caches instead: decoding behind a long prompt, ours and the oracle's
with the same settings and ours with a dense cache, all in turn.

Needs only the standard library; the worker runs on this Python where it has torch and
transformers, otherwise on that of the environment scripts/make_oracle.sh makes.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import fetch_model  # noqa: E402
from oracle_worker import CompareError, Oracle, run_environment  # noqa: E402

PREFILL_NEW_TOKENS = 4
TIE = 1e-3  # gap of two float32 logits under which either may win

BEAMS = {"num_beams": 40, "num_return_sequences": 20, "early_stopping": True}
SAME_SCORE = 1e-3  # of the best texts in float32
BEAM_TARGETS = {"speed": 1.5, "memory": 5}

QUANTIZED = {
    "hqq": {"backend": "hqq", "nbits": 4, "axis_key": 1, "axis_value": 1},
    "quanto": {"backend": "quanto", "nbits": 4, "axis_key": 0, "axis_value": 0},
}
QUANTIZED_TARGETS = {"oracle": 4, "dense": 1}  # times its speed

# Least ratio ours / oracle's that docs/performance.md promises.
TARGETS = {
    ("decode", "bfloat16"): 1.4,
    ("decode", "float32"): 1.15,
    ("prefill", "bfloat16"): 0.95,
    ("prefill", "float32"): 0.95,
}


# ---- our side: one process a run ----------------------------------------------------------------


def our_run(options, dtype, ids, fields):
    """The program's answer, and the bytes that its process took at its peak."""
    with tempfile.TemporaryDirectory() as folder:
        inputs, config = Path(folder) / "ids.json", Path(folder) / "config.json"
        inputs.write_text(json.dumps({"input_ids": [ids]}))
        config.write_text(json.dumps({"do_sample": False, **fields}))
        command = [str(options.program), "--model", str(options.model)]
        command += ["--input-ids", str(inputs), "--generation-config", str(config)]
        command += ["--dtype", dtype, "--threads", str(options.threads), "--json", "--quiet"]
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = subprocess.Popen(
                command, stdout=out, stderr=err, env=run_environment(options.threads)
            )
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0), err.seek(0)
            if child.returncode != 0:
                raise CompareError(
                    f"{options.program} ended with {child.returncode}: {err.read().strip()}"
                )
            return json.loads(out.read()), usage.ru_maxrss * 1024


def our_generate(options, dtype, ids, new_tokens, fields=None):
    length = {"min_new_tokens": new_tokens, "max_new_tokens": new_tokens}
    answer, _ = our_run(options, dtype, ids, {**length, **(fields or {})})
    return {
        "ids": answer["sequences"][0][len(ids) :],
        "prefill_s": answer["timings"]["prefill_s"],
        "decode_s": answer["timings"]["decode_s"],
    }


def our_beams(options, dtype, ids, new_tokens):
    answer, peak = our_run(options, dtype, ids, {"max_new_tokens": new_tokens, **BEAMS})
    return {
        "seconds": answer["timings"]["prefill_s"] + answer["timings"]["decode_s"],
        "ids": [row[len(ids) :] for row in answer["sequences"]],
        "scores": answer["sequences_scores"],
        "peak": peak,
    }


# ---- the comparison -----------------------------------------------------------------------------


def common(ours, theirs):
    """How many first ids agree."""
    return next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), len(theirs))


def check_ids(oracle, dtype, ids, ours, theirs):
    """How many new ids agree; in float32 less than all is an error unless two logits tie."""
    same = common(ours, theirs)
    if len(ours) != len(theirs):
        raise CompareError(f"{dtype}: ours made {len(ours)} new tokens, the oracle {len(theirs)}")
    if same < len(theirs) and dtype == "float32":
        gap = oracle.call("gap", dtype=dtype, ids=ids + theirs[:same])["gap"]
        if gap >= TIE:
            raise CompareError(
                f"{dtype}: new token {same} is {ours[same]}, the oracle's {theirs[same]} "
                f"(its best two logits are {gap:.3g} apart)"
            )
    return same


def rate(run, what, prompt_length):
    if what == "prefill":
        return prompt_length / run["prefill_s"]
    return (len(run["ids"]) - 1) / run["decode_s"]


def summary(rates):
    return {"median": statistics.median(rates), "min": min(rates), "max": max(rates)}


def ratio_of(above, below, target):
    """Of two lists of rates, a number a round."""
    ratio = statistics.median(above) / statistics.median(below)
    rounds = [a / b for a, b in zip(above, below)]
    return {"ratio": ratio, "round_ratios": rounds, "target": target}


def compare(options, oracle, what, dtype):
    """One line of the table: both sides' tokens/s over all rounds."""
    decode = what == "decode"
    length = options.decode_prompt if decode else options.prefill_prompt
    new_tokens = options.new_tokens if decode else PREFILL_NEW_TOKENS
    ids = oracle.call("prompt", length=length)["ids"]
    sides = {
        "ours": lambda: our_generate(options, dtype, ids, new_tokens),
        "oracle": lambda: oracle.generate(dtype, ids, new_tokens),
    }
    warm = {side: run() for side, run in sides.items()}
    agreeing = check_ids(oracle, dtype, ids, warm["ours"]["ids"], warm["oracle"]["ids"])
    rates = {side: [] for side in sides}
    for _ in range(options.rounds):
        for side, run in sides.items():
            rates[side].append(rate(run(), what, length))
    return {
        "what": what,
        "dtype": dtype,
        "prompt_tokens": length,
        "new_tokens": new_tokens,
        "agreeing_ids": agreeing,
        "unit": "tokens/s",
        "ours": summary(rates["ours"]),
        "oracle": summary(rates["oracle"]),
        **ratio_of(rates["ours"], rates["oracle"], TARGETS.get((what, dtype))),
    }


def compare_beams(options, oracle, dtype):
    """One line: seconds of both sides over all rounds, and the memory that beams take."""
    ids = oracle.call("prompt", length=options.beam_prompt)["ids"]
    tokens = options.beam_tokens
    plain, peak = our_run(options, dtype, ids, {"min_new_tokens": tokens, "max_new_tokens": tokens})
    copies = BEAMS["num_beams"] * plain["cache"]["bytes"]
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(our_beams(options, dtype, ids, tokens))
        theirs.append(oracle.call("beams", dtype=dtype, ids=ids, new_tokens=tokens, fields=BEAMS))
    gap = abs(ours[0]["scores"][0] - theirs[0]["scores"][0])
    if dtype == "float32" and gap >= SAME_SCORE:
        raise CompareError(f"{dtype}: the best texts' scores are {gap:.3g} apart")
    seconds = [statistics.median(run["seconds"] for run in side) for side in (ours, theirs)]
    taken = max(run["peak"] for run in ours) - peak
    return {
        "what": "beams",
        "dtype": dtype,
        "prompt_tokens": len(ids),
        "new_tokens": max(len(row) for row in ours[0]["ids"]),
        "agreeing_texts": sum(row in theirs[0]["ids"] for row in ours[0]["ids"]),
        "ours_s": seconds[0],
        "oracle_s": seconds[1],
        "ratio": seconds[1] / seconds[0],
        "round_ratios": [b["seconds"] / a["seconds"] for a, b in zip(ours, theirs)],
        "target": BEAM_TARGETS["speed"],
        "bytes_of_copies": copies,
        "bytes_taken": taken,
        "memory_ratio": copies / taken,
        "memory_target": BEAM_TARGETS["memory"],
    }


def compare_quantized(options, oracle, dtype):
    """A line a backend: tokens/s of both sides and of our dense cache over all rounds."""
    ids = oracle.call("prompt", length=options.cache_prompt)["ids"]
    run = (dtype, ids, options.new_tokens)
    sides = {"dense": lambda: our_generate(options, *run)}
    for name, settings in QUANTIZED.items():
        fields = {"cache_implementation": "quantized", "cache_config": settings}
        sides[name, "ours"] = lambda fields=fields: our_generate(options, *run, fields)
        sides[name, "oracle"] = lambda fields=fields: oracle.generate(*run, fields)
    warm = {side: call()["ids"] for side, call in sides.items()}
    rates = {side: [] for side in sides}
    for _ in range(options.rounds):
        for side, call in sides.items():
            rates[side].append(rate(call(), "decode", len(ids)))
    lines = []
    for name in QUANTIZED:
        ours, theirs = rates[name, "ours"], rates[name, "oracle"]
        lines.append(
            {
                "what": name,
                "dtype": dtype,
                "prompt_tokens": len(ids),
                "new_tokens": options.new_tokens,
                "agreeing_ids": common(warm[name, "ours"], warm[name, "oracle"]),
                "unit": "tokens/s",
                "ours": summary(ours),
                "oracle": summary(theirs),
                "dense": summary(rates["dense"]),
                **ratio_of(ours, theirs, QUANTIZED_TARGETS["oracle"]),
                "to_dense": ratio_of(ours, rates["dense"], QUANTIZED_TARGETS["dense"]),
            }
        )
    return lines


def judged(ratio, target):
    return f"{ratio:.2f} times (target {target} {'met' if ratio >= target else 'NOT met'})"


def print_quantized(line):
    print_line(line)
    dense, to_dense = line["dense"], line["to_dense"]
    rounds = to_dense["round_ratios"]
    print(
        f"{'':17} our dense cache {dense['median']:.1f} [{dense['min']:.1f}, {dense['max']:.1f}]: "
        f"{judged(to_dense['ratio'], to_dense['target'])} [{min(rounds):.2f}, {max(rounds):.2f}]",
        flush=True,
    )


def print_beams(line):
    ratios = line["round_ratios"]
    print(
        f"beams   {line['dtype']:9} ours {line['ours_s']:.2f} s  oracle {line['oracle_s']:.2f} s  "
        f"faster {judged(line['ratio'], line['target'])} [{min(ratios):.2f}, {max(ratios):.2f}]  "
        f"memory {line['bytes_taken'] / 1e6:.0f} MB, {BEAMS['num_beams']} copies "
        f"{line['bytes_of_copies'] / 1e6:.0f} MB: "
        f"{judged(line['memory_ratio'], line['memory_target'])}  "
        f"({line['prompt_tokens']}+{line['new_tokens']} tokens, {line['agreeing_texts']} of "
        f"{BEAMS['num_return_sequences']} texts agree)",
        flush=True,
    )


def machine(options, oracle):
    cpu, flags = platform.processor() or platform.machine(), ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        facts = dict(
            [part.strip() for part in line.split(":", 1)]
            for line in cpuinfo.read_text().split("\n\n")[0].splitlines()
            if ":" in line
        )
        cpu, flags = facts.get("model name", cpu), facts.get("flags", "")
    wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    return {
        "cpu": cpu,
        "instructions": [name for name in wanted if name in flags.split()],
        "logical_cpus": os.cpu_count(),
        "threads": options.threads,
        "rounds": options.rounds,
        "oracle_attention": options.attention,
        "oracle_process_per_run": options.fresh_oracle,
        **oracle.call("versions"),
    }


def print_line(line):
    def side(name):
        values = line[name]
        return f"{values['median']:9.1f} [{values['min']:.1f}, {values['max']:.1f}]"

    target, ratios = line["target"], line["round_ratios"]
    verdict = ""
    if target is not None:
        verdict = f"target {target} {'met' if line['ratio'] >= target else 'NOT met'}  "
    print(
        f"{line['what']:8}{line['dtype']:9} ours {side('ours')}  oracle {side('oracle')}  "
        f"ratio {line['ratio']:.3f} [{min(ratios):.3f}, {max(ratios):.3f}]  {verdict}"
        f"({line['prompt_tokens']}+{line['new_tokens']} tokens, {line['agreeing_ids']} ids agree)",
        flush=True,
    )


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="Compare our generate() with Transformers' in tokens/s."
    )
    parser.add_argument("--model", type=Path, default=fetch_model.default_output())
    parser.add_argument(
        "--program", type=Path, default=ROOT / "build" / "release" / "examples" / "generate"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--what", nargs="+", choices=["decode", "prefill"])
    parser.add_argument("--dtype", nargs="+", choices=["bfloat16", "float32", "float16"])
    parser.add_argument("--decode-prompt", type=int, default=64, metavar="TOKENS")
    parser.add_argument("--new-tokens", type=int, default=128, metavar="TOKENS")
    parser.add_argument("--prefill-prompt", type=int, default=512, metavar="TOKENS")
    parser.add_argument("--beams", action="store_true", help="beam search instead")
    parser.add_argument("--beam-prompt", type=int, default=1000, metavar="TOKENS")
    parser.add_argument("--beam-tokens", type=int, default=64, metavar="TOKENS")
    parser.add_argument("--cache", choices=["quantized"], help="4-bit caches instead")
    parser.add_argument("--cache-prompt", type=int, default=4096, metavar="TOKENS")
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    parser.add_argument("--fresh-oracle", action="store_true", help="a new oracle process a run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is not met")
    options = parser.parse_args()
    for name in ("rounds", "threads", "beam_prompt", "beam_tokens", "cache_prompt"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if options.beams and options.cache:
        parser.error("--beams and --cache are two comparisons; take one at a time")
    if options.new_tokens < 2:
        parser.error("--new-tokens must be at least 2")
    return options


def run(options):
    if not (options.model / "config.json").is_file():
        raise CompareError(f"{options.model} has no config.json; run scripts/fetch_model.py")
    if not options.program.is_file():
        raise CompareError(f"{options.program} is missing; build it or set --program")
    lines = []
    with Oracle(options) as oracle:
        facts = machine(options, oracle)
        print(", ".join(f"{key} {value}" for key, value in facts.items()), flush=True)
        for dtype in options.dtype or ["bfloat16", "float32"]:
            if options.beams:
                lines.append(compare_beams(options, oracle, dtype))
                print_beams(lines[-1])
                continue
            if options.cache:
                for line in compare_quantized(options, oracle, dtype):
                    lines.append(line)
                    print_quantized(line)
                continue
            for what in options.what or ["decode", "prefill"]:
                lines.append(compare(options, oracle, what, dtype))
                print_line(lines[-1])
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "lines": lines}, indent=1) + "\n")
    met = all(
        (line["target"] is None or line["ratio"] >= line["target"])
        and line.get("memory_ratio", 0) >= line.get("memory_target", 0)
        and ("to_dense" not in line or line["to_dense"]["ratio"] >= line["to_dense"]["target"])
        for line in lines
    )
    return 0 if met or not options.check else 1


def main():
    options = parse_arguments()
    try:
        return run(options)
    except (CompareError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
