"""Writes goldens/processor_order.json: which processors the oracle makes of a config, in order, by their class names."""

import common
import torch
import transformers

ON = dict(
    sequence_bias=[[[5], -1.0]],
    encoder_repetition_penalty=1.2,
    repetition_penalty=1.1,
    no_repeat_ngram_size=2,
    encoder_no_repeat_ngram_size=3,
    bad_words_ids=[[4]],
    min_length=4,
    min_new_tokens=3,
    forced_bos_token_id=5,
    forced_eos_token_id=2,
    remove_invalid_values=True,
    exponential_decay_length_penalty=[4, 1.05],
    suppress_tokens=[7, 9],
    begin_suppress_tokens=[3],
    renormalize_logits=True,
    temperature=1.4,
    top_h=0.9,
    top_k=20,
    top_p=0.95,
    min_p=0.01,
    typical_p=0.95,
    epsilon_cutoff=0.001,
    eta_cutoff=0.002,
)
OFF = dict(
    encoder_repetition_penalty=1.0,
    repetition_penalty=1.0,
    no_repeat_ngram_size=0,
    encoder_no_repeat_ngram_size=0,
    min_length=0,
    min_new_tokens=0,
    remove_invalid_values=False,
    renormalize_logits=False,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    typical_p=1.0,
    epsilon_cutoff=0.0,
    eta_cutoff=0.0,
)


def names(model, settings):
    """The class names of the processors that generate() makes."""
    found = []
    prepare = type(model)._get_logits_processor

    def listen(*arguments, **keywords):
        processors = prepare(model, *arguments, **keywords)
        found.extend(type(processor).__name__ for processor in processors)
        return processors

    model._get_logits_processor = listen
    config = transformers.GenerationConfig(pad_token_id=0, max_new_tokens=1, **settings)
    model.generate(torch.tensor([common.PROMPT_A]), generation_config=config)
    return found


if __name__ == "__main__":
    common.set_up()
    model = transformers.AutoModelForCausalLM.from_pretrained(common.CHECKPOINTS / "llama").eval()
    model.generation_config = transformers.GenerationConfig()
    configs = [{}, OFF, {"eos_token_id": 2, **ON}, {"eos_token_id": [2, 3], **OFF}]
    configs += [{name: value, "eos_token_id": 2} for name, value in ON.items()]
    configs += [{"min_length": 4}, {"min_new_tokens": 3}]  # without an end token
    cases = []
    for settings in configs:
        for sample in (False, True):
            config = {**settings, "do_sample": sample}
            cases.append({"generation_config": config, "processors": names(model, config)})
    common.write_json(common.GOLDENS / "processor_order.json", {"made_with": common.made_with(__file__), "cases": cases})
