// ioredis's sentinel mode during ten failovers.

import assert from 'node:assert/strict';
import Redis from 'ioredis';
import { eventually, testWithServers } from './local.js';

const FAILOVERS = 10;

testWithServers('ioredis: survives ten failovers', ['sentinel'], async (group) => {
  const found = { sentinels: group.sentinels, name: group.masterName };
  const options = { ...found, sentinelRetryStrategy: () => 50, retryStrategy: () => 50 };
  const client = new Redis({ ...options, maxRetriesPerRequest: null });
  const reader = new Redis({ ...options, role: 'slave', maxRetriesPerRequest: null });
  for (const one of [client, reader]) one.on('error', () => {});
  try {
    for (let round = 0; round < FAILOVERS; round += 1) {
      const old = await group.master();
      await group.kill(old);
      await eventually('the client writes again', async () => (await client.set('round', round)) === 'OK');
      await group.untilReplaced(old);
      await group.restart(old);
      await group.untilWhole();
      assert.equal(await client.get('round'), String(round), 'what was accepted is still there');
      await eventually('replicas have it too', async () => (await reader.get('round')) === String(round));
    }
  } finally {
    client.disconnect();
    reader.disconnect();
  }
});
