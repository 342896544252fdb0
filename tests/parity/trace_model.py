"""What growing attention layers hold, in integers only, from the rules in goldens/traces/README.md; what scripts of
traces share beside it.
"""

ROW, ERA = 10000, 100  # a token's number: position + 100 * (changes of the past before it) + 10000 * (row it was fed to)


class Refused(Exception):
    """The right outcome is an error of this kind (kvcache's name) and no change; why the oracle may differ."""

    def __init__(self, kind, reason):
        super().__init__(kind)
        self.kind, self.reason = kind, reason


class LayerModel:
    """One layer: how many tokens it saw, the position of the first it holds, and the held numbers of each row."""

    def __init__(self, kind, window):
        self.kind, self.window, self.recording = kind, window, False
        self.forget()

    def forget(self):
        self.seen, self.first, self.rows = 0, 0, []

    def needed(self, seen):
        """The first position that a query at `seen` can see."""
        return 0 if self.window is None else max(seen - self.window + 1, 0)

    def mask_sizes(self, count):
        return [self.seen - self.needed(self.seen) + count, self.needed(self.seen)]

    def keep_from(self, position):
        self.rows = [row[position - self.first :] for row in self.rows]
        self.first = position

    def update(self, numbers):
        visible = self.needed(self.seen)
        self.rows = [old + new for old, new in zip(self.rows or [[] for _ in numbers], numbers)]
        returned = [row[visible - self.first :] for row in self.rows]
        self.seen += len(numbers[0])
        if not self.recording:
            self.keep_from(self.needed(self.seen))
        return returned

    def check_crop(self, remove):
        if remove > self.seen:
            raise Refused("RuntimeError", "F07")
        if remove > 0 and self.first > self.needed(self.seen - remove):
            raise Refused("RuntimeError", "F06" if self.recording else "all-or-nothing")

    def crop(self, remove):
        self.seen -= remove
        self.rows = [row[: self.seen - self.first] for row in self.rows]
        self.keep_from(self.needed(self.seen))


class Model:
    """The whole cache: a list of layers; a lazily made one gets full layers as they are used."""

    def __init__(self, kinds, lazy):
        self.lazy = lazy
        self.layers = [] if lazy else [LayerModel(kind, window) for kind, window in kinds]

    def layer(self, index):
        while self.lazy and len(self.layers) <= index:
            self.layers.append(LayerModel("full_attention", None))
        return self.layers[index]

    def mask_sizes(self, index, count):
        return self.layers[index].mask_sizes(count) if index < len(self.layers) else [count, 0]

    def crop(self, n):
        if n > 0:
            raise Refused("ValueError", "crop-sign")
        if n < 0 and not self.layers:
            raise Refused("RuntimeError", "F07")
        for layer in self.layers:
            layer.check_crop(-n)
        for layer in self.layers:
            layer.crop(-n)

    def max_length(self):
        per_layer = [-1 if layer.window is None else layer.window for layer in self.layers]
        return max(per_layer, default=-1), per_layer

    def state(self):
        return [(layer.seen, layer.rows if layer.seen else []) for layer in self.layers]


def oracle_rows(tensor):
    return [] if tensor is None or tensor.numel() == 0 else tensor[:, 0, :, 0].long().tolist()


def runs(row):
    """Consecutive numbers as [first, count, first, count, ...]."""
    out = []
    for number in row:
        if out and out[-2] + out[-1] == number:
            out[-1] += 1
        else:
            out += [number, 1]
    return out
