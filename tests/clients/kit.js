// What the Node client tests share: arguments, credentials, calls with a deadline, expectations.
'use strict';

const fs = require('fs');
const path = require('path');
const { isDeepStrictEqual, parseArgs } = require('util');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const ROOT = path.resolve(__dirname, '../..');
const DEMO = path.join(ROOT, 'deploy/demo');
const CALL_MS = 20000; // no single call takes longer on a loaded machine

class Failed extends Error {}

function expect(condition, sentence) {
  if (!condition) throw new Failed(sentence);
}

function expectEqual(found, wanted, what) {
  const show = (value) => JSON.stringify(value);
  expect(isDeepStrictEqual(found, wanted), `${what} is ${show(found)}, not ${show(wanted)}`);
}

// Awaits the call and wants this status, with a sentence for the reader.
async function expectCode(code, call) {
  const name = grpc.status[code];
  let error;
  try {
    await call;
  } catch (thrown) {
    error = thrown;
  }
  expect(error, `the call succeeded; wanted ${name}`);
  expect(error.code === code, `status is ${grpc.status[error.code]} (${error.message}), not ${name}`);
  expect(error.details, `${name} came without a sentence`);
}

// Parses the command line and arms the deadline of the whole program.
function programArguments(seconds, more = {}) {
  const { values } = parseArgs({
    options: {
      address: { type: 'string' },
      ca: { type: 'string' },
      cert: { type: 'string' },
      key: { type: 'string' },
      'stranger-cert': { type: 'string' }, // a client certificate that the server must refuse
      'stranger-key': { type: 'string' },
      proto: { type: 'string', default: path.join(ROOT, 'proto') },
      only: { type: 'string' },
      ...more,
    },
  });
  if (!values.address) {
    console.error('usage: --address HOST:PORT [--ca FILE] [--cert FILE --key FILE] [--proto DIR] [--only WORD]');
    process.exit(2);
  }
  setTimeout(() => {
    console.error(`FAILED: not done within ${seconds} s`);
    process.exit(1);
  }, seconds * 1000).unref();
  return values;
}

function credentials(options) {
  const read = (name) => (name ? fs.readFileSync(name) : null);
  return options.ca
    ? grpc.credentials.createSsl(read(options.ca), read(options.key), read(options.cert))
    : grpc.credentials.createInsecure();
}

function loadProtos(options, files) {
  const definition = protoLoader.loadSync(files, {
    includeDirs: [options.proto, '/usr/share/grpc-proto'],
    keepCase: true,
    longs: Number,
    enums: String,
    defaults: true,
    oneofs: true,
  });
  return grpc.loadPackageDefinition(definition);
}

const CHANNEL = { 'grpc.max_receive_message_length': -1, 'grpc.max_send_message_length': -1 };

function client(options, Service) {
  return new Service(options.address, credentials(options), CHANNEL);
}

// A unary call as a promise of the reply; metadata and trailers on demand.
function call(stub, method, request, { metadata = new grpc.Metadata(), ms = CALL_MS, trailers } = {}) {
  return new Promise((resolve, reject) => {
    const started = stub[method](request, metadata, { deadline: Date.now() + ms }, (error, reply) =>
      error ? reject(error) : resolve(reply)
    );
    if (trailers) started.on('status', (status) => trailers(status.metadata));
  });
}

// Shape and element bytes of a C-ordered .npy file.
function loadNpy(file) {
  const data = fs.readFileSync(file);
  expect(data.subarray(1, 6).toString('latin1') === 'NUMPY', `${file} is no .npy file`);
  const start = 10 + data.readUInt16LE(8);
  const header = data.subarray(10, start).toString('latin1');
  expect(header.includes("'fortran_order': False"), `${file} is in Fortran order`);
  const shape = /'shape': \(([^)]*)\)/.exec(header)[1];
  return { shape: shape.split(',').filter((word) => word.trim()).map(Number), data: data.subarray(start) };
}

function floats(bytes) {
  return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
}

// An output's floats, whichever form the server chose.
function outputFloats(reply, index = 0) {
  if (!reply.raw_output_contents.length) return Float32Array.from(reply.outputs[index].contents.fp32_contents);
  expectEqual(reply.raw_output_contents.length, reply.outputs.length, 'the number of raw outputs');
  return floats(reply.raw_output_contents[index]);
}

// Runs the checks in order, a line each; exits 1 at the first that does not hold.
async function run(checks, only) {
  for (const [name, check] of Object.entries(checks)) {
    if (only && !name.includes(only)) continue;
    try {
      await check();
    } catch (error) {
      console.error(`FAILED ${name}: ${error instanceof Failed ? error.message : error.stack}`);
      process.exit(1);
    }
    console.log(`ok ${name}`);
  }
  process.exit(0);
}

module.exports = {
  DEMO, call, client, credentials, expect, expectCode, expectEqual, floats, loadNpy, loadProtos, outputFloats,
  programArguments, run,
};
