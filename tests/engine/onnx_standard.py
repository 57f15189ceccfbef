"""Every case of the ONNX standard's own test data (Debian's libonnx-testdata) through `ingot run --test-dir`.

usage: onnx_standard.py INGOT [--runner RUNNER] [--only REGEX] [--every N] [--update]

A case must pass with the standard's tolerances (rtol 1e-3, atol 1e-7) unless onnx_standard.txt names it. The list
and the truth must agree in both directions: a case that fails without a line fails the test, and so does a line
whose case now passes or behaves differently. --update rewrites the list from the truth and keeps the reasons that
people wrote. --only and --every N take part of the cases. --runner has onnx_cases_runner run the cases, hundreds in one
process: for sanitizers, which take longer to start a process than it takes to run a case.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy

# Debian's onnx 1.12 uses names that its numpy has dropped.
for alias, kind in (("float", float), ("int", int), ("bool", bool), ("object", object)):
    if alias not in vars(numpy):
        setattr(numpy, alias, kind)

import onnx
from onnx import TensorProto, numpy_helper

DATA = pathlib.Path("/usr/share/libonnx-testdata/data")
LIST = pathlib.Path(__file__).with_name("onnx_standard.txt")
SUITES = ("node", "simple", "pytorch-converted", "pytorch-operator")  # real/ has addresses of downloads only
CASES = 1072
TOGETHER = 200
SECONDS = 60
FORMS = {"refused": 3, "random": 2, "corrected": 2, "open": 2}  # words of a line before its reason

HEADER = """\
# The cases of the ONNX standard's test data that do not pass as they are. onnx_standard.py holds this list and the truth
# against each other; its --update rewrites the list and keeps the reasons.
#
# refused CASE OPERATOR reason     refused when the model is loaded, with the operator's name
# random CASE reason               expected values are random: shape, type and distribution are checked instead
# corrected CASE reason            a later release of the standard corrected the expected values; those are checked
# open CASE reason                 not done yet
"""

# Operators whose values are sequences, optionals or strings: not numeric.
NOT_NUMERIC = {"ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt",
               "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap",
               "SplitToSequence", "StringNormalizer"}


# ---- models ----------------------------------------------------------------------------------------------------------


def operators(graph):
    """Every operator of a graph and of the graphs in its nodes, in order."""
    for node in graph.node:
        yield node.op_type, node.domain
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from operators(inner)


def why_not_numeric(model):
    """None for tensors of numbers and bools only, in the standard's own domain; otherwise what else there is."""
    for value in (*model.graph.input, *model.graph.output):
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            return {"sequence_type": "sequences", "optional_type": "optional values"}[kind] + " are not supported"
        if value.type.tensor_type.elem_type == TensorProto.STRING:
            return "strings are not supported"
    if any(domain for _, domain in operators(model.graph)):
        return "training is a preview of the standard"
    return "sequences are not supported" if any(name in NOT_NUMERIC for name, _ in operators(model.graph)) else None


# ---- one case --------------------------------------------------------------------------------------------------------

Outcome = collections.namedtuple("Outcome", "kind why")  # kind: passed, refused (at load), failed, died


def run_case(ingot, folder):
    try:
        done = subprocess.run([ingot, "run", "--test-dir", str(folder), "--json"], text=True, errors="replace",
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return Outcome("died", f"no answer within {SECONDS} s")
    if done.returncode not in (0, 1, 2):
        return Outcome("died", f"status {done.returncode}: {done.stderr[-400:]}")
    if not done.stdout:
        return Outcome("refused", done.stderr.strip().replace(f"ingot run: {folder}/model.onnx: ", ""))
    report = json.loads(done.stdout)
    if report["passed"] and report["sets"] and done.returncode == 0:
        return Outcome("passed", "")
    return Outcome("failed", "; ".join(complaints(report)))


def run_together(runner, cases):
    """The outcomes of all cases by onnx_cases_runner."""
    found, kinds = [], {"pass": "passed", "refused": "refused", "fail": "failed"}
    for start in range(0, len(cases), TOGETHER):
        folders = [str(case[1]) for case in cases[start:start + TOGETHER]]
        done = subprocess.run([runner, *folders], text=True, errors="replace", stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=TOGETHER * SECONDS)
        lines = done.stdout.splitlines()
        if len(lines) != len(folders) or done.returncode not in (0, 1):
            sys.exit(f"the runner ended with status {done.returncode} after {lines[-1:]}: {done.stderr[-4000:]}")
        for line in lines:
            verdict, _, rest = line.partition(" ")
            found.append(Outcome(kinds[verdict], rest.partition(": ")[2]))
    return found


def complaints(report):
    for data_set in report["sets"]:
        if data_set["error"]:
            yield data_set["error"]
        for output in data_set["outputs"]:
            if output.get("error"):
                yield f"{output['name']}: {output['error']}"
            elif not output["passed"]:
                yield (f"{output['name']}: {output['mismatches']} of {output['elements']} elements differ, "
                       f"by up to {output['max_absolute_error']:.3g}")


# ---- cases whose expected values are random --------------------------------------------------------------------------


def write_tensor(path, value, array):
    """An array as the file of a tensor; NumPy has no BF16, so its bits come as UINT16."""
    tensor = TensorProto(data_type=value.type.tensor_type.elem_type, dims=array.shape, raw_data=array.tobytes())
    path.write_bytes(tensor.SerializeToString())


def run_model(ingot, model, inputs):
    """The outputs of a model for named arrays; BF16 comes as float32."""
    with tempfile.TemporaryDirectory(prefix="ingot-standard-") as root:
        root = pathlib.Path(root)
        (root / "model.onnx").write_bytes(model.SerializeToString())
        line = [ingot, "run", root / "model.onnx"]
        for i, value in enumerate(model.graph.input):
            write_tensor(root / f"input_{i}.pb", value, numpy.asarray(inputs[value.name]))
            line += ["--input", f"{value.name}={root}/input_{i}.pb"]
        names = [value.name for value in model.graph.output]
        for i, name in enumerate(names):
            line += ["--output", f"{name}={root}/output_{i}.pb"]
        done = subprocess.run([str(word) for word in line], text=True, errors="replace", stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=SECONDS)
        if done.returncode:
            raise ValueError(done.stderr.strip() or f"status {done.returncode}")
        return [numpy_helper.to_array(onnx.load_tensor(str(root / f"output_{i}.pb"))) for i in range(len(names))]


def case_arrays(folder, kind, names):
    return {name: numpy_helper.to_array(onnx.load_tensor(str(folder / "test_data_set_0" / f"{kind}_{i}.pb")))
            for i, name in enumerate(names)}


def enlarged(model, shape):
    """The model with its first input, and all outputs, of another shape: enough values for a distribution."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for value in (made.graph.input[0], *made.graph.output):
        dims = value.type.tensor_type.shape
        del dims.dim[:]
        for size in shape:
            dims.dim.add().dim_value = size
    return made


def want(condition, sentence):
    if not condition:
        raise ValueError(sentence)


def check_share(hits, share, what):
    """hits: bools, each true with probability share; five standard deviations are allowed."""
    allowed = 5 * (share * (1 - share) / hits.size) ** 0.5 + 1e-9
    want(abs(hits.mean() - share) <= allowed, f"{what}: {hits.mean():.4f}, not {share:.4f} within {allowed:.4f}")


def check_neighbours(hits, share, what):
    """Neighbours must be independent: both are true with probability share^2."""
    check_share((hits[0::2] & hits[1::2]), share * share, f"{what} twice in a row")


def check_bernoulli(ingot, model, inputs, outputs):
    """Ones with the probabilities of the input, in the case's shape and type and over 20,000 values each."""
    name = next(iter(inputs))
    # As a function of other operators, 1.12 has it the wrong way round; later releases say Less.
    reverse = any(node.op_type == "Greater" for node in model.graph.node)
    for p in (0.0, 0.1, 0.5, 0.9, 1.0):
        array = numpy.full(20000, p, inputs[name].dtype)
        (found,) = run_model(ingot, enlarged(model, array.shape), {name: array})
        want(found.dtype == outputs[0].dtype and found.shape == array.shape, "another type or shape")
        want(numpy.isin(found, (0, 1)).all(), "values other than 0 and 1")
        hits = found == (0 if reverse else 1)
        check_share(hits, p, f"hits for p = {p}")
        check_neighbours(hits, p, f"hits for p = {p}")


def check_dropout(ingot, model, inputs, outputs):
    """Each element is dropped with the ratio or scaled by 1 / (1 - ratio); the mask, where wanted, says which."""
    names = list(inputs)
    ratio = float(inputs[names[1]]) if len(names) > 1 and inputs[names[1]].size else 0.5
    array = numpy.linspace(1, 2, 40000, dtype=inputs[names[0]].dtype)
    big = {**inputs, names[0]: array}
    found = run_model(ingot, enlarged(model, array.shape), big)
    for i, one in enumerate(found):
        want(one.dtype == outputs[i].dtype and one.shape == array.shape, f"output {i} has another type or shape")
    kept = found[0] != 0
    want(numpy.allclose(found[0][kept], array[kept] / (1 - ratio), rtol=1e-5), "kept elements are not scaled")
    check_share(~kept, ratio, "dropped")
    check_neighbours(~kept, ratio, "dropped")
    if len(found) > 1:
        want((found[1] == kept).all(), "the mask is not what was kept")


def check_random(ingot, folder, model):
    """Shape and type on the case's own data, then the distribution; None, or what is wrong."""
    inputs = case_arrays(folder, "input", [value.name for value in model.graph.input])
    outputs = list(case_arrays(folder, "output", [value.name for value in model.graph.output]).values())
    try:
        for found, expected in zip(run_model(ingot, model, inputs), outputs, strict=True):
            want(found.shape == expected.shape and found.dtype == expected.dtype, "another shape or type")
        check = check_dropout if model.graph.node[0].op_type == "Dropout" else check_bernoulli
        check(ingot, model, inputs, outputs)
    except ValueError as error:
        return str(error)
    return None


# ---- cases that were corrected later ---------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")

# BF16 rounds to nearest, ties to even; the cases of 1.12 cut the lower half of the bits off.
ROUNDED = [[0.478515625, 0.48046875, 0.5, 0.8203125], [0.470703125, 0.81640625, 0.2109375, 0.72265625],
           [NAN, INF, INF, -INF]]

# Indices count in the output's own shape; the case of 1.12 counts them in a smaller one and copies that.
UNPOOLED = [[[[0, 0, 0, 0, 0], [5, 0, 6, 0, 0], [0, 0, 0, 7, 0], [8, 0, 0, 0, 0], [0, 0, 0, 0, 0]]]]

# The expected outputs of the standard's later releases; None: the case's own, which hold.
CORRECTED = {
    "test_castlike_BFLOAT16_to_FLOAT": None,
    "test_castlike_BFLOAT16_to_FLOAT_expanded": None,
    "test_cast_FLOAT_to_BFLOAT16": ROUNDED,
    "test_castlike_FLOAT_to_BFLOAT16": ROUNDED,
    "test_castlike_FLOAT_to_BFLOAT16_expanded": ROUNDED,
    "test_maxunpool_export_with_output_shape": UNPOOLED,
}


def check_corrected(ingot, name, folder, model):
    if name not in CORRECTED:
        return "onnx_standard.py has no corrected values for it"
    inputs = case_arrays(folder, "input", [value.name for value in model.graph.input])
    # CastLike's second input is declared as [3,4] and comes as [1]; it only lends its type.
    for value in model.graph.input:
        declared = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        inputs[value.name] = numpy.broadcast_to(inputs[value.name], declared)
    try:
        (found,) = run_model(ingot, model, inputs)
    except ValueError as error:
        return str(error)
    expected = CORRECTED[name]
    if expected is None:
        (expected,) = case_arrays(folder, "output", [model.graph.output[0].name]).values()
    expected = numpy.array(expected, found.dtype)
    if found.shape != expected.shape or not numpy.allclose(found, expected, rtol=1e-3, atol=1e-7,
                                                               equal_nan=True):
        return f"{found.tolist()} is not the corrected {expected.tolist()}"
    return None


# ---- the list --------------------------------------------------------------------------------------------------------

Line = collections.namedtuple("Line", "category operator reason")


def read_list():
    lines = {}
    for number, text in enumerate(LIST.read_text().splitlines(), 1):
        if not text or text.startswith("#"):
            continue
        category = text.split(None, 1)[0]
        words = text.split(None, FORMS.get(category, 2))
        if category not in FORMS or len(words) <= FORMS[category] or words[1] in lines:
            sys.exit(f"{LIST.name}:{number}: not a line of this list, or twice: {text}")
        lines[words[1]] = Line(category, words[2] if category == "refused" else None, words[-1])
    return lines


def named_operator(model, why):
    """The operator of the model that a refusal names, or None."""
    for name, _ in operators(model.graph):
        if re.search(rf"\b{re.escape(name)}\b", why):
            return name
    return None


def disagreement(ingot, case, line, outcome):
    """What list and truth disagree about; None if they agree."""
    name, folder, model, _ = case
    if not line:
        return None if outcome.kind == "passed" else f"{outcome.kind}: {outcome.why}"
    if line.category == "random":  # a lucky draw may even pass
        return check_random(ingot, folder, model)
    if outcome.kind == "passed":
        return f"passes, but the list has it as {line.category}"
    if line.category == "refused":
        if outcome.kind != "refused":
            return f"is not refused at load but {outcome.kind}: {outcome.why}"
        if named_operator(model, outcome.why) is None or line.operator not in outcome.why:
            return f"the refusal does not name {line.operator}: {outcome.why}"
    if line.category == "corrected":
        return check_corrected(ingot, name, folder, model)
    return None


def new_line(ingot, case, line, outcome):
    """The line that the truth asks for, or None. A line that holds is kept with its reason."""
    name, _, model, strange = case
    if line and line.category != "open" and disagreement(ingot, case, line, outcome) is None:
        return line
    if outcome.kind == "passed":
        return None
    if outcome.kind == "refused" and strange:
        operator = named_operator(model, outcome.why)
        if operator:
            return Line("refused", operator, strange)
        return Line("open", None, f"refused without the operator's name: {outcome.why}")
    return Line("open", None, outcome.why.splitlines()[0][:160])


def write_list(lines):
    order = {category: i for i, category in enumerate(FORMS)}
    body = []
    for name, line in sorted(lines.items(), key=lambda item: (order[item[1].category], item[0])):
        words = [line.category, name] + ([line.operator] if line.operator else []) + [line.reason]
        body.append(" ".join(words) + "\n")
    LIST.write_text(HEADER + "\n" + "".join(body))


# ---- all cases -------------------------------------------------------------------------------------------------------


def find_cases(only, every):
    cases = []
    for suite in SUITES:
        for folder in sorted((DATA / suite).iterdir()):
            model = onnx.load(str(folder / "model.onnx"))
            cases.append((folder.name, folder, model, why_not_numeric(model)))
    if len(cases) != CASES or len({case[0] for case in cases}) != CASES:
        sys.exit(f"{DATA} has {len(cases)} cases, not {CASES}: another release of libonnx-testdata?")
    return [case for i, case in enumerate(cases) if i % every == 0 and (not only or re.search(only, case[0]))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ingot")
    parser.add_argument("--runner", metavar="RUNNER", help="onnx_cases_runner")
    parser.add_argument("--only", metavar="REGEX", help="cases whose name matches")
    parser.add_argument("--every", metavar="N", type=int, default=1, help="every Nth case")
    parser.add_argument("--update", action="store_true", help="rewrite the list")
    args = parser.parse_args()
    lines, cases = read_list(), find_cases(args.only, args.every)
    unknown = set(lines) - {case[0] for case in cases}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = (run_together(args.runner, cases) if args.runner
                    else list(pool.map(lambda case: run_case(args.ingot, case[1]), cases)))
        if args.update:
            found = list(pool.map(lambda pair: new_line(args.ingot, pair[0], lines.get(pair[0][0]), pair[1]),
                                  zip(cases, outcomes)))
            kept = {name: lines[name] for name in unknown} if args.only or args.every > 1 else {}
            lines = {**kept, **{case[0]: line for case, line in zip(cases, found) if line}}
            write_list(lines)
        wrong = list(pool.map(lambda pair: disagreement(args.ingot, pair[0], lines.get(pair[0][0]), pair[1]),
                              zip(cases, outcomes)))
    return report(cases, lines, outcomes, wrong, [] if args.only or args.every > 1 else unknown - set(lines)
                  if args.update else unknown)


def report(cases, lines, outcomes, wrong, unknown):
    for case, sentence in zip(cases, wrong):
        if sentence:
            print(f"WRONG {case[0]}: {sentence}")
    for name in sorted(unknown):
        print(f"WRONG {name}: the list names it, but there is no such case")
    numeric = [outcome.kind == "passed" for case, outcome in zip(cases, outcomes) if not case[3]]
    print(f"{sum(numeric)} of {len(numeric)} numeric cases pass "
          f"({sum(outcome.kind == 'passed' for outcome in outcomes)} of all {len(cases)})")
    chosen = collections.Counter(lines[case[0]].category for case in cases if case[0] in lines)
    print("the list: " + ", ".join(f"{chosen[category]} {category}" for category in FORMS))
    if any(wrong) or unknown:
        print("FAILED: list and truth differ; after a change for the better, run this with --update and read its diff")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
