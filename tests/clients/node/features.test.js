// What ioredis and node-redis offer, in every mode and protocol; each feature is a cell of the table in docs/clients.md.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { appendFileSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { after } from 'node:test';
import { ioredis } from './ioredis.js';
import { eventually, patiently, story, within } from './local.js';
import { nodeRedis } from './node-redis.js';

const MODES = { standalone: 'server', sentinel: 'sentinel', cluster: 'cluster' };
const PATIENCE = 30_000;
// In the first range of slots.
const KEY = 'key:0';

const certificates = mkdtempSync(join(tmpdir(), 'redoubt-certificates-'));
const script = fileURLToPath(new URL('../../../scripts/make-certificates', import.meta.url));
execFileSync(script, [certificates], { stdio: 'ignore' });
const ca = readFileSync(join(certificates, 'ca.crt'));
after(() => rmSync(certificates, { recursive: true, force: true }));

// What a library does in one mode with one protocol.
class Attempt {
  constructor(library, mode, protocol, place) {
    Object.assign(this, { library, mode, protocol, place });
    this.open = [];
  }

  async connect(options = {}) {
    const client = await this.library.connect(this, options);
    this.open.push(client);
    return client;
  }

  async closeAll() {
    for (const client of this.open.splice(0)) await this.library.close(client);
  }

  async onServers(...words) {
    for (const server of this.place.servers) await ioredis.tell(server, words);
  }

  // Who serves the key's slot, or the group.
  async master() {
    const { nodes } = await this.place.ask('show');
    const isIt = (node) => node.slots.some(([first, last]) => first <= 1000 && last >= 1000) || this.mode === 'sentinel';
    return nodes.find((node) => node.role === 'master' && isIt(node)).node;
  }
}

// A function for each column. What it returns, if anything, is why there is no mark in it.
const features = {
  async pipelines(attempt, client) {
    assert.ok(await attempt.library.pipeline(client, [...Array(100).keys()].map((n) => [`{pipe}${n}`, `${n}`])));
    assert.equal(await client.get('{pipe}99'), '99');
  },

  async 'cluster pipelines'(attempt, client) {
    if (attempt.mode !== 'cluster') return 'not meant: one server';
    const keys = [...Array(200).keys()].map((n) => `spread${n}`);
    await attempt.library.spread(attempt, keys);
    assert.equal(await client.get('spread199'), 'spread199');
  },

  async transactions(attempt, client) {
    assert.deepEqual(await attempt.library.transaction(client, '{tx}a'), ['OK', 2]);
  },

  async scripts(attempt, client) {
    await client.set('doubled', '0');
    const source = "return redis.call('incrby', KEYS[1], ARGV[1] * 2)";
    assert.equal(await attempt.library.script(client, source, 'doubled', '4'), 8);
  },

  async 'pub/sub'(attempt, client) {
    await heard(attempt, (tell) => attempt.library.subscribe(attempt, 'news', tell), () => client.publish('news', 'hi'));
  },

  async 'sharded pub/sub'(attempt, client) {
    const listen = (tell) => attempt.library.subscribeSharded(attempt, 'orders', tell);
    await heard(attempt, listen, () => attempt.library.publishSharded(client, 'orders', 'hi'));
  },

  async 'client-side caching'(attempt, client) {
    if (!attempt.library.caching) return 'not offered';
    if (attempt.protocol === 2) return 'not offered: only with RESP3';
    await client.set('cached', 'old');
    const caching = await attempt.connect({ cache: true });
    assert.equal(await caching.get('cached'), 'old');
    await client.set('cached', 'new');
    await eventually('the new value is seen', async () => (await caching.get('cached')) === 'new');
  },

  async blocking(attempt, client) {
    const other = await attempt.connect();
    const popped = attempt.library.pop(other, 'jobs');
    await attempt.library.push(client, 'jobs', 'one');
    assert.equal(await popped, 'one');
  },

  async 'scan iterators'(attempt, client) {
    const wanted = [...Array(100).keys()].map((n) => `scanned${n}`);
    await Promise.all(wanted.map((key) => client.set(key, '1')));
    const found = new Set(await attempt.library.scan(attempt, client, 'scanned*'));
    assert.equal(found.size, wanted.length);
  },

  async 'reading from replicas'(attempt, client) {
    if (attempt.mode === 'standalone') return 'not meant: one server';
    await client.set('replicated', 'yes');
    const reader = await attempt.connect({ replicas: true });
    for (let round = 0; round < 10; round += 1) {
      await eventually('a replica has it', async () => (await reader.get('replicated')) === 'yes');
    }
  },

  async ACL(attempt) {
    await attempt.onServers('ACL', 'SETUSER', 'app', 'on', '>secret', '~app:*', '&*', '+@all');
    const app = await attempt.connect({ username: 'app', password: 'secret' });
    assert.equal(await app.set('app:key', '1'), 'OK');
    await assert.rejects(app.set('other', '1'), /NOPERM/);
  },

  async TLS(attempt) {
    if (attempt.mode === 'sentinel') return "not tested: the kit's sentinels watch without TLS";
    const client = await attempt.connect({ ca });
    for (let number = 0; number < 20; number += 1) assert.equal(await client.set(`tls${number}`, '1'), 'OK');
  },

  async reconnection(attempt, client) {
    await client.set('kept', '1');
    await attempt.onServers('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    await eventually('it is connected again', async () => (await client.get('kept')) === '1');
  },

  async failover(attempt, client) {
    if (attempt.mode === 'standalone') return 'not meant: one server';
    await client.set(KEY, 'before');
    const old = await attempt.master();
    await attempt.place.kill(old);
    await eventually('the new master takes writes', async () => {
      return (await within(5000, client.set(KEY, 'after'))) === 'OK';
    });
    assert.equal(await patiently(() => client.get(KEY)), 'after');
    await attempt.place.restart(old);
    await attempt.place.untilWhole();
  },
};

async function heard(attempt, listen, say) {
  let message;
  await listen((text) => {
    message = text;
  });
  await eventually('the message comes', async () => {
    await say();
    return message === 'hi';
  });
}

// A line for scripts/clients-page, if it asks for one.
function note(attempt, feature, result) {
  const folder = process.env.CLIENTS_TABLE;
  if (!folder) return;
  const cell = { client: attempt.library.name, mode: attempt.mode, protocol: attempt.protocol, feature, result };
  appendFileSync(join(folder, 'node.jsonl'), `${JSON.stringify(cell)}\n`);
}

async function tellAll(attempt) {
  const failed = [];
  for (const [feature, tell] of Object.entries(features)) {
    try {
      const why = await within(PATIENCE * 2, attempt.connect().then((client) => tell(attempt, client)));
      note(attempt, feature, why ?? 'yes');
    } catch (error) {
      note(attempt, feature, 'failed');
      failed.push(`${feature}: ${error.stack}`);
    } finally {
      await within(PATIENCE, attempt.closeAll());
    }
  }
  assert.equal(failed.length, 0, failed.join('\n'));
}

for (const library of [ioredis, nodeRedis]) {
  for (const [mode, kind] of Object.entries(MODES)) {
    for (const protocol of library.protocols) {
      const name = `${library.name}, ${mode}, RESP${protocol}`;
      story(name, [kind, { tls: certificates }], (place) => tellAll(new Attempt(library, mode, protocol, place)));
    }
  }
}
