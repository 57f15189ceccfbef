#!/usr/bin/python3
"""Weights live once: with four workers their proportional memory is that of one copy, and a killed worker comes back to
the weights that are there."""
import pathlib
import shutil
import tempfile

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

import cluster
import kit
from cluster import Cluster

PB = cluster.ingot_messages()
SIDE = 1024  # one SIDE x SIDE matrix: 4 MiB of weights


def wide_model(root):
    weights = numpy.random.default_rng(7).standard_normal((SIDE, SIDE)).astype(numpy.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", SIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", SIDE])],
        [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    where = pathlib.Path(root, "wide", "1")
    where.mkdir(parents=True)
    onnx.save(model, str(where / "model.onnx"))


def weights_memory(pid):
    """(proportional, resident, private) bytes of the weights' mappings of a process."""
    sums, counting = {"Pss": 0, "Rss": 0, "Private_Dirty": 0}, False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and ":" not in words[0]:
            counting = "memfd:" in line and "weights" in line
        elif counting and words[0][:-1] in sums:
            sums[words[0][:-1]] += int(words[1]) * 1024
    return sums["Pss"], sums["Rss"], sums["Private_Dirty"]


def touch_all(running, pb):
    """Runs the model until each worker has run it: its whole mapping is then in use."""
    with running.channel() as channel:
        infer = kit.unary(channel, "/ingot.v1.Inference/Infer", pb.InferResponse)
        x = numpy.ones((1, SIDE), numpy.float32)
        request = pb.InferRequest(model="wide")
        request.inputs.add(name="x", datatype="FP32", shape=x.shape, data=x.tobytes())
        return infer(request).outputs[0].data


def four_workers_hold_one_copy():
    root = tempfile.mkdtemp(prefix="ingot-models-")
    try:
        wide_model(root)
        with Cluster(root, workers=4) as running:
            answer = touch_all(running, PB)
            entries = [e for e in running.ledger()["entries"] if e["kind"] == "weights"]
            kit.expect_equal(len(entries), 1, "regions of weights")
            kit.expect_equal(entries[0]["state"], "sealed", "their state")
            size = entries[0]["bytes"]
            kit.expect(size >= SIDE * SIDE * 4, "the region is smaller than the matrix")
            figures = [weights_memory(pid) for (role, _), pid in running.pids().items() if role == "worker"]
            kit.expect_equal(len(figures), 4, "workers")
            together = sum(pss for pss, _, _ in figures)
            print(f"# weights {size} B, four workers' proportional memory {together} B: {together / size:.3f}x")
            kit.expect(all(rss >= SIDE * SIDE * 4 for _, rss, _ in figures), "a worker has not mapped the weights")
            kit.expect(together <= size * 1.01, "the weights are in memory more than once")
            kit.expect(not any(private for _, _, private in figures), "a worker has a private copy of weights")
            dead = running.kill("worker", 2)
            running.wait_ready(20, "worker", 2, not_pid=dead)
            again = [e for e in running.ledger()["entries"] if e["kind"] == "weights"]
            kit.expect_equal([(e["region"], e["generation"]) for e in again],
                             [(e["region"], e["generation"]) for e in entries], "the weights' region after a kill")
            kit.expect(touch_all(running, PB) == answer, "another answer after a kill")
    finally:
        shutil.rmtree(root)


cluster.main(four_workers_hold_one_copy)
