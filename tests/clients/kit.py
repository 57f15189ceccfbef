"""What the Python client tests share: arguments, message classes, a channel, expectations.

The message classes are made by protoc when a test starts, from proto/ and from Debian's grpc-proto, so that a test always
speaks the protocol files of its own checkout; calls go through grpcio's generic multicallables, which is what generated
stubs do too.
"""
import argparse
import importlib.util
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile

import grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "deploy" / "demo"
GRPC_PROTO = pathlib.Path("/usr/share/grpc-proto")
CALL_SECONDS = 20  # no single call takes longer on a loaded machine


class Failed(Exception):
    """An expectation that did not hold."""


def expect(condition, sentence):
    if not condition:
        raise Failed(sentence)


def expect_equal(found, wanted, what):
    expect(found == wanted, f"{what} is {found!r}, not {wanted!r}")


def expect_code(code, call):
    """Runs call() and wants this status, with a sentence for the reader; returns the sentence."""
    try:
        call()
    except grpc.RpcError as error:
        expect(error.code() == code, f"status is {error.code().name} ({error.details()}), not {code.name}")
        expect(error.details(), f"{code.name} came without a sentence")
        return error.details()
    raise Failed(f"the call succeeded; wanted {code.name}")


def arguments(description, seconds):
    """Parses the command line and arms the deadline of the whole program."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--address", required=True, help="HOST:PORT of the gateway")
    parser.add_argument("--ca", help="CA certificate; without it the connection is plaintext")
    parser.add_argument("--cert", help="client certificate (mutual TLS)")
    parser.add_argument("--key", help="its key")
    parser.add_argument("--stranger-cert", help="a client certificate that the server must refuse")
    parser.add_argument("--stranger-key", help="its key")
    parser.add_argument("--proto", type=pathlib.Path, default=ROOT / "proto", help="folder of the .proto files")
    parser.add_argument("--only", help="run the checks whose name has this word")
    found = parser.parse_args()

    def late(*_):
        print(f"FAILED: not done within {seconds} s", file=sys.stderr, flush=True)
        os._exit(1)

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    return found


def compile_protos(files):
    """protoc --python_out for (include folder, file) pairs; returns their modules in order.

    The modules are loaded by path: grpc/health/... would otherwise be looked for inside grpcio's own package."""
    modules = []
    with tempfile.TemporaryDirectory(prefix="ingot-clients-") as out:
        for include, file in files:
            subprocess.run(["protoc", f"-I{include}", f"--python_out={out}", file], check=True)
            name = file[: -len(".proto")] + "_pb2"
            spec = importlib.util.spec_from_file_location(name.replace("/", "_"), pathlib.Path(out, name + ".py"))
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            modules.append(module)
    return modules


def channel(options, cert=None, key=None):
    """A channel to the cluster, with a client certificate where one is named."""
    limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    if not options.ca:
        return grpc.insecure_channel(options.address, limits)
    ca, key, cert = [pathlib.Path(name).read_bytes() if name else None for name in (options.ca, key, cert)]
    return grpc.secure_channel(options.address, grpc.ssl_channel_credentials(ca, key, cert), limits)


def unary(link, path, response):
    """A unary method: request message or raw bytes in, response message out."""
    raw = lambda request: request if isinstance(request, bytes) else request.SerializeToString()
    method = link.unary_unary(path, request_serializer=raw, response_deserializer=response.FromString)
    return lambda request, **options: method(request, **{"timeout": CALL_SECONDS, **options})


def load_npy(path):
    """(type string, shape, bytes) of a C-ordered .npy file."""
    data = pathlib.Path(path).read_bytes()
    expect(data[:6] == b"\x93NUMPY", f"{path} is no .npy file")
    (length,) = struct.unpack_from("<H", data, 8)
    header = eval(data[10 : 10 + length], {"__builtins__": {}}, {})  # a literal of this repository's own files
    expect(not header["fortran_order"], f"{path} is in Fortran order")
    return header["descr"], header["shape"], data[10 + length :]


def run(checks, only):
    """Runs the checks in order, a line each; exits 1 at the first that does not hold."""
    for check in checks:
        name = check.__name__
        if only and only not in name:
            continue
        try:
            check()
        except Failed as failure:
            print(f"FAILED {name}: {failure}", file=sys.stderr, flush=True)
            os._exit(1)
        except grpc.RpcError as error:
            print(f"FAILED {name}: {error.code().name}: {error.details()}", file=sys.stderr, flush=True)
            os._exit(1)
        print(f"ok {name}", flush=True)
