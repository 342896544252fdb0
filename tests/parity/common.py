"""What every script of this folder shares: paths, versions, compact JSON, a quiet oracle on one thread."""

import hashlib
import json
import os
import pathlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
CHECKPOINTS = HERE / "checkpoints"
GOLDENS = HERE / "goldens"
REQUIRED = {"torch": "2.11.0", "transformers": "5.24.0"}

PROMPT_A = [5, 6, 7, 8, 9, 10, 11, 7, 8]
PROMPT_B = [12, 13, 14]
PAD = 0


def set_up():
    """One thread and no gradients; refuses an oracle of another version."""
    found = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    if found != REQUIRED:
        raise SystemExit(f"the oracle must be {REQUIRED}, found {found}; see scripts/make_oracle.sh")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


def made_with(*scripts):
    """The versions, and the SHA-256 (first 16 digits) of the scripts that made a golden."""
    digest = hashlib.sha256()
    for script in (*scripts, __file__):
        digest.update(pathlib.Path(script).read_bytes())
    return {
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "numpy": numpy.__version__,
        "scripts_sha256": digest.hexdigest()[:16],
    }


def write_json(path, document):
    """One top-level member a line (one item a line for lists of records), compact inside."""

    def compact(value):
        return json.dumps(value, separators=(",", ":"), allow_nan=False)

    lines = []
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            body = "[\n" + ",\n".join("  " + compact(item) for item in value) + "\n ]"
        else:
            body = compact(value)
        lines.append(f" {json.dumps(key)}:{body}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def padded_pair():
    """Prompts A and B as one left-padded batch: (input_ids, attention_mask)."""
    pads = len(PROMPT_A) - len(PROMPT_B)
    ids = [PROMPT_A, [PAD] * pads + PROMPT_B]
    mask = [[1] * len(PROMPT_A), [0] * pads + [1] * len(PROMPT_B)]
    return ids, mask
