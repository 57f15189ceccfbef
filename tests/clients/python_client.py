#!/usr/bin/python3
"""Debian's python3-grpcio, unmodified, against every public RPC of a running cluster that serves the demo model.

    python_client.py --address HOST:PORT --ca FILE [--cert FILE --key FILE]

Prints a line `ok NAME` per check and exits 1 at the first that does not hold.
"""
import base64
import json
import math
import queue
import struct
import sys

import grpc

import kit
from kit import DEMO, GRPC_PROTO, expect, expect_code, expect_equal

SECONDS = 240
PIXELS = 64
OIP = "/inference.GRPCInferenceService/"
SERVICES = (
    "inference.GRPCInferenceService",
    "ingot.v1.Inference",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)
CODE = grpc.StatusCode

options = kit.arguments("Open Inference Protocol, health and reflection from Python.", SECONDS)
oip, ingot, health, reflection, reflection_alpha = kit.compile_protos(
    [
        (options.proto, "inference.proto"),
        (options.proto, "ingot.proto"),
        (GRPC_PROTO, "grpc/health/v1/health.proto"),
        (GRPC_PROTO, "grpc/reflection/v1/reflection.proto"),
        (GRPC_PROTO, "grpc/reflection/v1alpha/reflection.proto"),
    ],
)
link = kit.channel(options, options.cert, options.key)


def core(name):
    return kit.unary(link, OIP + name, getattr(oip, name + "Response"))


server_live, server_ready, model_ready = core("ServerLive"), core("ServerReady"), core("ModelReady")
server_metadata, model_metadata, model_infer = core("ServerMetadata"), core("ModelMetadata"), core("ModelInfer")
ingot_infer = kit.unary(link, "/ingot.v1.Inference/Infer", ingot.InferResponse)


# ---- requests and answers --------------------------------------------------------------------------------------------


def sample(digit):
    """The bytes of one demo digit, as float32 [1,1,8,8]."""
    kind, shape, data = kit.load_npy(DEMO / "samples" / f"digit-{digit}.npy")
    expect_equal((kind, shape), ("<f4", (1, 1, 8, 8)), "the sample's type and shape")
    return data


def request(data=None, shape=(1, 1, 8, 8), name="image", datatype="FP32", model="digits", version=""):
    """A ModelInfer request in raw form; data None leaves the contents out."""
    made = oip.ModelInferRequest(model_name=model, model_version=version)
    made.inputs.add(name=name, datatype=datatype, shape=shape)
    if data is not None:
        made.raw_input_contents.append(data)
    return made


def typed_request(data, shape=(1, 1, 8, 8), field="fp32_contents", **others):
    made = request(None, shape, **others)
    getattr(made.inputs[0].contents, field).extend(data)
    return made


def output_bytes(answer, index=0):
    """An output's bytes, whichever form the server chose."""
    if answer.raw_output_contents:
        expect_equal(len(answer.raw_output_contents), len(answer.outputs), "the number of raw outputs")
        return answer.raw_output_contents[index]
    values = answer.outputs[index].contents.fp32_contents
    return struct.pack(f"<{len(values)}f", *values)


def probabilities(answer):
    """The rows of the one output, checked for form."""
    expect_equal([output.name for output in answer.outputs], ["probabilities"], "the outputs")
    output = answer.outputs[0]
    expect_equal(output.datatype, "FP32", "the output's datatype")
    expect(len(output.shape) == 2 and output.shape[1] == 10, f"the output's shape is {list(output.shape)}")
    values = struct.unpack(f"<{output.shape[0] * 10}f", output_bytes(answer))
    rows = [values[at : at + 10] for at in range(0, len(values), 10)]
    for row in rows:
        expect(abs(math.fsum(row) - 1) < 1e-5, f"the probabilities' sum is {math.fsum(row)}")
    return rows


def said(row):
    return max(range(10), key=lambda digit: row[digit])


def refused(made, code=CODE.INVALID_ARGUMENT):
    """The request is refused with this code, and the server still answers the next one."""
    sentence = expect_code(code, lambda: model_infer(made))
    for secret in ("/tmp", "/run", "/home", "/root", ".sock", ".c:"):
        expect(secret not in sentence, f"the error tells an internal name: {sentence}")
    return sentence


# ---- the core of the protocol ----------------------------------------------------------------------------------------


def check_server_live_and_ready():
    expect(server_live(oip.ServerLiveRequest()).live, "the server says that it is not live")
    expect(server_ready(oip.ServerReadyRequest()).ready, "the server says that it is not ready")


def check_model_ready():
    expect(model_ready(oip.ModelReadyRequest(name="digits")).ready, "digits is not ready")
    expect(model_ready(oip.ModelReadyRequest(name="digits", version="1")).ready, "digits version 1 is not ready")


def check_model_ready_unknown():
    expect_code(CODE.NOT_FOUND, lambda: model_ready(oip.ModelReadyRequest(name="no-such-model")))
    expect_code(CODE.NOT_FOUND, lambda: model_ready(oip.ModelReadyRequest(name="digits", version="77")))


def check_server_metadata():
    answer = server_metadata(oip.ServerMetadataRequest())
    expect_equal(answer.name, "ingot", "the server's name")
    expect(answer.version, "the server has no version")
    # Clients switch features on by this list: it must not promise what the server does not do.
    unknown = set(answer.extensions) - {"binary_tensor_data"}
    expect(not unknown, f"the server reports extensions that this test does not know: {unknown}")


def check_model_metadata():
    for version in ("", "1"):
        answer = model_metadata(oip.ModelMetadataRequest(name="digits", version=version))
        expect_equal(answer.name, "digits", "the model's name")
        expect_equal(list(answer.versions), ["1"], "the model's versions")
        expect_equal(answer.platform, "onnx_onnxv1", "the platform")
        inputs = [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in answer.inputs]
        outputs = [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in answer.outputs]
        expect_equal(inputs, [("image", "FP32", [-1, 1, 8, 8])], "the inputs")
        expect_equal(outputs, [("probabilities", "FP32", [-1, 10])], "the outputs")


def check_model_metadata_unknown():
    expect_code(CODE.NOT_FOUND, lambda: model_metadata(oip.ModelMetadataRequest(name="no-such-model")))
    expect_code(CODE.NOT_FOUND, lambda: model_metadata(oip.ModelMetadataRequest(name="digits", version="77")))


def check_infer_raw():
    for digit in range(10):
        made = request(sample(digit))
        made.id = f"digit {digit}"
        answer = model_infer(made)
        expect_equal(answer.model_name, "digits", "the reply's model")
        expect_equal(answer.model_version, "1", "the reply's version")
        expect_equal(answer.id, made.id, "the reply's id")
        rows = probabilities(answer)
        expect_equal(len(rows), 1, "the number of rows")
        expect_equal(said(rows[0]), digit, f"the digit recognised in digit-{digit}.npy")


def check_infer_typed_equals_raw():
    for digit in range(10):
        data = sample(digit)
        raw = model_infer(request(data))
        typed = model_infer(typed_request(struct.unpack(f"<{PIXELS}f", data)))
        expect_equal(output_bytes(typed), output_bytes(raw), "the typed request's answer")


def check_infer_version_and_requested_output():
    made = request(sample(3), version="1")
    made.outputs.add(name="probabilities")
    expect_equal(said(probabilities(model_infer(made))[0]), 3, "the digit")


def check_infer_known_parameters():
    made = request(sample(4))
    made.parameters["priority"].int64_param = 1
    made.parameters["timeout"].int64_param = 10_000_000
    expect_equal(said(probabilities(model_infer(made))[0]), 4, "the digit")


def check_held_out_accuracy():
    """All held-out digits in batches: the accuracy written beside the model, with the same digits wrong."""
    _, (count, *_), pixels = kit.load_npy(DEMO / "heldout" / "images.npy")
    _, _, labels = kit.load_npy(DEMO / "heldout" / "labels.npy")
    record = json.loads((DEMO / "models" / "digits" / "1" / "accuracy.json").read_text())["held_out"]
    wrong = []
    for start in range(0, count, 32):
        rows = min(32, count - start)
        values = pixels[start * PIXELS : (start + rows) * PIXELS]
        data = struct.pack(f"<{len(values)}f", *values)
        answers = probabilities(model_infer(request(data, (rows, 1, 8, 8))))
        expect_equal(len(answers), rows, "the number of rows")
        for index, row in enumerate(answers, start):
            if said(row) != labels[index]:
                wrong.append({"index": index, "true": labels[index], "said": said(row)})
    expect_equal(count - len(wrong), record["right"], f"the number of right answers among {count}")
    expect_equal(wrong, record["wrong"], "the digits that are wrong")


def check_concurrent_callers():
    """64 calls at once: each gets its own digit's answer, the same bytes as alone."""
    alone = [output_bytes(model_infer(request(sample(digit)))) for digit in range(10)]
    method = link.unary_unary(
        OIP + "ModelInfer",
        request_serializer=oip.ModelInferRequest.SerializeToString,
        response_deserializer=oip.ModelInferResponse.FromString,
    )
    for _ in range(4):
        calls = [method.future(request(sample(at % 10)), timeout=kit.CALL_SECONDS) for at in range(64)]
        for at, call in enumerate(calls):
            expect_equal(output_bytes(call.result()), alone[at % 10], f"the answer of caller {at}")


def check_cancelled_call_harms_nothing():
    method = link.unary_unary(OIP + "ModelInfer", request_serializer=oip.ModelInferRequest.SerializeToString)
    for _ in range(50):
        method.future(request(sample(0)), timeout=kit.CALL_SECONDS).cancel()
    expect_equal(said(probabilities(model_infer(request(sample(6))))[0]), 6, "the digit after the cancelled calls")


def check_deadline():
    # By the context: a client's own deadline is rounded up to a millisecond, and that is enough for an answer.
    value = base64.b64encode(ingot.RequestContext(timeout_us=1).SerializeToString()).decode()
    metadata = [("x-request-context", value)]
    expect_code(CODE.DEADLINE_EXCEEDED, lambda: model_infer(request(sample(0)), metadata=metadata))


# ---- what is refused -------------------------------------------------------------------------------------------------


def check_unknown_model():
    refused(request(sample(0), model="no-such-model"), CODE.NOT_FOUND)
    refused(request(sample(0), version="77"), CODE.NOT_FOUND)


def check_bad_model_names():
    for name in ("", "..", "../digits", "a/../digits", "digits/1", "%2e%2e", "x" * 5000, "dig\nits"):
        for code in (CODE.INVALID_ARGUMENT, CODE.NOT_FOUND):
            try:
                refused(request(sample(0), model=name), code)
                break
            except kit.Failed:
                if code == CODE.NOT_FOUND:
                    raise


def check_wrong_input_names():
    refused(request(sample(0), name="picture"))
    refused(request(sample(0), name=""))
    nothing = oip.ModelInferRequest(model_name="digits")
    refused(nothing)
    twice = request(sample(0))
    twice.inputs.add(name="image", datatype="FP32", shape=(1, 1, 8, 8))
    twice.raw_input_contents.append(sample(0))
    refused(twice)
    extra = request(sample(0))
    extra.inputs.add(name="mask", datatype="FP32", shape=(1,))
    extra.raw_input_contents.append(b"\0" * 4)
    refused(extra)


def check_wrong_output_names():
    made = request(sample(0))
    made.outputs.add(name="no-such-output")
    refused(made)
    twice = request(sample(0))
    twice.outputs.add(name="probabilities")
    twice.outputs.add(name="probabilities")
    refused(twice)


def check_wrong_shapes():
    data = sample(0)
    for shape in ((), (64,), (1, 64), (1, 1, 64), (1, 1, 8, 8, 1), (1, 2, 4, 8), (1, 8, 8, 1), (1, 1, 4, 16)):
        refused(request(data, shape))
    for shape in ((0, 1, 8, 8), (-1, 1, 8, 8), (1, 1, -8, -8), (1, 1, 8, 0)):
        refused(request(data, shape))
    for batch in (2**31, 2**32 + 1, 2**58 + 1, 2**62, 2**63 - 1, -(2**63)):
        refused(request(data, (batch, 1, 8, 8)))


def check_batch_beyond_maximum():
    refused(request(sample(0) * 33, (33, 1, 8, 8)))


def check_wrong_datatypes():
    data = sample(0)
    for datatype in ("FP64", "FP16", "BF16", "INT32", "UINT8", "BOOL", "BYTES", "fp32", "FLOAT", "", "F" * 5000):
        refused(request(data, datatype=datatype))


def check_wrong_sizes():
    data = sample(0)
    for wrong in (b"", data[:-1], data[:-4], data + b"\0", data + data, data[:4]):
        refused(request(wrong))
    refused(request(data, (2, 1, 8, 8)))


def check_wrong_contents():
    data = sample(0)
    values = struct.unpack(f"<{PIXELS}f", data)
    refused(request(None))  # neither raw nor typed
    refused(typed_request(values[:-1]))
    refused(typed_request((*values, 0.0)))
    refused(typed_request(values, field="fp64_contents"))
    refused(typed_request([0] * PIXELS, field="int64_contents"))
    refused(typed_request([b"\0"] * PIXELS, field="bytes_contents"))
    both = typed_request(values)
    both.raw_input_contents.append(data)
    refused(both)
    two = request(data)
    two.raw_input_contents.append(data)
    refused(two)


def check_malformed_messages():
    good = request(sample(0)).SerializeToString()
    infer = lambda data: expect_code(CODE.INVALID_ARGUMENT, lambda: model_infer(data))
    infer(good[: len(good) // 2])
    infer(b"\xff" * 64)  # a field number and a varint without end
    infer(b"\x0a\xff\xff\xff\xff\x0f" + b"x" * 16)  # a string of 4 GiB in a message of 22 bytes
    infer(b"\x0a\x02\xff\xfe")  # a model name that is not UTF-8
    expect_equal(said(probabilities(model_infer(good))[0]), 0, "the digit after the malformed messages")


def check_compression_is_refused():
    """Decompression has no bound in gRPC core: it is off, and said so."""
    for kind in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        expect_code(CODE.UNIMPLEMENTED, lambda: model_infer(request(sample(0)), compression=kind))
    expect_equal(said(probabilities(model_infer(request(sample(0))))[0]), 0, "the digit after the compressed messages")


def check_unknown_methods():
    for path in (OIP + "NoSuchMethod", "/no.such.Service/Method", "/ingot.v1.Inference/NoSuchMethod", "/x"):
        expect_code(CODE.UNIMPLEMENTED, lambda: kit.unary(link, path, oip.ServerLiveResponse)(b""))


# ---- Ingot's own service ---------------------------------------------------------------------------------------------


def ingot_request(data, **others):
    made = ingot.InferRequest(model="digits", **others)
    made.inputs.add(name="image", datatype="FP32", shape=(len(data) // 256, 1, 8, 8), data=data)
    return made


def check_ingot_infer():
    for digit in range(10):
        answer = ingot_infer(ingot_request(sample(digit)))
        expect_equal((answer.model, answer.version), ("digits", "1"), "the reply's model")
        expect_equal([output.name for output in answer.outputs], ["probabilities"], "the outputs")
        output = answer.outputs[0]
        expect_equal((output.datatype, list(output.shape)), ("FP32", [1, 10]), "the output's form")
        expect_equal(output.data, output_bytes(model_infer(request(sample(digit)))), "the output's bytes")
        expect_equal(said(struct.unpack("<10f", output.data)), digit, "the digit")


def check_ingot_statistics():
    stats = ingot_infer(ingot_request(sample(1) * 3)).stats
    expect(stats.batch_rows >= 3, f"three rows rode in a batch of {stats.batch_rows}")
    expect(stats.batch_requests >= 1 and stats.attempts == 1, f"odd statistics: {stats}")
    stages = ("decode", "submit", "queue", "dispatch", "gather", "execute", "return")
    times = [getattr(stats, stage + "_us") for stage in stages]
    expect(all(time >= 0 for time in times), f"a stage took negative time: {stats}")
    expect(stats.execute_us > 0, "the kernels took no time")
    expect(0 < sum(times) <= stats.total_us * 1.01 + 1, f"the stages' sum is more than the total: {stats}")
    expect(stats.trace_id, "no trace id")


def check_ingot_refusals():
    infer = lambda made: lambda: ingot_infer(made)
    short = ingot_request(sample(0))
    short.inputs[0].data = sample(0)[:-4]
    expect_code(CODE.INVALID_ARGUMENT, infer(short))
    expect_code(CODE.INVALID_ARGUMENT, infer(ingot_request(sample(0), outputs=["no-such-output"])))
    expect_code(CODE.NOT_FOUND, infer(ingot_request(sample(0), version="77")))
    expect_code(CODE.NOT_FOUND, infer(ingot.InferRequest(model="no-such-model")))
    expect_code(CODE.INVALID_ARGUMENT, infer(b"\xff" * 64))


def check_request_context():
    context = ingot.RequestContext(request_id="client-test-1", tenant="tests", priority=5, want_stats=True)
    value = base64.b64encode(context.SerializeToString()).decode()
    method = link.unary_unary(
        OIP + "ModelInfer",
        request_serializer=oip.ModelInferRequest.SerializeToString,
        response_deserializer=oip.ModelInferResponse.FromString,
    )
    _, call = method.with_call(request(sample(2)), timeout=kit.CALL_SECONDS, metadata=[("x-request-context", value)])
    trailers = dict(call.trailing_metadata())
    stats = ingot.InferStats.FromString(trailers["x-ingot-stats-bin"]) if "x-ingot-stats-bin" in trailers else None
    expect(stats and stats.execute_us > 0, f"no stage times in the trailing metadata: {trailers}")
    for wrong in ("%%%", "AAAA" * 2 + "=", base64.b64encode(b"\xff" * 9).decode()):
        metadata = [("x-request-context", wrong)]
        expect_code(CODE.INVALID_ARGUMENT, lambda: model_infer(request(sample(2)), metadata=metadata))
    unlike = ingot.RequestContext(request_id="spaces are not allowed")
    metadata = [("x-request-context", base64.b64encode(unlike.SerializeToString()).decode())]
    expect_code(CODE.INVALID_ARGUMENT, lambda: model_infer(request(sample(2)), metadata=metadata))


# ---- health ----------------------------------------------------------------------------------------------------------

SERVING = 1
SERVICE_UNKNOWN = 3


def check_health():
    check = kit.unary(link, "/grpc.health.v1.Health/Check", health.HealthCheckResponse)
    for service in ("", "digits"):
        expect_equal(check(health.HealthCheckRequest(service=service)).status, SERVING, f"the health of {service!r}")
    expect_code(CODE.NOT_FOUND, lambda: check(health.HealthCheckRequest(service="no-such-model")))


def check_health_watch():
    watch = link.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=health.HealthCheckRequest.SerializeToString,
        response_deserializer=health.HealthCheckResponse.FromString,
    )
    for service, status in (("", SERVING), ("digits", SERVING), ("no-such-model", SERVICE_UNKNOWN)):
        stream = watch(health.HealthCheckRequest(service=service), timeout=kit.CALL_SECONDS)
        expect_equal(next(stream).status, status, f"the first health seen of {service!r}")
        stream.cancel()


# ---- reflection ------------------------------------------------------------------------------------------------------


class Reflection:
    """One open stream of server reflection: a question, its answer, the next question."""

    def __init__(self, messages, path):
        self.messages = messages
        self.questions = queue.Queue()
        method = link.stream_stream(
            path,
            request_serializer=messages.ServerReflectionRequest.SerializeToString,
            response_deserializer=messages.ServerReflectionResponse.FromString,
        )
        self.answers = method(iter(self.questions.get, None), timeout=kit.CALL_SECONDS)

    def ask(self, **question):
        made = self.messages.ServerReflectionRequest(**question)
        self.questions.put(made)
        answer = next(self.answers)
        expect_equal(answer.original_request, made, "the question that the answer repeats")
        return answer

    def files(self, **question):
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        answer = self.ask(**question)
        expect_equal(answer.WhichOneof("message_response"), "file_descriptor_response", f"the answer to {question}")
        return [FileDescriptorProto.FromString(data) for data in answer.file_descriptor_response.file_descriptor_proto]

    def close(self):
        self.questions.put(None)
        expect(next(self.answers, None) is None, "the stream went on after its last question")


def methods_of(files, service):
    package, _, name = service.rpartition(".")
    for file in files:
        for found in file.service:
            if (file.package, found.name) == (package, name):
                return {method.name for method in found.method}
    raise kit.Failed(f"the files for {service} do not define it: {[file.name for file in files]}")


def reflect(messages, path):
    stream = Reflection(messages, path)
    listed = {entry.name for entry in stream.ask(list_services="").list_services_response.service}
    expect(set(SERVICES) <= listed, f"reflection lists {sorted(listed)}")
    for service in listed:
        expect(methods_of(stream.files(file_containing_symbol=service), service), f"{service} has no methods")
    files = stream.files(file_containing_symbol="inference.ModelInferRequest")
    ours = next(file for file in files if file.package == "inference")
    wanted = {method.name for method in oip.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
    expect_equal(methods_of(files, "inference.GRPCInferenceService"), wanted, "the methods of the protocol")
    expect_equal(
        {message.name for message in ours.message_type}, set(oip.DESCRIPTOR.message_types_by_name), "the messages"
    )
    again = stream.files(file_by_filename=ours.name)
    expect(ours in again, "the file by its name is not the file by its symbol")
    for question in ({"file_containing_symbol": "no.such.Symbol"}, {"file_by_filename": "no/such.proto"}):
        answer = stream.ask(**question)
        expect_equal(answer.error_response.error_code, CODE.NOT_FOUND.value[0], f"the error code for {question}")
    stream.close()


def check_reflection_v1():
    reflect(reflection, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")


def check_reflection_v1alpha():
    reflect(reflection_alpha, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")


# ---- mutual TLS ------------------------------------------------------------------------------------------------------


def refused_connection(cert, key):
    stranger = kit.channel(options, cert, key)
    live = kit.unary(stranger, OIP + "ServerLive", oip.ServerLiveResponse)
    expect_code(CODE.UNAVAILABLE, lambda: live(oip.ServerLiveRequest()))
    stranger.close()


if options.cert:

    def check_no_certificate_is_refused():
        refused_connection(None, None)


if options.stranger_cert:

    def check_strange_certificate_is_refused():
        refused_connection(options.stranger_cert, options.stranger_key)


if __name__ == "__main__":
    kit.run([value for name, value in list(globals().items()) if name.startswith("check_")], options.only)
    link.close()
    sys.exit(0)
