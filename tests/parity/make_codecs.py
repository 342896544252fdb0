"""Packs small tensors with hqq and optimum-quanto as the oracle's QuantizedCache calls them, and writes goldens/codecs.json.

Groups are chosen so that both sides have the same ones: neighbouring channels of a token, or one channel of consecutive
tokens. Values come from a formula that codecs_test.cpp repeats. Usage: make_codecs.py
"""

import importlib.metadata

import common
import torch
from hqq.core.quantize import Quantizer
from optimum.quanto import MaxOptimizer, qint2, qint4, quantize_weight
from optimum.quanto.tensor.grouped import group


def values(shape, salt):
    """Numbers in [-4, 4), exact in float32, most of them small."""
    i = torch.arange(torch.Size(shape).numel(), dtype=torch.int64)
    steps = ((i * i * 31 + i * 17 + salt * 7919) % 509 - 254).to(torch.float32) / 64
    return (steps * steps.abs() / 4).reshape(shape)


def hqq(tensor, bits, size, axis):
    packed, meta = Quantizer.quantize(
        tensor, nbits=bits, axis=axis, group_size=size, device="cpu", compute_dtype=torch.float32, bitpack=False
    )
    codes = packed.to(torch.int64)
    scale, zero = meta["scale"].to(torch.float32), meta["zero"].to(torch.float32)
    meta["compute_dtype"] = torch.float32
    return codes, scale, -zero * scale, Quantizer.dequantize(packed, meta)


def quanto(tensor, bits, size, axis):
    qtype = qint4 if bits == 4 else qint2
    scale, shift = MaxOptimizer()(tensor, qtype, axis, size)
    packed = quantize_weight(tensor, qtype, axis, scale, shift, size)
    codes = packed._data.unpack().to(torch.int64)
    return codes, scale, -shift, packed.dequantize()


def in_tokens(codes, scale, offset, shape, over_tokens, size):
    """What was grouped, as our layout has it: codes as [batch, heads, tokens, head_dim], parameters as
    [batch, heads, groups, channel groups]."""
    batch, heads, tokens, head_dim = shape
    if not over_tokens:
        groups = [batch, heads, tokens, head_dim // size]
        return codes.reshape(shape), scale.reshape(groups), offset.reshape(groups)
    # [size, channels * groups], the groups innermost: see optimum.quanto's group()
    groups = batch * heads * tokens // size
    codes = codes.reshape(size, head_dim, groups).permute(2, 0, 1).reshape(shape)

    def each(t):
        return t.reshape(head_dim, groups).permute(1, 0).reshape(batch, heads, tokens // size, head_dim)

    return codes, each(scale), each(offset)


def case(backend, bits, shape, size, over_tokens, salt):
    tensor = values(shape, salt)
    pack, axis = {
        ("hqq", False): (hqq, 1),
        ("hqq", True): (hqq, 0),
        ("quanto", False): (quanto, 0),
        ("quanto", True): (quanto, -1),
    }[backend, over_tokens]
    codes, scale, offset, back = pack(tensor, bits, size, axis)
    codes, scale, offset = in_tokens(codes, scale, offset, shape, over_tokens, size)
    return {
        "backend": backend,
        "nbits": bits,
        "shape": shape,
        "group_size": size,
        "over_tokens": over_tokens,
        "salt": salt,
        "codes": "".join(f"{c:02x}" for c in codes.flatten().tolist()),
        "scales": scale.flatten().tolist(),
        "offsets": offset.flatten().tolist(),
        "decoded": back.flatten().tolist(),
    }


def main():
    common.set_up()
    cases = []
    for salt, bits in enumerate((2, 4)):
        cases.append(case("quanto", bits, [2, 2, 3, 32], 16, False, salt))
        cases.append(case("quanto", bits, [2, 2, 16, 6], 8, True, salt))
    for salt, bits in enumerate((1, 2, 3, 4, 8)):
        cases.append(case("hqq", bits, [1, 2, 4, 32], 16, False, salt))
        cases.append(case("hqq", bits, [1, 1, 16, 6], 16, True, salt))
    versions = {name: importlib.metadata.version(name) for name in ("hqq", "optimum-quanto")}
    document = {"made_with": common.made_with(__file__) | versions, "cases": cases}
    common.write_json(common.GOLDENS / "codecs.json", document)


if __name__ == "__main__":
    main()
