// ioredis's sentinel mode through ten failovers.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import Redis from 'ioredis';
import { LocalGroup } from './local.js';

const MASTER = 'mymaster';
const FAILOVERS = 10;

let group;

before(async () => {
  group = await LocalGroup.start();
  await hurry();
});

after(async () => {
  await group?.stop();
});

// Has a master that comes back be noticed in less than the seconds that this takes by default.
async function hurry() {
  for (const { port } of group.sentinels()) {
    await asking(port, async (sentinel) => {
      await sentinel.call('SENTINEL', 'DEBUG', 'publish-period', '500');
      await sentinel.call('SENTINEL', 'SET', MASTER, 'down-after-milliseconds', '500');
    });
  }
}

async function asking(port, question) {
  const client = new Redis(port, '127.0.0.1', { retryStrategy: () => null });
  client.on('error', () => {});
  try {
    return await question(client);
  } finally {
    client.disconnect();
  }
}

// Until `attempt` gives something, for as long as a failover may take on a slow machine.
async function eventually(what, attempt) {
  const end = Date.now() + 60_000;
  for (;;) {
    let failure;
    try {
      const value = await attempt();
      if (value) return value;
    } catch (error) {
      failure = error;
    }
    assert.ok(Date.now() < end, `${what}: ${failure}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

async function currentMaster() {
  const [{ port }] = group.sentinels();
  const found = await asking(port, (sentinel) => sentinel.call('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', MASTER));
  return Number(found[1]);
}

async function follows(port, master) {
  const role = await asking(port, (server) => server.role());
  return role[0] === 'slave' && role[2] === master && role[3] === 'connected';
}

test('ten failovers', { timeout: 240_000 }, async () => {
  const options = { sentinels: group.sentinels(), name: MASTER, sentinelRetryStrategy: () => 50, retryStrategy: () => 50 };
  const client = new Redis({ ...options, maxRetriesPerRequest: null });
  const reader = new Redis({ ...options, role: 'slave', maxRetriesPerRequest: null });
  for (const one of [client, reader]) one.on('error', () => {});
  try {
    for (let round = 0; round < FAILOVERS; round += 1) {
      const old = await currentMaster();
      group.kill(old);
      await eventually('the client writes again', async () => (await client.set('round', round)) === 'OK');
      const now = await eventually('the sentinels say so', async () => {
        const port = await currentMaster();
        return port !== old && port;
      });
      await group.restart(old);
      for (const { port } of group.servers()) {
        if (port !== now) await eventually(`${port} follows ${now}`, () => follows(port, now));
      }
      assert.equal(await client.get('round'), String(round), 'what was accepted is still there');
      await eventually('replicas have it too', async () => (await reader.get('round')) === String(round));
    }
  } finally {
    client.disconnect();
    reader.disconnect();
  }
});
