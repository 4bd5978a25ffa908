// The adapter of node-redis: `redoubt-test judge -- node node_redis.mjs`, from a folder in which redis is installed.

import { addresses, answerAll, authority, require, tell } from './adapter.mjs';

const { createCluster, createSentinel, defineScript } = require('redis');
const { version } = require('redis/package.json');
const READS = new Set(['GET', 'MGET', 'LRANGE', 'EXISTS', 'STRLEN', 'LLEN']);
const isRead = ([name]) => READS.has(name);
const CACHE = { ttl: 0, maxEntries: 1000, evictPolicy: 'LRU' };
let client, clustered, caching;

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

// A method of the client for each script, under its text.
function methods(scripts = []) {
  const method = (source) => ({
    SCRIPT: source,
    NUMBER_OF_KEYS: new Set(source.match(/KEYS\[\d+\]/g)).size,
    parseCommand(parser, keys, args) {
      parser.pushKeys(keys);
      parser.push(...args);
    },
    transformReply: (reply) => reply,
  });
  return Object.fromEntries(scripts.map((source) => [source, defineScript(method(source))]));
}

await answerAll({
  hello: () => ({ library: 'node-redis', version }),

  async connect({ mode, nodes, master, protocol, timeout_ms: timeout, replicas, caching: keep, scripts, tls_ca: ca }) {
    clustered = mode === 'cluster';
    caching = keep;
    const tls = ca ? { tls: true, ...authority(ca) } : {};
    // The library bounds the wait for a reply by the socket's silence alone; pings keep idle sockets from that.
    const socket = { connectTimeout: timeout, socketTimeout: timeout, ...tls };
    const common = { RESP: protocol, socket, pingInterval: timeout / 2, commandOptions: { timeout } };
    const more = { scripts: methods(scripts), ...(keep ? { clientSideCache: CACHE } : {}) };
    if (clustered) {
      client = createCluster({
        rootNodes: addresses(nodes).map((address) => ({ socket: { ...address, ...tls } })),
        RESP: protocol,
        defaults: common,
        commandOptions: { timeout },
        useReplicas: replicas,
        ...more,
      });
    } else {
      client = createSentinel({
        name: master,
        sentinelRootNodes: addresses(nodes),
        RESP: protocol,
        nodeClientOptions: common,
        sentinelClientOptions: { socket, commandOptions: { timeout } },
        ...more,
      });
    }
    // What breaks in the background is told here; what counts is what commands say.
    client.on('error', () => {});
    await client.connect();
  },

  // What is kept is what the library's own methods read.
  command: ({ args }) => (caching && args[0] === 'GET' ? client.get(args[1]) : send(args)),

  script: ({ source, keys, args }) => client[source](keys, args),

  async pipeline({ commands }) {
    const settled = await Promise.allSettled(commands.map(send));
    return settled.map(({ reason, value }) => (reason ? { error: reason.message } : value));
  },

  transaction: ({ commands }) => queued(commands).exec(),

  subscribe({ channels, sharded }) {
    const listener = (data, channel) => tell(channel, data);
    return (sharded ? client.sSubscribe(channels, listener) : client.subscribe(channels, listener)).then(() => null);
  },

  close: () => client.destroy(),
});
