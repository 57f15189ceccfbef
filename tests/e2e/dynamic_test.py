#!/usr/bin/python3
"""Models whose output shapes depend on data, and control flow, through a whole cluster: right answers of the right size
for one caller and for many at once, a clear error where the data is wrong, and nothing kept afterwards."""
import pathlib
import shutil
import tempfile
import threading

import grpc
import numpy
import onnx
from onnx import TensorProto, helper

import cluster
import kit
from cluster import Cluster

PB = cluster.ingot_messages()
CALLERS, CALLS = 16, 40


def info(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def save(root, name, graph):
    folder = pathlib.Path(root, name, "1")
    folder.mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, str(folder / "model.onnx"))


def powers(root):
    """y[i] = x * 2^i for i < n: as many rows as n says, by a Loop; last = x * 2^n has a known shape."""
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "a"], ["b"]), helper.make_node("Identity", ["a"], ["seen"])], "body",
        [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), info("a", TensorProto.FLOAT, [2])],
        [info("c", TensorProto.BOOL, []), info("b", TensorProto.FLOAT, [2]), info("seen", TensorProto.FLOAT, [2])])
    save(root, "powers", helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["last", "y"], body=body)], "powers",
        [info("n", TensorProto.INT64, []), info("x", TensorProto.FLOAT, [2])],
        [info("y", TensorProto.FLOAT, [None, 2]), info("last", TensorProto.FLOAT, [2])]))


def chosen(root):
    """y = c ? x reshaped to s : x."""
    then = helper.make_graph([helper.make_node("Reshape", ["x", "s"], ["r"])], "then", [],
                             [info("r", TensorProto.FLOAT, None)])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["e"])], "else", [],
                              [info("e", TensorProto.FLOAT, None)])
    save(root, "chosen", helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)], "chosen",
        [info("c", TensorProto.BOOL, []), info("s", TensorProto.INT64, [None]), info("x", TensorProto.FLOAT, [None])],
        [info("y", TensorProto.FLOAT, [None])]))


def request_for(model, **arrays):
    request = PB.InferRequest(model=model)
    names = {"float32": "FP32", "int64": "INT64", "bool": "BOOL"}
    for name, array in arrays.items():
        request.inputs.add(name=name, datatype=names[str(array.dtype)], shape=array.shape, data=array.tobytes())
    return request


def arrays_of(response):
    kinds = {"FP32": numpy.float32}
    return {o.name: numpy.frombuffer(o.data, kinds[o.datatype]).reshape(list(o.shape)) for o in response.outputs}


def check_powers(infer, n, seed):
    x = numpy.float32([seed, -seed])
    got = arrays_of(infer(request_for("powers", n=numpy.int64(n).reshape(()), x=x)))
    wanted = numpy.array([x * 2 ** i for i in range(n)], numpy.float32).reshape(n, 2)
    kit.expect_equal(got["y"].shape, (n, 2), "shape of y")
    kit.expect(numpy.array_equal(got["y"], wanted), f"y of {n} trips")
    kit.expect(numpy.array_equal(got["last"], x * numpy.float32(2 ** n)), f"last of {n} trips")


def check_chosen(infer, take, shape):
    x = numpy.arange(12, dtype=numpy.float32)
    got = arrays_of(infer(request_for("chosen", c=numpy.bool_(take).reshape(()), s=numpy.int64(shape), x=x)))
    kit.expect(numpy.array_equal(got["y"], x.reshape(shape) if take else x), f"y for {take} {shape}")


def answers_of_the_right_size(infer):
    for n in (0, 1, 2, 7, 100):
        check_powers(infer, n, 3)
    for shape in ([3, 4], [2, -1], [12], [1, 2, 3, 2]):
        check_chosen(infer, True, shape)
        check_chosen(infer, False, shape)


def many_at_once(infer):
    failures = []

    def caller(me):
        try:
            for call in range(CALLS):
                check_powers(infer, (me * 7 + call) % 23, me)
                check_chosen(infer, call % 2, [[3, 4], [4, 3], [-1], [2, 6]][(me + call) % 4])
        except Exception as error:  # whatever it was, the test must fail
            failures.append(repr(error))

    threads = [threading.Thread(target=caller, args=(i,)) for i in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        kit.expect(not thread.is_alive(), "a caller hangs")
    kit.expect(not failures, f"{len(failures)} callers failed, first: {failures[:1]}")


def wrong_data(infer):
    x = numpy.arange(12, dtype=numpy.float32)
    for shape in ([5, 5], [0, 12], [2 ** 62, 2], [-3, 4], [-1, -1]):
        request = request_for("chosen", c=numpy.bool_(True).reshape(()), s=numpy.int64(shape), x=x)
        kit.expect_code(grpc.StatusCode.INVALID_ARGUMENT, lambda request=request: infer(request))
    endless = request_for("powers", n=numpy.int64(2 ** 62).reshape(()), x=numpy.float32([0, 0]))
    try:
        infer(endless)
        raise kit.Failed("a loop of 2^62 trips ended well")
    except grpc.RpcError as error:
        kit.expect(error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT),
                   f"an endless loop ends with {error.code().name}: {error.details()}")
        kit.expect("1000000 trips" in error.details(), f"details {error.details()!r}")


def shapes_that_the_data_decides():
    root = tempfile.mkdtemp(prefix="ingot-models-")
    try:
        powers(root)
        chosen(root)
        with Cluster(root, workers=2) as running, running.channel() as channel:
            infer = kit.unary(channel, "/ingot.v1.Inference/Infer", PB.InferResponse)
            pids = running.pids()
            answers_of_the_right_size(infer)
            many_at_once(infer)
            wrong_data(infer)
            answers_of_the_right_size(infer)
            kit.expect_equal(running.pids(), pids, "the processes")
    finally:
        shutil.rmtree(root, ignore_errors=True)


cluster.main(shapes_that_the_data_decides)
