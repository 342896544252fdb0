"""Writes goldens/traces/static*.json: the same as make_traces.py for the oracle's StaticCache.

A fixed layer hands over as many columns as its buffer has. Of those the filled ones are compared, in `keys`; how many
there are in all is in `mask`.
"""

import copy
import random

import common
import make_traces
import torch
import trace_model
import transformers
from make_traces import full, sliding
from trace_model import ERA, Refused, oracle_rows, runs
from transformers import cache_utils as oracle

COUNT = 160


class StaticLayerModel(trace_model.LayerModel):
    """A ring of the window, or a full layer with room for `most` tokens where no token can leave the window (F09)."""

    def __init__(self, kind, window, most):
        super().__init__(kind, window if window is not None and window < most else None)
        self.most, self.columns = (most, most) if self.window is None else (None, self.window)

    def check_room(self, count):
        if self.most is not None and self.seen + count > self.most:
            raise Refused("ValueError", "F14")

    def mask_sizes(self, count):
        length, offset = super().mask_sizes(count)
        return [max(length, self.columns), offset]

    def check_crop(self, remove):
        if remove > self.seen:
            raise Refused("RuntimeError", "F07")
        if remove > 0 and self.first > self.needed(self.seen - remove):
            raise Refused("RuntimeError", "window-moved")


class StaticModel(trace_model.Model):
    def __init__(self, kinds, most):
        self.lazy, self.layers = False, [StaticLayerModel(kind, window, most) for kind, window in kinds]

    def max_length(self):
        per_layer = [layer.columns for layer in self.layers]
        return max(per_layer), per_layer


def make_oracle(kinds, most):
    """From a config where one window serves, else from layers."""
    windows = {window for _, window in kinds if window is not None}
    if len(windows) > 1:
        full_layer = {"full_attention": lambda w: oracle.StaticLayer(most)}
        make = lambda kind, w: full_layer.get(kind, lambda w: oracle.StaticSlidingWindowLayer(most, w))(w)  # noqa: E731
        return oracle.Cache(layers=[make(kind, window) for kind, window in kinds])
    config = transformers.PreTrainedConfig(num_hidden_layers=len(kinds))
    config.layer_types = [kind for kind, _ in kinds]
    config.sliding_window = config.attention_chunk_size = next(iter(windows), None)
    return transformers.StaticCache(config=config, max_cache_len=most)


class StaticTrace(make_traces.Trace):
    def __init__(self, name, kinds, most):
        self.name, self.kinds, self.lazy, self.most = name, kinds, False, most
        self.count = len(kinds)
        self.model, self.oracle = StaticModel(kinds, most), make_oracle(kinds, most)
        self.batch, self.era, self.ops = 1, 0, []

    def oracle_state(self, cache):
        """Lengths, and of what the oracle stores the tokens that the model holds."""
        states = []
        for layer, model in zip(cache.layers, self.model.layers):
            seen = int(layer.get_seq_length())
            filled = min(max(seen, 0), layer.max_cache_len)
            held = filled if model.window is None else min(filled, model.window - 1)
            rows = [row[filled - held : filled] for row in oracle_rows(layer.keys)] if layer.is_initialized else []
            states.append((seen, rows if seen else []))
        return states

    def record_state(self, op):
        assert self.oracle_state(self.oracle) == self.model.state(), (self.name, op)
        state = self.model.state()
        lengths = [seen for seen, _ in state]
        op["length"] = lengths if len(set(lengths)) != 1 else lengths[0]
        op["stored"] = [[runs(row) for row in rows] for _, rows in state]
        self.ops.append(op)

    def feed(self, index, numbers):
        count = len(numbers[0])
        mask = self.model.mask_sizes(index, count)
        assert list(self.oracle.get_mask_sizes(count, index)) == mask, (self.name, index, mask)
        keys = torch.tensor(numbers, dtype=torch.float32)[:, None, :, None]
        got, got_values = self.oracle.update(keys, -keys, index)
        right = self.model.layer(index).update(numbers)
        filled = len(right[0])
        assert got.shape[2] == mask[0] and oracle_rows(got[:, :, :filled]) == right, (self.name, index)
        assert torch.equal(got_values[:, :, :filled], -got[:, :, :filled])
        return mask, [runs(row) for row in right]

    def attempt(self, op, index, keys, fault):
        """A step that must be refused at layer `index`; the oracle goes on from a copy made before."""
        before, raised = copy.deepcopy(self.oracle), False
        try:
            self.oracle.update(keys, -keys, index)
        except (RuntimeError, ValueError, IndexError):
            raised = True
        if not raised or self.oracle_state(self.oracle) != self.model.state():
            op["fault"] = fault
        self.oracle = before
        self.record_state(op | {"raises": "ValueError", "layer": index})

    def update(self, count):
        bounded = [i for i, layer in enumerate(self.model.layers) if layer.most is not None]
        if not bounded or self.seen() + count <= self.most:
            super().update(count)
            return
        first = self.seen() + ERA * self.era
        keys = torch.tensor(self.numbers(first, count, self.batch), dtype=torch.float32)[:, None, :, None]
        sliding_layer = self.kinds[bounded[0]][1] is not None
        op = {"op": "update", "first": first, "count": count, "rows": self.batch}
        self.attempt(op, bounded[0], keys, "F09" if sliding_layer else "F14")

    def update_other_batch(self, rows):
        first = self.seen() + ERA * self.era
        keys = torch.tensor(self.numbers(first, 1, rows), dtype=torch.float32)[:, None, :, None]
        self.attempt({"op": "update", "first": first, "count": 1, "rows": rows}, 0, keys, "F21")

    def crop(self, n):
        before, op, reason = copy.deepcopy(self.oracle), {"op": "crop", "n": n}, None
        try:
            self.model.crop(n)
        except Refused as refusal:
            op["raises"], reason = refusal.kind, refusal.reason
        raised = None
        try:
            self.oracle.crop(n)
        except RuntimeError as error:
            raised = type(error).__name__
        if raised != op.get("raises") or self.oracle_state(self.oracle) != self.model.state():
            assert reason, (self.name, n)
            op["fault"], self.oracle = reason, before
        if "raises" not in op and n < 0:
            self.era += 1
        self.record_state(op)

    def record(self):
        """Only once tokens are held, when a ring has no room for more; the oracle ignores the call."""
        assert self.seen() > 0
        self.oracle.activate_past_recording()
        op = {"op": "activate_past_recording"}
        if any(layer.window is not None for layer in self.model.layers):
            op |= {"raises": "RuntimeError", "fault": "no-recording"}
        self.record_state(op)

    def rows(self, op, argument, indices, call):
        """The oracle can only reorder; the others are done to it by hand."""
        operation = {"op": op, **argument}
        try:
            call(self.oracle)
        except AttributeError:
            operation["fault"] = "no-row-operation"
            for layer in self.oracle.layers:
                if layer.is_initialized:
                    chosen = torch.tensor(indices)
                    layer.keys, layer.values = layer.keys[chosen], layer.values[chosen]
                    layer.batch_size = len(indices)
        for layer in self.model.layers:
            layer.rows = [list(layer.rows[index]) for index in indices]
        self.batch = len(indices)
        self.record_state(operation)

    def max_length(self):
        whole, per_layer = self.model.max_length()
        assert self.oracle.get_max_length() == whole
        assert [self.oracle.get_max_length(index) for index in range(len(per_layer))] == per_layer
        self.record_state({"op": "get_max_length", "result": whole, "layers": per_layer})

    def document(self):
        head = {"name": self.name, "lazy": False, "max_cache_len": self.most}
        layers = [{"type": kind, "window": window} for kind, window in self.kinds]
        return head | {"layers": layers, "ops": self.ops}


def step(rng, trace):
    count = rng.choice([1, 1, 1, 1, 2, 3, 4, 6, 9])
    fits = all(layer.most is None for layer in trace.model.layers) or trace.seen() + count <= trace.most
    if trace.seen() + count > make_traces.LONGEST:
        return
    if fits and trace.count > 1 and rng.random() < 0.15:
        trace.update_layers(rng.sample(range(trace.count), trace.count), count)
    else:
        trace.update(count)


def random_trace(name, seed, kinds):
    rng = random.Random(seed)
    trace = StaticTrace(name, kinds, rng.choice([4, 8, 8, 16, 16, 64]))
    trace.batch = rng.choice([1, 1, 2, 3])
    for _ in range(rng.randint(6, 13)):
        choice = rng.random()
        if choice < 0.55:
            step(rng, trace)
        elif choice < 0.74:
            trace.crop(make_traces.random_crop(rng, trace))
        elif choice < 0.86:
            if trace.seen() > 0:
                make_traces.random_rows(rng, trace)
        elif choice < 0.9:
            trace.reset(trace.batch)
        elif choice < 0.93 and trace.seen() > 0:
            trace.record()
        elif choice < 0.97:
            trace.max_length()
        elif trace.seen() > 0:
            trace.update_other_batch(trace.batch + 1)
    step(rng, trace)
    return trace.document()


def named_traces():
    scripts = {
        "F01_window_edge": ([sliding(8)], 64, "u6 u1 u1 u1"),
        "F02_continued_steps": ([sliding(4)], 64, "u3 u3 u1 u5 u1"),
        "F03_single_steps": ([sliding(4)], 64, "u2 u1 u1 u1 u1 u1 u1"),
        "F07_full": ([full()], 8, "u3 c-5 u1"),
        "F07_sliding": ([sliding(4)], 64, "u3 c-5 u1"),
        "F08_fresh": ([sliding(4)], 64, "c0 u1"),
        "F09_window_above_capacity": ([sliding(8)], 4, "u1 u1 u1 u1 u1 c-3 u1"),
        "F14_overflow": ([full()], 4, "u3 u2 u1 u1"),
        "F15_reset": ([full(), sliding(4)], 8, "u5 R u2"),
        "F17_max_length": ([full(), sliding(4)], 16, "m u3 m"),
        "F20_reorder": ([full(), sliding(4)], 8, "2 u5 o u1"),
        "F21_rows": ([full()], 8, "u3 b u1"),
        "crop_below_the_window": ([full(), sliding(4)], 16, "u3 c-2 u1 c-1 u4 c-1 u1"),
        "recording_too_late": ([full(), sliding(4)], 16, "u3 r u1"),
    }
    for name, (kinds, most, script) in scripts.items():
        trace = StaticTrace(name, kinds, most)
        for word in script.split():
            call = {
                "u": lambda n: trace.update(int(n)),
                "c": lambda n: trace.crop(int(n)),
                "r": lambda _: trace.record(),
                "R": lambda _: trace.reset(1),
                "m": lambda _: trace.max_length(),
                "b": lambda _: trace.update_other_batch(2),
                "o": lambda _: trace.reorder([1, 0]),
                "2": lambda _: setattr(trace, "batch", 2),
            }[word[0]]
            call(word[1:])
        yield trace.document()


def main():
    def random_traces(group, count):
        for index in range(count):
            kinds = make_traces.random_kinds(group, random.Random(f"static {group} kinds {index}"))
            yield random_trace(f"static_{group}_{index}", f"static {group} {index}", kinds)

    groups = {"static_named": list(named_traces())}
    for group, share in {"full": 0.2, "sliding": 0.35, "chunked": 0.1, "mixed": 0.35}.items():
        groups[f"static_{group}"] = list(random_traces(group, round(COUNT * share)))
    faults = {}
    for group, traces in groups.items():
        for trace in traces:
            for op in trace["ops"]:
                faults[op.get("fault", "none")] = faults.get(op.get("fault", "none"), 0) + 1
        document = {"made_with": common.made_with(__file__, make_traces.__file__, trace_model.__file__), "traces": traces}
        common.write_json(common.GOLDENS / "traces" / f"{group}.json", document)
        print(group, len(traces), "traces,", sum(len(trace["ops"]) for trace in traces), "operations")
    print("operations by fault:", faults)


if __name__ == "__main__":
    common.set_up()
    main()
