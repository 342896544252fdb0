"""The oracle's logits processors, made from the settings that goldens/processors call `arguments`.

The processors that read an encoder's ids take them as the tensor `encoder`; ids are given where they matter.
"""

from transformers.generation import logits_process as oracle


def min_new_tokens(a, encoder):
    return oracle.MinNewTokensLengthLogitsProcessor(a["prompt_length"], a["min_new_tokens"], a["eos_token_id"])


def encoder_ngrams(a, encoder):
    return oracle.EncoderNoRepeatNGramLogitsProcessor(a["encoder_no_repeat_ngram_size"], encoder)


def decay(a, encoder):
    settings = tuple(a["exponential_decay_length_penalty"])
    return oracle.ExponentialDecayLengthPenalty(settings, a["eos_token_id"], a["prompt_length"])


def begin(a, encoder):
    return oracle.SuppressTokensAtBeginLogitsProcessor(a["begin_suppress_tokens"], a["prompt_length"])


# kind -> (settings, the encoder's ids) -> processor
BUILD = {
    "temperature": lambda a, e: oracle.TemperatureLogitsWarper(a["temperature"]),
    "top_k": lambda a, e: oracle.TopKLogitsWarper(a["top_k"], min_tokens_to_keep=a.get("min_tokens_to_keep", 1)),
    "top_p": lambda a, e: oracle.TopPLogitsWarper(a["top_p"], min_tokens_to_keep=a.get("min_tokens_to_keep", 1)),
    "min_p": lambda a, e: oracle.MinPLogitsWarper(a["min_p"], min_tokens_to_keep=a.get("min_tokens_to_keep", 1)),
    "top_h": lambda a, e: oracle.TopHLogitsWarper(a["top_h"]),
    "typical_p": lambda a, e: oracle.TypicalLogitsWarper(
        a["typical_p"], min_tokens_to_keep=a.get("min_tokens_to_keep", 1)
    ),
    "epsilon_cutoff": lambda a, e: oracle.EpsilonLogitsWarper(
        a["epsilon_cutoff"], min_tokens_to_keep=a.get("min_tokens_to_keep", 1)
    ),
    "eta_cutoff": lambda a, e: oracle.EtaLogitsWarper(
        a["eta_cutoff"], min_tokens_to_keep=a.get("min_tokens_to_keep", 1)
    ),
    "repetition_penalty": lambda a, e: oracle.RepetitionPenaltyLogitsProcessor(a["repetition_penalty"]),
    "encoder_repetition_penalty": lambda a, e: oracle.EncoderRepetitionPenaltyLogitsProcessor(
        a["encoder_repetition_penalty"], e
    ),
    "no_repeat_ngram_size": lambda a, e: oracle.NoRepeatNGramLogitsProcessor(a["no_repeat_ngram_size"]),
    "encoder_no_repeat_ngram_size": encoder_ngrams,
    "bad_words_ids": lambda a, e: oracle.NoBadWordsLogitsProcessor(a["bad_words_ids"], a.get("eos_token_id")),
    "sequence_bias": lambda a, e: oracle.SequenceBiasLogitsProcessor(a["sequence_bias"]),
    "min_length": lambda a, e: oracle.MinLengthLogitsProcessor(a["min_length"], a["eos_token_id"]),
    "min_new_tokens": min_new_tokens,
    "forced_bos_token_id": lambda a, e: oracle.ForcedBOSTokenLogitsProcessor(a["forced_bos_token_id"]),
    "forced_eos_token_id": lambda a, e: oracle.ForcedEOSTokenLogitsProcessor(a["max_length"], a["forced_eos_token_id"]),
    "suppress_tokens": lambda a, e: oracle.SuppressTokensLogitsProcessor(a["suppress_tokens"]),
    "begin_suppress_tokens": begin,
    "exponential_decay_length_penalty": decay,
    "remove_invalid_values": lambda a, e: oracle.InfNanRemoveLogitsProcessor(),
    "renormalize_logits": lambda a, e: oracle.LogitNormalization(),
}


def build(kind, arguments, encoder=None):
    return BUILD[kind](arguments, encoder)
