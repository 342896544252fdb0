"""Writes the tiny T5 checkpoints of tests/parity/seq2seq_checkpoints and what the oracle makes of them, in goldens/seq2seq.

As in make_goldens.py, every case states all of its settings, and is kept only if noise of the size of the tests'
tolerance does not change its ids. Usage: make_seq2seq.py [name ...]
"""

import json
import shutil
import sys

import common
import make_checkpoints
import make_goldens
import torch
import transformers
from safetensors.numpy import save_file

CHECKPOINTS = common.HERE / "seq2seq_checkpoints"
SIZES = dict(
    vocab_size=64,
    d_model=32,
    d_kv=8,
    d_ff=48,
    num_layers=2,
    num_decoder_layers=2,
    num_heads=4,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=20,
    decoder_start_token_id=0,
)
GENERATION = dict(decoder_start_token_id=0, eos_token_id=1, pad_token_id=0)
# name -> (what differs from SIZES, the factor on query weights, as scores are not scaled, whether config.json is as
# Transformers 4 wrote it)
RECIPES = {
    "t5": (dict(feed_forward_proj="relu"), 0.2, False),
    "t5_gated": (
        dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_heads=3, d_kv=12, num_layers=3),
        0.2,
        True,
    ),
    "t5_long_decoder": (
        dict(feed_forward_proj="gated-silu", num_layers=1, num_decoder_layers=3, relative_attention_num_buckets=32),
        0.35,
        False,
    ),
}
# As in make_checkpoints.py: a checkpoint whose text repeats, or is decided by too small a margin, moves to another seed.
RESEED = {"t5": 13, "t5_gated": 7, "t5_long_decoder": 2}
DECODER = [0, 21, 7, 40, 33, 33, 2, 58]
SHORTER = [0, 9, 14, 3, 60]


def make_model(name):
    changes, factor, _ = RECIPES[name]
    config = transformers.T5Config(**{**SIZES, **changes}, attn_implementation="sdpa")
    config.dtype = "float32"
    model = transformers.T5ForConditionalGeneration(config)
    if not config.scale_decoder_outputs:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    model.generation_config = transformers.GenerationConfig(**GENERATION)
    make_checkpoints.RESEED[name] = RESEED.get(name, 0)
    make_checkpoints.randomize(model, name)
    for key, weight in model.named_parameters():
        if key.endswith("Attention.q.weight"):
            weight.mul_(factor)
    if not config.scale_decoder_outputs:
        model.lm_head.weight.mul_(0.25)  # logits of the size that scaled outputs have
    return model.eval()


def write_checkpoint(name):
    model, folder = make_model(name), CHECKPOINTS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    if RECIPES[name][2]:
        config = json.loads((folder / "config.json").read_text())
        for new in ("scale_decoder_outputs", "dense_act_fn", "is_gated_act", "dtype"):
            del config[new]
        config |= {"tie_word_embeddings": False, "torch_dtype": "float32", "transformers_version": "4.40.0"}
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    loaded = transformers.T5ForConditionalGeneration.from_pretrained(folder, dtype="auto").eval()
    ids, decoder = torch.tensor([common.PROMPT_A]), torch.tensor([DECODER])
    logits = [m(input_ids=ids, decoder_input_ids=decoder, use_cache=False).logits for m in (loaded, model)]
    assert torch.equal(*logits), name
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert size < 250_000, (name, size)
    loaded.generation_config = transformers.GenerationConfig()
    return loaded


def right_padded():
    pads = len(common.PROMPT_A) - len(common.PROMPT_B)
    ids = [common.PROMPT_A, common.PROMPT_B + [common.PAD] * pads]
    return ids, [[1] * len(common.PROMPT_A), [1] * len(common.PROMPT_B) + [0] * pads]


def logits_cases(model):
    """The cases, and name -> float32 [batch, decoder tokens, vocab]; rows of padding are zero and mean nothing."""
    whole = [DECODER, DECODER[:1] + DECODER[:0:-1]]
    pads = len(DECODER) - len(SHORTER)
    behind = [DECODER, [common.PAD] * pads + SHORTER]
    padded = [[1] * len(DECODER), [0] * pads + [1] * len(SHORTER)]
    batches = {
        "a": (make_goldens.solo(common.PROMPT_A), make_goldens.solo(DECODER)),
        "b": (make_goldens.solo(common.PROMPT_B), make_goldens.solo(SHORTER)),
        "padded": (right_padded(), (whole, [[1] * len(DECODER)] * 2)),
        "left_padded": (common.padded_pair(), (whole, [[1] * len(DECODER)] * 2)),
        "both_padded": (right_padded(), (behind, padded)),
        "long": (make_goldens.solo(make_goldens.LONG), make_goldens.solo([0] + make_goldens.LONG[::-1])),
    }
    cases, tensors = [], {}
    for name, ((ids, mask), (decoder_ids, decoder_mask)) in batches.items():
        case = {
            "name": name,
            "input_ids": ids,
            "attention_mask": mask,
            "decoder_input_ids": decoder_ids,
            "decoder_attention_mask": decoder_mask,
        }
        given = {key: torch.tensor(value) for key, value in case.items() if key != "name"}
        logits = model(**given, use_cache=False).logits
        tensors[name] = (logits * given["decoder_attention_mask"][..., None]).contiguous().numpy()
        cases.append(case)
    assert abs(tensors["padded"] - tensors["left_padded"]).max() < 1e-4
    assert abs(tensors["both_padded"][1, pads:] - tensors["b"][0]).max() < 1e-4
    return cases, tensors


def make_case(name, batch, **settings):
    return make_goldens.make_case(name, batch, decoder_start_token_id=0, **settings)


def generate(model, case, noise=None):
    """The ids; without a cache where the decoder has more layers, for which the oracle makes too small a one."""
    with_cache = model.config.num_decoder_layers <= model.config.num_layers
    sequences = make_goldens.generate(model, case, noise, use_cache=False)
    assert not with_cache or noise is not None or make_goldens.generate(model, case) == sequences, case["name"]
    return sequences


def finish_greedy(model, case):
    case["sequences"] = generate(model, case)
    for noise in range(3):
        assert generate(model, case, noise) == case["sequences"], ("too close to call: reseed", case)
    wanted = 4 if case["generation_config"]["eos_token_id"] is None else 2
    for row in case["sequences"]:
        assert len(set(row[1:])) >= wanted, ("does not vary: reseed", case)
    return case


def first_new_id(row, after):
    return next(row[i] for i in range(after, len(row)) if row[i] not in row[:i])


def greedy_cases(model):
    a = make_goldens.solo(common.PROMPT_A)
    text = finish_greedy(model, make_case("a", a))
    both = finish_greedy(model, make_case("padded", right_padded()))
    assert both["sequences"][0] == text["sequences"][0]
    eos = first_new_id(text["sequences"][0], 5)
    more = [
        make_case("left_padded", common.padded_pair()),
        make_case("long", make_goldens.solo(make_goldens.LONG)),
        make_case("eos", a, eos_token_id=eos),
        make_case("eos_padded", right_padded(), eos_token_id=eos),
        make_case("min_new_tokens_padded", right_padded(), eos_token_id=eos, min_new_tokens=9),
        make_case("max_length", a, max_length=15),
        make_case("repetition_penalty_padded", right_padded(), repetition_penalty=1.3),
    ]
    return [text, both] + [finish_greedy(model, case) for case in more]


def sampled_cases(model):
    a = make_goldens.solo(common.PROMPT_A)
    cases = [
        make_case("plain", a, do_sample=True),
        make_case("padded", right_padded(), do_sample=True, top_k=20, top_p=0.8, temperature=1.3),
        make_case("padded_two_sequences", right_padded(), do_sample=True, num_return_sequences=2, temperature=0.7),
    ]
    kept = []
    for case in cases:
        seeds = 0
        for seed in range(10):
            seeded = {**case, "seed": seed}
            seeded["sequences"] = generate(model, seeded)
            if seeds < 3 and all(generate(model, seeded, noise) == seeded["sequences"] for noise in range(3)):
                kept.append(seeded)
                seeds += 1
        assert seeds == 3, case["name"]
    return kept


def write(name):
    model = write_checkpoint(name)
    cases, tensors = logits_cases(model)
    head = {"made_with": common.made_with(__file__, make_checkpoints.__file__, make_goldens.__file__), "checkpoint": name}
    document = {**head, "logits": cases, "greedy": greedy_cases(model), "sampled": sampled_cases(model)}
    common.write_json(common.GOLDENS / "seq2seq" / f"{name}.json", document)
    save_file(tensors, common.GOLDENS / "seq2seq" / f"{name}.safetensors")
    print(f"{name}: {len(cases)} logits, {len(document['greedy'])} greedy, {len(document['sampled'])} sampled cases")


if __name__ == "__main__":
    common.set_up()
    for chosen in sys.argv[1:] or RECIPES:
        write(chosen)
