"""Writes goldens/traces/static_linear.json: the same as make_linear_traces.py for layers of a fixed size: hybrids of linear
and fixed attention, beside linear, fixed and dummy ones.
"""

import copy
import random

import common
import make_linear_traces
import make_static_traces
import torch
import trace_model
from make_linear_traces import HYBRID, HYBRID_SLIDING, LINEAR
from trace_model import ERA, ROW, Refused, oracle_rows, runs
from transformers import cache_utils as oracle

COUNT = 60
DUMMY = "dummy"


class StaticAttentionModel(make_static_traces.StaticLayerModel):
    """Of a hybrid, too. Its window is not recorded: there is no room for that."""

    record = 0

    def check_crop(self, remove):
        if remove > 0 and self.first > self.needed(self.seen - remove):
            raise Refused("RuntimeError", "window-moved")


class Model(make_linear_traces.Model):
    def __init__(self, kinds, most):
        self.most = most
        super().__init__([(kind, window, states) for kind, window, states in kinds if kind != DUMMY])
        layers = iter(zip(self.attention, self.states))
        both = [(None, 0) if kind == DUMMY else next(layers) for kind, _, _ in kinds]
        self.kinds, self.states = kinds, [states for _, states in both]
        self.attention = [
            layer and StaticAttentionModel(kind, window, most) for (layer, _), (kind, window, _) in zip(both, kinds)
        ]

    def check_room(self, count):
        for layer, (_, window, _) in zip(self.attention, self.kinds):
            if layer is not None and layer.most is not None and layer.seen + count > layer.most:
                raise Refused("ValueError", "F14" if window is None else "F09")

    def rings(self):
        return [layer for layer in self.with_keys() if layer.window is not None]

    def start_recording(self, most):
        if self.rings():
            raise Refused("RuntimeError", "no-recording")
        super().start_recording(most)

    def max_length(self):
        per_layer = [-1 if layer is None else layer.columns for layer in self.attention]
        return max(per_layer), per_layer


def make_oracle(kinds, most):
    make = {
        "full_attention": lambda window, states: oracle.StaticLayer(most),
        "sliding_attention": lambda window, states: oracle.StaticSlidingWindowLayer(most, window),
        LINEAR: lambda window, states: oracle.LinearAttentionLayer(states),
        HYBRID: lambda window, states: oracle.LinearAttentionAndStaticFullAttentionLayer(most, states),
        HYBRID_SLIDING: lambda window, states: oracle.LinearAttentionAndStaticSlidingWindowAttentionLayer(
            most, window, states
        ),
        DUMMY: lambda window, states: oracle.DummyLayer(),
    }
    return oracle.Cache(layers=[make[kind](window, states) for kind, window, states in kinds])


class Trace(make_linear_traces.Trace):
    def __init__(self, name, kinds, most):
        self.name, self.kinds, self.most = name, kinds, most
        self.model, self.oracle = Model(kinds, most), make_oracle(kinds, most)
        self.batch, self.era, self.ops = 1, 0, []

    def held(self, layer, model):
        """Of what a fixed layer of the oracle stores, the tokens that the model holds."""
        seen = int(layer.get_seq_length())
        if not seen or not layer.is_initialized:
            return []
        filled = min(seen, layer.max_cache_len)
        count = filled if model.window is None else min(filled, model.window - 1)
        return [row[filled - count : filled] for row in oracle_rows(layer.keys)]

    def agrees(self):
        seen = self.model.seen()
        for layer, attention, states in zip(self.oracle.layers, self.model.attention, self.model.recurrent()):
            if attention is not None:
                right = attention.rows if attention.seen else []
                if int(layer.get_seq_length()) != seen or self.held(layer, attention) != right:
                    return False
            for index, right in enumerate(states):
                if seen and layer.recurrent_states[index][:, 0].long().tolist() != right:
                    return False
                if not seen and layer.has_previous_state[index]:
                    return False
        return True

    def models_step(self, numbers):
        """Of the oracle: its mask sizes and keys, and windows that are right."""
        flat, masks, keys, windows = torch.tensor(numbers, dtype=torch.float32), [], [], []
        for i, layer in enumerate(self.model.attention):
            masks.append(None)
            keys.append(None)
            if layer is not None:
                masks[-1] = list(self.oracle.get_mask_sizes(len(numbers[0]), i))
                states = flat[:, None, :, None]
                keys[-1] = oracle_rows(self.oracle.update(states, -states, i)[0])
            windows.append([self.window(i, index, flat, numbers) for index in range(self.model.states[i])])
            for index in range(self.model.states[i]):
                self.oracle.update_recurrent_state(flat[:, -1:].clone(), i, index)
        return masks, keys, windows

    def step(self, count):
        first = self.model.seen() + 1 + ERA * self.era
        numbers = [[first + ROW * row + i for i in range(count)] for row in range(self.batch)]
        op = {"op": "step", "first": first, "count": count, "rows": self.batch}
        try:
            self.model.check_room(count)
        except Refused as refusal:
            before = copy.deepcopy(self.oracle)
            raised = self.attempt(op, lambda _: self.models_step(numbers), (RuntimeError, ValueError, IndexError))
            if not raised or not self.agrees():
                op["fault"], self.oracle = refusal.reason, before
            self.write(op | {"raises": refusal.kind})
            return
        right = [None if layer is None else layer.mask_sizes(count) for layer in self.model.attention]
        masks, found, windows = self.models_step(numbers)
        assert masks == right, (self.name, masks, right)
        keys = [None if layer is None else layer.update(numbers) for layer in self.model.attention]
        for rows, returned in zip(found, keys):
            assert returned is None or [row[: len(returned[0])] for row in rows] == returned, self.name
        self.model.update(numbers)
        self.write(op | {"mask": masks, "keys": [k and [runs(row) for row in k] for k in keys], "windows": windows})

    def crop(self, n):
        before, op, reason = copy.deepcopy(self.oracle), {"op": "crop", "n": n}, None
        try:
            self.model.crop(n)
        except Refused as refusal:
            op["raises"], reason = refusal.kind, refusal.reason
        raised = self.attempt(op, lambda cache: cache.crop(n))
        if raised is None and "raises" not in op:
            if not self.agrees():
                hybrids = [layer for kind, layer in zip(self.kinds, self.oracle.layers) if kind[0] == HYBRID]
                op["fault"] = "F18" if hybrids else "F65"
                for layer in hybrids:
                    oracle.StaticLayer.crop(layer, n)
                self.repair()
        elif raised != op.get("raises") or not self.agrees():
            op["fault"] = reason or self.reason_of_free_crop(n)
            self.oracle = before
        if "raises" not in op and n < 0:
            self.era += 1
        self.write(op)

    def record(self, most):
        """Only once tokens are held, when a ring has no room for more; the oracle has no bound."""
        before, op = copy.deepcopy(self.oracle), {"op": "activate_past_recording"}
        op |= {} if most is None else {"max_tokens": most}
        self.oracle.activate_past_recording()
        try:
            self.model.start_recording(most)
        except Refused as refusal:
            op |= {"raises": refusal.kind, "fault": refusal.reason}
            self.oracle = before
        self.write(op)

    def rows(self, op, indices, call):
        """The oracle can only reorder; the others are done to it by hand."""
        before = copy.deepcopy(self.oracle)
        raised = self.attempt(op, call)
        self.model.take_rows(indices)
        self.batch = len(indices)
        if raised or not self.agrees():
            op["fault"], self.oracle = "F67", before
            chosen = torch.tensor(indices)
            for layer, attention, states in zip(self.oracle.layers, self.model.attention, self.model.states):
                if attention is not None:
                    layer.keys, layer.values = layer.keys[chosen], layer.values[chosen]
                    layer.batch_size = len(indices)
                for index in range(states):
                    layer.conv_states[index] = layer.conv_states[index][chosen]
                    layer.recurrent_states[index] = layer.recurrent_states[index][chosen]
        self.write(op)

    def document(self):
        document = super().document()
        return {"name": document["name"], "max_cache_len": self.most} | document


def random_trace(name, seed, kinds):
    rng = random.Random(seed)
    trace = Trace(name, kinds, rng.choice([4, 8, 16, 16, 64]))
    trace.batch = rng.choice([1, 1, 2, 3])
    for _ in range(rng.randint(7, 13)):
        choice = rng.random()
        if choice < 0.5:
            trace_step(rng, trace)
        elif choice < 0.72:
            trace.crop(make_linear_traces.random_crop(rng, trace))
        elif choice < 0.84:
            if trace.model.seen() > 0:
                make_linear_traces.random_rows(rng, trace)
        elif choice < 0.88:
            trace.reset()
        elif choice < 0.96:
            if trace.model.seen() > 0:
                trace.record(rng.choice([None, 2, 4]))
        else:
            trace.max_length()
    trace_step(rng, trace)
    return trace.document()


def trace_step(rng, trace):
    count = rng.choice([1, 1, 1, 1, 2, 3, 4, 6])
    if trace.model.seen() + count <= make_linear_traces.LONGEST:
        trace.step(count)


def random_kinds(rng):
    hybrid = (HYBRID, None, rng.randint(1, 2))
    sliding = (HYBRID_SLIDING, rng.choice([2, 3, 4, 8]), rng.randint(1, 2))
    beside = [
        (LINEAR, None, rng.randint(1, 2)),
        (DUMMY, None, 0),
        ("full_attention", None, 1),
        ("sliding_attention", rng.choice([2, 4]), 1),
    ]
    kinds = [rng.choice([hybrid, hybrid, sliding]), *rng.sample(beside[: rng.choice([2, 3, 3, 4])], rng.randint(0, 2))]
    rng.shuffle(kinds)
    return kinds


def named_traces():
    trace = Trace("F17_F18_hybrid", [(HYBRID, None, 1)], 16)
    trace.max_length()
    trace.step(3)
    trace.record(None)
    trace.step(2)
    trace.crop(-1)
    trace.step(1)
    yield trace.document()
    trace = Trace("F14_no_room", [(DUMMY, None, 0), (HYBRID, None, 1), (LINEAR, None, 2)], 4)
    trace.step(3)
    trace.step(2)
    trace.step(1)
    yield trace.document()


def main():
    traces = list(named_traces())
    for index in range(COUNT):
        kinds = random_kinds(random.Random(f"static_linear kinds {index}"))
        traces.append(random_trace(f"static_linear_{index}", f"static_linear {index}", kinds))
    faults = {}
    for trace in traces:
        for op in trace["ops"]:
            faults[op.get("fault", "none")] = faults.get(op.get("fault", "none"), 0) + 1
    scripts = (__file__, make_linear_traces.__file__, make_static_traces.__file__, trace_model.__file__)
    document = {"made_with": common.made_with(*scripts), "traces": traces}
    common.write_json(common.GOLDENS / "traces" / "static_linear.json", document)
    print(len(traces), "traces,", sum(len(trace["ops"]) for trace in traces), "operations")
    print("operations by fault:", faults)


if __name__ == "__main__":
    common.set_up()
    main()
