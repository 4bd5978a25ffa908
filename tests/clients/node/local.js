// Starts servers with the test kit (docs/testkit.md), and retries a failed test once.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import Redis from 'ioredis';

const binary = process.env.REDOUBT || fileURLToPath(new URL('../../../target/debug/redoubt', import.meta.url));

// The servers of one test. They end with the test and with this process.
export class Place {
  static async start(kind, options = {}) {
    const place = new Place();
    place.process = spawn(binary, ['testkit'], { stdio: ['pipe', 'pipe', 'inherit'] });
    place.waiting = [];
    const lines = createInterface({ input: place.process.stdout });
    lines.on('line', (line) => place.waiting.shift()?.(JSON.parse(line)));
    lines.on('close', () => place.waiting.splice(0).forEach((tell) => tell({ error: 'the test kit is gone' })));
    try {
      place.take(await place.ask('start', { kind, ...options }));
    } catch (error) {
      await place.end();
      throw error;
    }
    return place;
  }

  take(shown) {
    const servers = shown.kind === 'sentinel' ? shown.nodes.length / 2 : shown.nodes.length;
    const found = (kind) => {
      const addresses = shown.nodes.map((node) => ({ host: node.host, port: node[kind] }));
      return { servers: addresses.slice(0, servers), sentinels: addresses.slice(servers), masterName: shown.master_name };
    };
    Object.assign(this, found('port'));
    // The addresses for TLS clients, if it was started with TLS.
    this.overTls = found('tls_port');
  }

  // Sends a request and returns the reply; `docs/testkit.md` lists the requests.
  async ask(what, words = {}) {
    const answered = new Promise((resolve) => this.waiting.push(resolve));
    this.process.stdin.write(`${JSON.stringify({ do: what, ...words })}\n`);
    const { ok, error } = await answered;
    if (error !== undefined) throw new Error(error);
    return ok;
  }

  numberOf(port) {
    return this.servers.findIndex((server) => server.port === port);
  }

  // The index of the master that the sentinels name, or that serves a slot.
  async master(slot) {
    const { nodes } = await this.ask('show');
    const serves = ({ slots }) => slot === undefined || slots.some(([first, last]) => first <= slot && slot <= last);
    return nodes.find((node) => node.role === 'master' && serves(node)).node;
  }

  kill(node) {
    return this.ask('kill', { node });
  }

  restart(node) {
    return this.ask('restart', { node });
  }

  untilReplaced(node) {
    return this.ask('wait', { until: 'replaced', node, seconds: 60 });
  }

  untilWhole() {
    return this.ask('wait', { until: 'whole', seconds: 60 });
  }

  async end() {
    const ended = new Promise((resolve) => this.process.once('exit', resolve));
    this.process.stdin.end();
    if (this.process.exitCode === null) await ended;
  }
}

// Waits until the replicas of these servers have all the current data of their masters.
export async function untilReplicated(servers) {
  for (const { host, port } of servers) {
    const node = new Redis(port, host);
    try {
      const [role, wanted] = await retry(() => node.role());
      if (role !== 'master') continue;
      await eventually('the replicas have it', async () => {
        const [, , replicas] = await node.role();
        return replicas.every(([, , offset]) => Number(offset) >= wanted);
      });
    } finally {
      node.disconnect();
    }
  }
}

// A test with its own servers. A shared machine may pause for seconds, so a failed test is logged and retried once on
// new servers.
export function testWithServers(name, [kind, options], tell, timeout = 120_000) {
  const once = async () => {
    const place = await Place.start(kind, options);
    try {
      await tell(place);
    } finally {
      await place.end();
    }
  };
  test(name, { timeout: 2 * timeout }, async () => {
    try {
      await within(timeout, once());
    } catch (error) {
      console.log(`RETRIED ${name}: ${error.stack}`);
      await once();
    }
  });
}

// Rejects if the promise takes longer.
export async function within(milliseconds, promise) {
  let timer;
  const over = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`it took over ${milliseconds} ms`)), milliseconds);
  });
  try {
    return await Promise.race([promise, over]);
  } finally {
    clearTimeout(timer);
  }
}

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// Calls `attempt` until it returns a true value, for as long as a failover may take on a slow machine.
export async function eventually(what, attempt) {
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
    await pause(20);
  }
}

// Retries `action` until it succeeds, and returns its value.
export async function retry(action) {
  const [value] = await eventually('it is done', async () => [await action()]);
  return value;
}
