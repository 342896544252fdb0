#!/usr/bin/env python3
"""Make goldens/smollm2/: what Transformers answers with SmolLM2-135M-Instruct, token by token.

Run it with the oracle's Python, after scripts/fetch_model.py has made the checkpoint. Greedy runs
are float32 with eager attention; each is repeated with SDPA and without a cache (the document: 4
tokens) and must give the same ids, and the rows of a batch the ids of their solo runs.

<case>.json   the prompt's text and ids, the sequences, and for each new token the gap between the
              best and the second logit; a case whose smallest gap is under 1e-3 is refused, so
              equality of the ids is a fair demand on float32
logits.safetensors   logits of each prompt's last position, in float32 and in a bfloat16 run: the
              range [min, max], the best 256 and every 96th id
"""

import argparse
import json
import sys
from pathlib import Path

import common  # first: it quiets the oracle
import tokenizers
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import fetch_model  # noqa: E402

NEW_TOKENS = 64
DOCUMENT_TOKENS = 1500
SMALLEST_MARGIN = 1e-3


def turn(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def document(tokenizer):
    """A question about as much of the licence's text as makes DOCUMENT_TOKENS ids."""
    ids = tokenizer.encode((ROOT / "LICENSE").read_text())
    for length in range(DOCUMENT_TOKENS, 0, -1):
        text = tokenizer.decode(ids[:length])
        prompt = turn(text + "\n\nWhat is this text, and what does it allow?")
        if len(tokenizer.encode(prompt)) == DOCUMENT_TOKENS:
            return prompt
    raise SystemExit(f"error: no prefix of LICENSE makes {DOCUMENT_TOKENS} tokens")


def cases(tokenizer):
    """Texts of each case's rows; one batch has three."""
    return {
        "english": [
            turn("Explain in a few sentences why the sky is blue and why sunsets are red.")
        ],
        "code": [
            "#include <vector>\n\n// Returns the index of the first element not less than value.\n"
            "template <typename T>\n"
            "std::size_t lower_bound(const std::vector<T>& items, const T& value) {\n"
        ],
        "chinese": [
            turn(
                "Which words do you know in this text? "
                "北京是中华人民共和国的首都，也是一座历史悠久的城市。"
            )
        ],
        "spanish": ["La historia de España comienza"],
        "numbers": ["3.14159265358979 2.71828182845905 1.41421356237310 = pi, e and"],
        "document": [document(tokenizer)],
        "one_token": ["Water"],
        "batch": [
            turn("Why do cats purr? Answer in three sentences."),
            turn(
                "Traduce al inglés: El perro corre rápidamente por el campo mientras la niña lo "
                "mira."
            ),
            turn("Tell me a short story about a lighthouse keeper who finds a map."),
        ],
    }


def load(folder, dtype, attention):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=attention
    ).eval()


def generate(model, batch, **options):
    return model.generate(
        **batch,
        **{"do_sample": False, "max_new_tokens": NEW_TOKENS, **options},
        return_dict_in_generate=True,
        output_logits=True,
    )


def margins(result, prompt_length, end):
    """Gap between the best two logits at each step of each row, up to its end token."""
    best = torch.stack(result.logits, dim=1).topk(2, dim=-1).values
    gaps = (best[..., 0] - best[..., 1]).tolist()
    kept = []
    for row, new in zip(gaps, result.sequences[:, prompt_length:].tolist()):
        steps = new.index(end) + 1 if end in new else len(new)
        kept.append([float(f"{gap:.4g}") for gap in row[:steps]])
    return kept


def expect_equal(name, what, left, right):
    if left != right:
        raise SystemExit(f"error: {name}: {what} gave other ids")


def check_other_ways(name, batch, expected, models):
    """The same ids with SDPA, without a cache, and row by row."""
    prompt = batch["input_ids"].shape[1]
    again = generate(models["sdpa"], batch)
    expect_equal(name, "SDPA", again.sequences.tolist(), expected)
    uncached = 4 if prompt > 1000 else NEW_TOKENS
    slow = generate(models["eager"], batch, use_cache=False, max_new_tokens=uncached)
    expect_equal(
        name, "no cache", slow.sequences.tolist(), [row[: prompt + uncached] for row in expected]
    )
    if len(expected) > 1:
        for ids, mask, row in zip(batch["input_ids"], batch["attention_mask"], expected):
            ids = ids[mask.bool()].unsqueeze(0)
            solo = generate(
                models["eager"], {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            )
            new = solo.sequences[0, ids.shape[1] :].tolist()
            expect_equal(name, "a row alone", new, row[prompt : prompt + len(new)])
    return uncached


def make_case(name, texts, tokenizer, models):
    batch = dict(tokenizer(texts, padding=True, padding_side="left", return_tensors="pt"))
    batch = {key: batch[key] for key in ("input_ids", "attention_mask")}
    prompt = batch["input_ids"].shape[1]
    result = generate(models["eager"], batch)
    sequences = result.sequences.tolist()
    if len(sequences[0]) != prompt + NEW_TOKENS:
        raise SystemExit(f"error: {name} ends after {len(sequences[0]) - prompt} tokens")
    gaps = margins(result, prompt, tokenizer.eos_token_id)
    smallest = min(min(row) for row in gaps)
    if smallest < SMALLEST_MARGIN:
        raise SystemExit(f"error: {name} has a margin of {smallest}")
    uncached = check_other_ways(name, batch, sequences, models)
    new = [row[prompt:] for row in sequences]
    print(f"{name}: {prompt} + {NEW_TOKENS} tokens, smallest margin {smallest}", file=sys.stderr)
    return batch, {
        "prompts": texts,
        "input_ids": batch["input_ids"].tolist(),
        "attention_mask": batch["attention_mask"].tolist(),
        "generation": {"do_sample": False, "max_new_tokens": NEW_TOKENS},
        "sequences": sequences,
        "text": [tokenizer.decode(row, skip_special_tokens=True) for row in new],
        "uncached_new_tokens": uncached,
        "smallest_margin": smallest,
        "margins": gaps,
    }


def last_logits(model, batch):
    """[rows, vocab]"""
    return model(**batch, logits_to_keep=1).logits[:, -1]


def first_step(name, batch, models):
    """The tensors of one case in logits.safetensors."""
    full = last_logits(models["eager"], batch)
    half = last_logits(models["bfloat16"], batch)
    every = torch.arange(0, full.shape[1], 96).expand(full.shape[0], -1)
    ids = torch.cat([full.topk(256, dim=1).indices, every], dim=1).sort(dim=1).values
    apart = (full - half.float()).abs().max() / (full.max() - full.min())
    print(f"{name}: bfloat16 is {apart:.2%} of the range apart at most", file=sys.stderr)
    return {
        f"{name}.ids": ids.to(torch.int32),
        f"{name}.float32": full.gather(1, ids),
        f"{name}.bfloat16": half.gather(1, ids),
        f"{name}.float32_range": torch.stack([full.amin(1), full.amax(1)], dim=1),
        f"{name}.bfloat16_range": torch.stack([half.amin(1), half.amax(1)], dim=1),
    }


def made_with():
    return {
        **common.made_with(__file__),
        "tokenizers": tokenizers.__version__,
        "dtype": "float32",
        "attn_implementation": "eager",
        "checkpoint": fetch_model.MODEL,
        "checkpoint_sha256": fetch_model.FILES["model.safetensors"][1],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=fetch_model.default_output())
    parser.add_argument("--output", type=Path, default=common.GOLDENS / "smollm2")
    parser.add_argument(
        "--logits-only", action="store_true", help="keep the texts; make logits.safetensors anew"
    )
    options = parser.parse_args()
    if not fetch_model.looks_complete(options.model):
        raise SystemExit(f"error: {options.model} is no whole checkpoint; run scripts/fetch_model.py")
    common.set_up()
    options.output.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    models = {
        "eager": load(options.model, torch.float32, "eager"),
        "sdpa": load(options.model, torch.float32, "sdpa"),
        "bfloat16": load(options.model, torch.bfloat16, "eager"),
    }
    tensors = {}
    for name, texts in cases(tokenizer).items():
        if options.logits_only:
            case = json.loads((options.output / f"{name}.json").read_text(encoding="utf-8"))
            batch = {key: torch.tensor(case[key]) for key in ("input_ids", "attention_mask")}
        else:
            batch, case = make_case(name, texts, tokenizer, models)
            common.write_json(options.output / f"{name}.json", {"made_with": made_with(), **case})
        tensors |= first_step(name, batch, models)
    save_file(tensors, options.output / "logits.safetensors")  # of the versions in the JSON
    return 0


if __name__ == "__main__":
    sys.exit(main())
