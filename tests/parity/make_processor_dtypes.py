"""Writes goldens/processor_dtypes: every processor of the oracle on random scores and texts, in float32 and narrow dtypes.

The right scores in a narrow dtype are those of the widened ones, rounded in the end; the oracle sums in the scores'
dtype. `oracle_differs` lists the dtypes in which its own run gives other scores.
"""

import common
import processor_oracle
import torch
from safetensors.torch import save_file

ROWS, VOCAB, LENGTH = 4, 40, 14
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CASES = {
    "temperature": [{"temperature": 0.7}],
    "top_k": [{"top_k": 7}],
    "top_p": [{"top_p": 0.9}, {"top_p": 0.4}],
    "min_p": [{"min_p": 0.05}],
    "top_h": [{"top_h": 0.4}, {"top_h": 0.8}],
    "typical_p": [{"typical_p": 0.3}, {"typical_p": 0.9}],
    "epsilon_cutoff": [{"epsilon_cutoff": 0.02}],
    "eta_cutoff": [{"eta_cutoff": 0.05}],
    "repetition_penalty": [{"repetition_penalty": 1.3}, {"repetition_penalty": 0.7}],
    "encoder_repetition_penalty": [{"encoder_repetition_penalty": 1.3}],
    "no_repeat_ngram_size": [{"no_repeat_ngram_size": size} for size in (1, 2, 3)],
    "encoder_no_repeat_ngram_size": [{"encoder_no_repeat_ngram_size": size} for size in (1, 2, 3)],
    "bad_words_ids": [{"bad_words_ids": [[3], [1, 2], [0, 1, 5], [4, 4]], "eos_token_id": 3}],
    "sequence_bias": [{"sequence_bias": [[[7], -2.5], [[30], 0.3], [[2], 1.5], [[1], -0.75], [[0, 1], 3.0]]}],
    "min_length": [{"min_length": LENGTH + 1, "eos_token_id": [3, 9]}],
    "min_new_tokens": [{"min_new_tokens": 3, "prompt_length": LENGTH - 2, "eos_token_id": 3}],
    "forced_bos_token_id": [{"forced_bos_token_id": 5}],
    "forced_eos_token_id": [{"forced_eos_token_id": [3, 9], "max_length": LENGTH + 1}],
    "suppress_tokens": [{"suppress_tokens": [0, 17, 39]}],
    "begin_suppress_tokens": [{"begin_suppress_tokens": [0, 17, 39], "prompt_length": LENGTH}],
    "exponential_decay_length_penalty": [
        {"exponential_decay_length_penalty": [2, 1.3], "prompt_length": 6, "eos_token_id": [3, 9]}
    ],
    "remove_invalid_values": [{}],
    "renormalize_logits": [{}],
}


def random_inputs():
    """Scores in each dtype, texts of few different ids, and an encoder's text for every two rows."""
    random = torch.Generator().manual_seed(1)
    scores = 2.5 * torch.randn(ROWS, VOCAB, generator=random)
    inputs = {f"scores.{name}": scores.to(dtype) for name, dtype in DTYPES.items()}
    inputs["input_ids"] = torch.randint(6, (ROWS, LENGTH), generator=random)
    inputs["encoder_input_ids"] = torch.randint(6, (ROWS // 2, LENGTH), generator=random)
    return inputs


def run(kind, arguments, inputs, scores):
    ids = inputs["input_ids"]
    if kind == "forced_bos_token_id":
        ids = ids[:, :1]
    return processor_oracle.build(kind, arguments, inputs["encoder_input_ids"])(ids, scores)


def finish(kind, index, arguments, tensors):
    """The case; its scores go into `tensors`."""
    case = {"name": f"{kind}.{index}", "processor": kind, "arguments": arguments, "oracle_differs": []}
    if kind == "forced_bos_token_id":
        case["length"] = 1
    for name, dtype in DTYPES.items():
        scores = tensors[f"scores.{name}"]
        # The limits of a dtype are not those of float32.
        limits = kind == "remove_invalid_values"
        right = run(kind, arguments, tensors, scores if limits else scores.float()).to(dtype)
        if not torch.equal(right, run(kind, arguments, tensors, scores)):
            case["oracle_differs"].append(name)
        tensors[f"{case['name']}.{name}"] = right.contiguous()
    return case


def write():
    tensors = random_inputs()
    for name in DTYPES:  # something to remove
        tensors[f"scores.{name}"][0, 5:8] = -torch.inf
    cases = [finish(kind, i, a, tensors) for kind, settings in CASES.items() for i, a in enumerate(settings)]
    made_with = common.made_with(__file__, processor_oracle.__file__)
    common.write_json(common.GOLDENS / "processor_dtypes.json", {"made_with": made_with, "cases": cases})
    save_file(tensors, common.GOLDENS / "processor_dtypes.safetensors")


if __name__ == "__main__":
    common.set_up()
    write()
