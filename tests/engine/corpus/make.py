"""Writes the seeds of the fuzz test into this folder (run by hand; the files are committed).

Small graphs that between them use every operator family, with free dimensions.
"""

from pathlib import Path

import numpy
from onnx import TensorProto, helper, numpy_helper

random = numpy.random.default_rng(1)


def constant(name, *shape):
    return numpy_helper.from_array(random.standard_normal(shape).astype(numpy.float32), name)


def ints(name, *values):
    return numpy_helper.from_array(numpy.array(values, numpy.int64), name)


def save(name, opset, nodes, inputs, outputs, constants, ir_version=8):
    def info(entry):
        return helper.make_tensor_value_info(entry[0], entry[2] if len(entry) > 2 else 1, entry[1])

    graph = helper.make_graph(nodes, name, [info(i) for i in inputs], [info(o) for o in outputs],
                              constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = ir_version
    (Path(__file__).parent / f"{name}.onnx").write_bytes(model.SerializeToString())


n = helper.make_node
save("conv", 14, [
    n("Conv", ["x", "w", "b"], ["c"], strides=[2, 1], pads=[1, 0, 1, 2], group=1),
    n("BatchNormalization", ["c", "s", "b2", "m", "v"], ["n"]),
    n("HardSwish", ["n"], ["h"]),
    n("Conv", ["h", "w2"], ["d"], group=4, auto_pad="SAME_UPPER"),
    n("GlobalAveragePool", ["d"], ["g"]),
    n("HardSigmoid", ["g"], ["gate"]),
    n("Mul", ["d", "gate"], ["m2"]),
    n("MaxPool", ["m2"], ["p"], kernel_shape=[2, 2], ceil_mode=1),
    n("AveragePool", ["p"], ["q"], kernel_shape=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
    n("Flatten", ["q"], ["f"]),
    n("Softmax", ["f"], ["y"]),
], [("x", ["N", 3, 9, 9])], [("y", ["N", None])], [
    constant("w", 4, 3, 3, 3), constant("b", 4), constant("s", 4), constant("b2", 4),
    constant("m", 4), numpy_helper.from_array(numpy.ones(4, numpy.float32), "v"),
    constant("w2", 4, 1, 3, 3)])
save("shapes", 13, [
    n("Shape", ["x"], ["s"]),
    n("Gather", ["s", "zero"], ["n0"], axis=0),
    n("Unsqueeze", ["n0", "axis"], ["n1"]),
    n("Slice", ["s", "one", "two", "axis", "one"], ["c"]),
    n("Mul", ["c", "two"], ["c2"]),
    n("Div", ["c2", "two"], ["c3"]),
    n("Cast", ["c3"], ["c4"], to=TensorProto.INT32),
    n("Cast", ["c4"], ["c5"], to=TensorProto.INT64),
    n("Concat", ["n1", "c5", "hole"], ["shape"], axis=0),
    n("Reshape", ["x", "shape"], ["r"]),
    n("ConstantOfShape", ["shape2"], ["z"]),
    n("Expand", ["z", "shape2"], ["e"]),
    n("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
    n("Pad", ["t", "pads", "value"], ["p"]),
    n("Squeeze", ["e", "axis"], ["q"]),
    n("Add", ["p", "q"], ["y"]),
], [("x", ["N", 3, "H", "W"])], [("y", ["N", None, 4])], [
    ints("axis", 0), ints("one", 1), ints("two", 2), ints("hole", -1), ints("shape2", 1, 1, 1),
    ints("pads", 0, 0, 1, 0, 0, 0), numpy_helper.from_array(numpy.array(0, numpy.int64), "zero"),
    numpy_helper.from_array(numpy.array(1.5, numpy.float32), "value")])
save("matmul", 13, [
    n("MatMul", ["x", "w"], ["a"]),
    n("Add", ["a", "b"], ["c"]),
    n("Transpose", ["c"], ["t"], perm=[0, 2, 1]),
    n("MatMul", ["c", "t"], ["d"]),
    n("LogSoftmax", ["d"], ["e"], axis=1),
    n("ReduceMean", ["e"], ["m"], axes=[1], keepdims=0),
    n("Gather", ["table", "i"], ["g"], axis=0),
    n("Gemm", ["m", "w2", "c2"], ["y"], transB=1, alpha=0.5, beta=2.0),
    n("Max", ["g", "y", "c2"], ["z"]),
    n("Clip", ["z", "", "top"], ["k"]),
    n("Tanh", ["k"], ["k1"]),
    n("Erf", ["k1"], ["k2"]),
    n("Pow", ["k2", "top"], ["k3"]),
    n("Cast", ["k3"], ["k4"], to=TensorProto.FLOAT16),
], [("x", ["N", 5, 6]), ("i", ["N"], TensorProto.INT64)],
    [("y", ["N", 3]), ("k4", ["N", 3], TensorProto.FLOAT16)], [
    constant("w", 6, 8), constant("b", 8), constant("w2", 3, 5), constant("c2", 3),
    constant("table", 7, 3), numpy_helper.from_array(numpy.array(2, numpy.float32), "top")])
save("old", 6, [
    n("Conv", ["x", "w"], ["c"], kernel_shape=[3], pads=[1, 1]),
    n("Clip", ["c"], ["d"], min=-1.0, max=1.0),
    n("Dropout", ["d"], ["e"], is_test=1),
    n("Slice", ["e"], ["f"], starts=[1], ends=[-1], axes=[2]),
    n("Pad", ["f"], ["g"], pads=[0, 0, 1, 0, 0, 1], mode="constant", value=3.0),
    n("Unsqueeze", ["g"], ["h"], axes=[1]),
    n("Squeeze", ["h"], ["i"], axes=[1]),
    n("Softmax", ["i"], ["j"], axis=1),
    n("Add", ["j", "b"], ["y"], broadcast=1),
], [("x", ["N", 2, 8]), ("w", [4, 2, 3]), ("b", [8])], [("y", ["N", 4, 8])],
    [constant("w", 4, 2, 3), constant("b", 8)], ir_version=3)
