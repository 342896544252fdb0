"""Writes goldens/processors: the oracle's logits processors alone, one file a processor.

A case has `scores` (float32 rows, "-inf" as a string) or `equal_scores` (so many equal ones) and either `outputs`, or
`kept` (how many finite scores a row keeps) where which of several equal scores goes is left free. `fault` names the case
of the project's list of known faults whose right value stands here; `refused` holds arguments that are an error.
"""

import math

import common
import torch
from transformers.generation import logits_process as oracle

MAKE = {
    "temperature": oracle.TemperatureLogitsWarper,
    "top_k": oracle.TopKLogitsWarper,
    "top_p": oracle.TopPLogitsWarper,
    "min_p": oracle.MinPLogitsWarper,
    "repetition_penalty": oracle.RepetitionPenaltyLogitsProcessor,
}
INF = "-inf"
IDS = [[0, 1, 2, 2]]


def numbers(tensor):
    """Rows of the shortest decimals that give the same float32; -inf as a string."""
    return [[INF if x == -math.inf else float(str(x)) for x in row] for row in tensor.float().numpy()]


def scores_of(rows):
    return torch.tensor([[-math.inf if x == INF else x for x in row] for row in rows])


def logs(*probabilities):
    """Logits whose softmax is `probabilities`."""
    return numbers(torch.tensor([probabilities]).log())


def random_rows(seed, rows=2, vocab=16, scale=2.0):
    return numbers(scale * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)))


def run(kind, arguments, rows, ids=None):
    """Applies one processor; for the two length processors `ids` matter by their number only."""
    ids = torch.tensor(ids if ids is not None else [[0]] * len(rows))
    if kind == "min_length":
        processor = oracle.MinLengthLogitsProcessor(arguments["min_length"], arguments["eos_token_id"])
    elif kind == "min_new_tokens":
        processor = oracle.MinNewTokensLengthLogitsProcessor(
            arguments["prompt_length"], arguments["min_new_tokens"], arguments["eos_token_id"]
        )
    else:
        processor = MAKE[kind](arguments[kind])
    return processor(ids, scores_of(rows))


def plain(kind, name, value, rows, **more):
    arguments = value if isinstance(value, dict) else {kind: value}
    ids = more.get("input_ids")
    return {"name": name, "arguments": arguments, "scores": rows, "outputs": numbers(run(kind, arguments, rows, ids)), **more}


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


FILES = {
    "temperature": temperature,
    "top_k": top_k,
    "top_p": top_p,
    "min_p": min_p,
    "repetition_penalty": repetition_penalty,
    "min_length": lambda: lengths("min_length", {"min_length": 4}, (3, 4, 5)),
    "min_new_tokens": lambda: lengths("min_new_tokens", {"prompt_length": 3, "min_new_tokens": 2}, (3, 4, 5)),
}

if __name__ == "__main__":
    common.set_up()
    for kind, build in FILES.items():
        cases, errors = build()
        document = {"made_with": common.made_with(__file__), "processor": kind, "cases": cases, "refused": errors}
        common.write_json(common.GOLDENS / "processors" / f"{kind}.json", document)
