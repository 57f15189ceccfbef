#!/usr/bin/python3
"""Writes seeds of the fuzz targets: seeds.py FOLDER fills FOLDER/onnx and FOLDER/safetensors.

For models: the smallest case of each operator in ONNX's own node tests (Debian's libonnx-testdata), as it is and, if that
stays small, with every input but the first as a constant, so that operators whose shapes depend on contents are reached. For
safetensors: files of each kind that is accepted, and of each that is refused. What is committed is the corpus that libFuzzer
has made smaller from these and from what it found (README.md says how).
"""
import collections
import json
import struct
import sys
from pathlib import Path

import onnx
from onnx import numpy_helper

CASES = Path("/usr/share/libonnx-testdata/data/node")
LARGEST = 1024  # bytes


def constants(case, model):
    """The model with the case's inputs as initializers, but for the first."""
    fixed = onnx.ModelProto.FromString(model.SerializeToString())
    for i, info in list(enumerate(fixed.graph.input))[:0:-1]:
        tensor = onnx.TensorProto()
        tensor.ParseFromString((case / "test_data_set_0" / f"input_{i}.pb").read_bytes())
        if not tensor.ByteSize() or not info.type.HasField("tensor_type"):
            return None
        tensor.name = info.name
        fixed.graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(tensor), info.name))
        del fixed.graph.input[i]
    return fixed.SerializeToString()


def models(folder):
    cases = collections.defaultdict(list)
    for path in sorted(CASES.glob("test_*/model.onnx")):
        data = path.read_bytes()
        if len(data) > LARGEST:
            continue
        model = onnx.load_from_string(data)
        if len(model.graph.node) == 1:
            cases[model.graph.node[0].op_type].append((len(data), path.parent, data, model))
    for name, found in cases.items():
        found.sort(key=lambda entry: (entry[0], entry[1].name))
        for _, case, data, model in found[:2] + found[-1:]:
            (folder / f"{case.name}.onnx").write_bytes(data)
            fixed = constants(case, model) if len(model.graph.input) > 1 else None
            if fixed and len(fixed) <= LARGEST:
                (folder / f"{case.name}.fixed.onnx").write_bytes(fixed)


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def file(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def safetensors(folder):
    f32 = tensor("F32", [2], 0, 8)
    seeds = {
        "empty": file({}),
        "one": file({"a": f32}, bytes(8)),
        "padded": file(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}      ', b"x"),
        "metadata": file({"__metadata__": {"format": "pt"}, "a": f32}, bytes(8)),
        "several": file({"b": tensor("I64", [1, 1], 8, 16), "a": f32, "scalar": tensor("F16", [], 16, 18),
                         "none": tensor("BF16", [3, 0], 18, 18)}, bytes(18)),
        "types": file({t: tensor(t, [0], 0, 0) for t in ("BOOL", "U8", "I8", "U16", "I16", "F16", "BF16", "U32", "I32", "F32",
                                                         "U64", "I64", "F64", "F8_E4M3", "F8_E5M2", "C64")}),
        "subbyte": file({"a": tensor("F4", [2], 0, 1)}, b"x"),
        "overlap": file({"a": f32, "b": f32}, bytes(8)),
        "hole": file({"a": f32, "b": tensor("U8", [1], 9, 10)}, bytes(10)),
        "behind": file({"a": f32}, bytes(9)),
        "outside": file({"a": tensor("F32", [2], 0, 8)}, bytes(7)),
        "overflow": file({"a": tensor("F32", [2**32, 2**32], 0, 0)}),
        "negative": file({"a": tensor("F32", [-1], 0, 4)}, bytes(4)),
        "duplicate": file(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
        "notutf8": file(b'{"\xff":1}'),
        "escapes": file(b'{"\\u00e9\\ud83d\\ude00":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
        "deep": file(b'{"a":' + b"[" * 50),
        "cut": file({"a": f32}, length=1000),
        "huge": file({}, length=2**63),
        "short": b"\x02\0\0",
    }
    for name, data in seeds.items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for kind, write in (("onnx", models), ("safetensors", safetensors)):
        target = Path(sys.argv[1], kind)
        target.mkdir(parents=True, exist_ok=True)
        write(target)
