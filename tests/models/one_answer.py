#!/usr/bin/python3
"""One answer over a real model: its bytes depend on its input and on nothing else.

usage: one_answer.py ONE_ANSWER_TEST NAME...

The program (tests/engine/one_answer_test.c) runs the model over batch sizes, places in a batch, threads and instruction
sets on the inputs made here. For the encoders, sequences are also padded to longer ones, with the mask set and anything at
all in the padding: the bytes of the real tokens must stay.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy

import catalogue
import compare
from compare import Failed

VOCAB = 1000
LENGTHS = (11, 5, 16)  # real tokens of the padded rows
PADDED = (16, 17, 64, 128)
ISAS = ("scalar", "avx2", "avx512")


def batch_inputs(name):
    """Inputs whose first dimension is the rows; for what is not batchable, the whole."""
    if name == "mlp":
        return {"input": catalogue.images(16, 28, 28, 5, 1).reshape(16, 784)}
    if name in ("bert-base", "minilm"):
        return catalogue.tokens(4, 11, 5, VOCAB)
    if name in catalogue.GENERATED:
        return {"input": catalogue.images(4, 64, 64, 5)}
    if name == "ppocr-cls":
        return {"x": catalogue.images(6, 48, 192, 5)}
    if name == "ppocr-rec":
        return {"x": catalogue.images(3, 48, 64, 5)}
    if name == "ppocr-det":
        return {"x": catalogue.pages(3, 64, 64, 5)}
    return catalogue.silero_inputs(name, 2, 1536 if name == "silero-legacy" else 512, 16000, 5)


def batches(program, name, model, folder):
    line = [program, model]
    for input_name, array in batch_inputs(name).items():
        numpy.save(folder / f"{input_name}.npy", array)
        line.append(f"{input_name}={folder}/{input_name}.npy")
    done = subprocess.run([str(word) for word in line], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise Failed(done.stdout[-2000:])
    print(*(f"{name}: {text}" for text in done.stdout.splitlines() if not text.startswith("[")), sep="\n", flush=True)


def pad(row, length, random):
    """A row of tokens lengthened: the mask leaves the new places out, what is in them is random."""
    extra = length - row["input_ids"].shape[1]
    made = {"input_ids": random.randint(0, VOCAB, (1, extra)), "attention_mask": numpy.zeros((1, extra)),
            "token_type_ids": random.randint(0, 2, (1, extra))}
    return {name: numpy.concatenate([array, made[name].astype(numpy.int64)], 1) for name, array in row.items()}


def same_rows(name, what, lengths, alone, found):
    """Row k's real tokens, and what has no tokens, are the bytes of the row alone."""
    for k, (length, truth) in enumerate(zip(lengths, alone)):
        for output, array in truth.items():
            row = found[output][k:k + 1]
            real = row[:, :length] if row.ndim == 3 else row
            if real.tobytes() != array.tobytes():
                raise Failed(f"{what}: {output} of row {k} ({length} tokens) differs by up to "
                             f"{numpy.abs(real - array).max():.3g} from the row alone")


def padding(name, model, folder):
    random = numpy.random.RandomState(17)
    rows = [catalogue.tokens(1, length, length, VOCAB) for length in LENGTHS]
    outputs = ["last_hidden_state"] + (["pooler_output"] if name == "bert-base" else [])
    alone = [compare.by_ingot(model, row, outputs, folder) for row in rows]
    for isa in ISAS:
        for length in PADDED:
            if isa == "scalar" and length > 17:
                continue  # slow, and the vector kernels are held to the scalar ones above
            padded = [pad(row, length, random) for row in rows]
            together = {key: numpy.concatenate([row[key] for row in padded]) for key in padded[0]}
            try:
                found = compare.by_ingot(model, together, outputs, folder, ["--isa", isa])
            except Failed as failure:
                if "this machine" not in str(failure):
                    raise
                print(f"not checked: this machine lacks {isa}")
                break
            same_rows(name, f"padded to {length}, {isa}", LENGTHS, alone, found)
    print(f"{name}: rows of {', '.join(map(str, LENGTHS))} tokens keep their bytes when padded to "
          f"{', '.join(map(str, PADDED))}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"of {', '.join(catalogue.NAMES)}")
    args = parser.parse_args()
    for name in args.names:
        with tempfile.TemporaryDirectory(prefix="ingot-models-") as root:
            folder = pathlib.Path(root)
            model = catalogue.model_file(name, folder, catalogue.TINY)
            try:
                batches(args.program, name, model, folder)
                if name in ("bert-base", "minilm"):
                    padding(name, model, folder)
            except Failed as failure:
                print(f"FAILED {name}: {failure}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
