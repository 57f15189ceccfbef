#!/usr/bin/python3
"""Every C file of the tree is compiled by this build: a test whose line got lost would look like one that passes."""
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Compiled by the fuzz build only.
FUZZ = {"tests/fuzz/make_dict.c", "tests/fuzz/onnx_main.c", "tests/fuzz/safetensors_main.c"}
FOLDERS = ("bench", "common", "deploy", "gateway", "gpu-worker", "memmgr", "scheduler", "tests")

commands = json.loads(pathlib.Path(os.environ["INGOT_BUILD"], "compile_commands.json").read_text())
compiled = {pathlib.Path(command["file"]) for command in commands}
missing = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.c"))
           if path not in compiled and "node_modules" not in path.parts and str(path.relative_to(ROOT)) not in FUZZ]
for path in missing:
    print(f"{path.relative_to(ROOT)} is not built")
sys.exit(1 if missing else 0)
