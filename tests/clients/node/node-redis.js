// node-redis, in the words of features.test.js.

import { createRequire } from 'node:module';
import { createClient, createCluster, createSentinel } from 'redis';

const { version } = createRequire(import.meta.url)('redis/package.json');
const CACHE = { ttl: 0, maxEntries: 1000, evictPolicy: 'LRU' };

export const nodeRedis = {
  name: `node-redis ${version}`,
  protocols: [2, 3],
  caching: true,

  async connect({ mode, place, protocol }, { ca, username, password, replicas, cache } = {}) {
    const tls = ca ? { tls: true, ca } : {};
    const socket = { reconnectStrategy: () => 50, ...tls };
    const caching = cache ? { clientSideCache: CACHE } : {};
    const at = ({ host, port }, number) => ({ host, port: ca ? place.tlsPorts[number] : port });
    let client;
    if (mode === 'standalone') {
      const address = at(place.servers[0], 0);
      client = createClient({ RESP: protocol, username, password, socket: { ...socket, ...address }, ...caching });
    }
    if (mode === 'sentinel') {
      client = createSentinel({
        name: place.masterName,
        sentinelRootNodes: place.sentinels,
        RESP: protocol,
        nodeClientOptions: { RESP: protocol, username, password, socket },
        replicaPoolSize: replicas ? 1 : 0,
        scanInterval: 500,
        ...caching,
      });
    }
    if (mode === 'cluster') {
      client = createCluster({
        rootNodes: place.servers.map((server, number) => ({ socket: { ...at(server, number), ...tls } })),
        RESP: protocol,
        defaults: { RESP: protocol, username, password, socket },
        useReplicas: Boolean(replicas),
        ...caching,
      });
    }
    // Who is down is told here; what matters is whether commands succeed.
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

  // What is written at once goes in a pipeline to each node.
  async spread(attempt, keys) {
    const client = await attempt.connect();
    await Promise.all(keys.map((key) => client.set(key, key)));
  },

  transaction: (client, key) => client.multi().set(key, '1').incr(key).exec(),

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

  // In a cluster an iterator is one node's.
  async scan({ mode }, client, match) {
    const nodes = mode === 'cluster' ? await Promise.all(client.masters.map((node) => client.nodeClient(node))) : [client];
    const keys = [];
    for (const node of nodes) for await (const some of node.scanIterator({ MATCH: match, COUNT: 10 })) keys.push(...some);
    return keys;
  },
};
