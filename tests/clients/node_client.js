#!/usr/bin/env node
// npm's @grpc/grpc-js, unmodified, against every public RPC of a running cluster that serves the demo model.
//
//   node_client.js --address HOST:PORT --ca FILE [--cert FILE --key FILE]
//
// Prints a line `ok NAME` per check and exits 1 at the first that does not hold.
'use strict';

const fs = require('fs');
const path = require('path');
const grpc = require('@grpc/grpc-js');
const { GrpcReflection } = require('grpc-js-reflection-client');
const kit = require('./kit');

const { DEMO, call, expect, expectCode, expectEqual } = kit;
const { status } = grpc;

const options = kit.programArguments(240);
const protos = kit.loadProtos(options, ['inference.proto', 'ingot.proto', 'grpc/health/v1/health.proto']);
const oip = kit.client(options, protos.inference.GRPCInferenceService);
const ingot = kit.client(options, protos.ingot.v1.Inference);
const health = kit.client(options, protos.grpc.health.v1.Health);

const sample = (digit) => kit.loadNpy(path.join(DEMO, 'samples', `digit-${digit}.npy`)).data;
const infer = (request, more) => call(oip, 'ModelInfer', request, more);

// A ModelInfer request in raw form; data null leaves the contents out. changes go to the tensor.
function request(data, changes = {}, message = {}) {
  return {
    model_name: 'digits',
    inputs: [{ name: 'image', datatype: 'FP32', shape: [1, 1, 8, 8], ...changes }],
    raw_input_contents: data ? [data] : [],
    ...message,
  };
}

const typed = (values, changes) => request(null, { contents: { fp32_contents: Array.from(values) }, ...changes });

function probabilities(reply) {
  expectEqual(reply.outputs.map((output) => output.name), ['probabilities'], 'the outputs');
  const [output] = reply.outputs;
  expectEqual(output.datatype, 'FP32', "the output's datatype");
  expect(output.shape.length === 2 && output.shape[1] === 10, `the output's shape is ${output.shape}`);
  const values = kit.outputFloats(reply);
  expectEqual(values.length, output.shape[0] * 10, 'the number of values');
  const rows = [];
  for (let at = 0; at < values.length; at += 10) rows.push(Array.from(values.subarray(at, at + 10)));
  for (const row of rows) {
    const sum = row.reduce((a, b) => a + b);
    expect(Math.abs(sum - 1) < 1e-5, `the probabilities' sum is ${sum}`);
  }
  return rows;
}

const said = (row) => row.indexOf(Math.max(...row));
const refused = (made, code = status.INVALID_ARGUMENT) => expectCode(code, infer(made));

function firstHealth(service) {
  return new Promise((resolve, reject) => {
    const stream = health.Watch({ service }, { deadline: Date.now() + 20000 });
    stream.on('data', (reply) => {
      stream.cancel();
      resolve(reply.status);
    });
    stream.on('error', reject); // the cancel's own error comes after resolve and changes nothing
  });
}

async function reflect(version) {
  const client = new GrpcReflection(options.address, kit.credentials(options), {}, version);
  const listed = await client.listServices();
  for (const service of ['inference.GRPCInferenceService', 'ingot.v1.Inference', 'grpc.health.v1.Health',
    'grpc.reflection.v1.ServerReflection', 'grpc.reflection.v1alpha.ServerReflection']) {
    expect(listed.includes(service), `reflection does not list ${service}: ${listed}`);
  }
  const names = (found) => found.map((method) => method.name).sort();
  const core = ['ModelInfer', 'ModelMetadata', 'ModelReady', 'ServerLive', 'ServerMetadata', 'ServerReady'];
  const found = names(await client.listMethods('inference.GRPCInferenceService'));
  for (const method of core) expect(found.includes(method), `reflection does not show ${method}: ${found}`);
  expectEqual(names(await client.listMethods('grpc.health.v1.Health')), ['Check', 'Watch'], "health's methods");

  // What reflection tells is enough to call: a client built from nothing else recognises a digit.
  const described = await client.getDescriptorBySymbol('inference.GRPCInferenceService');
  const made = described.getPackageObject({ keepCase: true, enums: String, longs: Number, defaults: true });
  const stub = kit.client(options, made.inference.GRPCInferenceService);
  expectEqual(said(probabilities(await call(stub, 'ModelInfer', request(sample(8))))[0]), 8, 'the digit');
  stub.close();
  let error;
  await client.getDescriptorBySymbol('no.such.Symbol').catch((thrown) => (error = thrown));
  expect(error, 'reflection describes a symbol that there is not');
}

const checks = {
  async serverLiveAndReady() {
    expectEqual((await call(oip, 'ServerLive', {})).live, true, 'live');
    expectEqual((await call(oip, 'ServerReady', {})).ready, true, 'ready');
  },

  async modelReady() {
    expectEqual((await call(oip, 'ModelReady', { name: 'digits' })).ready, true, 'ready');
    expectEqual((await call(oip, 'ModelReady', { name: 'digits', version: '1' })).ready, true, 'ready');
    await expectCode(status.NOT_FOUND, call(oip, 'ModelReady', { name: 'no-such-model' }));
  },

  async serverMetadata() {
    const reply = await call(oip, 'ServerMetadata', {});
    expectEqual(reply.name, 'ingot', "the server's name");
    expect(reply.version, 'the server has no version');
  },

  async modelMetadata() {
    const reply = await call(oip, 'ModelMetadata', { name: 'digits' });
    const plain = (tensors) => tensors.map(({ name, datatype, shape }) => ({ name, datatype, shape }));
    expectEqual(reply.name, 'digits', 'the name');
    expectEqual(reply.versions, ['1'], 'the versions');
    expectEqual(reply.platform, 'onnx_onnxv1', 'the platform');
    expectEqual(plain(reply.inputs), [{ name: 'image', datatype: 'FP32', shape: [-1, 1, 8, 8] }], 'the inputs');
    expectEqual(plain(reply.outputs), [{ name: 'probabilities', datatype: 'FP32', shape: [-1, 10] }], 'the outputs');
    await expectCode(status.NOT_FOUND, call(oip, 'ModelMetadata', { name: 'no-such-model' }));
  },

  async inferRaw() {
    for (let digit = 0; digit < 10; digit++) {
      const reply = await infer(request(sample(digit), {}, { id: `digit ${digit}` }));
      expectEqual(reply.model_name, 'digits', "the reply's model");
      expectEqual(reply.model_version, '1', "the reply's version");
      expectEqual(reply.id, `digit ${digit}`, "the reply's id");
      const rows = probabilities(reply);
      expectEqual(rows.map(said), [digit], 'the digit recognised');
    }
  },

  async inferTypedEqualsRaw() {
    for (let digit = 0; digit < 10; digit++) {
      const raw = await infer(request(sample(digit)));
      const reply = await infer(typed(kit.floats(sample(digit))));
      expectEqual(probabilities(reply), probabilities(raw), "the typed request's answer");
    }
  },

  async heldOutAccuracy() {
    const { shape, data } = kit.loadNpy(path.join(DEMO, 'heldout/images.npy'));
    const labels = kit.loadNpy(path.join(DEMO, 'heldout/labels.npy')).data;
    const record = JSON.parse(fs.readFileSync(path.join(DEMO, 'models/digits/1/accuracy.json'), 'utf8')).held_out;
    let right = 0;
    for (let start = 0; start < shape[0]; start += 16) {
      const rows = Math.min(16, shape[0] - start);
      const pixels = Float32Array.from(data.subarray(start * 64, (start + rows) * 64));
      const reply = await infer(request(Buffer.from(pixels.buffer), { shape: [rows, 1, 8, 8] }));
      const answers = probabilities(reply);
      expectEqual(answers.length, rows, 'the number of rows');
      answers.forEach((row, at) => (right += said(row) === labels[start + at]));
    }
    expectEqual(right, record.right, `the number of right answers among ${shape[0]}`);
  },

  async concurrentCallers() {
    const digits = Array.from({ length: 64 }, (_, at) => at % 10);
    for (let round = 0; round < 4; round++) {
      const replies = await Promise.all(digits.map((digit) => infer(request(sample(digit)))));
      expectEqual(replies.map((reply) => said(probabilities(reply)[0])), digits, 'the digits of 64 callers');
    }
  },

  async unknownModel() {
    await refused(request(sample(0), {}, { model_name: 'no-such-model' }), status.NOT_FOUND);
    await refused(request(sample(0), {}, { model_version: '77' }), status.NOT_FOUND);
  },

  async wrongNames() {
    await refused(request(sample(0), { name: 'picture' }));
    await refused(request(sample(0), {}, { outputs: [{ name: 'no-such-output' }] }));
    await refused({ model_name: 'digits' });
  },

  async wrongShapes() {
    const wrong = [[], [64], [1, 64], [1, 1, 64], [1, 1, 8, 8, 1], [1, 8, 8, 1], [0, 1, 8, 8], [-1, 1, 8, 8], [2, 1, 8, 8]];
    for (const shape of wrong) await refused(request(sample(0), { shape }));
    await refused(request(sample(0), { shape: ['9223372036854775807', 1, 8, 8] }));
    await refused(request(sample(0), { shape: ['4611686018427387905', 1, 8, 8] }));
  },

  async wrongDatatypes() {
    for (const datatype of ['FP64', 'FP16', 'INT32', 'BYTES', 'fp32', '']) await refused(request(sample(0), { datatype }));
  },

  async wrongContents() {
    const values = kit.floats(sample(0));
    for (const data of [sample(0).subarray(4), Buffer.concat([sample(0), sample(0)])]) await refused(request(data));
    await refused(request(null));
    await refused(typed(values.subarray(1)));
    await refused(request(null, { contents: { fp64_contents: Array.from(values) } }));
    await refused({ ...typed(values), raw_input_contents: [sample(0)] });
    await refused(request(sample(0), {}, { raw_input_contents: [sample(0), sample(0)] }));
  },

  async unknownMethod() {
    const garbage = new grpc.Client(options.address, kit.credentials(options));
    const same = (bytes) => bytes;
    for (const method of ['/inference.GRPCInferenceService/NoSuchMethod', '/no.such.Service/Method']) {
      const calling = new Promise((resolve, reject) =>
        garbage.makeUnaryRequest(method, same, same, Buffer.alloc(0), { deadline: Date.now() + 20000 }, (error, reply) =>
          error ? reject(error) : resolve(reply)));
      await expectCode(status.UNIMPLEMENTED, calling);
    }
    garbage.close();
  },

  async ingotInfer() {
    const inputs = [{ name: 'image', datatype: 'FP32', shape: [1, 1, 8, 8], data: sample(7) }];
    const reply = await call(ingot, 'Infer', { model: 'digits', inputs });
    expectEqual(said(Array.from(kit.floats(reply.outputs[0].data))), 7, 'the digit');
    expect(reply.stats.batch_rows >= 1 && reply.stats.execute_us > 0, `odd statistics ${JSON.stringify(reply.stats)}`);
    await expectCode(status.NOT_FOUND, call(ingot, 'Infer', { model: 'no-such-model', inputs }));
    inputs[0].shape = [1, 1, 8, 9];
    await expectCode(status.INVALID_ARGUMENT, call(ingot, 'Infer', { model: 'digits', inputs }));
  },

  async requestContext() {
    const metadata = new grpc.Metadata();
    metadata.set('x-request-context', '%%%');
    await expectCode(status.INVALID_ARGUMENT, infer(request(sample(0)), { metadata }));
    metadata.set('x-request-context', Buffer.from([0x28, 1]).toString('base64')); // want_stats
    let trailing;
    await infer(request(sample(0)), { metadata, trailers: (found) => (trailing = found) });
    await new Promise(setImmediate); // the status event follows the reply's callback
    expect(trailing && trailing.get('x-ingot-stats-bin').length === 1, 'no stage times in the trailing metadata');
  },

  async healthCheck() {
    for (const service of ['', 'digits']) {
      expectEqual((await call(health, 'Check', { service })).status, 'SERVING', `the health of "${service}"`);
    }
    await expectCode(status.NOT_FOUND, call(health, 'Check', { service: 'no-such-model' }));
  },

  async healthWatch() {
    expectEqual(await firstHealth(''), 'SERVING', "the server's health");
    expectEqual(await firstHealth('digits'), 'SERVING', "the model's health");
    expectEqual(await firstHealth('no-such-model'), 'SERVICE_UNKNOWN', "an unknown model's health");
  },

  reflectionV1: () => reflect('v1'),
  reflectionV1alpha: () => reflect('v1alpha'),
};

async function refusedConnection(cert, key) {
  const stranger = kit.client({ ...options, cert, key }, protos.inference.GRPCInferenceService);
  await expectCode(status.UNAVAILABLE, call(stranger, 'ServerLive', {}));
  stranger.close();
}

if (options.cert) checks.noCertificateIsRefused = () => refusedConnection();
if (options['stranger-cert']) {
  checks.strangeCertificateIsRefused = () => refusedConnection(options['stranger-cert'], options['stranger-key']);
}

kit.run(checks, options.only);
