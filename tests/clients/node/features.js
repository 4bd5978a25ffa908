// Tests of library features: one function per feature for all libraries, modes and protocols.
//
// The functions in KILLED await `attempt.middle()` once, between two operations. In a plain run that does nothing; in a
// run with a failover the master of their keys is dead when the call returns. A function that returns a text could not
// use the feature: the text gives the reason.

import assert from 'node:assert/strict';
import { ioredis } from './ioredis.js';
import { eventually, within } from './local.js';

// The hash tag of every key whose master is killed. Its slot is in the first range of slots.
export const TAG = '{key:0}';
const key = (name) => TAG + name;
// The time limit for one command, on a slow machine.
const TIMEOUT = 10_000;

// One run of a feature with a library. `kill`, if given, resolves when the master is dead.
export class Attempt {
  constructor(library, mode, protocol, places, kill) {
    Object.assign(this, { library, mode, protocol, places, kill });
    this.open = [];
  }

  async connect({ tls, ...options } = {}) {
    const { plain, secure, ca } = this.places;
    const found = tls ? secure.overTls : plain;
    const client = await this.library.connect({ ...this, ...found }, { ...options, ...(tls ? { ca } : {}) });
    this.open.push(client);
    return client;
  }

  async closeAll() {
    for (const client of this.open.splice(0)) await this.library.close(client);
  }

  async middle() {
    await this.kill?.();
  }

  // Runs the action. After the kill it is retried on errors, as an application would do.
  async done(what, action) {
    if (this.kill) return eventually(what, () => within(TIMEOUT, action()));
    const value = await action();
    assert.ok(value, what);
    return value;
  }

  // Starts an operation before the middle and completes it afterwards. On errors it is restarted.
  async across(begin, end) {
    const begun = [await begin()];
    await this.middle();
    await this.done('the started operation completes', async () => end(begun.pop() ?? (await begin())));
  }

  // The replies of all servers to a command.
  async onServers(...words) {
    return Promise.all(this.places.plain.servers.map((server) => ioredis.tell(server, words)));
  }
}

const isWritten = async (client, name, value) => (await client.set(name, value)) === 'OK';

export const PLAIN = {
  async pipelines(attempt) {
    const client = await attempt.connect();
    const pairs = (value) => [...Array(100).keys()].map((n) => [key(`pipe${n}`), value]);
    assert.ok(await attempt.library.pipeline(client, pairs('before')));
    await attempt.middle();
    await attempt.done('a pipeline runs', () => attempt.library.pipeline(client, pairs('after')));
    for (const n of [0, 99]) await attempt.done('it is written', async () => (await client.get(key(`pipe${n}`))) === 'after');
  },

  async 'cluster pipelines'(attempt) {
    if (attempt.mode !== 'cluster') return 'not meant: one server';
    const client = await attempt.connect();
    const keys = [...Array(200).keys()].map((n) => `spread${n}`);
    const spread = await attempt.library.spread(attempt);
    const all = async () => (await spread(keys)).every((reply) => reply === 'OK');
    assert.ok(await all());
    await Promise.all(keys.map((name) => client.del(name)));
    await attempt.middle();
    await attempt.done('all is written', all);
    for (const name of keys) await attempt.done('it is written', async () => (await client.get(name)) === name);
  },

  async transactions(attempt) {
    const [client, other] = [await attempt.connect(), await attempt.connect()];
    const name = key('tx');
    await other.set(name, '0');
    const run = await attempt.library.transaction(attempt, client, name);
    await attempt.middle();
    await attempt.done('another client changes what is watched', () => isWritten(other, name, '5'));
    // EXEC returns null or fails.
    const ran = await within(TIMEOUT, run()).catch(() => null);
    if (ran && attempt.kill && attempt.library.forgetsWatches) return attempt.library.forgetsWatches;
    assert.ok(!ran, `it ran: ${ran}`);
    await attempt.done('nothing of it was done', async () => (await other.get(name)) === '5');
    await attempt.done('begun anew it runs', async () => {
      const again = await attempt.library.transaction(attempt, client, name);
      assert.deepEqual(await again(), ['OK', 2]);
      return true;
    });
  },

  async scripts(attempt) {
    const client = await attempt.connect();
    const name = key('doubled');
    const source = "return redis.call('incrby', KEYS[1], ARGV[1] * 2)";
    const runs = async () => {
      await client.set(name, '0');
      return (await attempt.library.script(client, source, name, '4')) === 8;
    };
    // The second time the server has cached the script.
    assert.ok((await runs()) && (await runs()));
  },

  async 'pub/sub'(attempt) {
    const client = await attempt.connect();
    const channel = key('news');
    const listen = (tell) => attempt.library.subscribe(attempt, channel, tell);
    await publishAndReceive(listen, (text) => client.publish(channel, text));
  },

  async 'sharded pub/sub'(attempt) {
    const client = await attempt.connect();
    const channel = key('orders');
    const listen = (tell) => attempt.library.subscribeSharded(attempt, channel, tell);
    const say = (text) => attempt.library.publishSharded(client, channel, text);
    await publishAndReceive(listen, say);
  },

  async 'client-side caching'(attempt) {
    if (!attempt.library.caching) return 'not offered';
    if (attempt.protocol === 2) return 'not offered: only with RESP3';
    const [client, caching] = [await attempt.connect(), await attempt.connect({ cache: true })];
    const name = key('cached');
    await client.set(name, 'old');
    assert.equal(await caching.get(name), 'old');
    assert.ok(await isWritten(client, name, 'new'));
    await eventually('the new value is seen', () => within(TIMEOUT, caching.get(name)).then((value) => value === 'new'));
  },

  async blocking(attempt) {
    const [client, other] = [await attempt.connect(), await attempt.connect()];
    const name = key('jobs');
    await client.del(name);
    const popped = attempt.library.pop(other, name);
    await eventually('it waits', async () => {
      return (await attempt.onServers('INFO', 'clients')).some((said) => !said.includes('blocked_clients:0'));
    });
    await attempt.library.push(client, name, 'one');
    assert.equal(await popped, 'one');
  },

  async 'scan iterators'(attempt) {
    const client = await attempt.connect();
    // Without the hash tag, so the keys are spread over all masters.
    const names = [...Array(100).keys()].map((n) => `scanned${n}`);
    await Promise.all(names.map((name) => client.set(name, '1')));
    const begin = async () => {
      const iterator = attempt.library.scan(attempt, client, 'scanned*');
      return { iterator, found: new Set((await iterator.next()).value) };
    };
    const end = async ({ iterator, found }) => {
      for await (const keys of iterator) for (const name of keys) found.add(name);
      return found;
    };
    let found;
    await attempt.across(begin, async (begun) => (found = await end(begun)));
    assert.deepEqual([...found].sort(), names.sort());
  },

  async 'reading from replicas'(attempt) {
    if (attempt.mode === 'standalone') return 'not meant: one server';
    const [client, reader] = [await attempt.connect(), await attempt.connect({ replicas: true })];
    const name = key('replicated');
    const isRead = async (value) => {
      const get = () => within(TIMEOUT, reader.get(name));
      for (let round = 0; round < 10; round += 1) await eventually('a replica has it', async () => (await get()) === value);
    };
    await client.set(name, 'before');
    await isRead('before');
    assert.ok(await isWritten(client, name, 'after'));
    await isRead('after');
  },

  async ACL(attempt) {
    await attempt.onServers('ACL', 'SETUSER', 'app', 'on', '>secret', `~${key('app:*')}`, '&*', '+@all');
    const app = await attempt.connect({ username: 'app', password: 'secret' });
    const isRefused = () => app.set(key('other'), '1').then(() => false, (error) => /NOPERM/.test(error.message));
    assert.ok((await isWritten(app, key('app:1'), '1')) && (await isRefused()));
    await attempt.middle();
    await attempt.done('it may write what is its own', () => isWritten(app, key('app:1'), '2'));
    await attempt.done('it may write nothing else', isRefused);
  },

  async TLS(attempt) {
    const client = await attempt.connect({ tls: true });
    // Keys on all masters, and one on the master that dies.
    const names = [key('tls'), ...[...Array(20).keys()].map((n) => `tls${n}`)];
    for (const name of names) assert.ok(await isWritten(client, name, 'before'));
    await attempt.middle();
    for (const name of names) await attempt.done('it is written', () => isWritten(client, name, 'after'));
  },

  async reconnection(attempt) {
    const client = await attempt.connect();
    await client.set(key('kept'), '1');
    await attempt.onServers('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    await eventually('it is connected again', async () => (await client.get(key('kept'))) === '1');
  },
};

// Publishes until the subscriber receives the message.
async function publishAndReceive(listen, say) {
  let message;
  await listen((text) => {
    message = text;
  });
  await eventually('the message arrives', async () => {
    await within(TIMEOUT, Promise.resolve(say('it')));
    return message === 'it';
  });
}

// The client conformance tests (docs/judge.md) cover failovers for the other features.
const FAILOVER_FEATURES = ['pipelines', 'cluster pipelines', 'transactions', 'scan iterators', 'ACL', 'TLS'];
export const KILLED = Object.fromEntries(FAILOVER_FEATURES.map((name) => [name, PLAIN[name]]));
