// The adapter of ioredis: `redoubt-test judge -- node ioredis.mjs`, from a folder in which ioredis is installed.

import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const require = createRequire(`${process.cwd()}/`);
const Redis = require('ioredis');
const { version } = require('ioredis/package.json');

class Unsupported extends Error {}

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const addresses = (nodes) => nodes.map((node) => {
  const [host, port] = node.split(':');
  return { host, port: Number(port) };
});
let client;

// The library refuses a pipeline over several nodes before it sends anything.
const refusal = (error) => (error.message.startsWith('All keys in the pipeline') ? new Unsupported(error.message) : error);

const answers = {
  hello: () => ({ library: 'ioredis', version }),

  connect({ mode, nodes, master, protocol, timeout_ms: timeout, replicas }) {
    if (protocol === 3) throw new Unsupported('the library speaks RESP2 alone');
    const options = { connectTimeout: timeout, commandTimeout: timeout };
    if (mode === 'cluster') {
      const scaleReads = replicas ? 'slave' : 'master';
      client = new Redis.Cluster(addresses(nodes), { redisOptions: options, scaleReads, shardedSubscribers: true });
    } else {
      client = new Redis({ sentinels: addresses(nodes), name: master, sentinelCommandTimeout: timeout, ...options });
    }
    // What breaks in the background is told here; what counts is what commands say.
    client.on('error', () => {});
    client.on('message', (channel, data) => say({ message: { channel, data } }));
    client.on('smessage', (channel, data) => say({ message: { channel, data } }));
    return null;
  },

  command: ({ args: [name, ...words] }) => client.call(name, ...words),

  async pipeline({ commands }) {
    const pipeline = client.pipeline();
    for (const [name, ...words] of commands) pipeline.call(name, ...words);
    const replies = await pipeline.exec().catch((error) => { throw refusal(error); });
    return replies.map(([error, reply]) => (error ? { error: error.message } : reply));
  },

  async transaction({ commands }) {
    const transaction = client.multi();
    for (const [name, ...words] of commands) transaction.call(name, ...words);
    return (await transaction.exec()).map(([error, reply]) => {
      if (error) throw error;
      return reply;
    });
  },

  // An application has a client of its own for channels, since nothing else can be done with it.
  async subscribe({ channels, sharded }) {
    await (sharded ? client.ssubscribe(...channels) : client.subscribe(...channels));
    return null;
  },

  close() {
    client.disconnect();
    return null;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  try {
    say({ id: request.id, ok: (await answers[request.do](request)) ?? null });
  } catch (error) {
    const kind = error instanceof Unsupported ? 'unsupported' : 'error';
    // The last error of a node says more than that all tries are used up.
    const last = error.lastNodeError ? ` (${error.lastNodeError.message})` : '';
    say({ id: request.id, [kind]: `${error.message}${last}` });
  }
}
process.exit();
