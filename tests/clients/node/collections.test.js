// ioredis's collections, streams and blocking commands in a cluster, while the master of their keys is killed.

import assert from 'node:assert/strict';
import calculateSlot from 'cluster-key-slot';
import Redis from 'ioredis';
import { ioredis } from './ioredis.js';
import { eventually, retry, testWithServers } from './local.js';

// The first node serves the lowest slots.
const key = Array.from({ length: 1000 }, (_, number) => `key:${number}`).find((name) => calculateSlot(name) < 5000);

const connect = (place) => ioredis.connect({ mode: 'cluster', ...place });

async function fill(client, name) {
  assert.equal(await client.rpush(name('list'), ...Array(200).keys()), 200);
  assert.equal(await client.hset(name('hash'), new Map([...Array(200).keys()].map((n) => [`f${n}`, n]))), 200);
  assert.equal(await client.sadd(name('set'), ...Array(600).keys()), 600);
  assert.equal(await client.zadd(name('zset'), ...[...Array(200).keys()].flatMap((n) => [n / 2, `m${n}`])), 200);
  assert.equal(await client.xadd(name('stream'), '1-0', 'n', '1'), '1-0');
}

async function check(client, name) {
  assert.equal((await retry(() => client.lrange(name('list'), 0, -1))).length, 200);
  assert.equal((await client.hgetall(name('hash'))).f150, '150');
  assert.equal(await client.scard(name('set')), 600);
  assert.deepEqual(await client.zrange(name('zset'), 0, 1, 'WITHSCORES'), ['m0', '0', 'm1', '0.5']);
  assert.deepEqual(await client.xrange(name('stream'), '-', '+'), [['1-0', ['n', '1']]]);
}

testWithServers('ioredis: consumers continue on the new master', ['cluster'], async (cluster) => {
  const [client, popper, reader] = await Promise.all([connect(cluster), connect(cluster), connect(cluster)]);
  const name = (suffix) => `{${key}}${suffix}`;
  const [popped, read] = [[], []];
  let over = false;
  try {
    await fill(client, name);
    await client.xgroup('CREATE', name('events'), 'group', '$', 'MKSTREAM');
    const pop = async () => {
      while (!over) {
        const item = await retry(() => popper.blpop(name('jobs'), 1));
        if (item) popped.push(item[1]);
      }
    };
    const readGroup = async () => {
      const words = ['GROUP', 'group', 'me', 'BLOCK', '1000', 'STREAMS', name('events'), '>'];
      while (!over) {
        const reply = await retry(() => reader.xreadgroup(...words));
        for (const [, entries] of reply ?? []) {
          for (const [id, fields] of entries) {
            read.push(fields[1]);
            await retry(() => reader.xack(name('events'), 'group', id));
          }
        }
      }
    };
    const consuming = Promise.all([pop(), readGroup()]);
    const give = async (what) => {
      await retry(() => client.rpush(name('jobs'), what));
      await retry(() => client.xadd(name('events'), '*', 'event', what));
    };
    await give('before');
    await eventually('both consume', async () => popped.includes('before') && read.includes('before'));
    await eventually('the replica has it', async () => {
      const master = new Redis(cluster.servers[0]);
      const count = await master.wait(1, 5000);
      master.disconnect();
      return count === 1;
    });
    await cluster.kill(0);
    await give('after');
    await eventually('both go on', async () => popped.includes('after') && read.includes('after'));
    await check(client, name);
    over = true;
    await consuming;
  } finally {
    over = true;
    for (const one of [client, popper, reader]) one.disconnect();
  }
});

testWithServers('ioredis: blocked clients are served or time out', ['cluster'], async (cluster) => {
  const [client, other] = await Promise.all([connect(cluster), connect(cluster)]);
  try {
    const list = `{${key}}waited`;
    const waiting = [client.blpop(list, 30), client.blmove(list, `{${key}}moved`, 'LEFT', 'RIGHT', 30)];
    await retry(() => other.rpush(list, 'one', 'two'));
    assert.deepEqual(await Promise.all(waiting), [[list, 'one'], 'two']);
    assert.equal(await client.bzpopmin(`{${key}}none`, 0.05), null);
    assert.equal(await client.xread('BLOCK', 50, 'STREAMS', `{${key}}none`, '$'), null);
  } finally {
    client.disconnect();
    other.disconnect();
  }
});
