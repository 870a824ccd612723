#!/usr/bin/env python3
"""Writes tests/golden/torch and the corpus of tests/fuzz/torch_file.cpp: what torch.save makes of small dictionaries.

  make_torch_goldens.py     needs torch, which no test does
"""
import collections
import pathlib

import torch

TESTS = pathlib.Path(__file__).resolve().parents[1]


def main():
    numbers = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    shared = torch.arange(10, dtype=torch.float32)
    tensors = collections.OrderedDict(
        f32=numbers, bf16=numbers.bfloat16(), f16=numbers[1:3].half(), i64=torch.tensor([3, -4]), scalar=torch.tensor(2.5),
        part=shared[2:6], rest=shared[6:], parameter=torch.nn.Parameter(torch.ones(2, 1, 3)), empty=torch.zeros(0, 5),
        flags=torch.tensor([True, False]))
    module = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(module.weight, 0.5)
    torch.nn.init.constant_(module.bias, -1)
    golden = TESTS / "golden" / "torch"
    corpus = TESTS / "fuzz" / "corpus" / "torch_file"
    golden.mkdir(exist_ok=True)
    corpus.mkdir(exist_ok=True)
    torch.save(tensors, golden / "tensors.bin")
    torch.save(module.state_dict(), golden / "module.bin")
    torch.save({"a": numbers.t()}, golden / "transposed.bin")
    torch.save({"a": 1}, golden / "number.bin")
    torch.save({"a": pathlib.PurePosixPath("x")}, golden / "object.bin")
    torch.save({"a": numbers}, golden / "old.bin", _use_new_zipfile_serialization=False)
    for path in golden.iterdir():
        path.chmod(0o644)
        (corpus / path.stem).write_bytes(path.read_bytes())


if __name__ == "__main__":
    main()
