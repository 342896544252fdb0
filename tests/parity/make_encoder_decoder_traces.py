"""Writes goldens/traces/encoder_decoder*.json: the same as make_traces.py for the oracle's EncoderDecoderCache.

A step is what an encoder-decoder model does: in each layer the decoder's keys, and the encoder's where `is_updated` says
that they are not there yet. The oracle holds the encoder's keys once for each row of the decoder; what is right holds them
once for as many neighbouring rows as share them, and is compared spread over these.
"""

import copy
import random

import common
import make_static_traces
import make_traces
import torch
import trace_model
import transformers
from make_traces import full, sliding
from trace_model import ERA, ROW, Refused, oracle_rows, runs

COUNT = {"encoder_decoder": 60, "encoder_decoder_static": 40}
ENCODER = 1000000  # an encoder token's number: this + position + 100 * (inputs before) + 10000 * row


def as_keys(rows):
    return torch.tensor(rows, dtype=torch.float32)[:, None, :, None]


class EncoderModel:
    """The rows held of an encoder's input; none: it was not given yet."""

    def __init__(self):
        self.rows = []

    def spread(self, batch, rows=None):
        """A row for each of the decoder's."""
        rows = self.rows if rows is None else rows
        return [rows[row * len(rows) // batch] for row in range(batch)] if rows else []

    def take_rows(self, indices, batch):
        """No more rows than neighbours need."""
        owners = [index * len(self.rows) // batch for index in indices]
        for count in range(1, len(owners) + 1):
            each = len(owners) // count
            if len(owners) % count == 0 and all(owner == owners[i - i % each] for i, owner in enumerate(owners)):
                self.rows = [self.rows[owner] for owner in owners[::each]]
                return


class Trace:
    """Applies operations to the model and the oracle side by side and writes down what is right. `most`, `room`: tokens
    that the decoder's and the encoder's side have room for; None: they grow."""

    def __init__(self, name, kinds, most=None, room=None):
        self.name, self.kinds, self.most, self.room = name, kinds, most, room
        self.model = make_static_traces.StaticModel(kinds, most) if most else trace_model.Model(kinds, False)
        self.encoder = EncoderModel()
        own = make_static_traces.make_oracle(kinds, most) if most else make_traces.make_oracle(kinds, False)
        self.oracle = transformers.EncoderDecoderCache(own, self.make_cross())
        self.batch, self.era, self.inputs, self.ops = 1, 0, 0, []

    def make_cross(self):
        config = transformers.PreTrainedConfig(num_hidden_layers=len(self.kinds))
        if self.room:
            return transformers.StaticCache(config=config, max_cache_len=self.room)
        return transformers.DynamicCache(config=config)

    def seen(self):
        return self.model.layers[0].seen

    def own_state(self):
        own = self.oracle.self_attention_cache
        return make_static_traces.StaticTrace.oracle_state(self, own) if self.most else make_traces.oracle_state(own)

    def cross_state(self, cache, index):
        """What a layer holds of the encoder."""
        cross = cache.cross_attention_cache
        length = int(cross.get_seq_length(index))
        return [row[:length] for row in oracle_rows(cross.layers[index].keys)] if length else []

    def agrees(self):
        held = bool(self.encoder.rows)
        right = self.encoder.spread(self.batch)
        return self.own_state() == self.model.state() and all(
            self.cross_state(self.oracle, i) == right and self.oracle.is_updated.get(i, False) == held
            for i in range(len(self.kinds))
        )

    def write(self, op):
        assert self.agrees(), (self.name, op)
        state = self.model.state()
        op["length"] = state[0][0]
        op["stored"] = [[runs(row) for row in rows] for _, rows in state]
        op["is_updated"] = bool(self.encoder.rows)
        op["cross"] = [runs(row) for row in self.encoder.rows]
        self.ops.append(op)

    def attempt(self, call):
        try:
            call(self.oracle)
        except (RuntimeError, ValueError, IndexError, AttributeError, TypeError) as error:
            return type(error).__name__
        return None

    def new_input(self, rows, count):
        """An encoder's input that was not there before."""
        self.inputs += 1
        first = ENCODER + ERA * self.inputs
        return [[first + ROW * row + i for i in range(count)] for row in range(rows)]

    def models_step(self, numbers, encoder):
        """Of the oracle: what each layer's mask sizes are, and what it hands over of both sides."""
        keys, handed = as_keys(numbers), []
        for index in range(len(self.kinds)):
            own, cross = self.oracle.self_attention_cache, self.oracle.cross_attention_cache
            mask = list(self.oracle.get_mask_sizes(len(numbers[0]), index))
            got, values = own.update(keys, -keys, index)
            assert torch.equal(values, -got)
            if not self.oracle.is_updated.get(index, False):
                encoded = as_keys(self.encoder.spread(self.batch, encoder))
                cross.update(encoded, -encoded, index)
                self.oracle.is_updated[index] = True
            handed.append((mask, oracle_rows(got), self.cross_state(self.oracle, index)))
        return handed

    def check_step(self, count, encoder):
        held, room = self.encoder.spread(self.batch), self.room
        bounded = [kind for kind, layer in zip(self.kinds, self.model.layers) if getattr(layer, "most", None)]
        if bounded and self.seen() + count > self.most:
            raise Refused("ValueError", "F14" if bounded[0][1] is None else "F09")
        changed = encoder and self.encoder.spread(self.batch, encoder) != held
        if changed and held and self.seen():
            raise Refused("ValueError", "stale-encoder")
        if changed and room and len(encoder[0]) > room:
            raise Refused("ValueError", "stale-encoder" if held else "F14")
        return changed

    def step(self, count, encoder=None):
        """`encoder`: its input's rows, where it is passed; it must be where none is held."""
        first = self.seen() + ERA * self.era
        numbers = [[first + ROW * row + i for i in range(count)] for row in range(self.batch)]
        op = {"op": "step", "first": first, "count": count, "rows": self.batch}
        if encoder:
            op["encoder"] = [runs(row) for row in encoder]
        before = copy.deepcopy(self.oracle)
        try:
            changed = self.check_step(count, encoder)
        except Refused as refusal:
            raised = self.attempt(lambda _: self.models_step(numbers, encoder or [[0]]))
            op["raises"] = refusal.kind
            if not raised or not self.agrees():
                op["fault"], self.oracle = refusal.reason, before
            self.write(op)
            return
        if changed and self.encoder.rows:  # the oracle goes on with what it holds; it gets the right keys by hand
            handed = self.models_step(numbers, encoder)
            assert all(cross == self.encoder.spread(self.batch) for _, _, cross in handed)
            op["fault"], self.oracle = "stale-encoder", before
            self.oracle.cross_attention_cache, self.oracle.is_updated = self.make_cross(), {}
        if changed:
            self.encoder.rows = encoder
        handed = self.models_step(numbers, encoder)
        op |= {"mask": [], "keys": []}
        for layer, (mask, keys, cross) in zip(self.model.layers, handed):
            right_mask, right = layer.mask_sizes(count), layer.update(numbers)
            assert mask == right_mask and [row[: len(right[0])] for row in keys] == right, (self.name, op)
            assert cross == self.encoder.spread(self.batch), (self.name, op)
            op["mask"].append(mask)
            op["keys"].append([runs(row) for row in right])
        self.write(op)

    def crop(self, n):
        before, op, reason = copy.deepcopy(self.oracle), {"op": "crop", "n": n}, None
        try:
            self.model.crop(n)
        except Refused as refusal:
            op["raises"], reason = refusal.kind, refusal.reason
        raised = self.attempt(lambda cache: cache.crop(n))
        if raised == "TypeError":
            op["fault"] = "growing-only"
            if "raises" not in op:
                self.attempt(lambda cache: cache.self_attention_cache.crop(n))
        elif raised != op.get("raises") or not self.agrees():
            op["fault"] = reason or self.reason_of_free_crop(n)
            self.oracle = before
        if "raises" not in op and n < 0:
            self.era += 1
        self.write(op)

    def reason_of_free_crop(self, n):
        return make_traces.Trace.reason_of_free_crop(self, n)

    def record(self):
        """Of a decoder's side of a fixed size only once tokens are held, when a ring has no room for more."""
        self.oracle.activate_past_recording()
        op = {"op": "activate_past_recording"}
        windows = [layer for layer in self.model.layers if layer.window is not None]
        if self.most and windows:
            op |= {"raises": "RuntimeError", "fault": "no-recording"}
        for layer in windows:
            layer.recording = not self.most
        self.write(op)

    def reset(self):
        self.oracle.reset()
        for layer in self.model.layers:
            layer.forget()
        self.encoder.rows = []
        self.era += 1
        self.write({"op": "reset"})

    def rows(self, op, indices, call):
        """The oracle can only reorder where a side has a fixed size; the others are done to it by hand."""
        if self.attempt(call):
            op["fault"] = "growing-only"
            chosen = torch.tensor(indices)
            for cache in (self.oracle.self_attention_cache, self.oracle.cross_attention_cache):
                for layer in cache.layers:
                    layer.keys, layer.values = layer.keys[chosen], layer.values[chosen]
                    layer.batch_size = len(indices)
        for layer in self.model.layers:
            layer.rows = [list(layer.rows[index]) for index in indices]
        self.encoder.take_rows(indices, self.batch)
        self.batch = len(indices)
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
        assert self.oracle.get_max_length() == whole
        assert [self.oracle.get_max_length(index) for index in range(len(per_layer))] == per_layer
        self.write({"op": "get_max_length", "result": whole, "layers": per_layer})

    def document(self):
        layers = [{"type": kind, "window": window} for kind, window in self.kinds]
        sizes = {"max_cache_len": self.most, "encoder_max_cache_len": self.room}
        return {"name": self.name, "layers": layers} | {k: v for k, v in sizes.items() if v} | {"ops": self.ops}


def step(rng, trace):
    count = rng.choice([1, 1, 1, 1, 2, 3, 4, 6])
    if trace.seen() + count > make_traces.LONGEST:
        return
    choice = rng.random()
    if not trace.encoder.rows or choice < 0.2:
        share = rng.choice([n for n in range(1, trace.batch + 1) if trace.batch % n == 0])
        trace.step(count, trace.new_input(trace.batch // share, rng.randint(1, 9)))
    elif choice < 0.5:
        trace.step(count, rng.choice([trace.encoder.rows, trace.encoder.spread(trace.batch)]))
    else:
        trace.step(count)


def random_rows(rng, trace):
    """One operation on rows, more often than not among those of one encoder row."""
    choice = rng.choice(["reorder", "beams", "beams", "select", "repeat"])
    if choice == "beams":
        share = trace.batch // len(trace.encoder.rows)
        trace.reorder([row - row % share + rng.randrange(share) for row in range(trace.batch)])
    elif choice == "reorder":
        trace.reorder([rng.randrange(trace.batch) for _ in range(trace.batch)])
    elif choice == "select":
        trace.select(sorted(rng.sample(range(trace.batch), rng.randint(1, trace.batch))))
    elif trace.batch <= 3:
        trace.repeat(rng.randint(1, 3))


def random_trace(name, seed, kinds, most, room):
    rng = random.Random(seed)
    trace = Trace(name, kinds, most, room)
    trace.batch = rng.choice([1, 2, 3, 4])
    if not most and rng.random() < 0.6:
        trace.record()
    for _ in range(rng.randint(7, 13)):
        choice = rng.random()
        if choice < 0.5:
            step(rng, trace)
        elif choice < 0.72:
            trace.crop(make_traces.random_crop(rng, trace))
        elif choice < 0.88:
            if trace.seen() > 0:
                random_rows(rng, trace)
        elif choice < 0.93:
            trace.reset()
        elif choice < 0.97:
            if trace.seen() > 0:
                trace.record()
        else:
            trace.max_length()
    step(rng, trace)
    return trace.document()


def random_traces(group, count):
    for index in range(count):
        rng = random.Random(f"{group} kinds {index}")
        kinds = make_traces.random_kinds(rng.choice(["full", "sliding", "mixed"]), rng)
        most = room = None
        if group == "encoder_decoder_static":
            most, room = rng.choice([(8, 6), (16, 10), (16, None), (64, 10), (None, 6)])
        yield random_trace(f"{group}_{index}", f"{group} {index}", kinds, most, room)


def named_traces():
    def new(name, kinds, batch=1, most=None, room=None):
        trace = Trace(name, kinds, most, room)
        trace.batch = batch
        return trace

    trace = new("F12_window_of_the_decoder", [sliding(4), full()])
    trace.step(9, trace.new_input(1, 9))
    for _ in range(8):
        trace.step(1)
    yield trace

    for most, room in ((None, None), (8, 6)):
        trace = new(f"F15_reset{'_static' if most else ''}", [full(), full()], 1, most, room)
        trace.step(5, trace.new_input(1, 5))
        trace.reset()
        trace.step(2, trace.new_input(1, 3))
        yield trace

    trace = new("F62_crop", [full()])
    trace.step(4, trace.new_input(1, 5))
    trace.crop(-2)
    trace.step(1)
    yield trace

    trace = new("changed_encoder", [full(), full()])
    held = trace.new_input(1, 4)
    trace.step(3, held)
    trace.step(1, trace.new_input(1, 4))
    trace.step(1, held)
    trace.crop(-4)
    trace.step(2, held)
    trace.crop(-2)
    trace.step(2, trace.new_input(1, 3))
    yield trace

    trace = new("F43_beams", [full(), full()], batch=6)
    trace.step(2, trace.new_input(2, 4))
    trace.reorder([2, 0, 0, 4, 5, 4])
    trace.step(1)
    trace.reorder([4, 4, 3, 0, 0, 2])
    trace.step(1)
    trace.reorder([0, 3, 1, 2, 5, 4])
    trace.select([5, 5, 4])
    trace.repeat(2)
    trace.step(1)
    yield trace

    trace = new("F14_no_room", [full()], 1, 4, 3)
    trace.step(1, trace.new_input(1, 4))
    trace.step(3, trace.new_input(1, 3))
    trace.step(2)
    trace.step(1)
    yield trace


def main():
    groups = {"encoder_decoder_named": [trace.document() for trace in named_traces()]}
    groups |= {group: list(random_traces(group, count)) for group, count in COUNT.items()}
    faults = {}
    for group, traces in groups.items():
        for trace in traces:
            for op in trace["ops"]:
                faults[op.get("fault", "none")] = faults.get(op.get("fault", "none"), 0) + 1
        scripts = (__file__, make_traces.__file__, make_static_traces.__file__, trace_model.__file__)
        document = {"made_with": common.made_with(*scripts), "traces": traces}
        common.write_json(common.GOLDENS / "traces" / f"{group}.json", document)
        print(group, len(traces), "traces,", sum(len(trace["ops"]) for trace in traces), "operations")
    print("operations by fault:", faults)


if __name__ == "__main__":
    common.set_up()
    main()
