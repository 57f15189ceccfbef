#!/usr/bin/python3
"""Requests of one shape ride together; requests of two shapes never do; a row's bytes do not depend on company."""
import pathlib
import shutil
import tempfile
import threading

import grpc
import numpy
import onnx
import onnx.numpy_helper
from onnx import TensorProto, helper

import cluster
import kit
from cluster import Cluster

PB = cluster.ingot_messages()
CALLERS = 64
CALLS = 25


def many(channel, requests_of, callers=CALLERS, calls=CALLS):
    """callers threads, each calls times requests_of(caller, call); returns [(request, response)]."""
    infer = kit.unary(channel, "/ingot.v1.Inference/Infer", PB.InferResponse)
    results, failures, lock = [], [], threading.Lock()
    start = threading.Barrier(callers)

    def caller(me):
        start.wait(30)
        for call in range(calls):
            request = requests_of(me, call)
            try:
                response = infer(request)
            except Exception as error:  # a failed call must fail the test, whatever it was
                with lock:
                    failures.append(repr(error))
                return
            with lock:
                results.append((request, response))

    threads = [threading.Thread(target=caller, args=(i,)) for i in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        kit.expect(not thread.is_alive(), "a caller hangs")
    kit.expect(not failures, f"{len(failures)} calls failed, first: {failures[:1]}")
    return results


def patient_digits(root):
    """The demo model with a wait of 5 ms for company: what rides together then does not depend on how fast this
    machine's client is."""
    shutil.copytree(cluster.DEMO_MODELS / "digits", pathlib.Path(root, "digits"))
    pathlib.Path(root, "digits", "config.yaml").write_text("max_batch_size: 32\nmax_wait_us: 5000\n")


def concurrent_callers_share_batches():
    root = tempfile.mkdtemp(prefix="ingot-models-")
    try:
        patient_digits(root)
        with Cluster(root) as running, running.channel() as channel:
            infer = kit.unary(channel, "/ingot.v1.Inference/Infer", PB.InferResponse)
            alone = []
            for i in range(10):
                response = infer(cluster.digit_request(PB, i))
                kit.expect_equal(response.stats.batch_requests, 1, "company of a lone request")
                alone.append(response.outputs[0].data)
            results = many(channel, lambda me, call: cluster.digit_request(PB, (me + call) % 10))
            kit.expect_equal(len(results), CALLERS * CALLS, "answers")
            sizes = [response.stats.batch_requests for _, response in results]
            shared = sum(size > 1 for size in sizes)
            print(f"# {len(sizes)} requests, {shared} in company, largest batch {max(sizes)}, "
                  f"mean {sum(sizes) / len(sizes):.1f}")
            kit.expect(shared > len(sizes) * 0.9, f"only {shared} of {len(sizes)} requests had company")
            kit.expect(max(sizes) <= 32, "a batch is larger than max_batch_size")
            digits = {cluster.digit(i)[1]: i for i in range(10)}
            for request, response in results:
                wanted = alone[digits[request.inputs[0].data]]
                kit.expect(response.outputs[0].data == wanted, "bytes depend on the batch")
    finally:
        shutil.rmtree(root)


def free_width_model(root):
    """x [N, W] -> relu(x) with a free width: each width is a shape of its own. Waits for company, as above."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "free",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "W"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "W"])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    where = pathlib.Path(root, "free", "1")
    where.mkdir(parents=True)
    onnx.save(model, str(where / "model.onnx"))
    pathlib.Path(root, "free", "config.yaml").write_text("max_wait_us: 5000\n")


def two_shapes_never_share_a_batch():
    """63 callers of one width and one caller of another: the lone one is never in company."""
    root = tempfile.mkdtemp(prefix="ingot-models-")
    try:
        free_width_model(root)
        with Cluster(root) as running, running.channel() as channel:
            def request_of(me, call):
                width = 7 if me == 0 else 9
                x = numpy.full((1, width), -1.0 if call % 2 else me + 1.0, numpy.float32)
                request = PB.InferRequest(model="free")
                request.inputs.add(name="x", datatype="FP32", shape=x.shape, data=x.tobytes())
                return request

            results = many(channel, request_of)
            seen = {7: [], 9: []}
            for request, response in results:
                width = request.inputs[0].shape[1]
                kit.expect_equal(list(response.outputs[0].shape), [1, width], "the answer's shape")
                x = numpy.frombuffer(request.inputs[0].data, numpy.float32)
                kit.expect(response.outputs[0].data == numpy.maximum(x, 0).tobytes(), "a wrong answer")
                seen[width].append(response.stats.batch_requests)
            print(f"# width 7: largest {max(seen[7])}; width 9: largest {max(seen[9])}")
            kit.expect(max(seen[7]) == 1, "the lone caller of its width had company")
            kit.expect(max(seen[9]) > 1, "the many callers of one width never shared a batch")
    finally:
        shutil.rmtree(root)


def lookup_model(root):
    """index [N] int64 -> a row of a table of ten: an index out of range fails its run."""
    table = numpy.arange(40, dtype=numpy.float32).reshape(10, 4)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "index"], ["row"], axis=0)], "lookup",
        [helper.make_tensor_value_info("index", TensorProto.INT64, ["N"])],
        [helper.make_tensor_value_info("row", TensorProto.FLOAT, ["N", 4])],
        [onnx.numpy_helper.from_array(table, "table")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    where = pathlib.Path(root, "lookup", "1")
    where.mkdir(parents=True)
    onnx.save(model, str(where / "model.onnx"))
    return table


def bad_values_harm_only_their_sender():
    """One of eight callers sends indices out of range; the others' answers stay right."""
    root = tempfile.mkdtemp(prefix="ingot-models-")
    try:
        table = lookup_model(root)
        with Cluster(root) as running, running.channel() as channel:
            infer = kit.unary(channel, "/ingot.v1.Inference/Infer", PB.InferResponse)

            def request_of(index):
                request = PB.InferRequest(model="lookup")
                request.inputs.add(name="index", datatype="INT64", shape=[1],
                                   data=numpy.array([index], numpy.int64).tobytes())
                return request

            stop = threading.Event()

            def villain():
                while not stop.is_set():
                    kit.expect_code(grpc.StatusCode.INVALID_ARGUMENT, lambda: infer(request_of(99)))
                    bad.append(1)

            bad, broken = [], []

            def guarded():
                try:
                    villain()
                except kit.Failed as failure:
                    broken.append(str(failure))

            threads = [threading.Thread(target=guarded) for _ in range(4)]
            for thread in threads:
                thread.start()
            results = many(channel, lambda me, call: request_of((me + call) % 10), callers=32)
            stop.set()
            for thread in threads:
                thread.join(30)
            kit.expect(not broken, f"the bad ones: {broken[:1]}")
            kit.expect(bad, "no bad request was sent meanwhile")
            for request, response in results:
                index = numpy.frombuffer(request.inputs[0].data, numpy.int64)[0]
                kit.expect(response.outputs[0].data == table[index].tobytes(), "a wrong row")
            print(f"# {len(results)} good answers beside {len(bad)} bad requests")
    finally:
        shutil.rmtree(root)


cluster.main(concurrent_callers_share_batches, two_shapes_never_share_a_batch,
             bad_values_harm_only_their_sender)
