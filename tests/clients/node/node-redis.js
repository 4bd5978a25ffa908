// The node-redis adapter for features.test.js.

import { createRequire } from 'node:module';
import { createClient, createCluster, createSentinel } from 'redis';

const { version } = createRequire(import.meta.url)('redis/package.json');
const CACHE = { ttl: 0, maxEntries: 1000, evictPolicy: 'LRU' };

export const nodeRedis = {
  name: `node-redis ${version}`,
  protocols: [2, 3],
  caching: true,

  async connect({ mode, servers, sentinels, masterName, protocol }, { ca, username, password, replicas, cache } = {}) {
    const tls = ca ? { tls: true, ca } : {};
    const socket = { reconnectStrategy: () => 50, ...tls };
    const caching = cache ? { clientSideCache: CACHE } : {};
    let client;
    if (mode === 'standalone') {
      client = createClient({ RESP: protocol, username, password, socket: { ...socket, ...servers[0] }, ...caching });
    }
    if (mode === 'sentinel') {
      client = createSentinel({
        name: masterName,
        sentinelRootNodes: sentinels,
        RESP: protocol,
        nodeClientOptions: { RESP: protocol, username, password, socket },
        sentinelClientOptions: { socket: tls },
        replicaPoolSize: replicas ? 1 : 0,
        scanInterval: 500,
        ...caching,
      });
    }
    if (mode === 'cluster') {
      client = createCluster({
        rootNodes: servers.map((server) => ({ socket: { ...server, ...tls } })),
        RESP: protocol,
        defaults: { RESP: protocol, username, password, socket },
        useReplicas: Boolean(replicas),
        ...caching,
      });
    }
    // Connection errors are reported here; the tests only check whether commands succeed.
    client.on('error', () => {});
    await client.connect();
    return client;
  },

  async close(client) {
    await client.destroy();
  },

  async pipeline(client, pairs) {
    const multi = client.multi();
    for (const [key, value] of pairs) multi.set(key, value);
    return (await multi.execAsPipeline()).every((reply) => reply === 'OK');
  },

  // Concurrent writes go in one pipeline per node.
  async spread(attempt) {
    const client = await attempt.connect();
    return (keys) => Promise.all(keys.map((key) => client.set(key, key)));
  },

  // Watches a key and returns a transaction to run later. It uses a connection of its own meanwhile.
  async transaction({ mode }, client, key) {
    const own = {
      standalone: () => client,
      sentinel: () => client.acquire(),
      cluster: () => client.getNodeClientForKey(key),
    };
    const connection = await own[mode]();
    await connection.watch(key);
    return async () => {
      try {
        return await connection.multi().set(key, '1').incr(key).exec();
      } finally {
        if (mode === 'sentinel') connection.release();
      }
    };
  },

  script: (client, source, key, argument) => client.eval(source, { keys: [key], arguments: [argument] }),

  async subscribe(attempt, channel, tell) {
    const client = await attempt.connect();
    await client.subscribe(channel, tell);
  },

  async subscribeSharded(attempt, channel, tell) {
    const client = await attempt.connect();
    await client.sSubscribe(channel, tell);
  },

  publishSharded: (client, channel, text) => client.sPublish(channel, text),

  pop: async (client, key) => (await client.blPop(key, 10)).element,

  push: (client, key, item) => client.rPush(key, item),

  // In a cluster there is one iterator per node.
  async *scan({ mode }, client, match) {
    const nodes = mode === 'cluster' ? await Promise.all(client.masters.map((node) => client.nodeClient(node))) : [client];
    for (const node of nodes) for await (const keys of node.scanIterator({ MATCH: match, COUNT: 10 })) yield keys;
  },
};
