"""Writes the tiny random checkpoints of tests/parity/checkpoints.

Weights are wide (standard deviation 0.4), norms and biases random too, so that greedy text varies and an
ignored weight shows. Usage: make_checkpoints.py [name ...]
"""

import json
import shutil
import sys
import zlib

import common
import torch
import transformers

SIZES = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
GENERATION = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)


def rope(theta=10000.0, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


SHORT_FACTOR = [1.0, 1.1, 1.3, 1.7]
LONG_FACTOR = [1.2, 2.0, 3.5, 6.0]

# name -> (family, what differs from SIZES, the old-style config.json or None)
RECIPES = {
    "llama": ("Llama", dict(rope_parameters=rope()), None),
    "llama_old_style": (
        "Llama",
        dict(
            num_hidden_layers=2,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
            rms_norm_eps=1e-5,
            rope_parameters=rope(5000.0, rope_type="linear", factor=4.0),
        ),
        dict(rope_theta=5000.0, rope_scaling={"type": "linear", "factor": 4.0}),
    ),
    "llama3_rope": (
        "Llama",
        dict(
            head_dim=12,
            num_key_value_heads=1,
            rope_parameters=rope(
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        ),
        None,
    ),
    "mistral": ("Mistral", dict(sliding_window=4, rope_parameters=rope()), None),
    "mistral_full": (
        "Mistral",
        dict(sliding_window=None, head_dim=8, num_hidden_layers=2, rope_parameters=rope(1000000.0)),
        None,
    ),
    "qwen2": (
        "Qwen2",
        dict(
            use_sliding_window=True,
            sliding_window=4,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters=rope(),
        ),
        None,
    ),
    "qwen2_old_style": (
        "Qwen2",
        dict(
            use_sliding_window=True,
            sliding_window=5,
            max_window_layers=1,
            tie_word_embeddings=True,
            rope_parameters=rope(1000000.0),
        ),
        dict(rope_theta=1000000.0, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    ),
    "llama_yarn": (
        "Llama",
        dict(
            head_dim=16,
            rope_parameters=rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=2.0),
        ),
        None,
    ),
    "llama_dynamic": (
        "Llama",
        dict(max_position_embeddings=24, rope_parameters=rope(rope_type="dynamic", factor=2.0)),
        dict(rope_theta=10000.0, rope_scaling={"type": "dynamic", "factor": 2.0}),
    ),
    "phi3": (
        "Phi3",
        dict(head_dim=8, sliding_window=5, rope_parameters=rope(partial_rotary_factor=0.5)),
        None,
    ),
    "phi3_longrope": (
        "Phi3",
        dict(
            num_key_value_heads=4,
            tie_word_embeddings=True,
            original_max_position_embeddings=24,
            rope_parameters=rope(rope_type="longrope", short_factor=SHORT_FACTOR, long_factor=LONG_FACTOR),
        ),
        dict(
            rope_theta=10000.0,
            rope_scaling={"type": "longrope", "short_factor": SHORT_FACTOR, "long_factor": LONG_FACTOR},
        ),
    ),
    "gemma2": (
        "Gemma2",
        dict(
            head_dim=16,
            sliding_window=4,
            query_pre_attn_scalar=12,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=6.0,
            rope_parameters=rope(),
        ),
        None,
    ),
    "gemma2_old_style": (
        "Gemma2",
        dict(
            head_dim=8,
            sliding_window=5,
            query_pre_attn_scalar=8,
            attention_bias=True,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            tie_word_embeddings=False,
            hidden_activation="gelu",
            rope_parameters=rope(5000.0),
        ),
        dict(rope_theta=5000.0, hidden_act="gelu_pytorch_tanh"),
    ),
    "gemma3_text": (
        "Gemma3Text",
        dict(
            head_dim=16,
            sliding_window=4,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            query_pre_attn_scalar=12,
            final_logit_softcapping=6.0,
            rope_parameters={
                "sliding_attention": rope(100.0),
                "full_attention": rope(rope_type="linear", factor=4.0),
            },
        ),
        None,
    ),
    "gemma3_text_old_style": (
        "Gemma3Text",
        dict(
            head_dim=8,
            sliding_window=5,
            query_pre_attn_scalar=8,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "sliding_attention": rope(50.0),
                "full_attention": rope(5000.0, rope_type="linear", factor=8.0),
            },
        ),
        dict(
            rope_theta=5000.0,
            rope_local_base_freq=50.0,
            rope_scaling={"rope_type": "linear", "factor": 8.0},
            sliding_window_pattern=2,
        ),
    ),
    "llama4_text": (
        "Llama4Text",
        dict(
            head_dim=8,
            intermediate_size_mlp=40,
            interleave_moe_layer_step=2,
            num_local_experts=4,
            no_rope_layers=[1, 0, 1],
            attention_chunk_size=4,
            floor_scale=3,
            attn_scale=0.7,
            rope_parameters=rope(),
        ),
        None,
    ),
    "llama4_text_biased": (
        "Llama4Text",
        dict(
            head_dim=8,
            num_hidden_layers=2,
            attention_bias=True,
            use_qk_norm=False,
            attn_temperature_tuning=False,
            num_local_experts=3,
            num_experts_per_tok=2,
            no_rope_layer_interval=2,
            attention_chunk_size=5,
            tie_word_embeddings=True,
            rope_parameters=rope(50.0),
        ),
        None,
    ),
    "qwen3": (
        "Qwen3",
        dict(head_dim=16, tie_word_embeddings=True, rope_parameters=rope(1000000.0)),
        None,
    ),
    "qwen3_sliding": (
        "Qwen3",
        dict(
            head_dim=8,
            attention_bias=True,
            use_sliding_window=True,
            sliding_window=4,
            layer_types=["full_attention", "sliding_attention", "sliding_attention"],
            rope_parameters=rope(),
        ),
        None,
    ),
    # Families with recurrent states. Of each a second form, which switches what the first leaves at its default.
    "mamba": ("Mamba", dict(state_size=8), None),
    "mamba_biased": (
        "Mamba",
        dict(
            state_size=4,
            expand=3,
            conv_kernel=3,
            time_step_rank=5,
            use_bias=True,
            use_conv_bias=False,
            residual_in_fp32=False,
            tie_word_embeddings=False,
        ),
        None,
    ),
    "mamba2": ("Mamba2", dict(state_size=16, num_heads=8, head_dim=8, n_groups=2, chunk_size=4), None),
    "mamba2_biased": (
        "Mamba2",
        dict(
            state_size=8,
            num_heads=4,
            head_dim=16,
            n_groups=1,
            conv_kernel=3,
            use_bias=True,
            use_conv_bias=False,
            residual_in_fp32=False,
            time_step_limit=(0.3, 0.9),
            tie_word_embeddings=True,
        ),
        None,
    ),
    "jamba": (
        "Jamba",
        dict(
            attn_layer_period=3,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=0,
            intermediate_size=32,
            num_experts=3,
            num_experts_per_tok=2,
            mamba_d_state=8,
            mamba_dt_rank=6,
        ),
        None,
    ),
    "jamba_biased": (
        "Jamba",
        dict(
            num_key_value_heads=1,
            attn_layer_period=2,
            attn_layer_offset=0,
            num_experts=1,
            mamba_d_state=4,
            mamba_d_conv=3,
            mamba_expand=1,
            mamba_dt_rank=5,
            mamba_conv_bias=False,
            mamba_proj_bias=True,
            tie_word_embeddings=True,
        ),
        None,
    ),
    "qwen3_next": (
        "Qwen3Next",
        dict(
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            head_dim=16,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=6,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=24,
            mlp_only_layers=[1],
            rope_parameters=rope(),
        ),
        None,
    ),
    "qwen3_next_sparse": (
        "Qwen3Next",
        dict(
            full_attention_interval=2,
            head_dim=12,
            attention_bias=True,
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            linear_conv_kernel_dim=3,
            num_experts=5,
            num_experts_per_tok=3,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            norm_topk_prob=False,
            decoder_sparse_step=2,
            tie_word_embeddings=True,
            rope_parameters=rope(1000000.0, partial_rotary_factor=0.5),
        ),
        None,
    ),
    "lfm2": (
        "Lfm2",
        dict(
            layer_types=["conv", "full_attention", "conv"],
            block_auto_adjust_ff_dim=False,
            rope_parameters=rope(1000000.0),
        ),
        None,
    ),
    "lfm2_biased": (
        "Lfm2",
        dict(
            full_attn_idxs=[1],
            conv_bias=True,
            conv_L_cache=4,
            block_multiple_of=8,
            block_ffn_dim_multiplier=1.25,
            tie_word_embeddings=False,
            rope_parameters=rope(1000000.0),
        ),
        None,
    ),
}
# name -> (recipe whose weights are used, dtype, size limit of a shard)
COPIES = {
    "llama_sharded": ("llama", torch.float32, "70KB"),
    "llama_bf16": ("llama", torch.bfloat16, None),
    "llama_f16": ("llama", torch.float16, None),
}
# Families whose model class has another name.
MODEL_CLASSES = {"Gemma3Text": "Gemma3ForCausalLM", "Llama4Text": "Llama4ForCausalLM"}
# Rope whose frequencies depend on a text's length: name -> tokens up to which they stay the same.
LENGTH_DEPENDENT = {"llama_dynamic": 24, "phi3_longrope": 24}
# Those whose sampled ids are recorded: sampling knows nothing of families.
SAMPLED = {
    "llama",
    "llama_old_style",
    "llama3_rope",
    "mistral",
    "mistral_full",
    "qwen2",
    "qwen2_old_style",
    "qwen3",
    "qwen3_sliding",
}
# Padding changes the rows of these in the oracle: llama4's temperature tuning counts it, and the biases of input
# projections put it into the states of the others.
PADDING_COUNTS = {"llama4_text", "mamba_biased", "mamba2_biased", "jamba_biased", "lfm2_biased"}
# The oracle's single steps ignore time_step_limit.
STEPS_DIFFER = {"mamba2_biased"}
# A checkpoint whose greedy text repeats one token, or is decided by too small a margin, moves to another seed here.
RESEED = {
    "llama_old_style": 1,
    "llama3_rope": 1,
    "mistral": 3,
    "mistral_full": 2,
    "qwen2_old_style": 1,
    "qwen3": 2,
    "qwen3_sliding": 1,
    "gemma2": 3,
    "gemma3_text": 4,
    "gemma3_text_old_style": 21,
    "jamba": 3,
    "mamba_biased": 4,
    "mamba2": 3,
}


# Norms that weigh by 1 + w.
ZERO_CENTERED = {
    "gemma2": "norm.weight",
    "gemma3_text": "norm.weight",
    "qwen3_next": ("layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight"),
}


def randomize(model, name):
    """Fills every parameter in name order from one generator that the checkpoint's name seeds."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + RESEED.get(name, 0))
    for key, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if key.endswith(ZERO_CENTERED.get(model.config.model_type, ())):
            parameter.copy_(0.3 * noise)
        elif key == "model.embed_tokens.weight" and model.config.model_type.startswith("gemma"):
            parameter.copy_(0.1 * noise)  # it is scaled by the square root of the width
        elif key.endswith(("norm.weight", "norm_f.weight")):
            parameter.copy_(1.0 + 0.3 * noise)
        elif key.endswith("bias"):
            parameter.copy_(0.3 * noise)
        else:
            parameter.copy_(0.4 * noise)


def make_model(name):
    family, changes, _ = RECIPES[name]
    model_class = getattr(transformers, MODEL_CLASSES.get(family, f"{family}ForCausalLM"))
    attention = {"attn_implementation": "sdpa"} if model_class._supports_sdpa else {}
    config_class = getattr(transformers, f"{family}Config")
    sizes = {key: value for key, value in SIZES.items() if key in config_class.__dataclass_fields__}
    config = config_class(**{**sizes, **changes}, **attention)
    config.dtype = "float32"
    model = model_class(config)
    model.generation_config = transformers.GenerationConfig(**GENERATION)
    randomize(model, name)
    return model.eval()


def write_old_style(model, name, folder):
    """config.json as Transformers 4 wrote it: flat rope fields, torch_dtype, no layer_types."""
    family, changes, old = RECIPES[name]
    config = {
        "architectures": [type(model).__name__],
        **{k: v for k, v in SIZES.items()},
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "model_type": model.config.model_type,
        "rms_norm_eps": model.config.rms_norm_eps,
        "tie_word_embeddings": model.config.tie_word_embeddings,
        "torch_dtype": "float32",
        "transformers_version": "4.40.0",
        "use_cache": True,
        **{k: v for k, v in changes.items() if k not in ("rope_parameters", "layer_types")},
        **old,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write(name):
    source, dtype, shard = COPIES.get(name, (name, torch.float32, None))
    model = make_model(source).to(dtype)
    model.config.dtype = dtype
    folder = common.CHECKPOINTS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    if name in RECIPES and RECIPES[name][2] is not None:
        write_old_style(model, name, folder)
    check(model, folder)


def check(model, folder):
    """The oracle must read the folder back to the same weights and, in float32, to the same logits.

    (Narrowing `model` narrowed its rotary frequencies too; a loaded model keeps those in float32.)
    """
    ids = torch.tensor([common.PROMPT_A])
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert loaded.dtype == model.dtype
    for key, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], weight), (folder.name, key)
    if model.dtype == torch.float32:
        logits = [m(ids, use_cache=False).logits for m in (loaded, model)]
        assert torch.equal(*logits), folder.name
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert size < 250_000, (folder.name, size)
    print(f"{folder.name}: {size} bytes, {sorted(file.name for file in folder.iterdir())}")


if __name__ == "__main__":
    common.set_up()
    for chosen in sys.argv[1:] or [*RECIPES, *COPIES]:
        write(chosen)
