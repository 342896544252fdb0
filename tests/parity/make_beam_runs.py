"""Runs the oracle's beam search and beam sampling, and writes goldens/beam_runs: each returned row's new ids and score.

Prompts alone and as a padded pair, of which the rows must be those of the prompts alone. A case is kept at the length up
to which noise of the size of the tests' tolerance changes no ids. Usage: make_beam_runs.py [family ...]
"""

import sys

import common
import make_goldens
import make_processor_runs
import make_seq2seq
import torch
import transformers

NEW_TOKENS, FEWEST = 12, 4
SEEDS = 8
# Processors that take padding for tokens, in the oracle.
PADDING_COUNTS = ("repetition_penalty", "encoder", "renormalize")
PAD = 63  # not 0, which the oracle takes for an unset one
DEFAULTS = {**make_goldens.DEFAULTS, "pad_token_id": PAD, "early_stopping": False, "length_penalty": 1.0}


def batches(family):
    """name -> (ids, mask): the prompts alone, and together with the shorter one padded."""
    a, b = common.PROMPT_A, common.PROMPT_B
    ids, mask = common.padded_pair()
    if family == "t5":
        ids, mask = [ids[0], ids[1][len(a) - len(b) :] + ids[1][: len(a) - len(b)]], [mask[0], sorted(mask[1])[::-1]]
    return {"a": make_goldens.solo(a), "b": make_goldens.solo(b), "padded": (ids, mask)}


def run(model, case, noise=None):
    """[(new ids, score)] of the rows returned."""
    config = transformers.GenerationConfig(**case["generation_config"])
    if "seed" in case:
        torch.manual_seed(case["seed"])
    out = model.generate(
        torch.tensor(case["input_ids"]),
        attention_mask=torch.tensor(case["attention_mask"]),
        generation_config=config,
        logits_processor=[] if noise is None else [make_goldens.Noise(noise)],
        output_scores=True,
        return_dict_in_generate=True,
    )
    begin = out.sequences.shape[1] - out.beam_indices.shape[1]
    lengths = (out.beam_indices >= 0).sum(1).tolist()
    rows = [row[begin : begin + length].tolist() for row, length in zip(out.sequences, lengths)]
    return [(ids, round(score, 5)) for ids, score in zip(rows, out.sequences_scores.tolist())]


def ids_of(rows):
    return [ids for ids, _ in rows]


def stable(model, case):
    """The case with what it gives, if noise changes no ids and every row is a text; else None."""
    rows = run(model, case)
    if min(score for _, score in rows) < -1e6:
        return None
    if any(ids_of(run(model, case, noise)) != ids_of(rows) for noise in range(3)):
        return None
    return {**case, "new_ids": ids_of(rows), "scores": [score for _, score in rows]}


def finish(model, case):
    settings = case["generation_config"]
    longest = settings["max_new_tokens"]
    for length in range(longest, min(FEWEST, longest) - 1, -1):
        for seed in range(SEEDS) if settings["do_sample"] else [None]:
            attempt = {**case, "generation_config": {**settings, "max_new_tokens": length}}
            if seed is not None:
                attempt["seed"] = seed
            if (done := stable(model, attempt)) is not None:
                return done
    raise AssertionError(("too close to call", case))


def settings_of(texts):
    """name -> settings. `texts`: new ids that beam search makes of both prompts, to choose end tokens from."""
    a, b = texts
    ends = [a[3], b[4], a[6]]
    rare = next(i for i in range(3, PAD) if i not in a + b)
    result = {
        "beams_2": dict(num_beams=2),
        "beams_3": dict(num_beams=3, num_return_sequences=3),
        "beams_5": dict(num_beams=5, num_return_sequences=2),
        "one_token": dict(num_beams=4, num_return_sequences=4, max_new_tokens=1),
        "min_new_tokens": dict(num_beams=4, eos_token_id=ends, min_new_tokens=5),
        "repetition_penalty": dict(num_beams=3, repetition_penalty=1.5, no_repeat_ngram_size=2),
        "encoder": dict(num_beams=3, encoder_repetition_penalty=1.6, encoder_no_repeat_ngram_size=2),
        "words": dict(num_beams=3, bad_words_ids=[[a[1]], a[2:4]], sequence_bias=[[[b[0]], 2.0]], eos_token_id=ends[:1]),
        "forced": dict(num_beams=4, forced_bos_token_id=rare, forced_eos_token_id=2, suppress_tokens=[a[0], b[0]]),
        "decay": dict(num_beams=3, exponential_decay_length_penalty=[2, 1.3], eos_token_id=b[1]),
        "renormalize": dict(num_beams=3, repetition_penalty=1.3, renormalize_logits=True, eos_token_id=ends[:2]),
        "sampled": dict(num_beams=3, num_return_sequences=2, do_sample=True),
        "sampled_ends": dict(num_beams=4, do_sample=True, temperature=1.3, eos_token_id=ends, early_stopping=True),
        "sampled_warpers": dict(num_beams=3, do_sample=True, top_k=12, top_p=0.9, temperature=0.8, eos_token_id=ends[:1]),
        "sampled_normal": dict(num_beams=2, do_sample=True, typical_p=0.9, renormalize_logits=True),
    }
    for stop in (False, True, "never"):
        for penalty in (-2.0, 0.0, 1.0, 3.0):
            result[f"stop_{str(stop).lower()}_penalty_{penalty:g}"] = dict(
                num_beams=3, num_return_sequences=3, early_stopping=stop, length_penalty=penalty, eos_token_id=ends[:2]
            )
    for count in (1, 2, 3):
        for stop in (False, True):
            result[f"ends_{count}_{str(stop).lower()}"] = dict(
                num_beams=5, num_return_sequences=5, early_stopping=stop, eos_token_id=ends[:count]
            )
    return result


def cases_of(model, family, name, settings):
    encoder = {"decoder_start_token_id": 0} if family == "t5" else {}
    config = {"max_new_tokens": NEW_TOKENS, **DEFAULTS, **encoder, **settings}
    alone = {}
    for batch, (ids, mask) in batches(family).items():
        if name == "forced" and family != "t5":
            if batch == "padded":
                continue
            ids, mask = make_goldens.solo(ids[0][:1])  # the one length at which it acts
        if batch == "b" and config["do_sample"]:
            continue
        case = {"name": f"{name}.{batch}", "input_ids": ids, "attention_mask": mask, "generation_config": config}
        case = finish(model, case)
        if batch != "padded" or config["do_sample"]:
            alone[batch] = case
            yield case
            continue
        lengths = {case["generation_config"]["max_new_tokens"] for case in (case, *alone.values())}
        if len(lengths) == 1 and name not in PADDING_COUNTS:
            assert case["new_ids"] == alone["a"]["new_ids"] + alone["b"]["new_ids"], ("rows depend on mates", case)


def write(family):
    model = make_processor_runs.load(family)
    plain, cases = [], []
    for case in cases_of(model, family, "none", dict(num_beams=4)):
        plain.append(case["new_ids"][0])
        cases.append(case)
    for name, settings in settings_of(plain).items():
        cases += cases_of(model, family, name, settings)
    scripts = (__file__, make_processor_runs.__file__, make_goldens.__file__, make_seq2seq.__file__)
    document = {"made_with": common.made_with(*scripts), "checkpoint": family, "cases": cases}
    common.write_json(common.GOLDENS / "beam_runs" / f"{family}.json", document)
    shortest = min(case["generation_config"]["max_new_tokens"] for case in cases if not case["name"].startswith("one"))
    print(f"{family}: {len(cases)} cases, shortest {shortest}")


if __name__ == "__main__":
    common.set_up()
    for chosen in sys.argv[1:] or make_processor_runs.FAMILIES:
        write(chosen)
