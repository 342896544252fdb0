"""Writes goldens/io/dtypes.safetensors with the reference implementation: every dtype that the C++ reader knows, a
scalar and an empty tensor. The C++ tests read it, and must write the same bytes."""

import common
import safetensors
import safetensors.torch
import torch

DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
]


def main():
    common.set_up()
    tensors = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in DTYPES}
    tensors["scalar"] = torch.tensor(7.0)
    tensors["empty"] = torch.zeros(0, 4)
    tensors["na\u00efve \"name\""] = torch.tensor([1, 2], dtype=torch.int32)
    # One entry only: the reference writes several in no fixed order.
    versions = f"safetensors {safetensors.__version__}, torch {torch.__version__.split('+')[0]}"
    folder = common.GOLDENS / "io"
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, folder / "dtypes.safetensors", metadata={"made_with": versions})


if __name__ == "__main__":
    main()
