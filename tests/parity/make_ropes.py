"""Writes goldens/ropes.json: the rotary frequencies of every rope type, at several lengths of the text.

Each case has the config.json that asks for it (sizes included, head_dim 16), the factor on cosines and sines, and per length
the frequencies in radians a token. Usage: make_ropes.py
"""

import copy

import common
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SIZES = dict(
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=16,
    num_hidden_layers=1,
    max_position_embeddings=64,
)
SHORT = [1.0, 1.05, 1.1, 1.3, 1.5, 1.7, 2.0, 2.5]
LONG = [1.1, 1.4, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0]
LENGTHS = [1, 16, 17, 64, 65, 100]
CASES = {
    "default": ("llama", dict(rope_theta=500.0)),
    "linear": ("llama", dict(rope_scaling=dict(type="linear", factor=4.0))),
    "llama3": (
        "llama",
        dict(rope_parameters=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)),
    ),
    "dynamic": ("llama", dict(rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=1000.0))),
    "yarn": ("qwen2", dict(rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16))),
    "yarn_bands": (
        "llama",
        dict(rope_parameters=dict(rope_type="yarn", factor=40.0, beta_fast=6.0, beta_slow=0.5, truncate=False)),
    ),
    "yarn_mscale": (
        "llama",
        dict(rope_parameters=dict(rope_type="yarn", factor=40.0, mscale=1.0, mscale_all_dim=0.7)),
    ),
    "yarn_attention_factor": (
        "qwen3",
        dict(rope_parameters=dict(rope_type="yarn", factor=4.0, attention_factor=1.25, beta_fast=0)),
    ),
    "longrope": (
        "phi3",
        dict(
            original_max_position_embeddings=16,
            rope_scaling=dict(type="longrope", short_factor=SHORT, long_factor=LONG),
        ),
    ),
    "longrope_factors": (
        "llama",
        dict(
            rope_parameters=dict(
                rope_type="longrope",
                short_factor=SHORT,
                long_factor=LONG,
                factor=3.0,
                original_max_position_embeddings=64,
            )
        ),
    ),
    "longrope_attention_factor": (
        "llama",
        dict(
            rope_parameters=dict(
                rope_type="longrope",
                short_factor=SHORT,
                long_factor=LONG,
                attention_factor=1.5,
                original_max_position_embeddings=16,
            )
        ),
    ),
    "partial": ("phi3", dict(rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5))),
}


def frequencies(config, length):
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        rotary = transformers.models.phi3.modeling_phi3.Phi3RotaryEmbedding
        return rotary.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)


def make_case(name):
    family, fields = CASES[name]
    given = {"model_type": family, **SIZES, **fields}
    config = transformers.AutoConfig.for_model(**copy.deepcopy(given))
    at_lengths = [{"length": n, "frequencies": frequencies(config, n)[0].tolist()} for n in LENGTHS]
    factor = float(frequencies(config, None)[1])
    return {"name": name, "config": given, "attention_factor": factor, "at": at_lengths}


if __name__ == "__main__":
    common.set_up()
    document = {"made_with": common.made_with(__file__), "cases": [make_case(name) for name in CASES]}
    common.write_json(common.GOLDENS / "ropes.json", document)
