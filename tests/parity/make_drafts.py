"""Runs the oracle's generate() with drafts, by prompt lookup and of another model, and writes goldens/drafts.json.

Greedy. Every case is also run without drafts, and without them with noise of the size of the tests' tolerance: the ids are
the same. The oracle refuses drafts on models with recurrent states (of mamba's kind; lfm2's convolutions it takes back).
"""

import common
import make_goldens
import make_seq2seq
import torch
import transformers

FAMILIES = ("llama", "mistral", "gemma3_text", "lfm2", "t5")
REFUSED = ("mamba",)
ASSISTANTS = {"llama": "mistral", "mistral": "llama", "gemma3_text": "llama", "lfm2": "llama"}
PROMPTS = {
    "a": common.PROMPT_A,
    "one": [5],
    "repeating": [3, 4] * 8,  # what follows its last tokens is in it
}
LENGTHS = (4, 20)
SETTINGS = dict(do_sample=False, pad_token_id=common.PAD)


def load(family):
    if family == "t5":
        kind, folder = transformers.T5ForConditionalGeneration, make_seq2seq.CHECKPOINTS
    else:
        kind, folder = transformers.AutoModelForCausalLM, common.CHECKPOINTS
    model = kind.from_pretrained(folder / family, dtype="auto").eval()
    model.generation_config = transformers.GenerationConfig()
    return model


def run(model, case, drafts=True, noise=None):
    """The new ids."""
    settings = {**case["generation_config"]}
    if not drafts:
        settings = {name: value for name, value in settings.items() if name not in case["drafts"]}
    arguments = {"assistant_model": load(case["assistant"])} if drafts and "assistant" in case else {}
    ids = torch.tensor([case["input_ids"]])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=transformers.GenerationConfig(**settings),
        logits_processor=[] if noise is None else [make_goldens.Noise(noise)],
        **arguments,
    )
    return out[0, 1 if case["family"] == "t5" else ids.shape[1] :].tolist()


def cases_of(family, model):
    encoder = {"decoder_start_token_id": 0} if family == "t5" else {}
    drafts = {
        "lookup": dict(prompt_lookup_num_tokens=3, max_matching_ngram_size=2),
        "lookup_long": dict(prompt_lookup_num_tokens=10, max_matching_ngram_size=1),
    }
    if family in ASSISTANTS:
        drafts["assisted"] = dict(num_assistant_tokens=4, num_assistant_tokens_schedule="constant")
        drafts["assisted_self"] = dict(num_assistant_tokens=6, num_assistant_tokens_schedule="heuristic")
    for name, settings in drafts.items():
        for prompt, ids in PROMPTS.items():
            for length in LENGTHS:
                config = {**SETTINGS, **encoder, **settings, "max_new_tokens": length}
                case = {"name": f"{name}.{prompt}.{length}", "family": family, "input_ids": ids}
                case["drafts"] = sorted(settings)
                case["generation_config"] = config
                if name.startswith("assisted"):
                    case["assistant"] = ASSISTANTS[family] if name == "assisted" else family
                yield case
                if length == max(LENGTHS):  # ends at its third token
                    free = run(model, case, drafts=False)
                    yield {**case, "name": case["name"] + ".eos", "generation_config": {**config, "eos_token_id": free[2]}}


def finish(model, case):
    ids = run(model, case, drafts=False)
    if any(run(model, case, drafts=False, noise=seed) != ids for seed in range(3)):
        return None
    drafted = run(model, case)
    assert drafted == ids, (case, drafted, ids)
    case = {key: value for key, value in case.items() if key != "drafts"}
    return {**case, "new_ids": drafted}


def main():
    cases = []
    for family in FAMILIES:
        model = load(family)
        done = [finish(model, case) for case in cases_of(family, model)]
        kept = [case for case in done if case is not None]
        print(f"{family}: {len(kept)} of {len(done)} cases")
        assert len(kept) > len(done) // 2, "most cases are too close to call"
        cases += kept
    for family in REFUSED:
        model = load(family)
        case = next(iter(cases_of(family, model)))
        try:
            run(model, case)
        except ValueError as error:
            print(f"{family}: {error}")
        else:
            raise AssertionError(f"{family} takes drafts")
    scripts = (__file__, make_goldens.__file__, make_seq2seq.__file__)
    common.write_json(common.GOLDENS / "drafts.json", {"made_with": common.made_with(*scripts), "cases": cases})


if __name__ == "__main__":
    common.set_up()
    main()
