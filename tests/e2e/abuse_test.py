#!/usr/bin/python3
"""Operators' accidents: a repository full of what is no model, standard streams that are closed or full."""
import os
import pathlib
import shutil
import subprocess
import tempfile

import grpc
from onnx import TensorProto, helper, save

import cluster
import kit
from cluster import Cluster

PB = cluster.ingot_messages()


def infer(channel, model="digits"):
    request = cluster.digit_request(PB, 7)
    request.model = model
    return kit.unary(channel, "/ingot.v1.Inference/Infer", PB.InferResponse)(request)


def relu(root, name, tensor, operator="Relu"):
    graph = helper.make_graph(
        [helper.make_node(operator, [tensor], ["y"])], name,
        [helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    (root / name / "1").mkdir(parents=True)
    save(model, str(root / name / "1" / "model.onnx"))


def rubbish_in_the_repository():
    """What is no model says why and harms nothing: the digits beside it are served."""
    root = pathlib.Path(tempfile.mkdtemp(prefix="ingot-models-"))
    try:
        shutil.copytree(cluster.DEMO_MODELS / "digits", root / "digits")
        whole = (root / "digits" / "1" / "model.onnx").read_bytes()
        for name in ("empty", "lost+found", "-dash", "with space", "new\nline", "n" * 65, "a..b"):
            (root / name).mkdir()
        for name, data in (("truncated", whole[:4000]), ("nothing", b""), ("noise", os.urandom(3000))):
            (root / name / "1").mkdir(parents=True)
            (root / name / "1" / "model.onnx").write_bytes(data)
        for version in ("0", "-1", "01", "latest", "99999999999"):
            shutil.copytree(root / "digits" / "1", root / ("version" + version) / version)
        for name, config in (("config", b"max_batch_size: -1\n"), ("binary", bytes(range(256)))):
            shutil.copytree(root / "digits", root / name)
            (root / name / "config.yaml").write_bytes(config)
        for name, target in (("outside", "/etc"), ("loop", "loop"), ("dangling", "nowhere")):
            (root / name).symlink_to(target)
        (root / "fifo" / "1").mkdir(parents=True)
        os.mkfifo(root / "fifo" / "1" / "model.onnx")
        relu(root, "operator", "x", "Frobnicate")
        relu(root, "escape", "x\x1b[31m")
        relu(root, "longname", "x" * 300)
        relu(root, "notutf8", "xqqx")
        file = root / "notutf8" / "1" / "model.onnx"
        file.write_bytes(file.read_bytes().replace(b"xqqx", b"x\xff\xfex"))
        with Cluster(root, workers=2) as running, running.channel() as channel:
            infer(channel)
            for name in ("empty", "truncated", "version0", "config", "outside", "operator", "escape", "longname",
                         "notutf8"):
                kit.expect_code(grpc.StatusCode.FAILED_PRECONDITION, lambda name=name: infer(channel, name))
            dead = running.kill("scheduler")
            running.wait_ready(20, "scheduler", not_pid=dead)
            infer(channel)
    finally:
        shutil.rmtree(root)


def streams_closed_and_full():
    """A closed standard stream is no descriptor for sockets; a report that cannot be written is no success."""
    with Cluster() as running:
        for command in ("status", "models", "mem"):
            line = f"exec {cluster.BIN / 'ingot'} {command} --run-dir {running.run_dir}"
            for redirect, code in ((">&-", 0), ("<&- >&- 2>&-", 0), (">/dev/full", 1)):
                done = subprocess.run(["/bin/sh", "-c", f"{line} {redirect}"], stderr=subprocess.DEVNULL, timeout=20)
                kit.expect_equal(done.returncode, code, f"the exit code of {command} {redirect}")


cluster.main(rubbish_in_the_repository, streams_closed_and_full)
