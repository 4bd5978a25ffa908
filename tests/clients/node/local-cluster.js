// A cluster for the tests: started and stopped by the scripts that users have.

import { execFile } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const run = promisify(execFile);

// Six nodes of `scripts/up` on six free ports, in a folder of their own.
export class LocalCluster {
  static async start() {
    const cluster = new LocalCluster();
    cluster.parent = mkdtempSync(join(tmpdir(), 'redoubt-ioredis-'));
    cluster.folder = join(cluster.parent, 'cluster');
    cluster.base = await freeBase();
    try {
      await cluster.script('up', { PORT: String(cluster.base) });
    } catch (error) {
      await cluster.stop();
      throw error;
    }
    return cluster;
  }

  // Runs a script and gives what it printed; throws if it failed.
  async script(name, variables = {}) {
    const env = {
      ...process.env,
      REDOUBT: process.env.REDOUBT ?? join(root, 'target', 'debug', 'redoubt'),
      CLUSTER_DIR: this.folder,
      ...variables,
    };
    const { stdout } = await run(join(root, 'scripts', name), [], { env, timeout: 180_000 });
    return stdout;
  }

  async stop() {
    if (existsSync(this.folder)) await this.script('down');
    rmSync(this.parent, { recursive: true, force: true });
  }

  addresses() {
    return Array.from({ length: 6 }, (_, index) => ({ host: '127.0.0.1', port: this.base + index }));
  }
}

// The first of six ports in a row that are free, with the bus ports 10000 above them.
async function freeBase() {
  const bases = Array.from({ length: 160 }, (_, index) => 17000 + 6 * index);
  const start = process.pid % bases.length;
  for (const base of [...bases.slice(start), ...bases.slice(0, start)]) {
    const ports = [0, 1, 2, 3, 4, 5].flatMap((index) => [base + index, base + index + 10000]);
    if ((await Promise.all(ports.map(isFree))).every(Boolean)) return base;
  }
  throw new Error('no six free ports in a row');
}

function isFree(port) {
  return new Promise((resolve) => {
    const probe = createServer();
    probe.once('error', () => resolve(false));
    probe.listen(port, '127.0.0.1', () => probe.close(() => resolve(true)));
  });
}
