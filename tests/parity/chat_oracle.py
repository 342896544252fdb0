"""Renders chat templates as the oracle's apply_chat_template does, at a fixed time."""

import datetime

import common  # noqa: F401 (quiets the oracle)
import tokenizers
import transformers
from transformers.utils import chat_template_utils

NOW = datetime.datetime(2024, 7, 26, 9, 5, 3)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = FixedTime


def make_tokenizer(special=SPECIAL):
    model = tokenizers.models.WordLevel({token: i for i, token in enumerate(SPECIAL.values())}, unk_token="<unk>")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(model), **special)


def guarded(function):
    """{"text": ...}; where the oracle raises, {"error": the message, "exception": ...}."""
    try:
        return {"text": function()}
    except Exception as error:  # noqa: BLE001 (whatever is raised is a refusal)
        return {"error": str(error), "exception": error}


def render(tokenizer, template, messages, **arguments):
    return guarded(
        lambda: tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **arguments)
    )
