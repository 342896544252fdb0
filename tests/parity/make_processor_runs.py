"""Runs the oracle's generate() with one processor's setting after the other, and writes goldens/processor_runs.

Two prompts greedily and, with a seed, the first one sampled; beside the ids, of each new token's scores behind all
processors: that of the token, how many are finite, and their log-sum-exp (6 decimals). A case is kept at the length up to
which noise of the size of the tests' tolerance changes neither ids nor counts. Usage: make_processor_runs.py [family ...]
"""

import sys

import common
import make_goldens
import make_seq2seq
import torch
import transformers

FAMILIES = ("llama", "mistral", "gemma3_text", "lfm2", "t5")
NEW_TOKENS, FEWEST = 10, 5
PROMPTS = {"a": common.PROMPT_A, "b": common.PROMPT_B}
EOS = {"eos_token_id": 2}


class Tilt(transformers.LogitsProcessor):
    """A processor of the user's: adds the sine of each id."""

    def __call__(self, input_ids, scores):
        return scores + torch.arange(scores.shape[-1]).sin()


def load(family):
    if family == "t5":
        kind, folder = transformers.T5ForConditionalGeneration, make_seq2seq.CHECKPOINTS
    else:
        kind, folder = transformers.AutoModelForCausalLM, common.CHECKPOINTS
    model = kind.from_pretrained(folder / family, dtype="auto").eval()
    model.generation_config = transformers.GenerationConfig()
    return model


def run(model, case, noise=None):
    """(new ids, [chosen, finite, log-sum-exp] of each one's scores)"""
    config = transformers.GenerationConfig(**case["generation_config"])
    processors = [Tilt()] if case.get("tilt") else []
    if noise is not None:
        processors.append(make_goldens.Noise(noise))
    if "seed" in case:
        torch.manual_seed(case["seed"])
    out = model.generate(
        torch.tensor([case["input_ids"]]),
        attention_mask=torch.ones(1, len(case["input_ids"]), dtype=torch.long),
        generation_config=config,
        logits_processor=processors,
        output_scores=True,
        return_dict_in_generate=True,
    )
    ids = out.sequences[0, -len(out.scores) :].tolist()
    facts = []
    for scores, token in zip(out.scores, ids):
        finite = scores[0][scores[0].isfinite()]
        facts.append([round(scores[0, token].item(), 6), finite.numel(), round(finite.logsumexp(0).item(), 6)])
    return ids, facts


def counts(facts):
    return [finite for _, finite, _ in facts]


def stable(model, case):
    """The case with what it gives, if noise changes nothing; else None."""
    ids, facts = run(model, case)
    for noise in range(3):
        noisy_ids, noisy = run(model, case, noise)
        if noisy_ids != ids or counts(noisy) != counts(facts):
            return None
    return {**case, "new_ids": ids, "scores": facts}


def finish(model, case):
    """Shortens a case until it is stable; a sampled one first tries other seeds."""
    settings = case["generation_config"]
    for length in range(NEW_TOKENS, FEWEST - 1, -1):
        for seed in range(4) if settings["do_sample"] else [None]:
            attempt = {**case, "generation_config": {**settings, "max_new_tokens": length}}
            if seed is not None:
                attempt["seed"] = seed
            if (done := stable(model, attempt)) is not None:
                return done
    raise AssertionError(("too close to call", case))


def settings_of(base, start):
    """name -> settings, chosen so that they change what `base`, the new ids without any, are.

    `start`: how long the text of prompt a is before the first of them.
    """
    a, b = base["a"], base["b"]
    rare = next(i for i in range(3, 64) if i not in a + b)
    return {
        "sequence_bias": dict(sequence_bias=[[[a[0]], -3.0], [a[1:3], -6.0], [b[:2], -9.0], [[rare], 1.5]]),
        "encoder_repetition_penalty": dict(encoder_repetition_penalty=1.7),
        "repetition_penalty": dict(repetition_penalty=1.6),
        "no_repeat_ngram_size": dict(no_repeat_ngram_size=1),
        "no_repeat_ngram_size_2": dict(no_repeat_ngram_size=2),
        "encoder_no_repeat_ngram_size": dict(encoder_no_repeat_ngram_size=1),
        "encoder_no_repeat_ngram_size_2": dict(encoder_no_repeat_ngram_size=2),
        "bad_words_ids": dict(bad_words_ids=[[a[1]], a[2:4], [a[0], a[2]], b[:2]], **EOS),
        "min_length": dict(eos_token_id=[a[2], b[2]], min_length=start + 4),
        "min_new_tokens": dict(eos_token_id=[a[2], b[2]], min_new_tokens=6),
        "forced_bos_token_id": dict(forced_bos_token_id=rare, begin_suppress_tokens=[rare, a[1], b[1]]),
        "forced_eos_token_id": dict(forced_eos_token_id=rare, **EOS),
        "remove_invalid_values": dict(remove_invalid_values=True, suppress_tokens=[a[0], b[0]]),
        "exponential_decay_length_penalty": dict(exponential_decay_length_penalty=[2, 1.6], eos_token_id=rare),
        "suppress_tokens": dict(suppress_tokens=[a[0], a[3], b[0], b[3]]),
        "begin_suppress_tokens": dict(begin_suppress_tokens=[a[0], b[0]]),
        "renormalize_logits": dict(renormalize_logits=True),
        "temperature": dict(temperature=1.7),
        "top_k": dict(top_k=4),
        "top_p": dict(top_p=0.7),
        "min_p": dict(min_p=0.2),
        "top_h": dict(top_h=0.5),
        "typical_p": dict(typical_p=0.5),
        "epsilon_cutoff": dict(epsilon_cutoff=0.05),
        "eta_cutoff": dict(eta_cutoff=0.2),
        "everything": dict(
            sequence_bias=[[[a[0]], -1.0], [[rare], 1.5]],
            encoder_repetition_penalty=1.2,
            repetition_penalty=1.1,
            no_repeat_ngram_size=2,
            encoder_no_repeat_ngram_size=3,
            bad_words_ids=[[a[1]], a[2:4]],
            min_new_tokens=3,
            forced_bos_token_id=rare,
            forced_eos_token_id=2,
            remove_invalid_values=True,
            exponential_decay_length_penalty=[4, 1.05],
            suppress_tokens=[7, 9],
            begin_suppress_tokens=[a[3]],
            renormalize_logits=True,
            temperature=1.4,
            top_h=0.9,
            top_k=20,
            top_p=0.95,
            min_p=0.01,
            typical_p=0.95,
            epsilon_cutoff=0.001,
            eta_cutoff=0.002,
            **EOS,
        ),
    }


WARPERS = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
# What changes scores alone, or nothing that a token's choice shows.
SAME_IDS = ("renormalize_logits",)


def cases_of(model, family, name, settings, base):
    """A setting's greedy and sampled cases; asserts that it has an effect on a text."""
    encoder = {"decoder_start_token_id": 0} if family == "t5" else {}
    changed = False
    runs = [(prompt, False) for prompt in PROMPTS if name not in WARPERS] + [("a", True)]
    for prompt, sample in runs:
        ids = PROMPTS[prompt]
        if name == "forced_bos_token_id" and family != "t5":
            ids = ids[:1]  # the one length at which it acts
        config = {**make_goldens.DEFAULTS, **encoder, "do_sample": sample, **settings}
        case = {"name": f"{name}.{prompt}", "input_ids": ids, "generation_config": config}
        if name == "everything":
            case["tilt"] = True
        case = finish(model, case)
        changed = changed or sample or case["new_ids"] != base[prompt][: len(case["new_ids"])]
        yield case
    assert changed or name in SAME_IDS, ("no effect", family, name)


def write(family):
    model = load(family)
    base, cases = {}, []
    for case in cases_of(model, family, "none", {}, {"a": [], "b": []}):
        if not case["generation_config"]["do_sample"]:
            base[case["name"].removeprefix("none.")] = case["new_ids"]
        cases.append(case)
    start = 1 if family == "t5" else len(PROMPTS["a"])
    for name, settings in settings_of(base, start).items():
        cases += cases_of(model, family, name, settings, base)
    scripts = (__file__, make_goldens.__file__, make_seq2seq.__file__)
    document = {"made_with": common.made_with(*scripts), "checkpoint": family, "cases": cases}
    common.write_json(common.GOLDENS / "processor_runs" / f"{family}.json", document)
    print(f"{family}: {len(cases)} cases, shortest {min(len(case['new_ids']) for case in cases)}")


if __name__ == "__main__":
    common.set_up()
    for chosen in sys.argv[1:] or FAMILIES:
        write(chosen)
