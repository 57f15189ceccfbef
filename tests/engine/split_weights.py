#!/usr/bin/python3
"""Moves a model's initializers into a file beside it, for tests of external data.

    split_weights.py MODEL OUT FORM [MIN-BYTES]

MODEL is an ONNX file, OUT the new one; the weights go into OUT's folder as weights.bin or weights.safetensors. FORM:

    bin       plain file, found by offset and length
    offset    safetensors file, found by offset and length: every ONNX runtime reads it
    name      safetensors file, found by the tensors' names
"""
import hashlib
import json
import struct
import sys
from pathlib import Path

import onnx
from onnx import numpy_helper

DTYPES = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16", "uint32": "U32",
          "int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64", "float64": "F64"}


def safetensors(arrays, metadata=None):
    """Bytes of a safetensors file, and where the data of each tensor starts in it."""
    header, at = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, array in arrays.items():
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape),
                        "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    starts = {name: 8 + len(text) + header[name]["data_offsets"][0] for name in arrays}
    return struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in arrays.values()), starts


def plain(arrays):
    starts, at = {}, 0
    for name, array in arrays.items():
        starts[name] = at
        at += array.nbytes
    return b"".join(a.tobytes() for a in arrays.values()), starts


def split(source, target, form, least=0):
    model = onnx.load(source)
    moved = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    moved = {name: array.copy(order="C") for name, array in moved.items() if array.nbytes >= least}
    data, starts = plain(moved) if form == "bin" else safetensors(moved, {"format": "np"})
    location = "weights.bin" if form == "bin" else "weights.safetensors"
    (Path(target).parent / location).write_bytes(data)
    for tensor in model.graph.initializer:
        if tensor.name not in moved:
            continue
        for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
            tensor.ClearField(field)
        entries = {"location": location}
        if form != "name":
            entries.update(offset=str(starts[tensor.name]), length=str(moved[tensor.name].nbytes),
                           checksum=hashlib.sha1(data).hexdigest())
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
    Path(target).write_bytes(model.SerializeToString())


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5) or sys.argv[3] not in ("bin", "offset", "name"):
        sys.exit(__doc__)
    split(sys.argv[1], sys.argv[2], sys.argv[3], *(int(a) for a in sys.argv[4:]))
