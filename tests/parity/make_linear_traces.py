"""Writes goldens/traces/{linear,hybrid,hybrid_sliding,linear_mixed}.json: operation sequences on the oracle's linear
layers and its hybrids of them and attention, with what is right (goldens/traces/README.md).

One of our steps is a round of the oracle's calls: each layer's keys and states. A state of a recurrence is the number of
the last token, so what is right follows from the rows' tokens alone.
"""

import copy
import random

import common
import torch
import trace_model
from trace_model import ERA, ROW, Refused, oracle_rows, runs
from transformers import cache_utils as oracle

COUNT = {"linear": 40, "hybrid": 40, "hybrid_sliding": 40, "linear_mixed": 40}
LONGEST = 60
UNBOUNDED = 10**9
DEFAULT_RECORD = 16  # tokens that can be taken back in linear layers

LINEAR, HYBRID, HYBRID_SLIDING = "linear_attention", "hybrid", "hybrid_sliding"


def taps(index):
    return 3 + index


class AttentionModel(trace_model.LayerModel):
    """The same under a bound on what is recorded."""

    record = 0

    def update(self, numbers):
        visible = self.needed(self.seen)
        self.rows = [old + new for old, new in zip(self.rows or [[] for _ in numbers], numbers)]
        returned = [row[visible - self.first :] for row in self.rows]
        self.seen += len(numbers[0])
        self.keep_from(max(self.first, self.needed(self.seen - self.record)))
        return returned

    def check_crop(self, remove):
        if remove > 0 and self.first > self.needed(self.seen - remove):
            raise Refused("RuntimeError", "bound" if self.record else "all-or-nothing")


class Model:
    """Every row's tokens; the windows of attention; how many tokens can be taken back in states."""

    def __init__(self, kinds):
        self.kinds = kinds
        self.attention = [None if kind == LINEAR else AttentionModel(kind, window) for kind, window, _ in kinds]
        self.states = [0 if kind.endswith("_attention") and kind != LINEAR else states for kind, _, states in kinds]
        self.forget()
        self.record = 0

    def forget(self):
        self.rows, self.recorded = [], 0
        for layer in self.with_keys():
            layer.forget()

    def with_keys(self):
        return [layer for layer in self.attention if layer is not None]

    def seen(self):
        return len(self.rows[0]) if self.rows else 0

    def windows(self, numbers, index):
        """A convolution's new inputs behind its left context, zeros before the first token."""
        before = [[0] * (taps(index) - 1) + row for row in self.rows or [[] for _ in numbers]]
        return [row[len(row) - taps(index) + 1 :] + new for row, new in zip(before, numbers)]

    def update(self, numbers):
        self.rows = [old + new for old, new in zip(self.rows or [[] for _ in numbers], numbers)]
        self.recorded = min(self.recorded + len(numbers[0]), self.record)

    def start_recording(self, most):
        self.record = DEFAULT_RECORD if most is None else most
        self.recorded = min(self.recorded, self.record)
        for layer in self.with_keys():
            layer.recording = layer.window is not None
            layer.record = (UNBOUNDED if most is None else most) if layer.recording else 0

    def crop(self, n):
        if n > 0:
            raise Refused("ValueError", "crop-sign")
        if -n > self.seen():
            raise Refused("RuntimeError", "F07")
        for layer in self.with_keys():
            layer.check_crop(-n)
        if -n > self.recorded and any(self.states):
            raise Refused("RuntimeError", "bound" if self.record else "all-or-nothing")
        for layer in self.with_keys():
            layer.crop(-n)
        self.rows = [row[: self.seen() + n] for row in self.rows]
        self.recorded = 0

    def take_rows(self, indices):
        self.rows = [list(self.rows[index]) for index in indices]
        for layer in self.with_keys():
            layer.rows = [list(layer.rows[index]) for index in indices]

    def recurrent(self):
        """For each layer, each of its states, each row: a number."""
        last = [row[-1] for row in self.rows] if self.seen() else []
        return [[last] * states for states in self.states]

    def stored(self):
        return [None if layer is None else (layer.rows if layer.seen else []) for layer in self.attention]

    def max_length(self):
        per_layer = [-1 if layer is None or layer.window is None else layer.window for layer in self.attention]
        return max(per_layer), per_layer


def make_oracle(kinds):
    make = {
        "full_attention": lambda window, states: oracle.DynamicLayer(),
        "sliding_attention": lambda window, states: oracle.DynamicSlidingWindowLayer(window),
        LINEAR: lambda window, states: oracle.LinearAttentionLayer(states),
        HYBRID: lambda window, states: oracle.LinearAttentionAndFullAttentionLayer(states),
        HYBRID_SLIDING: oracle.LinearAttentionAndSlidingWindowAttentionLayer,
    }
    return oracle.Cache(layers=[make[kind](window, states) for kind, window, states in kinds])


class Trace:
    """Applies operations to the model and the oracle side by side and writes down what is right."""

    def __init__(self, name, kinds):
        self.name, self.kinds = name, kinds
        self.model, self.oracle = Model(kinds), make_oracle(kinds)
        self.batch, self.era, self.ops = 1, 0, []

    def state_tensors(self, layer, index):
        """A layer's state: the convolution's, and the recurrence's."""
        return [states[index] for states in (layer.conv_states, layer.recurrent_states) if states[index] is not None]

    def agrees(self):
        """Whether the oracle holds what is right; of attention it may hold more while it records."""
        seen = self.model.seen()
        for layer, rows, states in zip(self.oracle.layers, self.model.stored(), self.model.recurrent()):
            if rows is not None:
                found = oracle_rows(layer.keys)
                if layer.get_seq_length() != seen or len(found) != len(rows):
                    return False
                if any(row[len(row) - len(right) :] != right for row, right in zip(found, rows)):
                    return False
            for index, right in enumerate(states):
                if seen and layer.recurrent_states[index][:, 0].long().tolist() != right:
                    return False
                if not seen and layer.has_previous_state[index]:
                    return False
        return True

    def repair(self):
        """States that the oracle should have by now."""
        for layer, states in zip(self.oracle.layers, self.model.recurrent()):
            for index, right in enumerate(states):
                if right:
                    layer.recurrent_states[index].copy_(torch.tensor(right, dtype=torch.float32)[:, None])
                else:
                    layer.has_previous_state[index] = False

    def write(self, op):
        assert self.agrees(), (self.name, op)
        op["length"] = self.model.seen()
        op["stored"] = [rows if rows is None else [runs(row) for row in rows] for rows in self.model.stored()]
        op["recurrent"] = self.model.recurrent()
        self.ops.append(op)

    def attempt(self, op, call, errors=(RuntimeError, ValueError, TypeError, AttributeError)):
        """Makes the same call to the oracle: what it raises, if it does."""
        try:
            call(self.oracle)
        except errors as error:
            return type(error).__name__
        return None

    def step(self, count):
        first = self.model.seen() + 1 + ERA * self.era
        numbers = [[first + ROW * row + i for i in range(count)] for row in range(self.batch)]
        flat = torch.tensor(numbers, dtype=torch.float32)
        masks, keys, windows = [], [], []
        for i, layer in enumerate(self.model.attention):
            mask, returned = None, None
            if layer is not None:
                mask = layer.mask_sizes(count)
                assert list(self.oracle.get_mask_sizes(count, i)) == mask
                states = flat[:, None, :, None]
                found, _ = self.oracle.update(states, -states, i)
                returned = layer.update(numbers)
                assert oracle_rows(found) == returned, (self.name, i)
            masks.append(mask)
            keys.append(returned and [runs(row) for row in returned])
            windows.append([self.window(i, index, flat, numbers) for index in range(self.model.states[i])])
            for index in range(self.model.states[i]):
                self.oracle.update_recurrent_state(flat[:, -1:].clone(), i, index)
        self.model.update(numbers)
        op = {"op": "step", "first": first, "count": count, "rows": self.batch}
        self.write(op | {"mask": masks, "keys": keys, "windows": windows})

    def window(self, layer, index, flat, numbers):
        """The oracle's first call has max(tokens, taps) columns, or just the tokens, later ones one more than ours."""
        found = self.oracle.update_conv_state(flat[:, None].clone(), layer, index, conv_kernel_size=taps(index))
        right = self.model.windows(numbers, index)
        columns = min(found.shape[2], len(right[0]))
        assert found[:, 0, found.shape[2] - columns :].long().tolist() == [row[-columns:] for row in right]
        return [runs(row) for row in right]

    def crop(self, n):
        before, op, reason = copy.deepcopy(self.oracle), {"op": "crop", "n": n}, None
        try:
            self.model.crop(n)
        except Refused as refusal:
            op["raises"], reason = refusal.kind, refusal.reason
        raised = self.attempt(op, lambda cache: cache.crop(n))
        if raised is None and "raises" not in op:
            if not self.agrees():
                op["fault"] = "F65"
                self.repair()
        elif raised != op.get("raises") or not self.agrees():
            op["fault"] = reason or self.reason_of_free_crop(n)
            self.oracle = before
        if "raises" not in op and n < 0:
            self.era += 1
        self.write(op)

    def reason_of_free_crop(self, n):
        """Why the oracle may fail on a crop that is allowed: only crop(0) has such reasons."""
        assert n == 0, (self.name, n)
        return "F08" if self.model.seen() == 0 and self.model.record else "crop-zero"

    def record(self, most):
        self.oracle.activate_past_recording()
        self.model.start_recording(most)
        self.write({"op": "activate_past_recording"} | ({} if most is None else {"max_tokens": most}))

    def reset(self):
        self.oracle.reset()
        self.model.forget()
        self.era += 1
        self.write({"op": "reset"})

    def rows(self, op, indices, call):
        """The oracle has no such call for linear layers but reorder_cache (F67)."""
        before = copy.deepcopy(self.oracle)
        raised = self.attempt(op, call)
        self.model.take_rows(indices)
        self.batch = len(indices)
        if raised or not self.agrees():
            op["fault"], self.oracle = "F67", before
            tensor = torch.tensor(indices)
            for layer, states in zip(self.oracle.layers, self.model.states):
                if hasattr(layer, "batch_select_indices"):
                    layer.batch_select_indices(tensor)
                for index in range(states):
                    layer.conv_states[index] = layer.conv_states[index].index_select(0, tensor)
                    layer.recurrent_states[index] = layer.recurrent_states[index].index_select(0, tensor)
        self.write(op)

    def reorder(self, indices):
        tensor = torch.tensor(indices)
        self.rows({"op": "reorder_cache", "indices": indices}, indices, lambda cache: cache.reorder_cache(tensor))

    def select(self, indices):
        op, tensor = {"op": "batch_select_indices", "indices": indices}, torch.tensor(indices)
        self.rows(op, indices, lambda cache: cache.batch_select_indices(tensor))

    def repeat(self, repeats):
        indices = [row for row in range(self.batch) for _ in range(repeats)]
        op = {"op": "batch_repeat_interleave", "repeats": repeats}
        self.rows(op, indices, lambda cache: cache.batch_repeat_interleave(repeats))

    def max_length(self):
        whole, per_layer = self.model.max_length()
        op = {"op": "get_max_length", "result": whole, "layers": per_layer}
        found = [self.oracle.get_max_length(index) for index in range(len(per_layer))]
        if [self.oracle.get_max_length(), found] != [whole, per_layer]:
            op["fault"] = "F17"
        self.write(op)

    def document(self):
        layers = [{"type": kind, "window": window, "states": states} for kind, window, states in self.kinds]
        return {"name": self.name, "layers": layers, "ops": self.ops}


def random_crop(rng, trace):
    seen, choice = trace.model.seen(), rng.random()
    if choice < 0.3 or (seen == 0 and choice < 0.9):
        return 0
    if choice < 0.9:
        return -rng.randint(1, max(1, min(5, seen)))
    return -(seen + rng.randint(1, 3)) if choice < 0.96 else rng.randint(1, 3)


def random_rows(rng, trace):
    choice = rng.choice(["reorder", "reorder", "select", "repeat"])
    if choice == "reorder":
        trace.reorder([rng.randrange(trace.batch) for _ in range(trace.batch)])
    elif choice == "select":
        trace.select(sorted(rng.sample(range(trace.batch), rng.randint(1, trace.batch))))
    elif trace.batch <= 2:
        trace.repeat(rng.randint(1, 3))


def step(rng, trace):
    count = rng.choice([1, 1, 1, 1, 2, 3, 4, 6, 9, 20])
    if trace.model.seen() + count <= LONGEST:
        trace.step(count)


def random_trace(name, seed, kinds):
    rng = random.Random(seed)
    trace = Trace(name, kinds)
    trace.batch = rng.choice([1, 1, 2, 3])
    if rng.random() < 0.7:
        trace.record(rng.choice([None, None, None, 1, 3, 5]))
    for _ in range(rng.randint(6, 13)):
        choice = rng.random()
        if choice < 0.5:
            step(rng, trace)
        elif choice < 0.78:
            trace.crop(random_crop(rng, trace))
        elif choice < 0.88:
            if trace.model.seen() > 0:
                random_rows(rng, trace)
        elif choice < 0.91:
            trace.reset()
        elif choice < 0.95:
            trace.record(rng.choice([None, 2, 4]))
        else:
            trace.max_length()
    step(rng, trace)
    return trace.document()


def random_kinds(group, rng):
    linear = lambda: (LINEAR, None, rng.randint(1, 2))  # noqa: E731
    hybrid = lambda: (HYBRID, None, rng.randint(1, 2))  # noqa: E731
    sliding = lambda: (HYBRID_SLIDING, rng.choice([2, 3, 4, 8]), rng.randint(1, 2))  # noqa: E731
    if group == "linear_mixed":
        some = [linear(), rng.choice([("full_attention", None, 1), ("sliding_attention", rng.choice([2, 4, 8]), 1)])]
        some.append(rng.choice([hybrid, sliding, linear])())
        rng.shuffle(some)
        return some
    make = {"linear": linear, "hybrid": hybrid, "hybrid_sliding": sliding}[group]
    return [make() for _ in range(rng.randint(1, 2))]


def main():
    faults = {}
    for group, count in COUNT.items():
        traces = []
        for index in range(count):
            kinds = random_kinds(group, random.Random(f"{group} kinds {index}"))
            traces.append(random_trace(f"{group}_{index}", f"{group} {index}", kinds))
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
