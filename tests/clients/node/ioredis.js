// The ioredis adapter for features.test.js.

import { createRequire } from 'node:module';
import Redis from 'ioredis';

const { version } = createRequire(import.meta.url)('ioredis/package.json');
const again = () => 50;

export const ioredis = {
  name: `ioredis ${version}`,
  protocols: [2],
  caching: false,
  // The reason why a transaction runs although its watched key has changed.
  forgetsWatches: 'fails with Redis too: the library connects anew by itself, and nothing is watched any more',

  async connect({ mode, servers, sentinels, masterName }, { ca, username, password, replicas, more } = {}) {
    const tls = ca ? { tls: { ca } } : {};
    const options = { username, password, retryStrategy: again, maxRetriesPerRequest: null, ...tls, ...more };
    let client;
    if (mode === 'standalone') client = new Redis({ ...options, ...servers[0] });
    if (mode === 'sentinel') {
      const found = { sentinels, name: masterName, sentinelRetryStrategy: again };
      const foundOverTls = ca ? { sentinelTLS: { ca }, enableTLSForSentinelMode: true } : {};
      client = new Redis({ ...options, ...found, ...foundOverTls, role: replicas ? 'slave' : 'master' });
    }
    if (mode === 'cluster') {
      client = new Redis.Cluster(servers, {
        clusterRetryStrategy: again,
        retryDelayOnFailover: 50,
        retryDelayOnClusterDown: 50,
        maxRedirections: 400,
        scaleReads: replicas ? 'slave' : 'master',
        redisOptions: { username, password, connectTimeout: 5000, ...tls },
        ...more,
      });
    }
    // Connection errors are reported here; the tests only check whether commands succeed.
    client.on('error', () => {});
    return client;
  },

  close(client) {
    client.disconnect();
  },

  // A direct connection to one server.
  async tell({ host, port }, [name, ...words]) {
    const client = new Redis({ host, port });
    try {
      return await client.call(name, ...words);
    } finally {
      client.disconnect();
    }
  },

  async pipeline(client, pairs) {
    const pipeline = client.pipeline();
    for (const [key, value] of pairs) pipeline.set(key, value);
    return (await pipeline.exec()).every(([error, reply]) => error === null && reply === 'OK');
  },

  // Concurrent writes go in one pipeline per node. If a pipeline with several slots is refused, the client does not
  // refresh its slot map by itself, so it is refreshed every second.
  async spread(attempt) {
    const client = await attempt.connect({ more: { enableAutoPipelining: true, slotsRefreshInterval: 1000 } });
    return (keys) => Promise.all(keys.map((key) => client.set(key, key)));
  },

  // Watches a key and returns a transaction to run later.
  async transaction(attempt, client, key) {
    await client.watch(key);
    return async () => (await client.multi().set(key, 1).incr(key).exec())?.map(([, reply]) => reply);
  },

  script(client, source, key, argument) {
    client.defineCommand('told', { numberOfKeys: 1, lua: source });
    return client.told(key, argument);
  },

  async subscribe(attempt, channel, tell) {
    const client = await attempt.connect();
    client.on('message', (_, text) => tell(text));
    await client.subscribe(channel);
  },

  async subscribeSharded(attempt, channel, tell) {
    const more = attempt.mode === 'cluster' ? { shardedSubscribers: true } : {};
    const client = await attempt.connect({ more });
    client.on('smessage', (_, text) => tell(text));
    await client.ssubscribe(channel);
  },

  publishSharded: (client, channel, text) => client.spublish(channel, text),

  pop: async (client, key) => (await client.blpop(key, 10))[1],

  push: (client, key, item) => client.rpush(key, item),

  // In a cluster there is one iterator per node.
  async *scan({ mode }, client, match) {
    const nodes = mode === 'cluster' ? client.nodes('master') : [client];
    for (const node of nodes) for await (const keys of node.scanStream({ match, count: 10 })) yield keys;
  },
};
