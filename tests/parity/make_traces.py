"""Writes goldens/traces: random operation sequences on the oracle's growing attention caches, with what is right.

Right values come from trace_model.py. The oracle runs beside it; where the two differ the script must know the reason,
which the operation then carries as `fault`. In each such case the right outcome is that nothing changes, so the oracle
goes on from a copy made before the operation.
"""

import copy
import random

import common
import torch
import trace_model
import transformers
from trace_model import ERA, ROW, Model, Refused, oracle_rows, runs
from transformers import cache_utils as oracle

COUNT = 480
LONGEST = 60


def make_oracle(kinds, lazy):
    """The oracle's cache: lazy, or from a config where one window serves, or from layers."""
    if lazy:
        return transformers.DynamicCache()
    windows = {window for _, window in kinds if window is not None}
    if len(windows) > 1:
        make = {"full_attention": lambda w: oracle.DynamicLayer()}
        return oracle.Cache(layers=[make.get(k, oracle.DynamicSlidingWindowLayer)(w) for k, w in kinds])
    config = transformers.PreTrainedConfig(num_hidden_layers=len(kinds))
    config.layer_types = [kind for kind, _ in kinds]
    config.sliding_window = config.attention_chunk_size = next(iter(windows), None)
    return transformers.DynamicCache(config=config)


def oracle_state(cache):
    states = []
    for layer in cache.layers:
        rows = oracle_rows(layer.keys)
        assert rows == [[-x for x in row] for row in oracle_rows(layer.values)]
        states.append((layer.get_seq_length(), rows))
    return states


class Trace:
    """Applies operations to the model and the oracle side by side and writes down what is right."""

    def __init__(self, name, kinds, lazy=False, count=1):
        self.name, self.kinds, self.lazy = name, kinds, lazy
        self.count = len(kinds) if not lazy else count
        self.model, self.oracle = Model(kinds, lazy), make_oracle(kinds, lazy)
        self.batch, self.era, self.ops = 1, 0, []

    def seen(self):
        return self.model.layers[0].seen if self.model.layers else 0

    def record_state(self, op):
        """Adds lengths and stored numbers of all layers; asserts that the oracle has them too."""
        assert oracle_state(self.oracle) == self.model.state(), (self.name, op)
        state = self.model.state()
        lengths = [seen for seen, _ in state]
        op["length"] = lengths if len(set(lengths)) != 1 else lengths[0]
        op["stored"] = [[runs(row) for row in rows] for _, rows in state]
        self.ops.append(op)

    def numbers(self, first, count, rows):
        return [[first + ROW * row + i for i in range(count)] for row in range(rows)]

    def feed(self, index, numbers):
        """One layer's update on both sides: its mask sizes before, and the keys it returns."""
        mask = self.model.mask_sizes(index, len(numbers[0]))
        assert list(self.oracle.get_mask_sizes(len(numbers[0]), index)) == mask
        keys = torch.tensor(numbers, dtype=torch.float32)[:, None, :, None]
        got_keys, got_values = self.oracle.update(keys, -keys, index)
        right = self.model.layer(index).update(numbers)
        assert oracle_rows(got_keys) == right and torch.equal(got_values, -got_keys), (self.name, index)
        assert mask[0] == len(right[0])
        return mask, [runs(row) for row in right]

    def update(self, count):
        """A step of `count` tokens on every layer in order."""
        first = self.seen() + ERA * self.era
        numbers = self.numbers(first, count, self.batch)
        fed = [self.feed(index, numbers) for index in range(self.count)]
        op = {"op": "update", "first": first, "count": count, "rows": self.batch}
        self.record_state(op | {"mask": [mask for mask, _ in fed], "keys": [keys for _, keys in fed]})

    def update_layers(self, order, count):
        """The same, one operation a layer in any order; lengths differ in between."""
        first = self.seen() + ERA * self.era
        numbers = self.numbers(first, count, self.batch)
        for index in order:
            mask, keys = self.feed(index, numbers)
            op = {"op": "update_layer", "layer": index, "first": first, "count": count, "rows": self.batch}
            self.record_state(op | {"mask": mask, "keys": keys})

    def update_other_batch(self, rows):
        """A step whose number of rows is not the cache's (F21): refused at the first layer."""
        before = copy.deepcopy(self.oracle)
        first = self.seen() + ERA * self.era
        keys = torch.tensor(self.numbers(first, 1, rows), dtype=torch.float32)[:, None, :, None]
        raised = False
        try:
            self.oracle.update(keys, -keys, 0)
        except (RuntimeError, ValueError):
            raised = True
        op = {"op": "update", "first": first, "count": 1, "rows": rows, "raises": "ValueError"}
        if not raised or oracle_state(self.oracle) != self.model.state():
            op["fault"] = "F21"
        self.oracle = before
        self.record_state(op)

    def crop(self, n):
        before = copy.deepcopy(self.oracle)
        op, reason = {"op": "crop", "n": n}, None
        try:
            self.model.crop(n)
        except Refused as refusal:
            op["raises"], reason = refusal.kind, refusal.reason
        raised = None
        try:
            self.oracle.crop(n)
        except (RuntimeError, ValueError, AttributeError) as error:
            raised = type(error).__name__
        try:
            agree = raised == op.get("raises") and oracle_state(self.oracle) == self.model.state()
        except AssertionError:
            agree = False
        if not agree:
            op["fault"] = reason or self.reason_of_free_crop(n)
            self.oracle = before
        if "raises" not in op and n < 0:
            self.era += 1
        self.record_state(op)

    def reason_of_free_crop(self, n):
        """Why the oracle may fail on a crop that is allowed: only crop(0) has such reasons."""
        assert n == 0, (self.name, n)
        sliding = [layer for layer in self.model.layers if layer.window is not None]
        if any(layer.seen == 0 for layer in sliding):
            return "F08"
        assert any(layer.seen >= layer.window and not layer.recording for layer in sliding), self.name
        return "crop-zero"

    def record(self):
        self.oracle.activate_past_recording()
        for layer in self.model.layers:
            layer.recording = layer.window is not None
        self.record_state({"op": "activate_past_recording"})

    def reset(self, batch):
        self.oracle.reset()
        for layer in self.model.layers:
            layer.forget()
        self.batch, self.era = batch, self.era + 1
        self.record_state({"op": "reset"})

    def rows(self, op, argument, indices, call):
        call(self.oracle)
        for layer in self.model.layers:
            layer.rows = [list(layer.rows[index]) for index in indices]
        self.batch = len(indices)
        self.record_state({"op": op, **argument})

    def reorder(self, indices):
        tensor = torch.tensor(indices)
        self.rows("reorder_cache", {"indices": indices}, indices, lambda cache: cache.reorder_cache(tensor))

    def select(self, indices):
        tensor = torch.tensor(indices)
        self.rows("batch_select_indices", {"indices": indices}, indices, lambda c: c.batch_select_indices(tensor))

    def repeat(self, repeats):
        indices = [row for row in range(self.batch) for _ in range(repeats)]
        self.rows(
            "batch_repeat_interleave", {"repeats": repeats}, indices, lambda c: c.batch_repeat_interleave(repeats)
        )

    def max_length(self):
        whole, per_layer = self.model.max_length()
        op = {"op": "get_max_length", "result": whole, "layers": per_layer}
        try:
            assert self.oracle.get_max_length() == whole
            assert [self.oracle.get_max_length(index) for index in range(len(per_layer))] == per_layer
        except ValueError:
            assert not per_layer
            op["fault"] = "F17"
        self.record_state(op)

    def document(self):
        layers = [{"type": kind, "window": window} for kind, window in self.kinds]
        head = {"name": self.name, "lazy": self.lazy, "layers": layers}
        return head | ({"layer_count": self.count} if self.lazy else {}) | {"ops": self.ops}


def random_crop(rng, trace):
    """Mostly what a user would ask, sometimes too much, sometimes the wrong sign."""
    choice = rng.random()
    if choice < 0.25 or (trace.seen() == 0 and choice < 0.9):
        return 0
    if choice < 0.9:
        return -rng.randint(1, max(1, min(5, trace.seen())))
    if choice < 0.96:
        return -(trace.seen() + rng.randint(1, 3))
    return rng.randint(1, 3)


def random_rows(rng, trace):
    """One operation on rows; only a cache that holds tokens has rows."""
    choice = rng.choice(["reorder", "reorder", "select", "repeat"])
    if choice == "reorder":
        trace.reorder([rng.randrange(trace.batch) for _ in range(trace.batch)])
    elif choice == "select":
        trace.select(sorted(rng.sample(range(trace.batch), rng.randint(1, trace.batch))))
    elif trace.batch <= 2:
        trace.repeat(rng.randint(1, 3))


def step(rng, trace):
    count = rng.choice([1, 1, 1, 1, 2, 3, 4, 6, 9])
    if trace.seen() + count > LONGEST:
        return
    if trace.count > 1 and rng.random() < 0.15:
        trace.update_layers(rng.sample(range(trace.count), trace.count), count)
    else:
        trace.update(count)


def random_trace(name, seed, kinds, lazy, count):
    rng = random.Random(seed)
    trace = Trace(name, kinds, lazy, count)
    trace.batch = rng.choice([1, 1, 2, 3])
    if rng.random() < 0.6:
        trace.record()
    for _ in range(rng.randint(6, 13)):
        choice = rng.random()
        if choice < 0.5:
            step(rng, trace)
        elif choice < 0.76:
            trace.crop(random_crop(rng, trace))
        elif choice < 0.88:
            if trace.seen() > 0:
                random_rows(rng, trace)
        elif choice < 0.91:
            trace.reset(rng.choice([1, 2]))
        elif choice < 0.94:
            trace.record()
        elif choice < 0.97:
            trace.max_length()
        elif trace.seen() > 0:
            trace.update_other_batch(trace.batch + 1)
    step(rng, trace)
    return trace.document()


def full():
    return ("full_attention", None)


def sliding(window):
    return ("sliding_attention", window)


def random_kinds(group, rng):
    if group == "sliding":
        return [sliding(rng.choice([2, 3, 4, 8]))] * rng.randint(1, 2)
    if group == "chunked":
        return [("chunked_attention", 4)] * rng.randint(1, 2)
    if group == "mixed":
        some = [full(), sliding(rng.choice([2, 3, 4, 8])), rng.choice([full(), sliding(rng.choice([2, 4, 8]))])]
        rng.shuffle(some)
        return some[: rng.randint(2, 3)] if rng.random() < 0.5 else some
    return [full()] * rng.randint(1, 3)


def random_traces(group, count):
    for index in range(count):
        rng = random.Random(f"{group} kinds {index}")
        kinds, lazy = random_kinds(group, rng), group == "lazy"
        layers = len(kinds)
        yield random_trace(f"{group}_{index}", f"{group} {index}", [] if lazy else kinds, lazy, layers)


def named_traces():
    """Known faults and the guide's picture, operation by operation."""
    scripts = {
        "F02_continued_steps": ([sliding(4)], "u3 u3 u1 u5 u1"),
        "F03_single_steps": ([sliding(4)], "u2 u1 u1 u1 u1 u1 u1"),
        "F04_recording_without_crop": ([sliding(4)], "r u6 c0 u1 u1 u1 c-2 u1"),
        "F06_more_than_held": ([sliding(4)], "r u6 c0 u2 c-4 u1"),
        "F06_mixed": ([full(), sliding(4), sliding(2)], "r u6 c0 u2 c-4 c-2 u1"),
        "F07_full": ([full()], "u3 c-5 u1"),
        "F07_recording": ([sliding(4)], "r u3 u3 c-9 u1"),
        "F08_fresh": ([sliding(4)], "c0 u1"),
        "F08_fresh_mixed": ([full(), sliding(4)], "c0 c-1 u1"),
        "F15_reset": ([full(), sliding(4)], "u5 R u2"),
        "F17_no_layers": ([], "m u1 m"),
        "F21_rows": ([sliding(4)], "u3 b u1"),
        "guide_picture": ([full(), sliding(2)], "r u6 c-3 u1"),
        "crop_without_recording": ([full(), sliding(4)], "u3 c-1 u2 c-1 c0 u1"),
        "crop_twice": ([full(), sliding(3)], "r u7 c-2 u3 c-1 c-2 u2"),
        "crop_to_nothing": ([full(), sliding(4)], "r u3 c-3 u2 u4"),
        "crop_positive": ([full(), sliding(3)], "u2 c1 u3 c2 u1"),
    }
    for name, (kinds, script) in scripts.items():
        trace = Trace(name, kinds, lazy=not kinds, count=2)
        for word in script.split():
            call = {
                "u": lambda n: trace.update(int(n)),
                "c": lambda n: trace.crop(int(n)),
                "r": lambda _: trace.record(),
                "R": lambda _: trace.reset(1),
                "m": lambda _: trace.max_length(),
                "b": lambda _: trace.update_other_batch(2),
            }[word[0]]
            call(word[1:])
        yield trace.document()
    for total in (2, 3, 4, 5, 6, 9):
        for removed in (1, 2, 3):
            if removed < total:
                trace = Trace(f"F05_{total}_{removed}", [sliding(4)])
                trace.record()
                trace.update(total - removed)
                trace.crop(0)
                trace.update(removed)
                trace.crop(-removed)
                trace.update(removed)
                yield trace.document()


def main():
    shares = {"lazy": 0.15, "full": 0.15, "sliding": 0.3, "chunked": 0.1, "mixed": 0.3}
    faults = {}
    for group in ("named", *shares):
        made = named_traces() if group == "named" else random_traces(group, round(COUNT * shares[group]))
        traces = list(made)
        for trace in traces:
            for op in trace["ops"]:
                faults[op.get("fault", "none")] = faults.get(op.get("fault", "none"), 0) + 1
        document = {"made_with": common.made_with(__file__, trace_model.__file__), "traces": traces}
        common.write_json(common.GOLDENS / "traces" / f"{group}.json", document)
        print(group, len(traces), "traces,", sum(len(trace["ops"]) for trace in traces), "operations")
    print("operations by fault:", faults)


if __name__ == "__main__":
    common.set_up()
    main()
