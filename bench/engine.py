"""`bench/run engine`: one model at a time, by `ingot run` and by ONNX Runtime, in turns.

Both engines load the model, run it a number of times on the same input and time each run from inside: loading does not
count, and the median of many runs forgets the first ones. A round is one such process of each, one after the other, so
that both see the same minute; the ratio is taken round by round.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build" / "release" / "bin"
MODELS = ROOT / "build" / "bench-models"  # generated ones are kept between runs
RUNS_MAX = 20000  # of a measurement

sys.path.insert(0, str(ROOT / "tests" / "models"))


def workloads(catalogue):
    """name: (model, inputs). The name says the shape where a model has several."""
    image, text = catalogue.images(1, 224, 224, 1), lambda rows, n: catalogue.tokens(rows, n, n, 30522)
    return {
        "mlp": ("mlp", {"input": catalogue.images(16, 28, 28, 1, 1).reshape(16, 784)}),
        "resnet50": ("resnet50", {"input": image}),
        "resnet50-folded": ("resnet50-folded", {"input": image}),
        "mobilenetv2": ("mobilenetv2", {"input": image}),
        "bert-base-16": ("bert-base", text(1, 16)),
        "bert-base-128": ("bert-base", text(1, 128)),
        "minilm-16": ("minilm", text(1, 16)),
        "minilm-64": ("minilm", text(1, 64)),
        "minilm-128": ("minilm", text(1, 128)),
        "ppocr-det": ("ppocr-det", {"x": catalogue.pages(1, 640, 640, 1)}),
        "ppocr-rec": ("ppocr-rec", {"x": catalogue.images(1, 48, 320, 1)}),
        "ppocr-cls": ("ppocr-cls", {"x": catalogue.images(6, 48, 192, 1)}),
        "silero-v5": ("silero-v5", catalogue.silero_inputs("silero-v5", 1, 512, 16000, 1)),
        "silero-v6": ("silero-v6", catalogue.silero_inputs("silero-v6", 1, 512, 16000, 1)),
        "silero-legacy": ("silero-legacy", catalogue.silero_inputs("silero-legacy", 1, 1536, 16000, 1)),
    }


class Ours:
    name = "ingot"

    def __init__(self, numpy, model, inputs, folder):
        self.line = [BIN / "ingot", "run", model, "--json"]
        for name, array in inputs.items():
            numpy.save(folder / f"{name}.npy", array)
            self.line += ["--input", f"{name}={folder}/{name}.npy"]

    def median_ms(self, threads, repeat):
        done = subprocess.run([str(w) for w in (*self.line, "--threads", threads, "--repeat", repeat)],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return json.loads(done.stdout)["latency_us"]["median"] / 1000


class Theirs:
    name = "ort"

    def __init__(self, compare, model, inputs, folder):
        self.compare, self.model, self.inputs, self.folder = compare, model, inputs, folder

    def median_ms(self, threads, repeat):
        _, times = self.compare.by_runtime(self.model, [("", self.inputs)], self.folder, threads, repeat, keep=False)
        return statistics.median(times[0])


def measure(engines, threads, args):
    """{engine: [median of each round]}; the number of runs follows from a first look at each engine."""
    repeat = {}
    for engine in engines:
        runs = args.seconds * 1000 / max(engine.median_ms(threads, 5), 1e-3)
        repeat[engine.name] = max(5, min(RUNS_MAX, int(runs)))
    found = {e.name: [] for e in engines}
    for _ in range(args.rounds):
        for engine in engines:
            found[engine.name].append(engine.median_ms(threads, repeat[engine.name]))
        engines = engines[::-1]
    return found


def engine(args):
    import numpy

    import catalogue
    import compare
    known = workloads(catalogue)
    unknown = sorted(set(args.models) - set(known))
    if unknown:
        sys.exit(f"bench/run: no workload named {', '.join(unknown)}; there are {', '.join(known)}")
    MODELS.mkdir(parents=True, exist_ok=True)
    print(f"# {args.rounds} rounds of {args.seconds} s for each engine, {os.cpu_count()} cores")
    for name in args.models or known:
        model, inputs = known[name]
        file = catalogue.model_file(model, MODELS, catalogue.FULL)
        with tempfile.TemporaryDirectory(prefix="ingot-bench-") as folder:
            folder = pathlib.Path(folder)
            engines = [Ours(numpy, file, inputs, folder), Theirs(compare, file, inputs, folder)]
            for threads in args.threads:
                try:
                    found = measure(engines, threads, args)
                except (RuntimeError, compare.Failed) as failure:
                    print(f"# engine_{name}_{threads}: {failure}", flush=True)
                    break
                for e in engines:
                    print(f"engine_{name}_{threads}_{e.name} {statistics.median(found[e.name]):.3f} ms")
                ratio = statistics.median(a / b for a, b in zip(found["ingot"], found["ort"]))
                print(f"engine_{name}_{threads}_ratio {ratio:.2f} x", flush=True)
