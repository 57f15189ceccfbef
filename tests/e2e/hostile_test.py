#!/usr/bin/python3
"""Hostile clients against a real cluster: the right code for each, no crash, nothing kept, and others are served.

Every check ends by proving that the same processes are still there (no restart), still answer right, and that the gateway holds
no call and no memory of the attack.
"""
import json
import os
import random
import resource
import socket
import struct
import threading
import urllib.request

import grpc

import cluster
import kit
from cluster import Cluster

PB = cluster.ingot_messages()
INFER = "/ingot.v1.Inference/Infer"
MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
OIP = kit.compile_protos([(str(cluster.ROOT / "proto"), "inference.proto")])[0]
CANCELS = int(os.environ.get("INGOT_TEST_CANCELS", "100000"))

# The address sanitizer keeps up to 256 MB of freed memory from being used again, which the checks of a process's size would
# take for memory that an attack still holds.
os.environ["ASAN_OPTIONS"] = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "quarantine_size_mb=8"]))


def answer_to(running, i):
    """The cluster's answer to sample digit i."""
    with running.channel() as channel:
        return kit.unary(channel, INFER, PB.InferResponse)(cluster.digit_request(PB, i)).outputs[0].data


class Watch:
    """What must be the same after an attack as before it."""

    def __init__(self, running):
        self.running = running
        self.pids = running.pids()
        self.wanted = self.answer()

    def answer(self):
        return answer_to(self.running, 3)

    def check(self):
        kit.expect_equal(self.running.pids(), self.pids, "the processes")
        kit.expect(self.answer() == self.wanted, "another answer after the attack")


def model_infer_request():
    shape, data = cluster.digit(3)
    request = OIP.ModelInferRequest(model_name="digits", raw_input_contents=[data])
    request.inputs.add(name="image", datatype="FP32", shape=shape)
    return request


def random_and_truncated_messages(running):
    """Prefixes, flipped bytes and noise: INVALID_ARGUMENT or another client's error, or a right answer if what
    is left is a valid message; never INTERNAL, never a dropped connection."""
    fine = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED}
    rng = random.Random(20261130)
    tally = {}
    with running.channel() as channel:
        for path, request in ((INFER, cluster.digit_request(PB, 3)), (MODEL_INFER, model_infer_request())):
            call = channel.unary_unary(path, request_serializer=None, response_deserializer=None)
            whole = request.SerializeToString()
            bodies = [whole[:n] for n in range(len(whole))]
            for _ in range(1500):
                body = bytearray(whole)
                for _ in range(rng.randint(1, 8)):
                    body[rng.randrange(min(len(body), 90) if rng.random() < 0.8 else len(body))] = rng.randrange(256)
                bodies.append(bytes(body))
            bodies += [rng.randbytes(rng.randint(1, 400)) for _ in range(500)]
            futures = []
            for body in bodies:
                futures.append(call.future(body, timeout=kit.CALL_SECONDS))
                if len(futures) % 64 == 0 or len(futures) == len(bodies):
                    for future in futures[-64:]:
                        code = future.code()
                        tally[code.name] = tally.get(code.name, 0) + 1
                        kit.expect(code in fine or code == grpc.StatusCode.OK, f"{path}: {code}: {future.details()}")
    print(f"# {tally}")
    kit.expect(tally.get("INVALID_ARGUMENT", 0) > 1000, "the mutations were hardly ever invalid")


def malformed_small_messages(running):
    """What is no protobuf is INVALID_ARGUMENT for every unary method, also where no field is read."""
    methods = [f"/inference.GRPCInferenceService/{rpc}" for rpc in (
        "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer")]
    methods += [INFER, "/grpc.health.v1.Health/Check"]
    with running.channel() as channel:
        for method in methods:
            call = channel.unary_unary(method, request_serializer=None, response_deserializer=None)
            for body in (b"\x0a", b"\x0a\x05ab", b"\xff" * 11, b"\x0b", b"\x07"):
                kit.expect_code(grpc.StatusCode.INVALID_ARGUMENT, lambda: call(body, timeout=kit.CALL_SECONDS))


def wrong_tensors(running):
    """One wrong thing at a time; each is INVALID_ARGUMENT with a sentence (or NOT_FOUND for the model)."""
    huge = 2**62
    with running.channel() as channel:
        infer = kit.unary(channel, INFER, PB.InferResponse)

        def case(code, **change):
            request = cluster.digit_request(PB, 3)
            tensor = request.inputs[0]
            for key, value in change.items():
                if key in ("model", "version"):
                    setattr(request, key, value)
                elif key == "outputs":
                    request.outputs.extend(value)
                elif key == "shape":
                    del tensor.shape[:]
                    tensor.shape.extend(value)
                elif key == "extra":
                    request.inputs.add(name=value, datatype="FP32", shape=[1], data=b"1234")
                elif key == "none":
                    del request.inputs[:]
                else:
                    setattr(tensor, key, value)
            sentence = kit.expect_code(code, lambda: infer(request))
            kit.expect("/" not in sentence.replace("inputs/", ""), f"a path in the sentence: {sentence}")

        bad = grpc.StatusCode.INVALID_ARGUMENT
        for shape in ([1, 1, 8], [1, 1, 8, 9], [1, 1, 8, 8, 1], [-1, 1, 8, 8], [0, 1, 8, 8], [2, 1, 8, 8], [],
                      [huge, 4, 8, 8], [-huge, -huge, 8, 8], [2**63 - 1, 1, 8, 8], [1] * 64, [1, 1, 64, 1]):
            case(bad, shape=shape)
        for data in (b"", b"1", b"1" * 255, b"1" * 257, b"1" * 4096):
            case(bad, data=data)
        for datatype in ("FP64", "INT64", "fp32", "BYTES", "", "FP32\0", "X" * 1000):
            request_code = (bad, grpc.StatusCode.UNIMPLEMENTED)
            request = cluster.digit_request(PB, 3)
            request.inputs[0].datatype = datatype
            try:
                infer(request)
                raise kit.Failed(f"datatype {datatype!r} was accepted")
            except grpc.RpcError as error:
                kit.expect(error.code() in request_code, f"datatype {datatype!r}: {error.code()}")
        for name in ("", "imag", "image\0", "../image", "i" * 5000):
            case(bad, name=name)
        case(bad, extra="image")
        case(bad, extra="other")
        case(bad, none=True)
        case(bad, outputs=["nothing"])
        case(bad, outputs=["probabilities", "probabilities"])
        for model in ("none", "digits2", "digit"):
            case(grpc.StatusCode.NOT_FOUND, model=model)
        for version in ("2", "1000000"):
            case(grpc.StatusCode.NOT_FOUND, version=version)
        for model in ("", "..", "a/../digits", "%2e%2e", "x" * 4096, "digits\0", "dig\nits"):
            request = cluster.digit_request(PB, 3)
            request.model = model
            try:
                infer(request)
                raise kit.Failed(f"model {model!r} was accepted")
            except grpc.RpcError as error:
                kit.expect(error.code() in (bad, grpc.StatusCode.NOT_FOUND), f"model {model!r}: {error.code()}")


def oversize_messages(running):
    """Larger than the limit: RESOURCE_EXHAUSTED, and the next call on the same connection is served."""
    with running.channel() as channel:
        infer = kit.unary(channel, INFER, PB.InferResponse)
        request = cluster.digit_request(PB, 3)
        request.inputs[0].data = bytes(80 << 20)
        kit.expect_code(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: infer(request, timeout=60))
        request.inputs[0].data = bytes(16 << 20)
        kit.expect_code(grpc.StatusCode.INVALID_ARGUMENT, lambda: infer(request, timeout=60))
        infer(cluster.digit_request(PB, 3))


# ---- a client of raw HTTP/2, for what no library would send ----

def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    """A header field without indexing and without Huffman coding (RFC 7541, 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def open_stream(address, path=INFER.encode(), stream=1):
    host, port = address.rsplit(":", 1)
    link = socket.create_connection((host, int(port)), timeout=10)
    headers = b"".join(literal(*pair) for pair in (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"localhost"),
        (b"te", b"trailers"), (b"content-type", b"application/grpc")))
    link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, stream, headers))
    return link


def clients_that_die_in_mid_upload(running):
    """A message of 60 MB is announced, a part is sent, the connection is cut; two hundred times."""
    gateway = running.process("gateway")["pid"]
    for i in range(200):
        link = open_stream(running.address)
        body = struct.pack(">BI", 0, 60 << 20) + cluster.digit_request(PB, 3).SerializeToString()
        link.sendall(frame(0, 0, 1, body + bytes(8000)))
        if i % 2:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST
        link.close()
    running.wait("the gateway's connections gone", 20, lambda: sockets(gateway) < 20)


def sockets(pid):
    count = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            count += os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")
        except OSError:
            pass
    return count


def one_gigabyte_announced(running):
    """The announced length alone costs no memory, and what is sent is bounded."""
    gateway = running.process("gateway")["pid"]
    before = rss(gateway)
    link = open_stream(running.address)
    link.settimeout(2)
    sent = 0
    try:
        link.sendall(frame(0, 0, 1, struct.pack(">BI", 0, 1 << 30)))
        while sent < 300 << 20:
            link.sendall(frame(0, 0, 1, bytes(16000)))
            sent += 16000
    except OSError:
        pass  # refused, or flow control let no more through
    grown = rss(gateway) - before
    link.close()
    print(f"# {sent >> 20} MB sent, the gateway grew by {grown >> 20} MB")
    kit.expect(grown < 200 << 20, f"the gateway grew by {grown >> 20} MB")


def rss(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def broken_headers(running):
    """Nonsense on the wire: each connection is dropped or answered, the process lives."""
    rng = random.Random(7)
    host, port = running.address.rsplit(":", 1)
    for _ in range(200):
        link = socket.create_connection((host, int(port)), timeout=10)
        prefix = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if rng.random() < 0.7 else b""
        link.sendall(prefix + rng.randbytes(rng.randint(1, 600)))
        link.close()
    for path in (b"/", b"/x", b"/ingot.v1.Inference/None", b"/inference.GRPCInferenceService/", b"/" + b"a" * 100):
        with running.channel() as channel:
            call = channel.unary_unary(path.decode(), request_serializer=None, response_deserializer=None)
            kit.expect_code(grpc.StatusCode.UNIMPLEMENTED, lambda call=call: call(b"", timeout=5))


def health(running):
    with urllib.request.urlopen(f"http://{running.addresses()['http']}/health", timeout=10) as answer:
        return json.load(answer)


def random_cancels(running):
    """Calls cancelled at random moments of their lives, from several connections: each ends as CANCELLED, or with its right
    answer if that was faster; then the gateway has no call left, and every SUBMIT has had its one REPLY."""
    tally, failures, lock = {}, [], threading.Lock()
    wanted = [answer_to(running, i) for i in range(4)]
    before = health(running)["counters"]
    each = CANCELS // 4

    def end(seed, future):
        future.cancel()
        code = future.code()
        if code == grpc.StatusCode.OK:
            kit.expect(PB.InferResponse.FromString(future.result()).outputs[0].data == wanted[seed], "a wrong answer")
        else:
            kit.expect_equal(code, grpc.StatusCode.CANCELLED, "the status of a cancelled call")
        with lock:
            tally[code.name] = tally.get(code.name, 0) + 1

    def storm(seed):
        rng = random.Random(seed)
        with running.channel(**{"grpc.use_local_subchannel_pool": 1}) as channel:
            infer = channel.unary_unary(INFER, request_serializer=None, response_deserializer=None)
            body = cluster.digit_request(PB, seed).SerializeToString()
            pending = []
            for _ in range(each):
                pending.append(infer.future(body, timeout=30))
                if len(pending) >= rng.randint(1, 64):
                    end(seed, pending.pop(rng.randrange(len(pending))))
                if len(pending) >= 64:
                    rng.shuffle(pending)
                    for future in pending[:48]:
                        end(seed, future)
                    del pending[:48]
            for future in pending:
                end(seed, future)

    def guarded(seed):
        try:
            storm(seed)
        except Exception as error:  # a thread's failure must be the test's
            failures.append(repr(error))

    threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(500)
        kit.expect(not thread.is_alive(), "a storm hangs")
    kit.expect(not failures, f"{failures[:2]}")
    print(f"# {tally}")
    kit.expect_equal(sum(tally.values()), each * 4, "calls that ended")
    kit.expect(tally.get("CANCELLED", 0) > each, "hardly any call was cancelled in time")

    def settled():
        now = health(running)
        counters = now["counters"]
        submits, replies = (counters[k] - before[k] for k in ("submitted", "replies"))
        return now["in_flight"] == 0 and submits == replies

    running.wait("no call in the gateway, a REPLY for each SUBMIT", 20, settled)
    kit.expect(health(running)["counters"]["cancels"] > before["cancels"], "no cancel reached the scheduler")


def many_connections(running):
    """A few hundred idle connections, then none: the gateway serves during and after."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    host, port = running.address.rsplit(":", 1)
    links = [socket.create_connection((host, int(port)), timeout=10) for _ in range(400)]
    with running.channel() as channel:
        kit.unary(channel, INFER, PB.InferResponse)(cluster.digit_request(PB, 1))
    for link in links:
        link.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def attack(check):
    def run():
        with Cluster(workers=1) as running:
            watch = Watch(running)
            leases = sum(e["bytes"] for e in running.ledger()["entries"] if e["owner"].startswith("gateway"))
            check(running)
            watch.check()
            now = sum(e["bytes"] for e in running.ledger()["entries"] if e["owner"].startswith("gateway"))
            kit.expect(now <= 4 * leases, f"the gateway's leases grew from {leases} to {now} bytes")

    run.__name__ = check.__name__
    return run


cluster.main(*[attack(check) for check in (
    random_and_truncated_messages, malformed_small_messages, wrong_tensors, oversize_messages, clients_that_die_in_mid_upload,
    one_gigabyte_announced, broken_headers, random_cancels, many_connections)])
