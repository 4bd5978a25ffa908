// Tests the features of ioredis and node-redis in every mode and protocol; each feature is a cell of docs/clients.md.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { appendFileSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { after } from 'node:test';
import calculateSlot from 'cluster-key-slot';
import { Attempt, KILLED, PLAIN, TAG } from './features.js';
import { ioredis } from './ioredis.js';
import { pause, Place, testWithServers, untilReplicated, within } from './local.js';
import { nodeRedis } from './node-redis.js';

const MODES = { standalone: 'server', sentinel: 'sentinel', cluster: 'cluster' };
// The time limit for one feature, and for all features to reach their middle, on a slow machine.
const TIMEOUT = 60_000;
// The time limit for all features in one mode and protocol.
const BOUND = 400_000;

const program = process.env.CLIENTS_PROGRAM;
const certificates = mkdtempSync(join(tmpdir(), 'redoubt-certificates-'));
const script = fileURLToPath(new URL('../../../scripts/make-certificates', import.meta.url));
execFileSync(script, [certificates], { stdio: 'ignore' });
const ca = readFileSync(join(certificates, 'ca.crt'));
after(() => rmSync(certificates, { recursive: true, force: true }));

// Writes a line for scripts/clients-page, if it requested them.
function note({ library, protocol }, mode, feature, result) {
  const folder = process.env.CLIENTS_TABLE;
  if (!folder) return;
  const cell = { client: library.name, mode, protocol, feature, result };
  appendFileSync(join(folder, 'node.jsonl'), `${JSON.stringify(cell)}\n`);
}

// Runs a feature with a time limit and closes its clients. Returns the text for the table, and the error if it failed.
async function runFeature(attempt, feature, bound) {
  try {
    return { result: (await within(bound, feature(attempt))) ?? 'yes' };
  } catch (error) {
    return { result: 'failed', error };
  } finally {
    await within(TIMEOUT, attempt.closeAll()).catch(() => {});
  }
}

async function runSequentially(attemptWith) {
  const failed = [];
  for (const [name, feature] of Object.entries(PLAIN)) {
    const attempt = attemptWith();
    const { result, error } = await runFeature(attempt, feature, TIMEOUT);
    note(attempt, attempt.mode, name, result);
    if (error) failed.push(`${name}: ${error.stack}`);
  }
  return failed;
}

// Starts a feature that waits in its middle until the master has been killed.
function begin(name, feature, attemptWith, killed) {
  const run = { name };
  const arrival = new Promise((resolve) => {
    run.attempt = attemptWith(async () => {
      run.hasArrived = true;
      resolve();
      await killed;
    });
  });
  run.ended = runFeature(run.attempt, feature, 3 * TIMEOUT).then(({ result, error }) => {
    const missed = result === 'yes' && !run.hasArrived;
    run.result = missed ? 'failed' : result;
    run.error = missed ? new Error('it never reached its middle') : error;
  });
  run.arrivesOrEnds = Promise.race([arrival, run.ended]);
  return run;
}

// Runs all of KILLED concurrently, so that one kill happens in the middle of each.
async function runWithKilledMaster(attemptWith, places, slot) {
  let markKilled;
  const killed = new Promise((resolve) => {
    markKilled = resolve;
  });
  const runs = Object.entries(KILLED).map(([name, feature]) => begin(name, feature, attemptWith, killed));
  await Promise.race([Promise.all(runs.map((run) => run.arrivesOrEnds)), pause(TIMEOUT)]);
  const dead = await Promise.all(
    places.map(async (place) => {
      const master = await place.master(slot);
      await untilReplicated([place.servers[master]]);
      await place.kill(master);
      return { place, master };
    }),
  );
  markKilled();
  await Promise.all(runs.map((run) => run.ended));
  for (const { place, master } of dead) {
    await place.restart(master);
    await place.untilWhole();
  }
  for (const { name, attempt, result } of runs) note(attempt, `${attempt.mode}, master killed`, name, result);
  const failed = runs.filter((run) => run.error);
  return failed.map(({ name, error }) => `${name}, with the master killed: ${error.stack}`);
}

for (const library of [ioredis, nodeRedis]) {
  for (const [mode, kind] of Object.entries(MODES)) {
    // A sentinel group with TLS accepts only TLS connections, so a second group runs without TLS.
    const apart = mode === 'sentinel';
    for (const protocol of library.protocols) {
      const tell = async (plain) => {
        const secure = apart ? await Place.start(kind, { program, tls: certificates }) : plain;
        try {
          const places = { plain, secure, ca };
          const attemptWith = (kill) => new Attempt(library, mode, protocol, places, kill);
          const failed = await runSequentially(attemptWith);
          // Failover does not depend on the protocol.
          if (mode !== 'standalone' && protocol === library.protocols.at(-1)) {
            const slot = mode === 'cluster' ? calculateSlot(TAG) : undefined;
            failed.push(...(await runWithKilledMaster(attemptWith, [...new Set([plain, secure])], slot)));
          }
          assert.equal(failed.length, 0, failed.join('\n'));
        } finally {
          if (apart) await secure.end();
        }
      };
      testWithServers(`${library.name}, ${mode}, RESP${protocol}`, [kind, { program, tls: apart ? undefined : certificates }], tell, BOUND);
    }
  }
}
