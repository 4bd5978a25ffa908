// ioredis's cluster client reads and writes all slots, while a master is killed and later comes back.

import assert from 'node:assert/strict';
import calculateSlot from 'cluster-key-slot';
import { ioredis } from './ioredis.js';
import { retry, testWithServers, untilReplicated } from './local.js';

const SLOTS = 16384;
// The number of pipelined commands.
const BATCH = 512;

function keyForEverySlot() {
  const keys = new Array(SLOTS);
  for (let number = 0, missing = SLOTS; missing > 0; number += 1) {
    const key = `key:${number}`;
    const slot = calculateSlot(key);
    if (keys[slot] === undefined) {
      keys[slot] = key;
      missing -= 1;
    }
  }
  return keys;
}

const connect = (place) => ioredis.connect({ mode: 'cluster', ...place });

async function inBatches(keys, action) {
  for (let at = 0; at < keys.length; at += BATCH) {
    await Promise.all(keys.slice(at, at + BATCH).map((key) => retry(() => action(key))));
  }
}

const writeAll = (client, keys, value) =>
  inBatches(keys, async (key) => assert.equal(await client.set(key, value), 'OK'));

const readAll = (client, keys, value) =>
  inBatches(keys, async (key) => assert.equal(await client.get(key), value, key));

testWithServers('ioredis: every slot works after a master dies', ['cluster'], async (cluster) => {
  const keys = keyForEverySlot();
  const untouched = keys.filter((_, slot) => slot % 64 !== 0);
  const touched = keys.filter((_, slot) => slot % 64 === 0);
  const client = await connect(cluster);
  const other = await connect(cluster);
  try {
    await writeAll(client, keys, 'first');
    await untilReplicated(cluster.servers);

    let over = false;
    let rounds = 0;
    const writing = (async () => {
      while (!over) {
        await writeAll(other, touched, `round ${rounds}`);
        rounds += 1;
      }
    })();
    try {
      await cluster.kill(0);
      await readAll(client, untouched, 'first');
      await writeAll(client, untouched, 'second');
      await cluster.restart(0);
      await readAll(client, untouched, 'second');
    } finally {
      over = true;
      await writing;
    }
    assert.ok(rounds > 0);
    await readAll(client, touched, `round ${rounds - 1}`);

    const sizes = await Promise.all(client.nodes('master').map((node) => node.dbsize()));
    assert.equal(sizes.reduce((sum, size) => sum + size, 0), SLOTS);
  } finally {
    client.disconnect();
    other.disconnect();
  }
});

testWithServers('ioredis: pipelines and multi-key commands', ['cluster'], async (cluster) => {
  const client = await connect(cluster);
  try {
    const pipeline = client.pipeline();
    for (let number = 0; number < 1000; number += 1) pipeline.set(`{pipe}${number}`, number);
    const replies = await pipeline.exec();
    assert.ok(replies.every(([error, reply]) => error === null && reply === 'OK'));
    assert.deepEqual(await client.mget('{pipe}1', '{pipe}2', '{pipe}none'), ['1', '2', null]);
    await assert.rejects(client.mget('a', 'b'), /CROSSSLOT|same slot/);
    assert.equal(await client.del('{pipe}1', '{pipe}2', '{pipe}none'), 2);
  } finally {
    client.disconnect();
  }
});
