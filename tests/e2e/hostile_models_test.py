#!/usr/bin/python3
"""Hostile model files in a real cluster: each ends as failed with a reason, the others load and serve, no process dies, and
memory and time stay bounded. The engine's tests have many more of them (tests/engine, tests/fuzz); these go the whole way."""
import json
import os
import pathlib
import shutil
import struct
import sys
import tempfile

import grpc
import numpy
from onnx import TensorProto, helper, numpy_helper

import cluster
import kit
from cluster import Cluster

sys.path.insert(0, str(cluster.ROOT / "tests" / "engine"))
import split_weights  # noqa: E402

PB = cluster.ingot_messages()
DIGITS = cluster.DEMO_MODELS / "digits" / "1" / "model.onnx"
SPLIT = ("bin", "offset", "name")
LOAD_SECONDS = 120  # for all of them, one after the other, on a busy machine
MEMORY_LIMIT = 1 << 30  # of a worker at its largest, while files of tens of megabytes are refused


# ---- files -------------------------------------------------------------------------------------

def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def model(nodes, initializers=(), opset=13, inputs=("x",), outputs=("y",)):
    def info(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4])

    graph = helper.make_graph(nodes, "g", [info(i) for i in inputs], [info(o) for o in outputs], list(initializers))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made


def around(graph):
    """A file with this graph, in bytes."""
    return b"\x08\x08" + field(8, b"\x10\x0d") + field(7, graph)


def million_nodes():
    node = field(1, field(1, b"x") + field(2, b"y") + field(4, b"Relu"))
    return around(node * 1000000)


def deep(levels=10000):
    graph = b""
    for _ in range(levels):  # GraphProto.node.attribute.g
        graph = field(1, field(5, field(1, b"body") + field(6, graph)))
    return around(graph)


def external(entries, data=True):
    tensor = numpy_helper.from_array(numpy.zeros((4, 4), numpy.float32), "w")
    if data:
        tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return model([helper.make_node("MatMul", ["x", "w"], ["y"])], [tensor])


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, **attributes)


def not_utf8():
    data = model([node("Relu", ["x"], ["bytes"]), node("Neg", ["bytes"], ["y"])], outputs=("y",)).SerializeToString()
    return data.replace(b"bytes", b"byt\xe9s")


def damaged(at):
    data = bytearray(DIGITS.read_bytes())
    data[at] ^= 0xff
    return bytes(data)


# name: (the file, a part of the reason)
FILES = {
    "empty": (b"", "empty"),
    "noise": (bytes(range(256)) * 64, "not a valid ONNX file"),
    "truncated": (DIGITS.read_bytes()[:100000], "past the end"),
    "flipped": (damaged(2), "not a valid ONNX file"),
    "cycle": (model([node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Neg", ["b"], ["y"])]), "cycle"),
    "unknown": (model([node("Frobnicate", ["x"], ["y"])]), "operator Frobnicate of opset 13 is not supported"),
    "opset": (model([node("Relu", ["x"], ["y"])], opset=99), "opset 99"),
    "dangling": (model([node("Add", ["x", "nowhere"], ["y"])]), "produced by no node"),
    "million": (million_nodes(), "too many"),
    "deep": (deep(), "nests deeper"),
    "longname": (model([node("Relu", ["x"], ["y"])], inputs=("x", "n" * 1000000)), "name may have at most"),
    "notutf8": (not_utf8(), "not UTF-8"),
    "huge": (model([node("MatMul", ["x", "w"], ["y"])],
                   [helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [0.0] * 16)]), "too large"),
    "dotdot": (external({"location": "../../digits/1/model.onnx"}), "leaves the model's folder"),
    "absolute": (external({"location": "/etc/passwd"}), "not a path beneath"),
    "symlink": (external({"location": "link"}), "is a symbolic link"),
    "parent": (external({"location": "folder/w"}), "goes through a symbolic link"),
    "hardlink": (external({"location": "hard"}), "hard links"),
    "fifo": (external({"location": "fifo"}), "not a regular file"),
    "folder": (external({"location": "real"}), "not a regular file"),
    "device": (external({"location": "zero"}), "is a symbolic link"),
    "missing": (external({"location": "nothing"}), "does not exist"),
    "negative": (external({"location": "w", "offset": "-1"}), "not a number"),
    "length": (external({"location": "w", "length": str(2**62)}), "dimensions say 64"),
    "offset": (external({"location": "w", "offset": str(2**63 - 64)}), "past the end"),
    "twice": (external({"location": "w"}, data=False), "both in the model and outside"),
    "safetensors": (external({"location": "w.safetensors"}), "not a whole safetensors file"),
}
FILES["huge"][0].graph.initializer[0].dims[0] = 2**62


def beside(folder):
    """What the external ones refer to, in every folder."""
    (folder / "real").mkdir()
    (folder / "w").write_bytes(bytes(64))
    (folder / "real" / "w").write_bytes(bytes(64))
    (folder / "folder").symlink_to("real")
    (folder / "link").symlink_to("w")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "hard").write_bytes(bytes(64))
    os.link(folder / "hard", folder / "hard2")
    os.mkfifo(folder / "fifo")
    (folder / "w.safetensors").write_bytes(struct.pack("<Q", 1000) + b"{}")


def write_models(root):
    for name, (content, _) in FILES.items():
        folder = root / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
        beside(folder)
    for form in SPLIT:
        folder = root / f"split-{form}" / "1"
        folder.mkdir(parents=True)
        split_weights.split(DIGITS, folder / "model.onnx", form)
    shutil.copytree(cluster.DEMO_MODELS / "digits", root / "digits")


# ---- checks ------------------------------------------------------------------------------------

def memory_peak(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise kit.Failed(f"no VmHWM of {pid}")


def answer(running, name):
    request = cluster.digit_request(PB, 3)
    request.model = name
    with running.channel() as channel:
        return kit.unary(channel, "/ingot.v1.Inference/Infer", PB.InferResponse)(request).outputs[0].data


def refused_code(running, name):
    try:
        answer(running, name)
    except grpc.RpcError as error:
        return error.code()
    raise kit.Failed(f"{name} answers")


def each_is_refused_and_the_others_serve():
    root = pathlib.Path(tempfile.mkdtemp(prefix="ingot-models-"))
    try:
        write_models(root)
        with Cluster(root, workers=1) as running:
            pids = running.pids()

            def settled():
                models = {(m["name"], m["version"]): m for m in json.loads(running.ingot("models", "--json").stdout)["models"]}
                return models if all(m["state"] in ("ready", "failed") for m in models.values()) else None

            models = running.wait("every model ready or failed", LOAD_SECONDS, settled)
            wrong = [f"{name}: {models[name, 1]['state']}: {models[name, 1]['reason']} (wanted: {reason})"
                     for name, (_, reason) in FILES.items()
                     if models[name, 1]["state"] != "failed" or reason not in models[name, 1]["reason"]]
            kit.expect(not wrong, "\n".join(wrong))
            kit.expect(not any(str(root) in (m["reason"] or "") for m in models.values()), "a reason gives the folder away")
            wanted = answer(running, "digits")
            for form in SPLIT:
                kit.expect(answer(running, f"split-{form}") == wanted, f"another answer of split-{form}")
            for name in ("empty", "deep", "symlink"):
                kit.expect_equal(refused_code(running, name), grpc.StatusCode.FAILED_PRECONDITION, f"{name} is asked")
            kit.expect_equal(running.pids(), pids, "the processes")
            peak = memory_peak(pids["worker", 0])
            print(f"# the worker held {peak >> 20} MB at most")
            kit.expect(peak < MEMORY_LIMIT, "a worker's memory is not bounded")
    finally:
        shutil.rmtree(root)


cluster.main(each_is_refused_and_the_others_serve)
