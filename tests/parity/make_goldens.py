"""Runs the oracle on every tiny checkpoint and writes goldens/families and goldens/sampling.

Every case states all of its settings under Transformers' names, so nothing hangs on a hidden default. A case is kept
only if its ids do not change when noise of the size of the tests' tolerance is added to the logits; a sampled case that
is too close to call moves to the next free seed. Usage: make_goldens.py [checkpoint ...]
"""

import sys

import common
import make_checkpoints
import torch
import transformers
from safetensors.numpy import save_file
from transformers.cache_utils import get_layer_types_and_kwargs

NEW_TOKENS = 24
NOISE = 1e-4
LONG = [(7 * i * i + 3 * i + 5) % 61 + 3 for i in range(40)]
DEFAULTS = dict(
    do_sample=False,
    eos_token_id=None,
    pad_token_id=common.PAD,
    use_cache=True,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=None,
    repetition_penalty=1.0,
    num_return_sequences=1,
)
SAMPLING = {
    "plain": dict(),
    "temperature": dict(temperature=0.7),
    "top_k": dict(top_k=5),
    "top_p": dict(top_p=0.9),
    "min_p": dict(min_p=0.1),
    "top_k_top_p_temperature": dict(top_k=20, top_p=0.8, temperature=1.3),
    "repetition_penalty_temperature": dict(repetition_penalty=1.3, temperature=0.7),
    "all_warpers": dict(top_k=30, top_p=0.95, min_p=0.02, temperature=0.9, repetition_penalty=1.1),
}


class Noise(transformers.LogitsProcessor):
    """Adds noise of the size of the tests' tolerance, from a generator of its own."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, input_ids, scores):
        return scores + NOISE * torch.randn(scores.shape, generator=self.generator)


def by_row(model):
    """Makes rope choose its frequencies for each row by that row's own length, and by nothing that came before.

    The oracle chooses by the longest row, and keeps dynamic frequencies of an earlier, longer text.
    """
    rotary = model.model.rotary_emb
    whole = rotary.forward

    def forward(x, position_ids):
        parts = []
        for row in position_ids.expand(x.shape[0], -1):
            rotary.inv_freq.data = rotary.original_inv_freq.clone()
            rotary.max_seq_len_cached = rotary.original_max_seq_len
            parts.append(whole(x[:1], row[None]))
        return tuple(torch.cat(part) for part in zip(*parts))

    rotary.forward = forward


def solo(ids):
    return [ids], [[1] * len(ids)]


def generate(model, case, noise=None, **changes):
    """The ids that the oracle returns for `case`, as lists."""
    config = transformers.GenerationConfig(**{**case["generation_config"], **changes})
    if "seed" in case:
        torch.manual_seed(case["seed"])
    sequences = model.generate(
        torch.tensor(case["input_ids"]),
        attention_mask=torch.tensor(case["attention_mask"]),
        generation_config=config,
        logits_processor=[] if noise is None else [Noise(noise)],
    )
    return sequences.tolist()


def make_case(name, batch, **settings):
    config = {**DEFAULTS, "max_new_tokens": NEW_TOKENS, **settings}
    if "max_length" in settings:
        del config["max_new_tokens"]
    return {"name": name, "input_ids": batch[0], "attention_mask": batch[1], "generation_config": config}


def new_tokens(case, row=0):
    return case["sequences"][row][len(case["input_ids"][0]) :]


def length_dependent(model):
    return model.name in make_checkpoints.LENGTH_DEPENDENT


def finish_greedy(model, case):
    """Adds the ids; asserts that they vary, are stable, and are the same without a cache.

    Some ids go wrong with the oracle's cache: those whose frequencies depend on length, or STEPS_DIFFER. Those are made
    without one.
    """
    case["sequences"] = generate(model, case, use_cache=False)
    cache_is_wrong = length_dependent(model) or model.name in make_checkpoints.STEPS_DIFFER
    assert cache_is_wrong or generate(model, case) == case["sequences"], case["name"]
    for noise in range(3):
        assert generate(model, case, noise, use_cache=False) == case["sequences"], ("too close to call: reseed", case)
    wanted = 4 if case["generation_config"]["eos_token_id"] is None else 2
    for row in range(len(case["sequences"])):
        assert len(set(new_tokens(case, row))) >= wanted, ("does not vary: reseed", case)
    return case


def first_new_id(case, row, after):
    """(index, id) of the first id of the new text that appears at or after `after` and not before."""
    text = new_tokens(case, row)
    return next((i, text[i]) for i in range(after, len(text)) if text[i] not in text[:i])


def greedy_cases(model):
    a, b, pair = solo(common.PROMPT_A), solo(common.PROMPT_B), common.padded_pair()
    text_a = finish_greedy(model, make_case("a", a))
    text_b = finish_greedy(model, make_case("b", b))
    pairs = []
    if model.name not in make_checkpoints.PADDING_COUNTS:
        pairs = [finish_greedy(model, make_case("padded", pair))]
        assert [new_tokens(pairs[0], row) for row in (0, 1)] == [new_tokens(text_a), new_tokens(text_b)]
    middle, eos_a = first_new_id(text_a, 0, 4)
    _, eos_b = first_new_id(text_b, 0, 7)
    more = [
        make_case("long", solo(LONG)),
        make_case("eos", a, eos_token_id=eos_a),
        make_case("eos_padded", pair, eos_token_id=eos_a),
        make_case("eos_list", a, eos_token_id=[eos_b, eos_a]),
        make_case("eos_list_padded", pair, eos_token_id=[eos_a, eos_b]),
        make_case("min_new_tokens", a, eos_token_id=eos_a, min_new_tokens=middle + 3),
        make_case("min_new_tokens_padded", pair, eos_token_id=[eos_a, eos_b], min_new_tokens=middle + 3),
        make_case("max_length", a, max_length=15),
        make_case("max_length_padded", pair, max_length=15),
        make_case("repetition_penalty", a, repetition_penalty=1.3),
        make_case("repetition_penalty_padded", pair, repetition_penalty=1.3),
    ]
    more = [case for case in more if pairs or len(case["input_ids"]) == 1]
    cases = [text_a, text_b, *pairs] + [finish_greedy(model, case) for case in more]
    assert len(new_tokens(next(c for c in cases if c["name"] == "eos"))) == middle + 1
    return cases


def finish_sampled(model, case, seeds):
    """Three stable seeds of a sampled case, the smallest ones from `seeds` on."""
    kept = []
    for seed in seeds:
        seeded = {**case, "seed": seed}
        seeded["sequences"] = generate(model, seeded)
        stable = all(generate(model, seeded, noise) == seeded["sequences"] for noise in range(3))
        if stable and generate(model, seeded, use_cache=False) == seeded["sequences"]:
            kept.append(seeded)
        else:
            print(f"  {case['name']}: seed {seed} is too close to call, left out")
        if len(kept) == 3:
            return kept
    raise AssertionError(case["name"])


def sampled_cases(model):
    a, pair = solo(common.PROMPT_A), common.padded_pair()
    cases = [make_case(name, a, do_sample=True, **settings) for name, settings in SAMPLING.items()]
    cases.append(make_case("padded", pair, do_sample=True, **SAMPLING["top_k_top_p_temperature"]))
    cases.append(make_case("two_sequences", a, do_sample=True, num_return_sequences=2, top_p=0.9))
    cases.append(make_case("padded_two_sequences", pair, do_sample=True, num_return_sequences=2, temperature=0.7))
    eos = finish_sampled(model, cases[0], range(10))[0]
    _, token = first_new_id(eos, 0, 6)
    cases.append(make_case("eos_padded", pair, do_sample=True, eos_token_id=[token, new_tokens(eos)[0]]))
    return [seeded for case in cases for seeded in finish_sampled(model, case, range(10))]


def logits_cases(model):
    """The cases, and name -> float32 [batch, seq, vocab]; rows of padding are zero and mean nothing.

    Where the oracle counts padding, padded rows are the solo runs.
    """
    batches = {
        "a": solo(common.PROMPT_A),
        "b": solo(common.PROMPT_B),
        "padded": common.padded_pair(),
        "long": solo(LONG),
    }
    cases, tensors = [], {}
    for name, (ids, mask) in batches.items():
        mask_tensor = torch.tensor(mask)
        positions = (mask_tensor.cumsum(-1) - 1).clamp(min=0)
        out = model(torch.tensor(ids), attention_mask=mask_tensor, position_ids=positions, use_cache=False)
        tensors[name] = (out.logits.float() * mask_tensor[..., None]).contiguous().numpy()
        cases.append({"name": name, "input_ids": ids, "attention_mask": mask})
    if model.name in make_checkpoints.PADDING_COUNTS:
        tensors["padded"][0] = tensors["a"][0]
        tensors["padded"][1, 6:] = tensors["b"][0]
    elif model.dtype == torch.float32:
        assert abs(tensors["padded"][1, 6:] - tensors["b"][0]).max() < 1e-4
    return cases, tensors


def layer_facts(model):
    types, settings = get_layer_types_and_kwargs(model.config)
    cache = transformers.DynamicCache(config=model.config)
    windows = [getattr(layer, "sliding_window", None) for layer in cache.layers]
    assert windows == [setting.get("sliding_window") for setting in settings]
    return [{"type": kind, "window": window} for kind, window in zip(types, windows)]


def write(name):
    model = transformers.AutoModelForCausalLM.from_pretrained(common.CHECKPOINTS / name, dtype="auto").eval()
    model.generation_config = transformers.GenerationConfig()
    model.name = name
    if length_dependent(model):
        by_row(model)
    made_with = common.made_with(__file__, make_checkpoints.__file__)
    cases, tensors = logits_cases(model)
    head = {"made_with": made_with, "checkpoint": name}
    family = {**head, "dtype": str(model.dtype).removeprefix("torch."), "layers": layer_facts(model), "logits": cases}
    if length_dependent(model):
        family["frequencies_hold_to"] = make_checkpoints.LENGTH_DEPENDENT[name]
    if name in make_checkpoints.RECIPES:
        family["greedy"] = greedy_cases(model)
    if name in make_checkpoints.SAMPLED:
        common.write_json(common.GOLDENS / "sampling" / f"{name}.json", {**head, "cases": sampled_cases(model)})
    common.write_json(common.GOLDENS / "families" / f"{name}.json", family)
    save_file(tensors, common.GOLDENS / "families" / f"{name}.safetensors")
    print(name)


if __name__ == "__main__":
    common.set_up()
    for chosen in sys.argv[1:] or [*make_checkpoints.RECIPES, *make_checkpoints.COPIES]:
        write(chosen)
