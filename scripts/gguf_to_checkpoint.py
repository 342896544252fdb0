"""Convert a GGUF file of the llama family to a Transformers checkpoint, with gguf and numpy alone.

Every file is byte-deterministic. What the conversion does not know it refuses: ConversionError,
and KeyError for a field that is missing or a tensor with an unknown name.
"""

import json

import numpy
from gguf import GGUFReader
from gguf.quants import dequantize

# The pre-tokenizers that GGUF names, in tokenizer.json's form. (Transformers 5.24.0's own reading
# of a GGUF passes over the name and leaves the digits step out, so "  7" comes apart otherwise
# there. On 8,374 texts the ids are equal once its reading is given that step; without it they are
# equal wherever no digit occurs.)
PRE_TOKENIZERS = {
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": True,
            },
        ],
    },
}

CONTROL_TOKEN = 3  # GGUF's token type for special tokens
NORMAL_TOKEN = 1

# GGUF's tensor names within a block, and Transformers'.
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class ConversionError(Exception):
    """The GGUF holds something this conversion does not know."""


def convert(gguf_path, folder):
    """Write the checkpoint of `gguf_path` into the folder `folder`, weights in bfloat16."""
    reader = GGUFReader(gguf_path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields["general.architecture"] != "llama" or fields["tokenizer.ggml.model"] != "gpt2":
        raise ConversionError("the GGUF is not a llama model with a byte-level BPE tokenizer")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    write_json(folder / "config.json", model_config(fields, tied="output.weight" not in tensors))
    write_json(folder / "generation_config.json", token_ids(fields))
    write_json(folder / "tokenizer.json", tokenizer(fields), indent=None)
    write_json(folder / "tokenizer_config.json", tokenizer_config(fields))
    template = fields["tokenizer.chat_template"]
    (folder / "chat_template.jinja").write_bytes(template.encode("utf-8"))
    write_safetensors(folder / "model.safetensors", tensors, fields)


def write_json(path, value, indent=2):
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    path.write_bytes(text.encode("utf-8") + b"\n")


def short_float(value):
    """The shortest decimal that is `value` in float32 (GGUF keeps float32, JSON a decimal)."""
    return float(str(numpy.float32(value)))


def token_ids(fields):
    return {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def model_config(fields, tied):
    heads = fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "head_dim": fields["llama.embedding_length"] // heads,
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "rms_norm_eps": short_float(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {
            "rope_theta": short_float(fields["llama.rope.freq_base"]),
            "rope_type": "default",
        },
        "tie_word_embeddings": tied,
        "use_cache": True,
        "vocab_size": fields["llama.vocab_size"],
        **token_ids(fields),
    }


def tokenizer(fields):
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    unknown_types = set(types) - {NORMAL_TOKEN, CONTROL_TOKEN}
    pre = fields["tokenizer.ggml.pre"]
    if unknown_types or pre not in PRE_TOKENIZERS:
        raise ConversionError(f"unknown pre-tokenizer {pre} or token types {sorted(unknown_types)}")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": index, "content": token, **flags, "special": True}
        for index, (token, kind) in enumerate(zip(tokens, types))
        if kind == CONTROL_TOKEN
    ]
    byte_level = {"add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": {"type": "ByteLevel", **byte_level},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(fields):
    tokens = fields["tokenizer.ggml.tokens"]
    return {
        "add_bos_token": fields["tokenizer.ggml.add_bos_token"],
        "add_prefix_space": fields["tokenizer.ggml.add_space_prefix"],
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "model_max_length": fields["llama.context_length"],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
    }


def transformers_name(name):
    """Transformers' name of the GGUF tensor `name`, for the llama family."""
    if name.startswith("blk."):
        _, block, part, kind = name.split(".")
        return f"model.layers.{block}.{BLOCK_NAMES[part]}.{kind}"
    part, kind = name.split(".")
    return f"{TOP_NAMES[part]}.{kind}"


def weights(tensor, fields):
    """The tensor's values in float32, as Transformers lays them out."""
    values = dequantize(tensor.data, tensor.tensor_type)
    heads = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
    part = tensor.name.split(".")[-2]
    if part in heads:
        # GGUF interleaves the two halves that rotary embedding turns against each other:
        # rows [head, dim / 2, half]. Transformers keeps the halves apart: [head, half, dim / 2].
        rows, columns = values.shape
        count = fields[heads[part]]
        values = values.reshape(count, rows // count // 2, 2, columns).swapaxes(1, 2)
        values = values.reshape(rows, columns)
    return values


def to_bfloat16(values):
    """Bits of finite float32 `values` rounded to bfloat16, ties to even."""
    if not numpy.isfinite(values).all():
        raise ConversionError("the GGUF holds weights that are not finite")
    bits = numpy.ascontiguousarray(values, dtype="<f4").view("<u4")
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")


def write_safetensors(path, tensors, fields):
    named = sorted((transformers_name(name), tensor) for name, tensor in tensors.items())
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in named:
        end = offset + 2 * int(tensor.n_elements)
        shape = [int(size) for size in reversed(tensor.shape)]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in named:
            file.write(to_bfloat16(weights(tensor, fields)).tobytes())
