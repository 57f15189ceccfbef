#!/usr/bin/python3
"""One answer through a cluster: whichever worker answers, alone or in company, the bytes are those of `ingot run`.

usage: workers.py NAME...

A cluster of two workers with two threads each serves the named models of catalogue.py. Callers send different rows at
once until both workers have answered each model's rows.
"""
import pathlib
import shutil
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import cluster  # noqa: E402
import kit  # noqa: E402

import catalogue  # noqa: E402
import compare  # noqa: E402

PB = cluster.ingot_messages()
CALLERS, ROUNDS = 8, 40
TYPES = {"float32": "FP32", "int64": "INT64"}


def repository(root, names, folder):
    """The models in the form that `ingot up` wants, and their files."""
    files = {}
    for name in names:
        files[name] = catalogue.model_file(name, folder, catalogue.TINY)
        where = root / name / "1"
        where.mkdir(parents=True)
        shutil.copyfile(files[name], where / "model.onnx")
    return files


def requests(name, file, folder):
    """(request, expected bytes of the outputs) for inputs of one and of several rows."""
    made = []
    for _, inputs in catalogue.cases(name, catalogue.TINY)[:3]:
        (theirs,), _ = compare.by_runtime(file, [("", inputs)], folder)  # for the outputs' names
        ours = compare.by_ingot(file, inputs, list(theirs), folder)
        request = PB.InferRequest(model=name)
        for input_name, array in inputs.items():
            request.inputs.add(name=input_name, datatype=TYPES[str(array.dtype)], shape=array.shape,
                               data=array.tobytes())
        made.append((request, {output: array.tobytes() for output, array in ours.items()}))
    return made


def call_until_both(infer, name, made):
    """Callers side by side, each with a request of its own; until both workers have answered, with a bound."""
    seen, wrong, done = set(), [], threading.Event()

    def caller(me):
        request, expected = made[me % len(made)]
        for _ in range(ROUNDS):
            if done.is_set():
                return
            try:
                reply = infer(request)
            except Exception as error:  # a failed call must fail the test, whatever it was
                wrong.append(repr(error))
                return
            seen.add((me % len(made), reply.stats.worker))
            if {output.name: output.data for output in reply.outputs} != expected:
                wrong.append(f"worker {reply.stats.worker} in a batch of {reply.stats.batch_requests} requests")
                return
            if len(seen) == 2 * len(made):
                done.set()

    threads = [threading.Thread(target=caller, args=(me,)) for me in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        kit.expect(not thread.is_alive(), f"{name}: a caller hangs")
    kit.expect(not wrong, f"{name}: other bytes than ingot run's, or none: {wrong[:1]}")
    workers = sorted({worker for _, worker in seen})
    kit.expect(len(workers) == 2, f"{name}: only worker {workers} ever answered")
    print(f"{name}: workers {workers} give the bytes of ingot run", flush=True)


def workers_agree():
    with tempfile.TemporaryDirectory(prefix="ingot-models-") as root:
        root = pathlib.Path(root)
        (root / "work").mkdir()
        files = repository(root / "models", NAMES, root / "work")
        made = {name: requests(name, files[name], root / "work") for name in NAMES}
        with cluster.Cluster(root / "models", workers=2, args=("--threads", "2")) as running:
            with running.channel() as channel:
                infer = kit.unary(channel, "/ingot.v1.Inference/Infer", PB.InferResponse)
                for name in NAMES:
                    call_until_both(infer, name, made[name])


NAMES = sys.argv[1:]
kit.run([workers_agree], None)
