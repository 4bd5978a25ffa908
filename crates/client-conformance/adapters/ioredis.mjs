// The adapter of ioredis: `redoubt-test judge -- node ioredis.mjs`, from a folder in which ioredis is installed.

import { Unsupported, addresses, answerAll, authority, require, tell } from './adapter.mjs';

const Redis = require('ioredis');
const { version } = require('ioredis/package.json');
let client;

// The library refuses a pipeline over several nodes before it sends anything.
const refusal = (error) => (error.message.startsWith('All keys in the pipeline') ? new Unsupported(error.message) : error);

await answerAll({
  hello: () => ({ library: 'ioredis', version }),

  connect({ mode, nodes, master, protocol, timeout_ms: timeout, replicas, caching, tls_ca: ca }) {
    if (caching) throw new Unsupported('the library keeps nothing');
    if (protocol === 3) throw new Unsupported('the library speaks RESP2 alone');
    const options = { connectTimeout: timeout, commandTimeout: timeout, tls: authority(ca) };
    if (mode === 'cluster') {
      const scaleReads = replicas ? 'slave' : 'master';
      client = new Redis.Cluster(addresses(nodes), { redisOptions: options, scaleReads, shardedSubscribers: true });
    } else {
      client = new Redis({ sentinels: addresses(nodes), name: master, sentinelCommandTimeout: timeout, ...options });
    }
    // What breaks in the background is told here; what counts is what commands say.
    client.on('error', () => {});
    client.on('message', tell);
    client.on('smessage', tell);
  },

  command: ({ args: [name, ...words] }) => client.call(name, ...words),

  // A method of the client for each script, as applications have it.
  script({ source, keys, args }) {
    client.defineCommand('theScript', { numberOfKeys: keys.length, lua: source });
    return client.theScript(...keys, ...args);
  },

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
  subscribe: ({ channels, sharded }) => (sharded ? client.ssubscribe(...channels) : client.subscribe(...channels)),

  close: () => client.disconnect(),
  // The last error of a node says more than that all tries are used up.
}, (error) => `${error.message}${error.lastNodeError ? ` (${error.lastNodeError.message})` : ''}`);
