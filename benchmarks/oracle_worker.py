"""Transformers' side of compare_generate.py: a worker process that holds the model and answers one
JSON request a line, and the same seen from outside.

The worker runs on this Python where it has torch and transformers, otherwise on that of the
environment scripts/make_oracle.sh makes.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import fetch_model  # noqa: E402


class CompareError(Exception):
    """A failure with a message for the person who called the script."""


def run_environment(threads):
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}


# ---- inside ------------------------------------------------------------------------------------


class Stopwatch:
    """A streamer that notes when generate() hands over the prompt and each new token."""

    def __init__(self):
        self.times = []

    def put(self, _tokens):
        self.times.append(time.perf_counter())

    def end(self):
        pass


class OracleModel:
    def __init__(self, folder, threads, attention):
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self.folder, self.attention, self.model, self.dtype = folder, attention, None, None

    def prompt(self, length):
        """The first `length` ids of the licence's text, over and over."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        ids = tokenizer.encode((ROOT / "LICENSE").read_text())
        return {"ids": (ids * (length // len(ids) + 1))[:length]}

    def load(self, dtype):
        import torch
        from transformers import AutoModelForCausalLM

        if dtype != self.dtype:
            self.model = None  # free the old one first
            self.model = AutoModelForCausalLM.from_pretrained(
                self.folder, dtype=getattr(torch, dtype), attn_implementation=self.attention
            ).eval()
            self.dtype = dtype

    def generate(self, dtype, ids, new_tokens, fields):
        import torch

        self.load(dtype)
        watch, batch = Stopwatch(), torch.tensor([ids])
        result = self.model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            do_sample=False,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            streamer=watch,
            **fields,
        )
        start, first, last = watch.times[0], watch.times[1], watch.times[-1]
        return {
            "ids": result[0, len(ids) :].tolist(),
            "prefill_s": first - start,
            "decode_s": last - first,
        }

    def beams(self, dtype, ids, new_tokens, fields):
        import torch

        self.load(dtype)
        batch, start = torch.tensor([ids]), time.perf_counter()
        result = self.model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            do_sample=False,
            max_new_tokens=new_tokens,
            output_scores=True,
            return_dict_in_generate=True,
            **fields,
        )
        return {
            "seconds": time.perf_counter() - start,
            "ids": [row[len(ids) :] for row in result.sequences.tolist()],
            "scores": result.sequences_scores.tolist(),
        }

    def gap(self, dtype, ids):
        """The gap between the best two logits after `ids`."""
        import torch

        self.load(dtype)
        with torch.no_grad():
            best = self.model(torch.tensor([ids]), logits_to_keep=1).logits[0, -1].float().topk(2)
        return {"gap": (best.values[0] - best.values[1]).item()}

    def versions(self):
        import torch
        import transformers

        return {"torch": torch.__version__, "transformers": transformers.__version__}


def serve(folder, threads, attention):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print must not mix with the answers
    model = OracleModel(folder, threads, attention)
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(model, request["call"])(**request["arguments"])
        print(json.dumps(answer), file=answers, flush=True)


# ---- outside -----------------------------------------------------------------------------------


class Oracle:
    """The worker process, seen from outside."""

    def __init__(self, options):
        self.options, self.process = options, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()
            self.process = None

    def start(self):
        command = [oracle_python(), "-W", "ignore", __file__]
        command += ["--model", str(self.options.model), "--threads", str(self.options.threads)]
        command += ["--attention", self.options.attention]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=run_environment(self.options.threads),
        )

    def call(self, name, **arguments):
        if not self.process:
            self.start()
        try:
            self.process.stdin.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise CompareError("the oracle's worker ended; its message is above")
        return json.loads(answer)

    def generate(self, dtype, ids, new_tokens, fields=None):
        if self.options.fresh_oracle:
            self.stop()
        request = {"dtype": dtype, "ids": ids, "new_tokens": new_tokens}
        return self.call("generate", **request, fields=fields or {})


def oracle_python():
    if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        return sys.executable
    root = os.environ.get("KVCACHE_ORACLE") or fetch_model.default_cache() / "oracle"
    python = Path(root) / "bin" / "python"
    if not python.exists():
        raise CompareError(f"{python} is missing; run scripts/make_oracle.sh or set KVCACHE_ORACLE")
    return str(python)


def main():
    parser = argparse.ArgumentParser(description="Answer requests of compare_generate.py.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--attention", required=True)
    options = parser.parse_args()
    serve(options.model, options.threads, options.attention)


if __name__ == "__main__":
    main()
