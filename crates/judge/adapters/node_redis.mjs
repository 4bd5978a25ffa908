// The adapter of node-redis: `redoubt-test judge -- node node_redis.mjs`, from a folder in which redis is installed.

import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const require = createRequire(`${process.cwd()}/`);
const { createCluster, createSentinel } = require('redis');
const { version } = require('redis/package.json');

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const addresses = (nodes) => nodes.map((node) => {
  const [host, port] = node.split(':');
  return { host, port: Number(port) };
});
const READS = new Set(['GET', 'MGET', 'LRANGE', 'EXISTS', 'STRLEN', 'LLEN']);
const isRead = ([name]) => READS.has(name);
let client, clustered;

// In a cluster the library has to be told a key; MSET and the like have theirs in the same place.
const send = (args) => (clustered ? client.sendCommand(args[1], isRead(args), args) : client.sendCommand(isRead(args), args));

function queued(commands) {
  const multi = client.multi();
  for (const args of commands) {
    if (clustered) multi.addCommand(args[1], isRead(args), args);
    else multi.addCommand(isRead(args), args);
  }
  return multi;
}

const answers = {
  hello: () => ({ library: 'node-redis', version }),

  async connect({ mode, nodes, master, protocol, timeout_ms: timeout, replicas }) {
    clustered = mode === 'cluster';
    // The library bounds the wait for a reply by the socket's silence alone; pings keep idle sockets from that.
    const socket = { connectTimeout: timeout, socketTimeout: timeout };
    const common = { RESP: protocol, socket, pingInterval: timeout / 2, commandOptions: { timeout } };
    if (clustered) {
      client = createCluster({
        rootNodes: addresses(nodes).map((address) => ({ socket: address })),
        RESP: protocol,
        defaults: common,
        commandOptions: { timeout },
        useReplicas: replicas,
      });
    } else {
      client = createSentinel({
        name: master,
        sentinelRootNodes: addresses(nodes),
        RESP: protocol,
        nodeClientOptions: common,
        sentinelClientOptions: { socket, commandOptions: { timeout } },
      });
    }
    // What breaks in the background is told here; what counts is what commands say.
    client.on('error', () => {});
    await client.connect();
    return null;
  },

  command: ({ args }) => send(args),

  async pipeline({ commands }) {
    const settled = await Promise.allSettled(commands.map(send));
    return settled.map(({ reason, value }) => (reason ? { error: reason.message } : value));
  },

  transaction: ({ commands }) => queued(commands).exec(),

  async subscribe({ channels, sharded }) {
    const listener = (data, channel) => say({ message: { channel, data } });
    await (sharded ? client.sSubscribe(channels, listener) : client.subscribe(channels, listener));
    return null;
  },

  close() {
    client.destroy();
    return null;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  try {
    say({ id: request.id, ok: (await answers[request.do](request)) ?? null });
  } catch (error) {
    say({ id: request.id, error: `${error.name}: ${error.message}` });
  }
}
process.exit();
