"""Writes goldens/processors: the oracle's logits processors alone, one file a processor.

A case has `scores` (float32 rows, "-inf" as a string) or `equal_scores` (so many equal ones) and either `outputs`, or
`kept` (how many finite scores a row keeps) where which of several equal scores goes is left free. `fault` names the case
of the project's list of known faults whose right value stands here; `refused` holds arguments that are an error.
"""

import math

import common
import processor_oracle
import torch
from transformers.generation import logits_process as oracle

INF = "-inf"
IDS = [[0, 1, 2, 2]]


SPECIAL = {INF: -math.inf, "inf": math.inf, "nan": math.nan}


def numbers(tensor):
    """Rows of the shortest decimals that give the same float32; infinities and NaN as strings."""
    return [[float(str(x)) if math.isfinite(x) else str(x) for x in row] for row in tensor.float().numpy()]


def scores_of(rows):
    return torch.tensor([[SPECIAL.get(x, x) for x in row] for row in rows])


def logs(*probabilities):
    """Logits whose softmax is `probabilities`."""
    return numbers(torch.tensor([probabilities]).log())


def random_rows(seed, rows=2, vocab=16, scale=2.0):
    return numbers(scale * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)))


def run(kind, arguments, rows, ids=None, encoder=None):
    """Applies one processor; where `ids` are not given, they do not matter."""
    ids = torch.tensor(ids if ids is not None else [[0]] * len(rows))
    encoder = None if encoder is None else torch.tensor(encoder)
    return processor_oracle.build(kind, arguments, encoder)(ids, scores_of(rows))


def plain(kind, name, value, rows, **more):
    arguments = value if isinstance(value, dict) else {kind: value}
    outputs = numbers(run(kind, arguments, rows, more.get("input_ids"), more.get("encoder_input_ids")))
    return {"name": name, "arguments": arguments, "scores": rows, "outputs": outputs, **more}


def kept(kind, name, value, rows, expected, **more):
    out = run(kind, {kind: value}, rows)
    assert torch.isfinite(out).sum(-1).tolist() == expected, (name, out)
    return {"name": name, "arguments": {kind: value}, "scores": rows, "kept": expected, **more}


def refused(kind, *values):
    for value in values:
        try:
            run(kind, {kind: value}, random_rows(0))
        except ValueError:
            continue
        raise AssertionError((kind, value))
    return [{"arguments": {kind: value}} for value in values]


def temperature():
    holed = [[1.0, INF, -2.5, 0.0]]
    cases = [plain("temperature", f"temperature_{t}", t, random_rows(1)) for t in (0.7, 1.3, 0.01)]
    return cases + [plain("temperature", "with_holes", 0.5, holed)], refused("temperature", 0.0, -1.0)


def top_k():
    rows, ties = random_rows(2), [[1.0, 3.0, 2.0, 2.0, 0.0]]
    cases = [plain("top_k", f"top_k_{k}", k, rows) for k in (1, 5, 15, 16)]
    cases += [
        plain("top_k", "F44_above_vocabulary", 100, rows, fault="F44"),
        plain("top_k", "ties_at_the_last_place_all_stay", 2, ties),
        plain("top_k", "fewer_finite_than_k", 3, [[INF, 1.0, INF, 2.0]]),
    ]
    return cases, refused("top_k", -1, 0)


def equal_halves_precision():
    """F46: of 4096 equal scores p=.5 keeps 2048 in every dtype; the oracle's narrow sums miss it."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        out = oracle.TopPLogitsWarper(0.5)(None, torch.zeros(1, 4096, dtype=dtype))
        found[str(dtype).removeprefix("torch.")] = int(torch.isfinite(out).sum())
    assert found == {"float32": 2048, "bfloat16": 2040, "float16": 2047}, found
    return [
        {"name": f"F46_{dtype}", "arguments": {"top_p": 0.5}, "dtype": dtype, "equal_scores": 4096, "kept": [2048]}
        | ({"fault": "F46"} if count != 2048 else {})
        for dtype, count in found.items()
    ]


def top_p():
    rows, steps = random_rows(3), logs(0.5, 0.3, 0.2)
    cases = [plain("top_p", f"top_p_{p}", p, rows) for p in (0.9, 0.5, 0.1, 0.99, 1.0)]
    for p, count in ((0.5, 1), (0.79, 2), (0.8, 2), (0.81, 3)):
        cases.append(plain("top_p", f"F45_{p}_keeps_{count}", p, steps, fault="F45"))
        assert sum(x != INF for x in cases[-1]["outputs"][0]) == count
    cases += [
        plain("top_p", "F44_zero_keeps_one", 0.0, rows, fault="F44"),
        plain("top_p", "F44_tiny_keeps_one", 1e-9, rows, fault="F44"),
        plain("top_p", "with_holes", 0.7, [[INF, 1.0, 0.5, INF, 0.25]]),
        kept("top_p", "F45_two_equal_halves_keep_one", 0.5, logs(0.5, 0.5), [1], fault="F45"),
        kept("top_p", "ties", 0.65, [[1.0] * 10], [7]),
    ]
    return cases + equal_halves_precision(), refused("top_p", 1.1, -0.1)


def min_p():
    rows = random_rows(4)
    cases = [plain("min_p", f"min_p_{p}", p, rows) for p in (0.0, 0.02, 0.1, 0.5)]
    cases += [
        plain("min_p", "F44_one_keeps_the_best", 1.0, rows, fault="F44"),
        plain("min_p", "with_holes", 0.3, [[INF, 1.0, 0.5, INF, -3.0]]),
    ]
    return cases, refused("min_p", 1.1, -0.1)


def repetition_penalty():
    ids = [[3, 3, 5, 0], [1, 2, 15, 2]]
    cases = [
        plain("repetition_penalty", "F35_once_per_id", 2.0, [[2.0, -2.0, INF, 4.0]], input_ids=IDS, fault="F35"),
        plain("repetition_penalty", "penalty_1.3", 1.3, random_rows(5), input_ids=ids),
        plain("repetition_penalty", "reward_0.8", 0.8, random_rows(6), input_ids=ids),
        plain("repetition_penalty", "zero_score", 1.5, [[0.0, 1.0, -1.0]], input_ids=[[0, 1]]),
    ]
    assert cases[0]["outputs"] == [[1.0, -4.0, INF, 4.0]]
    return cases, refused("repetition_penalty", 0.0, -1.0)


def lengths(kind, arguments, thresholds):
    """One case a number of ids so far, around the length at which EOS becomes free."""
    cases = []
    for eos_name, eos in (("one", 2), ("list", [1, 3])):
        for length in thresholds:
            settings = {**arguments, "eos_token_id": eos}
            ids = [[0] * length] * 2
            cases.append(plain(kind, f"eos_{eos_name}_at_{length}", settings, random_rows(7, vocab=5), input_ids=ids))
    return cases, []


def entropy_shares(kind, values):
    """Warpers by entropy: values, ties, exact steps, holes, and a vocabulary of one likely token."""
    rows, steps = random_rows(8), logs(0.5, 0.25, 0.125, 0.125)
    cases = [plain(kind, f"{kind}_{value}", value, rows) for value in values]
    cases += [plain(kind, f"steps_{value}", value, steps) for value in values]
    cases += [
        plain(kind, "with_holes", values[1], [[INF, 1.0, 0.5, INF, 0.25, -4.0]]),
        plain(kind, "one_token", values[1], [[INF, 1.0, INF]]),
        plain(kind, "nothing_but_one_is_likely", values[1], [[40.0, -80.0, -90.0, 0.0]]),
    ]
    return cases


def top_h():
    cases = entropy_shares("top_h", (0.2, 0.5, 0.9))
    cases += [
        kept("top_h", "ties", 0.55, [[1.0] * 10], [5]),
        kept("top_h", "at_most_100_tokens", 0.999, [[0.0] * 101 + [2.0] * 20], [99]),
    ]
    return cases, refused("top_h", 0.0, -0.1, 1.1)


def typical_p():
    cases = entropy_shares("typical_p", (0.2, 0.5, 0.9, 0.99))
    cases += [
        plain("typical_p", "equal_ones_all_stay", 0.2, [[1.0] * 10]),
        plain("typical_p", "the_best_one_goes", 0.3, logs(0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)),
        plain("typical_p", "at_least_3", {"typical_p": 0.1, "min_tokens_to_keep": 3}, random_rows(9)),
    ]
    return cases, refused("typical_p", 0.0, 1.0, -0.1, 1.5)


def cutoff(kind):
    cases = entropy_shares(kind, (0.01, 0.125, 0.3, 0.9))
    cases += [
        plain(kind, "exactly_on_a_step", 0.25, logs(0.5, 0.25, 0.25)),
        plain(kind, "nothing_is_likely_enough", 0.9, [[1.0, 1.0, 0.5]]),
        plain(kind, "at_least_3", {kind: 0.9, "min_tokens_to_keep": 3}, random_rows(10)),
        plain(kind, "at_least_more_than_there_are", {kind: 0.9, "min_tokens_to_keep": 9}, [[1.0, 2.0, 3.0]]),
    ]
    return cases, refused(kind, 0.0, 1.0, -0.1)


def kept_beside_eos():
    """The least numbers that beam search asks of the other warpers."""
    rows = random_rows(11)
    return {
        kind: [
            plain(kind, f"at_least_{least}", {kind: value, "min_tokens_to_keep": least}, rows) for least in (2, 5, 16)
        ]
        for kind, value in (("top_k", 1), ("top_p", 0.1), ("min_p", 1.0))
    }


def encoder_repetition_penalty():
    encoder = [[3, 3, 5, 0], [1, 2, 15, 2]]
    kind = "encoder_repetition_penalty"
    cases = [
        plain(kind, "penalty_1.3", 1.3, random_rows(12), encoder_input_ids=encoder),
        plain(kind, "punishment_0.8", 0.8, random_rows(13), encoder_input_ids=encoder),
        plain(kind, "two_rows_an_input", 2.0, random_rows(14, rows=4), encoder_input_ids=encoder),
        plain(kind, "once_per_id", 2.0, [[2.0, -2.0, INF, 0.0]], encoder_input_ids=[[0, 1, 2, 2, 3, 0]]),
    ]
    return cases, []


TEXTS = [[1, 2, 3, 1, 2, 4, 1, 2], [5, 5, 5, 0, 5, 5, 0, 5]]


def no_repeat_ngram_size():
    kind, rows = "no_repeat_ngram_size", random_rows(15)
    cases = [plain(kind, f"size_{size}", size, rows, input_ids=TEXTS) for size in (1, 2, 3, 4, 8, 9)]
    return cases, refused(kind, 0, -1)


def encoder_no_repeat_ngram_size():
    kind, rows = "encoder_no_repeat_ngram_size", random_rows(16, rows=4)
    texts = TEXTS + [[0, 5, 1], [1, 2, 9]]
    encoder = [[1, 2, 3, 1, 2, 4], [5, 1, 2, 5, 1, 7]]
    cases = []
    for size in (1, 2, 3, 4, 7):
        ids = [text[-3:] for text in texts]
        cases.append(plain(kind, f"size_{size}", size, rows, input_ids=ids, encoder_input_ids=encoder))
    one = [text[-1:] for text in texts]
    cases.append(plain(kind, "text_shorter_than_a_prefix", 3, rows, input_ids=one, encoder_input_ids=encoder))
    return cases, []


def sequence_bias():
    kind, rows = "sequence_bias", random_rows(17)
    mixed = [[[3], -2.0], [[9], 1.5], [[2, 3], 4.0], [[1, 2, 3], -0.25], [[5, 7], 0.5], [[0, 5, 7], 2.5], [[4, 4], 9.0]]
    cases = [
        plain(kind, "one_token", [[[3], -2.5], [[0], 1.0]], rows, input_ids=TEXTS),
        plain(kind, "several_meet", mixed, rows, input_ids=TEXTS),
        plain(kind, "the_last_of_equal_ones", [[[3], -2.5], [[3], 1.0]], rows, input_ids=TEXTS),
        plain(kind, "longer_than_the_text", [[[1, 2, 3], 1.0], [[1, 2], 2.0]], rows, input_ids=[[2], [1]]),
    ]
    return cases, []


def bad_words_ids():
    kind, rows = "bad_words_ids", random_rows(18)
    words = [[7], [2, 3], [1, 2, 4], [5, 5], [3, 5, 0], [0]]
    cases = [
        plain(kind, "of_several_lengths", words, rows, input_ids=TEXTS),
        plain(kind, "without_the_end", {"bad_words_ids": words, "eos_token_id": [7, 5]}, rows, input_ids=TEXTS),
    ]
    return cases, []


def at_lengths(kind, settings, lengths):
    """One case a number of ids so far."""
    cases = []
    for name, arguments in settings:
        for length in lengths:
            ids = [[0] * length] * 2
            cases.append(plain(kind, f"{name}_at_{length}", arguments, random_rows(19, vocab=5), input_ids=ids))
    return cases


def decay():
    kind = "exponential_decay_length_penalty"
    rest = {"eos_token_id": [1, 3], "prompt_length": 3}
    penalties = ((0, 1.1), (2, 1.5), (1, 0.8))
    settings = [(f"{start}_{factor}", {kind: [start, factor], **rest}) for start, factor in penalties]
    cases = at_lengths(kind, settings, (3, 4, 5, 6, 9))
    arguments = {kind: [0, 2.0], "eos_token_id": [0, 1], "prompt_length": 1}
    cases.append(plain(kind, "infinite_stays", arguments, [[INF, -1.0, 2.0]], input_ids=[[0, 0]]))
    return cases, []


def forced_or_suppressed(kind, lengths_so_far):
    value = 3 if kind == "forced_bos_token_id" else [1, 4]
    arguments = {kind: value, "max_length": 4, "prompt_length": 2}
    return at_lengths(kind, [("tokens", arguments)], lengths_so_far), []


def scores_that_are_none():
    rows = [["nan", 1.0, INF, "inf"], [INF] * 4, [0.5, -1.0, 2.0, 0.0]]
    return [plain("remove_invalid_values", "each_kind", {}, rows)], []


def renormalize():
    rows = random_rows(20) + [[INF] * 15 + [3.0]]
    return [plain("renormalize_logits", "rows", {}, rows)], []


FILES = {
    "temperature": temperature,
    "top_k": top_k,
    "top_p": top_p,
    "min_p": min_p,
    "top_h": top_h,
    "typical_p": typical_p,
    "epsilon_cutoff": lambda: cutoff("epsilon_cutoff"),
    "eta_cutoff": lambda: cutoff("eta_cutoff"),
    "repetition_penalty": repetition_penalty,
    "encoder_repetition_penalty": encoder_repetition_penalty,
    "no_repeat_ngram_size": no_repeat_ngram_size,
    "encoder_no_repeat_ngram_size": encoder_no_repeat_ngram_size,
    "sequence_bias": sequence_bias,
    "bad_words_ids": bad_words_ids,
    "min_length": lambda: lengths("min_length", {"min_length": 4}, (3, 4, 5)),
    "min_new_tokens": lambda: lengths("min_new_tokens", {"prompt_length": 3, "min_new_tokens": 2}, (3, 4, 5)),
    "forced_bos_token_id": lambda: forced_or_suppressed("forced_bos_token_id", (1, 2)),
    "forced_eos_token_id": lambda: forced_or_suppressed("forced_eos_token_id", (2, 3, 4)),
    "suppress_tokens": lambda: forced_or_suppressed("suppress_tokens", (1,)),
    "begin_suppress_tokens": lambda: forced_or_suppressed("begin_suppress_tokens", (1, 2, 3)),
    "exponential_decay_length_penalty": decay,
    "remove_invalid_values": scores_that_are_none,
    "renormalize_logits": renormalize,
}

if __name__ == "__main__":
    common.set_up()
    least = kept_beside_eos()
    for kind, make_cases in FILES.items():
        cases, errors = make_cases()
        cases += least.get(kind, [])
        made_with = common.made_with(__file__, processor_oracle.__file__)
        document = {"made_with": made_with, "processor": kind, "cases": cases, "refused": errors}
        common.write_json(common.GOLDENS / "processors" / f"{kind}.json", document)
