#!/usr/bin/python3
"""Trains the demo model: a small convolutional classifier of handwritten digits, written as ONNX.

    /usr/bin/python3 deploy/demo/train_digits.py [--out deploy/demo]

Needs Debian's python3-sklearn (the 1797 digits of 8x8 pixels that scikit-learn carries) and python3-onnx; the training
itself is plain numpy: convolution as im2col and a matrix product, gradients written out, Adam. It runs on one core in
about half a minute. Every random choice comes from one seed, so the same numpy and BLAS give the same file; another
BLAS rounds differently and may move the accuracy by an image or two.

What it writes under --out:
    models/digits/1/model.onnx      "image" float32 [N,1,8,8], pixels 0..16 as they are -> "probabilities" [N,10]
    models/digits/1/accuracy.json   what was measured, on which images, with which file
    samples/digit-D.npy             the first held-out image of each class D, float32 [1,1,8,8]
    samples/labels.json             sample file -> true digit
    heldout/images.npy, labels.npy  the whole held-out set, uint8, so that anyone can measure again without scikit-learn

The split is fixed: 1259 images to train, 179 to choose the epoch, 359 held out, each class in proportion. The held-out
images are used once, after the epoch is chosen, on the file that was written, by an evaluator that shares no code with
the training.
"""
import argparse
import hashlib
import json
import os
import pathlib
import sys

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is loaded: the thread count may show in the bits of a sum

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 20240229
CLASSES = 10
PIXEL_SCALE = 1.0 / 16.0
CONV1, CONV2, HIDDEN = 16, 32, 64  # channels, channels, units
EPOCHS, BATCH = 120, 32
RATE, DECAY, DROPOUT = 2e-3, 1e-4, 0.25


# ---- data ------------------------------------------------------------------------------------------------------------


def load_digits():
    from sklearn.datasets import load_digits as bundled

    digits = bundled()
    return digits.images.astype(np.float32)[:, None, :, :], digits.target.astype(np.int64)


def split(labels, rng):
    """Indices of the train, validation and held-out images: 70, 10 and 20 percent of each class."""
    parts = [[], [], []]
    for digit in range(CLASSES):
        members = rng.permutation(np.flatnonzero(labels == digit))
        held_out = int(round(0.2 * len(members)))
        validation = int(round(0.1 * len(members)))
        parts[2].append(members[:held_out])
        parts[1].append(members[held_out : held_out + validation])
        parts[0].append(members[held_out + validation :])
    return [np.sort(np.concatenate(part)) for part in parts]


def augment(images, rng):
    """Each image turned, scaled and moved a little (bilinear), so that 1259 images stand for more handwriting."""
    count = len(images)
    angle = rng.uniform(-0.2, 0.2, count)
    scale = rng.uniform(0.9, 1.1, (2, count))
    shift = rng.uniform(-0.8, 0.8, (2, count))
    row, column = np.meshgrid(np.arange(8) - 3.5, np.arange(8) - 3.5, indexing="ij")
    cosine, sine = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    source_row = (cosine * row - sine * column) * scale[0][:, None, None] + shift[0][:, None, None] + 3.5
    source_column = (sine * row + cosine * column) * scale[1][:, None, None] + shift[1][:, None, None] + 3.5
    padded = np.pad(images[:, 0], ((0, 0), (2, 2), (2, 2)))
    source_row = np.clip(source_row + 2, 0, 10.999)
    source_column = np.clip(source_column + 2, 0, 10.999)
    top, left = source_row.astype(int), source_column.astype(int)
    down, right = source_row - top, source_column - left
    which = np.arange(count)[:, None, None]
    mixed = (
        padded[which, top, left] * (1 - down) * (1 - right)
        + padded[which, top + 1, left] * down * (1 - right)
        + padded[which, top, left + 1] * (1 - down) * right
        + padded[which, top + 1, left + 1] * down * right
    )
    return mixed.astype(np.float32)[:, None, :, :]


# ---- network: forward and backward -----------------------------------------------------------------------------------


def new_parameters(rng):
    def he(*shape):
        fan_in = int(np.prod(shape[1:]))
        return (rng.standard_normal(shape) * np.sqrt(2.0 / fan_in)).astype(np.float32)

    return {
        "conv1.weight": he(CONV1, 1, 3, 3),
        "conv1.bias": np.zeros(CONV1, np.float32),
        "conv2.weight": he(CONV2, CONV1, 3, 3),
        "conv2.bias": np.zeros(CONV2, np.float32),
        "fc1.weight": he(HIDDEN, CONV2 * 16),
        "fc1.bias": np.zeros(HIDDEN, np.float32),
        "fc2.weight": he(CLASSES, HIDDEN),
        "fc2.bias": np.zeros(CLASSES, np.float32),
    }


def im2col(image):
    """[n,c,h,w] -> [n*h*w, c*9]: the 3x3 neighbourhood of every pixel, zeros outside."""
    count, channels, height, width = image.shape
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.ascontiguousarray(windows.transpose(0, 2, 3, 1, 4, 5)).reshape(count * height * width, channels * 9)


def col2im(columns, shape):
    """The adjoint of im2col: adds every neighbourhood's gradient back to the pixels that it came from."""
    count, channels, height, width = shape
    columns = columns.reshape(count, height, width, channels, 3, 3).transpose(0, 3, 1, 2, 4, 5)
    padded = np.zeros((count, channels, height + 2, width + 2), np.float32)
    for row in range(3):
        for column in range(3):
            padded[:, :, row : row + height, column : column + width] += columns[..., row, column]
    return padded[:, :, 1:-1, 1:-1]


def conv_forward(image, weight, bias):
    count, _, height, width = image.shape
    columns = im2col(image)
    out = columns @ weight.reshape(len(weight), -1).T + bias
    return out.reshape(count, height, width, -1).transpose(0, 3, 1, 2), columns


def conv_backward(gradient, columns, weight, shape):
    flat = np.ascontiguousarray(gradient.transpose(0, 2, 3, 1)).reshape(-1, len(weight))
    weight_gradient = (flat.T @ columns).reshape(weight.shape)
    return weight_gradient, flat.sum(axis=0), col2im(flat @ weight.reshape(len(weight), -1), shape)


def softmax(logits):
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def forward(parameters, image, dropout_mask=None):
    """Probabilities, and what the backward pass needs."""
    scaled = image * np.float32(PIXEL_SCALE)
    conv1, columns1 = conv_forward(scaled, parameters["conv1.weight"], parameters["conv1.bias"])
    relu1 = np.maximum(conv1, 0)
    tiles = relu1.reshape(len(image), CONV1, 4, 2, 4, 2).transpose(0, 1, 2, 4, 3, 5).reshape(-1, CONV1, 4, 4, 4)
    winner = tiles.argmax(axis=-1)
    pooled = np.take_along_axis(tiles, winner[..., None], axis=-1)[..., 0]
    conv2, columns2 = conv_forward(pooled, parameters["conv2.weight"], parameters["conv2.bias"])
    flat = np.maximum(conv2, 0).reshape(len(image), -1)
    if dropout_mask is not None:
        flat = flat * dropout_mask
    hidden = np.maximum(flat @ parameters["fc1.weight"].T + parameters["fc1.bias"], 0)
    logits = hidden @ parameters["fc2.weight"].T + parameters["fc2.bias"]
    return softmax(logits), (scaled, conv1, columns1, winner, pooled, conv2, columns2, flat, hidden)


def backward(parameters, saved, probabilities, labels, dropout_mask):
    """Gradients of the mean cross entropy."""
    scaled, conv1, columns1, winner, pooled, conv2, columns2, flat, hidden = saved
    count = len(labels)
    at_logits = probabilities.copy()
    at_logits[np.arange(count), labels] -= 1
    at_logits /= count
    gradients = {"fc2.weight": at_logits.T @ hidden, "fc2.bias": at_logits.sum(axis=0)}
    at_hidden = (at_logits @ parameters["fc2.weight"]) * (hidden > 0)
    gradients["fc1.weight"] = at_hidden.T @ flat
    gradients["fc1.bias"] = at_hidden.sum(axis=0)
    at_flat = (at_hidden @ parameters["fc1.weight"]) * dropout_mask
    at_conv2 = at_flat.reshape(conv2.shape) * (conv2 > 0)
    weight, bias, at_pooled = conv_backward(at_conv2, columns2, parameters["conv2.weight"], pooled.shape)
    gradients["conv2.weight"], gradients["conv2.bias"] = weight, bias
    tiles = np.zeros((*at_pooled.shape, 4), np.float32)
    np.put_along_axis(tiles, winner[..., None], at_pooled[..., None], axis=-1)
    at_relu1 = tiles.reshape(count, CONV1, 4, 4, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(conv1.shape)
    weight, bias, _ = conv_backward(at_relu1 * (conv1 > 0), columns1, parameters["conv1.weight"], scaled.shape)
    gradients["conv1.weight"], gradients["conv1.bias"] = weight, bias
    return gradients


def check_gradients(rng):
    """Backward against finite differences on a few weights of every parameter; a wrong formula stops the script."""
    parameters = {name: value.astype(np.float64) for name, value in new_parameters(rng).items()}
    image, labels = rng.uniform(0, 16, (4, 1, 8, 8)), np.array([0, 3, 5, 9])
    ones = np.ones((4, CONV2 * 16))
    probabilities, saved = forward(parameters, image, ones)
    gradients = backward(parameters, saved, probabilities, labels, ones)
    for name, value in parameters.items():
        for _ in range(3):
            place = tuple(rng.randint(size) for size in value.shape)
            losses = []
            for step in (1e-5, -1e-5):
                value[place] += step
                losses.append(-np.log(forward(parameters, image, ones)[0][np.arange(4), labels]).mean())
                value[place] -= step
            numeric = (losses[0] - losses[1]) / 2e-5
            if abs(numeric - gradients[name][place]) > 1e-3 * max(1e-2, abs(numeric)):
                sys.exit(f"gradient of {name}{place} is {gradients[name][place]}, finite differences say {numeric}")


# ---- training --------------------------------------------------------------------------------------------------------


class Adam:
    def __init__(self, parameters):
        self.mean = {name: np.zeros_like(value) for name, value in parameters.items()}
        self.square = {name: np.zeros_like(value) for name, value in parameters.items()}
        self.step_number = 0

    def step(self, parameters, gradients, rate):
        self.step_number += 1
        correct1, correct2 = 1 - 0.9**self.step_number, 1 - 0.999**self.step_number
        for name, value in parameters.items():
            gradient = gradients[name].astype(np.float32)
            self.mean[name] += np.float32(0.1) * (gradient - self.mean[name])
            self.square[name] += np.float32(0.001) * (gradient * gradient - self.square[name])
            update = (self.mean[name] / correct1) / (np.sqrt(self.square[name] / correct2) + 1e-8)
            decay = DECAY if name.endswith("weight") else 0.0
            value -= (rate * update + rate * decay * value).astype(np.float32)


def train(images, labels, validation_images, validation_labels, rng):
    """The parameters of the epoch with the most right validation images (of equals: the lowest loss)."""
    parameters = new_parameters(rng)
    adam = Adam(parameters)
    best = (-1, 0.0)
    chosen = None
    for epoch in range(EPOCHS):
        rate = RATE * 0.5 * (1 + np.cos(np.pi * epoch / EPOCHS))
        order = rng.permutation(len(images))
        seen = augment(images, rng)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            mask = (rng.random_sample((len(batch), CONV2 * 16)) >= DROPOUT).astype(np.float32) / np.float32(1 - DROPOUT)
            probabilities, saved = forward(parameters, seen[batch], mask)
            adam.step(parameters, backward(parameters, saved, probabilities, labels[batch], mask), rate)
        probabilities, _ = forward(parameters, validation_images)
        right = int((probabilities.argmax(axis=1) == validation_labels).sum())
        loss = float(-np.log(probabilities[np.arange(len(probabilities)), validation_labels] + 1e-12).mean())
        if (right, -loss) > best:
            best = (right, -loss)
            chosen = (epoch + 1, {name: value.copy() for name, value in parameters.items()})
        if (epoch + 1) % 10 == 0:
            print(f"epoch {epoch + 1}: validation {right}/{len(validation_labels)} right, loss {loss:.4f}", flush=True)
    return chosen[0], chosen[1], best[0], -best[1]


# ---- ONNX ------------------------------------------------------------------------------------------------------------


def write_onnx(parameters, path):
    constants = {"pixel_scale": np.float32(PIXEL_SCALE), **parameters}
    conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}
    nodes = [
        helper.make_node("Mul", ["image", "pixel_scale"], ["scaled"], "scale"),
        helper.make_node("Conv", ["scaled", "conv1.weight", "conv1.bias"], ["conv1"], "conv1", **conv),
        helper.make_node("Relu", ["conv1"], ["relu1"], "relu1"),
        helper.make_node("MaxPool", ["relu1"], ["pooled"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["pooled", "conv2.weight", "conv2.bias"], ["conv2"], "conv2", **conv),
        helper.make_node("Relu", ["conv2"], ["relu2"], "relu2"),
        helper.make_node("Flatten", ["relu2"], ["flat"], "flatten", axis=1),
        helper.make_node("Gemm", ["flat", "fc1.weight", "fc1.bias"], ["fc1"], "fc1", transB=1),
        helper.make_node("Relu", ["fc1"], ["relu3"], "relu3"),
        helper.make_node("Gemm", ["relu3", "fc2.weight", "fc2.bias"], ["logits"], "fc2", transB=1),
        helper.make_node("Softmax", ["logits"], ["probabilities"], "softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", CLASSES])],
        [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, producer_name="train_digits", opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 7  # the one that opset 13 came with
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())


def run_onnx(path, image):
    """Runs the written file, node by node, in double precision: shifted sums instead of im2col, nothing of the above."""
    model = onnx.load(str(path))
    values = {tensor.name: numpy_helper.to_array(tensor).astype(np.float64) for tensor in model.graph.initializer}
    values["image"] = image.astype(np.float64)
    for node in model.graph.node:
        inputs = [values[name] for name in node.input]
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        values[node.output[0]] = run_node(node.op_type, inputs, attributes)
    return values["probabilities"]


def run_node(operator, inputs, attributes):
    first = inputs[0]
    if operator == "Mul":
        return first * inputs[1]
    if operator == "Conv":
        weight, bias = inputs[1:]
        height, width = first.shape[2:]
        padded = np.pad(first, ((0, 0), (0, 0), (1, 1), (1, 1)))
        total = np.zeros((len(first), len(weight), height, width)) + bias[None, :, None, None]
        for row, column in np.ndindex(*attributes["kernel_shape"]):
            window = padded[:, :, row : row + height, column : column + width]
            total += np.einsum("nchw,oc->nohw", window, weight[:, :, row, column])
        return total
    if operator == "Relu":
        return first * (first > 0)
    if operator == "MaxPool":
        corners = [first[:, :, row::2, column::2] for row in (0, 1) for column in (0, 1)]
        return np.maximum.reduce(corners)
    if operator == "Flatten":
        return first.reshape(first.shape[0], -1)
    if operator == "Gemm":
        return np.einsum("nk,mk->nm", first, inputs[1]) + inputs[2]
    if operator == "Softmax":
        powers = np.exp(first - first.max(axis=attributes["axis"], keepdims=True))
        return powers / powers.sum(axis=attributes["axis"], keepdims=True)
    raise ValueError(f"the evaluator has no {operator}")


def flop_per_image():
    conv1 = 64 * CONV1 * 9 * 2
    conv2 = 16 * CONV2 * CONV1 * 9 * 2
    return conv1 + conv2 + 2 * HIDDEN * CONV2 * 16 + 2 * CLASSES * HIDDEN


# ---- files -----------------------------------------------------------------------------------------------------------


def write_samples(out, images, labels):
    """The first held-out image of each class: not chosen by what the model says of it."""
    (out / "samples").mkdir(parents=True, exist_ok=True)
    (out / "heldout").mkdir(parents=True, exist_ok=True)
    names = {}
    for digit in range(CLASSES):
        name = f"digit-{digit}.npy"
        first = int(np.flatnonzero(labels == digit)[0])
        np.save(out / "samples" / name, images[first : first + 1])
        names[name] = digit
    (out / "samples" / "labels.json").write_text(json.dumps(names, indent=2) + "\n")
    np.save(out / "heldout" / "images.npy", images.astype(np.uint8))
    np.save(out / "heldout" / "labels.npy", labels.astype(np.uint8))


def main():
    parser = argparse.ArgumentParser(description="Trains the demo digit classifier and writes it as ONNX.")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    out = parser.parse_args().out

    rng = np.random.RandomState(SEED)  # the legacy generator: its stream is frozen across numpy versions
    check_gradients(np.random.RandomState(1))
    images, labels = load_digits()
    training, validation, held_out = split(labels, rng)
    epoch, parameters, right, loss = train(
        images[training], labels[training], images[validation], labels[validation], rng
    )

    path = out / "models" / "digits" / "1" / "model.onnx"
    write_onnx(parameters, path)
    probabilities = run_onnx(path, images[held_out])
    correct = int((probabilities.argmax(axis=1) == labels[held_out]).sum())
    write_samples(out, images[held_out], labels[held_out])
    record = {
        "model_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "model_bytes": path.stat().st_size,
        "flop_per_image": flop_per_image(),
        "data": "scikit-learn load_digits, 1797 images of 8x8 pixels, values 0..16",
        "seed": SEED,
        "train_images": len(training),
        "validation": {"images": len(validation), "right": right, "loss": round(loss, 4), "chosen_epoch": epoch},
        "held_out": {
            "images": len(held_out),
            "right": correct,
            "accuracy": round(correct / len(held_out), 4),
            "wrong": [
                {"index": int(i), "true": int(labels[held_out][i]), "said": int(probabilities[i].argmax())}
                for i in np.flatnonzero(probabilities.argmax(axis=1) != labels[held_out])
            ],
        },
        "how": "deploy/demo/train_digits.py: the written file, run once over the held-out images (heldout/) by the "
        "script's own evaluator in double precision, after the epoch was chosen on the validation images",
        "numpy": np.__version__,
        "onnx": onnx.__version__,
    }
    (path.parent / "accuracy.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"held out: {correct}/{len(held_out)} right ({100 * correct / len(held_out):.2f} %), epoch {epoch}")
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
