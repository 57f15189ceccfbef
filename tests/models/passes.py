#!/usr/bin/python3
"""Passes over real models: answers with each pass left out (ingot run --no-pass).

usage: passes.py PASSES_TEST NAME...

The program (tests/engine/passes_test.c) compares bytes where a pass keeps the arithmetic, and within a tolerance where it
does not. Here are only the models and the shapes of their inputs.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import catalogue

ENCODER = ("3,11", "3,11", "3,11")
SHAPES = {
    "mlp": ("5,784",),
    "resnet50": ("2,3,64,64",),
    "resnet50-folded": ("2,3,64,64",),
    "mobilenetv2": ("2,3,64,64",),
    "bert-base": ENCODER,
    "minilm": ENCODER,
    "ppocr-cls": ("2,3,48,192",),
    "ppocr-rec": ("2,3,48,160",),
    "ppocr-det": ("2,3,96,64",),
    # Audio, state and a sample rate (a number, so no dimensions).
    "silero-v5": ("2,256", "2,2,128", ""),
    "silero-v6": ("2,256", "2,2,128", ""),
    "silero-legacy": ("2,512", "", "2,2,64", "2,2,64"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"of {', '.join(SHAPES)}")
    args = parser.parse_args()
    for name in args.names:
        with tempfile.TemporaryDirectory(prefix="ingot-models-") as root:
            model = catalogue.model_file(name, pathlib.Path(root), catalogue.TINY)
            done = subprocess.run([args.program, model, *SHAPES[name]], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            if done.returncode or "skipped" in done.stdout:
                print(f"FAILED {name}: {done.stdout[-2000:]}")
                return 1
            print(f"{name}: the same answers with each pass left out", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
