#!/usr/bin/python3
"""Models by `ingot run` and by ONNX Runtime on the same inputs: equal within 1e-4 of the output's scale.

usage: compare.py [NAME...] [--full] [--threads N] [--isa ISA]

Runs every case of catalogue.py for the named models (default: all). An output's scale is its largest magnitude;
each element may differ by 1e-4 of it. Probabilities that softmax made must besides be within 1e-3 of their own size,
however small they are. --full has the generated networks in their true size, and larger images. The programs are those of
$INGOT_BIN.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy

import catalogue

BIN = pathlib.Path(os.environ.get("INGOT_BIN", catalogue.ROOT / "build" / "release" / "bin"))
RUNTIME = pathlib.Path(__file__).with_name("runtime.js")
RELATIVE = 1e-4
TAIL = 1e-3
SMALLEST = 1e-30  # below it a probability is as good as none
# ONNX Runtime's sigmoid is within 1.1e-7 of the true one, not within a share of it: that shows where all of an output is
# small.
SIGMOID = {"ppocr-det": {"sigmoid_0.tmp_0"}, **{f"silero-{v}": {"output"} for v in ("v5", "v6", "legacy")}}
SIGMOID_ERROR = 1.2e-7
SOFTMAX = {"ppocr-rec": {"softmax_11.tmp_0"}, "ppocr-cls": {"softmax_0.tmp_0"}, "mlp": {"probabilities"}}
# det's logits reach 170, so its probabilities are steep. On this page ONNX Runtime's are 2e-4 from those of the same
# graph in double precision, ours 0.8e-4.
STEEP = {("ppocr-det", "1 x 640 x 640"): 3}
SECONDS = 600


class Failed(Exception):
    """A program that failed, or outputs that differ."""


def run(line, **options):
    done = subprocess.run([str(word) for word in line], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=SECONDS, **options)
    if done.returncode:
        raise Failed((done.stderr.strip() or f"status {done.returncode}").replace("\n", " "))
    return done.stdout


def by_runtime(model, cases, folder, threads=1, repeat=1, keep=True):
    """ONNX Runtime's outputs as [{name: array}], and the times of every case in milliseconds."""
    job = {"model": str(model), "threads": threads, "repeat": repeat, "cases": []}
    for i, (_, inputs) in enumerate(cases):
        described = {}
        for k, (name, array) in enumerate(inputs.items()):
            file = folder / f"runtime-{i}-in.{k}"
            file.write_bytes(array.tobytes())
            described[name] = {"type": str(array.dtype), "dims": array.shape, "file": str(file)}
        job["cases"].append({"inputs": described, "out": str(folder / f"runtime-{i}-out") if keep else None})
    answer = json.loads(run(["node", RUNTIME], input=json.dumps(job)))
    found = []
    for i, outputs in enumerate(answer["outputs"] if keep else []):
        found.append({output["name"]: numpy.frombuffer((folder / f"runtime-{i}-out.{k}").read_bytes(), output["type"])
                      .reshape(output["dims"]) for k, output in enumerate(outputs)})
    return found, answer["times_ms"]


def by_ingot(model, inputs, names, folder, options=()):
    """Our outputs as {name: array}."""
    line = [BIN / "ingot", "run", model, *options]
    for k, (name, array) in enumerate(inputs.items()):
        numpy.save(folder / f"in-{k}.npy", array)
        line += ["--input", f"{name}={folder}/in-{k}.npy"]
    for k, name in enumerate(names):
        line += ["--output", f"{name}={folder}/out-{k}.npy"]
    run(line)
    return {name: numpy.load(folder / f"out-{k}.npy") for k, name in enumerate(names)}


def difference(ours, theirs, name, output):
    """The largest difference in parts of what is allowed."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        raise Failed(f"{ours.dtype} {ours.shape}; ONNX Runtime has {theirs.dtype} {theirs.shape}")
    if theirs.dtype.kind != "f":
        return 0.0 if numpy.array_equal(ours, theirs) else numpy.inf
    if not numpy.isfinite(theirs).all():
        raise Failed("ONNX Runtime's output is not finite: the inputs are no use")
    apart = numpy.abs(ours.astype(numpy.float64) - theirs)
    floor = SIGMOID_ERROR if output in SIGMOID.get(name, ()) else 0
    used = apart.max() / (RELATIVE * numpy.abs(theirs).max() + floor)
    if output in SOFTMAX.get(name, ()):
        used = max(used, (apart / (TAIL * numpy.maximum(theirs, SMALLEST))).max())
    return used if numpy.isfinite(used) else numpy.inf


def compare(name, folder, args):
    """Every case of a model; prints a line each with the share of the tolerance used."""
    size = catalogue.FULL if args.full else catalogue.SMALL
    model, cases = catalogue.model_file(name, folder, size), catalogue.cases(name, size)
    options = ["--threads", args.threads] + (["--isa", args.isa] if args.isa else [])
    theirs, _ = by_runtime(model, cases, folder)
    for (what, inputs), expected in zip(cases, theirs):
        ours = by_ingot(model, inputs, list(expected), folder, options)
        for output, array in expected.items():
            used = difference(ours[output], array, name, output) / STEEP.get((name, what), 1)
            print(f"{name}, {what}: {output} uses {100 * used:.2f} % of the tolerance", flush=True)
            if used > 1:
                raise Failed(f"{what}: {output} differs from ONNX Runtime's")


# The outputs that a stream hands to its next chunk's inputs.
CARRIED = {"silero-v5": {"stateN": "state"}, "silero-v6": {"stateN": "state"},
           "silero-legacy": {"hn": "h", "cn": "c"}}
CHUNKS = 12


def compare_stream(name, folder):
    """Chunks of one sound, each engine with its own state: differences must not grow."""
    model, samples = catalogue.FILES[name], catalogue.silero_shapes(name)[0][1]
    first = catalogue.silero_inputs(name, 1, samples, 16000, 3)
    states = {output: numpy.zeros_like(first[given]) for output, given in CARRIED[name].items()}
    ours, theirs = dict(states), dict(states)
    whole, worst = catalogue.sound(1, samples * CHUNKS, 3), 0
    for k in range(CHUNKS):
        def inputs(state):
            carried = {given: state[output] for output, given in CARRIED[name].items()}
            return {**first, "input": whole[:, k * samples:(k + 1) * samples], **carried}

        (theirs,), _ = by_runtime(model, [("", inputs(theirs))], folder)
        ours = by_ingot(model, inputs(ours), list(theirs), folder)
        worst = max(worst, *(difference(ours[output], theirs[output], name, output) for output in theirs))
        if worst > 1:
            raise Failed(f"chunk {k} of a stream differs from ONNX Runtime's")
    print(f"{name}, {CHUNKS} chunks of a stream: {100 * worst:.2f} % of the tolerance", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(catalogue.NAMES)}; default: all")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--isa")
    args = parser.parse_args()
    failed = []
    for name in args.names or catalogue.NAMES:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ingot-models-") as folder:
            try:
                compare(name, pathlib.Path(folder), args)
                if name in CARRIED:
                    compare_stream(name, pathlib.Path(folder))
            except Failed as failure:
                print(f"FAILED {name}: {failure}", flush=True)
                failed.append(name)
        print(f"# {name}: {time.monotonic() - start:.1f} s", flush=True)
    print(f"FAILED: {', '.join(failed)}" if failed else "all models agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
