"""Writes goldens/traces/quantized.json: random operation sequences on the oracle's quantized cache, where it is right.

Steps, reorder_cache and reset; the oracle's other operations on quantized layers are faults (F52, F53). Lengths and mask
sizes are the oracle's. What it returns is within `bound` of what was fed: a replay must be, too. Usage:
make_quantized_traces.py
"""

import random

import common
import make_codecs
import torch
import transformers

COUNT = 60
LAYERS, HEADS, HEAD_DIM, GROUP = 2, 2, 16, 8


def settings(rng):
    """A backend with numbers for which its groups lie within heads, and work."""
    backend = rng.choice(["quanto", "hqq", "fp8"])
    if backend == "fp8":
        return {"backend": "fp8"}
    # hqq packs codes of 1 and 3 bits in eights and tens of groups, and fails on other numbers of them.
    bits = rng.choice([2, 4] if backend == "quanto" else [2, 4, 8])
    axis = 0 if backend == "quanto" else 1
    return {
        "backend": backend,
        "nbits": bits,
        "axis_key": axis,
        "axis_value": axis,
        "q_group_size": GROUP,
        "residual_length": rng.choice([1, 4, 16]),
    }


def bound(config):
    """Of an error: half a step of the range [-4, 4] of values, or a step; a 16th of a value."""
    if config["backend"] == "fp8":
        return 4 / 16
    step = 8 / (2 ** config["nbits"] - 1)
    return step / 2 + 1e-5 if config["backend"] == "quanto" else step + 1e-5


class Trace:
    def __init__(self, rng, name):
        self.rng, self.name, self.config = rng, name, settings(rng)
        self.cache = self.make()
        self.rows, self.ops, self.fed = rng.choice([1, 2, 3]), [], None

    def make(self):
        config = transformers.PreTrainedConfig(num_hidden_layers=LAYERS)
        return transformers.QuantizedCache(config=config, **self.config)

    def update(self, count):
        salt = len(self.ops) + 1
        states = make_codecs.values([self.rows, HEADS, count, HEAD_DIM], salt)
        self.fed = states if self.fed is None else torch.cat([self.fed, states], 2)
        op = {"op": "update", "count": count, "rows": self.rows, "salt": salt, "mask": []}
        worst = 0
        for layer in range(LAYERS):
            op["mask"].append(list(self.cache.get_mask_sizes(count, layer)))
            keys, values = self.cache.update(states, -states, layer)
            error = max((keys - self.fed).abs().max().item(), (values + self.fed).abs().max().item())
            worst = max(worst, error)
            assert keys.shape == self.fed.shape
        # Requantized over and over, values drift: a fault (F56), which the bound need not cover.
        op["oracle_error"] = round(worst, 6) if worst == worst else None
        assert self.config["backend"] != "fp8" or worst <= bound(self.config), (self.name, worst)
        return op

    def reorder(self):
        indices = [self.rng.randrange(self.rows) for _ in range(self.rows)]
        self.cache.reorder_cache(torch.tensor(indices))
        if self.fed is not None:
            self.fed = self.fed[indices]
        return {"op": "reorder_cache", "indices": indices}

    def reset(self):
        # Of the oracle's layers, reset() keeps what is quantized (it is read again only after the first step).
        self.cache, self.fed, self.rows = self.make(), None, self.rng.choice([1, 2, 3])
        return {"op": "reset"}

    def run(self):
        # The first step holds values of every size, so that fp8's one scale will do (F60).
        self.add(self.update(8))
        while len(self.ops) < 12:
            choice = self.rng.random()
            if choice < 0.75:
                self.add(self.update(self.rng.choice([1, 1, 1, 2, 5, 12])))
            elif choice < 0.95:
                self.add(self.reorder())
            else:
                self.add(self.reset())
                self.add(self.update(8))
        return {"name": self.name, "config": self.config, "bound": round(bound(self.config), 6), "ops": self.ops}

    def add(self, op):
        op["length"] = [self.cache.get_seq_length(layer) for layer in range(LAYERS)]
        self.ops.append(op)


def main():
    common.set_up()
    rng = random.Random(6)
    traces = [Trace(rng, f"quantized_{index}").run() for index in range(COUNT)]
    path = common.GOLDENS / "traces" / "quantized.json"
    common.write_json(path, {"made_with": common.made_with(__file__, make_codecs.__file__), "traces": traces})


if __name__ == "__main__":
    main()
