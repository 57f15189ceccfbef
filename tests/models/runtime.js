#!/usr/bin/env node
// ONNX Runtime for the Python tests: runs a model over the cases of a job and writes the outputs.
//
//   runtime.js <JOB.json
//
// The job: {model, threads, repeat, cases: [{inputs: {NAME: {type, dims, file}}, out: PREFIX}]}; types are those of
// ONNX Runtime ("float32", "int64"); files hold the bare elements. Output K of a case goes to PREFIX.K. Prints
// {outputs: [[{name, type, dims}]], times_ms: [[...]]}: per case its outputs, and the time of each repeat.
'use strict';

process.env.ORT_DISABLE_TELEMETRY = '1';

const fs = require('fs');
const path = require('path');
const ort = require(path.join(__dirname, '../clients/node_modules/onnxruntime-node'));

const ARRAYS = { float32: Float32Array, int64: BigInt64Array, int32: Int32Array, bool: Uint8Array };

function tensor(described) {
  const bytes = fs.readFileSync(described.file);
  const elements = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  return new ort.Tensor(described.type, new ARRAYS[described.type](elements), described.dims);
}

async function runCase(session, described, repeat) {
  const inputs = {};
  for (const [name, input] of Object.entries(described.inputs)) inputs[name] = tensor(input);
  const times = [];
  let found;
  for (let i = 0; i < repeat; i++) {
    const start = process.hrtime.bigint();
    found = await session.run(inputs);
    times.push(Number(process.hrtime.bigint() - start) / 1e6);
  }
  const outputs = session.outputNames.map((name, k) => {
    const { type, dims, data } = found[name];
    if (described.out) fs.writeFileSync(`${described.out}.${k}`, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    return { name, type, dims };
  });
  return { outputs, times };
}

async function main() {
  const job = JSON.parse(fs.readFileSync(0, 'utf8'));
  const session = await ort.InferenceSession.create(job.model, {
    intraOpNumThreads: job.threads || 1,
    interOpNumThreads: 1,
    logSeverityLevel: 3,
  });
  const answer = { outputs: [], times_ms: [] };
  for (const described of job.cases) {
    const { outputs, times } = await runCase(session, described, job.repeat || 1);
    answer.outputs.push(outputs);
    answer.times_ms.push(times);
  }
  process.stdout.write(JSON.stringify(answer));
}

main().catch((error) => {
  process.stderr.write(`${error.message}\n`);
  process.exit(1);
});
