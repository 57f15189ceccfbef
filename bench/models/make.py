#!/usr/bin/python3
"""Makes the models that the benches and the comparison tests run: known architectures, seeded weights.

usage: bench/models/make.py DIR [NAME...] [--layers N] [--image N] [--vocab N]

Writes DIR/NAME.onnx for each name (default: all). The graphs are what PyTorch's exporter writes for these
networks, down to the shape arithmetic around Reshape; the weights are random with scales that keep activations in
bounds. A tensor's values follow from its name alone, so the bytes are the same on every machine and a model with
fewer layers has the same first ones. --layers, --image and --vocab make smaller ones for tests.
"""
import argparse
import pathlib
import sys
import zlib

import numpy

# Debian's onnx 1.12 uses names that its numpy has dropped.
for alias, kind in (("float", float), ("int", int), ("bool", bool), ("object", object)):
    if alias not in vars(numpy):
        setattr(numpy, alias, kind)

from onnx import ModelProto, TensorProto, helper  # noqa: E402

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


class Graph:
    """A model under construction: nodes and weights are appended, names of values are returned."""

    def __init__(self, name, opset):
        self.name, self.opset, self.count = name, opset, 0
        self.nodes, self.inputs, self.outputs, self.weights = [], [], [], []

    def input(self, name, dtype, shape):
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name, dtype, shape):
        self.outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def node(self, op, *inputs, output=None, **attributes):
        output = output or f"{op.lower()}_{self.count}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], f"{op}_{self.count}", **attributes))
        self.count += 1
        return output

    def weight(self, name, array):
        dtype = F32 if array.dtype == numpy.float32 else I64
        self.weights.append(TensorProto(name=name, data_type=dtype, dims=array.shape, raw_data=array.tobytes()))
        return name

    def normal(self, name, shape, scale, shift=0.0):
        return self.weight(name, normal(name, shape, scale, shift))

    def constant(self, value, dtype=numpy.float32):
        """A Constant node, as exporters write scalars and small vectors."""
        array = numpy.asarray(value, dtype)
        kind = F32 if dtype == numpy.float32 else I64
        tensor = TensorProto(data_type=kind, dims=array.shape, raw_data=array.tobytes())
        return self.node("Constant", value=tensor)

    def save(self, path):
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)
        model = ModelProto(ir_version=7, producer_name="ingot-bench")
        model.graph.CopyFrom(graph)
        model.opset_import.add(domain="", version=self.opset)
        path.write_bytes(model.SerializeToString(deterministic=True))


def normal(name, shape, scale, shift=0.0):
    """Values that depend on the name, shape and scale only. RandomState's stream is frozen for good."""
    draw = numpy.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    return (draw * scale + shift).astype(numpy.float32)


# ---- classifiers -----------------------------------------------------------------------------------------------------


def linear(g, x, name, inputs, outputs, gain=2.0, output=None):
    weight = g.normal(f"{name}.weight", (outputs, inputs), (gain / inputs) ** 0.5)
    bias = g.normal(f"{name}.bias", (outputs,), 0.05)
    return g.node("Gemm", x, weight, bias, output=output, alpha=1.0, beta=1.0, transB=1)


def mlp(args):
    g = Graph("mlp", 13)
    x = g.input("input", F32, ["batch", 784])
    for i, (inputs, outputs) in enumerate(((784, 512), (512, 512))):
        x = g.node("Relu", linear(g, x, f"layers.{i}", inputs, outputs))
    x = linear(g, x, "layers.2", 512, 10, gain=1.0)
    g.node("Softmax", x, output="probabilities", axis=-1)
    g.output("probabilities", F32, ["batch", 10])
    return g


def conv(g, x, name, shape, stride=1, group=1, fold=False, gain=2.0, gamma=1.0):
    """Convolution and batch normalisation: two nodes, or folded into one by the exporter's arithmetic."""
    out, inputs, size, _ = shape
    weight = normal(f"{name}.weight", shape, (gain / (inputs * size * size)) ** 0.5)
    scale = normal(f"{name}.bn.weight", (out,), 0.1 * gamma, gamma)
    shift = normal(f"{name}.bn.bias", (out,), 0.1)
    mean = normal(f"{name}.bn.mean", (out,), 0.1)
    var = numpy.abs(normal(f"{name}.bn.var", (out,), 0.2, 1.0)) + numpy.float32(0.1)
    attributes = {"kernel_shape": [size, size], "strides": [stride, stride], "pads": [size // 2] * 4,
                  "dilations": [1, 1], "group": group}
    if fold:
        factor = scale.astype(numpy.float64) / numpy.sqrt(var.astype(numpy.float64) + 1e-5)
        weight = (weight * factor[:, None, None, None]).astype(numpy.float32)
        bias = (shift - mean * factor).astype(numpy.float32)
        return g.node("Conv", x, g.weight(f"{name}.weight", weight), g.weight(f"{name}.bias", bias), **attributes)
    x = g.node("Conv", x, g.weight(f"{name}.weight", weight), **attributes)
    names = [g.weight(f"{name}.bn.{part}", array) for part, array in
             (("weight", scale), ("bias", shift), ("mean", mean), ("var", var))]
    return g.node("BatchNormalization", x, *names, epsilon=1e-5, momentum=0.9)


def head(g, x, features):
    x = g.node("Flatten", g.node("GlobalAveragePool", x), axis=1)
    linear(g, x, "classifier", features, 1000, gain=1.0, output="logits")
    g.output("logits", F32, ["batch", 1000])
    return g


def resnet50(args, fold=False):
    """Version 1.5: the stride is in a bottleneck's 3x3 convolution."""
    g = Graph("resnet50", 13)
    x = g.input("input", F32, ["batch", 3, args.image, args.image])
    x = g.node("Relu", conv(g, x, "stem", (64, 3, 7, 7), 2, fold=fold))
    x = g.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        narrow = 64 << stage
        for block in range(min(blocks, args.layers or blocks)):
            name, stride = f"stage{stage}.{block}", 2 if stage and not block else 1
            short = conv(g, x, f"{name}.short", (4 * narrow, width, 1, 1), stride, fold=fold, gain=1.0) \
                if not block else x
            y = g.node("Relu", conv(g, x, f"{name}.1", (narrow, width, 1, 1), fold=fold))
            y = g.node("Relu", conv(g, y, f"{name}.2", (narrow, narrow, 3, 3), stride, fold=fold))
            # A small last scale, as trained networks have it: sums over blocks stay of one size.
            y = conv(g, y, f"{name}.3", (4 * narrow, narrow, 1, 1), fold=fold, gamma=0.3)
            x = g.node("Relu", g.node("Add", y, short))
            width = 4 * narrow
    return head(g, x, width)


# Expansion, channels, blocks, first stride.
MOBILENETV2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
               (6, 320, 1, 1))


def mobilenetv2(args):
    """With folded batch normalisation and ReLU6 as Clip with constant bounds, as exported."""
    g = Graph("mobilenetv2", 13)

    def relu6(x):
        return g.node("Clip", x, g.constant(0.0), g.constant(6.0))

    x = g.input("input", F32, ["batch", 3, args.image, args.image])
    x = relu6(conv(g, x, "stem", (32, 3, 3, 3), 2, fold=True))
    width = 32
    for stage, (expand, channels, blocks, first) in enumerate(MOBILENETV2):
        for block in range(min(blocks, args.layers or blocks)):
            name, wide = f"stage{stage}.{block}", width * expand
            y = x if expand == 1 else relu6(conv(g, x, f"{name}.expand", (wide, width, 1, 1), fold=True))
            y = relu6(conv(g, y, f"{name}.depthwise", (wide, 1, 3, 3), 1 if block else first, wide, fold=True))
            y = conv(g, y, f"{name}.project", (channels, wide, 1, 1), fold=True, gain=1.0,
                     gamma=0.5 if block else 1.0)
            x = g.node("Add", x, y) if block else y
            width = channels
    return head(g, relu6(conv(g, x, "last", (1280, width, 1, 1), fold=True)), 1280)


# ---- encoders --------------------------------------------------------------------------------------------------------


class Encoder:
    """BERT as PyTorch exports it: no operator is larger than MatMul and Softmax."""

    def __init__(self, name, hidden, layers, heads, vocab, pooler):
        self.g, self.hidden, self.heads, self.vocab = Graph(name, 14), hidden, heads, vocab
        ids, mask, kinds = [self.g.input(n, I64, ["batch", "sequence"])
                            for n in ("input_ids", "attention_mask", "token_type_ids")]
        mask = self.attention_mask(mask)
        x = self.embeddings(ids, kinds)
        last = "last_hidden_state"
        for i in range(layers):
            x = self.layer(x, mask, f"encoder.layer.{i}", last if i == layers - 1 else None)
        self.g.output(last, F32, ["batch", "sequence", hidden])
        if pooler:
            first = self.g.node("Gather", x, self.g.constant(0, numpy.int64), axis=1)
            self.g.node("Tanh", linear(self.g, first, "pooler.dense", hidden, hidden, gain=1.0), output="pooler_output")
            self.g.output("pooler_output", F32, ["batch", hidden])

    def attention_mask(self, mask):
        """0 where a token counts, -10000 where it is padding, as [batch, 1, 1, sequence]."""
        g = self.g
        for axis in (1, 2):
            mask = g.node("Unsqueeze", mask, g.constant([axis], numpy.int64))
        kept = g.node("Cast", mask, to=F32)
        return g.node("Mul", g.node("Sub", g.constant(1.0), kept), g.constant(-10000.0))

    def size(self, x, axis):
        """A dimension of x as a vector of one."""
        g = self.g
        size = g.node("Gather", g.node("Shape", x), g.constant(axis, numpy.int64), axis=0)
        return g.node("Unsqueeze", size, g.constant([0], numpy.int64))

    def embeddings(self, ids, kinds):
        g, hidden = self.g, self.hidden
        one, zero = (g.constant([v], numpy.int64) for v in (1, 0))
        table = g.weight("embeddings.position_ids", numpy.arange(512, dtype=numpy.int64)[None])
        positions = g.node("Slice", table, zero, self.size(ids, 1), one, one)
        words, kinds, positions = [
            g.node("Gather", g.normal(f"embeddings.{name}", (rows, hidden), 0.5), index)
            for name, rows, index in (("word", self.vocab, ids), ("token_type", 2, kinds), ("position", 512, positions))]
        return self.norm(g.node("Add", g.node("Add", words, kinds), positions), "embeddings.LayerNorm")

    def norm(self, x, name, output=None):
        g = self.g
        centred = g.node("Sub", x, g.node("ReduceMean", x, axes=[-1]))
        square = g.node("Pow", centred, g.constant(2.0))
        deviation = g.node("Sqrt", g.node("Add", g.node("ReduceMean", square, axes=[-1]), g.constant(1e-12)))
        scaled = g.node("Mul", g.node("Div", centred, deviation),
                        g.normal(f"{name}.weight", (self.hidden,), 0.1, 1.0))
        return g.node("Add", scaled, g.normal(f"{name}.bias", (self.hidden,), 0.1), output=output)

    def dense(self, x, name, inputs, outputs):
        g = self.g
        weight = g.normal(f"{name}.weight", (inputs, outputs), inputs ** -0.5)
        return g.node("Add", g.normal(f"{name}.bias", (outputs,), 0.02), g.node("MatMul", x, weight))

    def split_heads(self, x, perm):
        """[batch, sequence, hidden] -> heads beside the batch, through a shape made of x's own."""
        g = self.g
        rest = [g.constant([n], numpy.int64) for n in (self.heads, self.hidden // self.heads)]
        shape = g.node("Concat", self.size(x, 0), self.size(x, 1), *rest, axis=0)
        return g.node("Transpose", g.node("Reshape", x, shape), perm=perm)

    def attention(self, x, mask, name):
        g, hidden = self.g, self.hidden
        query, key, value = [self.dense(x, f"{name}.self.{part}", hidden, hidden) for part in ("query", "key", "value")]
        query, value = [self.split_heads(part, [0, 2, 1, 3]) for part in (query, value)]
        scores = g.node("MatMul", query, self.split_heads(key, [0, 2, 3, 1]))
        scores = g.node("Div", scores, g.constant((hidden / self.heads) ** 0.5))
        shares = g.node("Softmax", g.node("Add", scores, mask), axis=-1)
        context = g.node("Transpose", g.node("MatMul", shares, value), perm=[0, 2, 1, 3])
        shape = g.node("Concat", self.size(context, 0), self.size(context, 1), g.constant([hidden], numpy.int64), axis=0)
        return self.dense(g.node("Reshape", context, shape), f"{name}.output.dense", hidden, hidden)

    def gelu(self, x):
        g = self.g
        half = g.node("Erf", g.node("Div", x, g.constant(2 ** 0.5)))
        return g.node("Mul", g.node("Mul", x, g.node("Add", half, g.constant(1.0))), g.constant(0.5))

    def layer(self, x, mask, name, output):
        g, hidden = self.g, self.hidden
        x = self.norm(g.node("Add", self.attention(x, mask, f"{name}.attention"), x), f"{name}.attention.LayerNorm")
        y = self.gelu(self.dense(x, f"{name}.intermediate", hidden, 4 * hidden))
        y = self.dense(y, f"{name}.output.dense", 4 * hidden, hidden)
        return self.norm(g.node("Add", y, x), f"{name}.output.LayerNorm", output)


def bert_base(args):
    return Encoder("bert-base", 768, args.layers or 12, 12, args.vocab, pooler=True).g


def minilm(args):
    return Encoder("minilm", 384, args.layers or 6, 12, args.vocab, pooler=False).g


MODELS = {
    "mlp": mlp,
    "resnet50": resnet50,
    "resnet50-folded": lambda args: resnet50(args, fold=True),
    "mobilenetv2": mobilenetv2,
    "bert-base": bert_base,
    "minilm": minilm,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(MODELS)}; default: all")
    parser.add_argument("--layers", type=int, help="at most N layers, or blocks of a stage (default: the network's)")
    parser.add_argument("--image", type=int, default=224, help="height and width of images (default 224)")
    parser.add_argument("--vocab", type=int, default=30522, help="tokens of the encoders (default 30522)")
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(MODELS))
    if unknown:
        parser.error(f"no model named {', '.join(unknown)}; there are {', '.join(MODELS)}")
    args.dir.mkdir(parents=True, exist_ok=True)
    for name in args.names or MODELS:
        MODELS[name](args).save(args.dir / f"{name}.onnx")


if __name__ == "__main__":
    sys.exit(main())
