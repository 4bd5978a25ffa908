// What the tests need running: started and stopped by the scripts that users have.

import { execFile } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const run = promisify(execFile);

// Six processes on six free ports, with their data in a folder that a variable of the scripts names.
class Scripted {
  static variable;
  static upWords;
  static downWords;

  static async start() {
    const place = new this();
    place.parent = mkdtempSync(join(tmpdir(), 'redoubt-ioredis-'));
    place.folder = join(place.parent, 'data');
    place.base = await freeBase();
    try {
      await place.script(this.upWords, { PORT: String(place.base) });
    } catch (error) {
      await place.stop();
      throw error;
    }
    return place;
  }

  // Runs a script with its arguments and gives what it printed; throws if it failed.
  async script([name, ...words], variables = {}) {
    const env = {
      ...process.env,
      REDOUBT: process.env.REDOUBT ?? join(root, 'target', 'debug', 'redoubt'),
      [this.constructor.variable]: this.folder,
      ...variables,
    };
    const { stdout } = await run(join(root, 'scripts', name), words, { env, timeout: 180_000 });
    return stdout;
  }

  async stop() {
    if (existsSync(this.folder)) await this.script(this.constructor.downWords);
    rmSync(this.parent, { recursive: true, force: true });
  }

  addresses(first, count) {
    return Array.from({ length: count }, (_, index) => ({ host: '127.0.0.1', port: this.base + first + index }));
  }
}

// Six nodes of `scripts/up`.
export class LocalCluster extends Scripted {
  static variable = 'CLUSTER_DIR';
  static upWords = ['up'];
  static downWords = ['down'];

  nodes() {
    return this.addresses(0, 6);
  }
}

// A master, two replicas and three sentinels of `scripts/sentinel-group`.
export class LocalGroup extends Scripted {
  static variable = 'GROUP_DIR';
  static upWords = ['sentinel-group', 'up'];
  static downWords = ['sentinel-group', 'down'];

  servers() {
    return this.addresses(0, 3);
  }

  sentinels() {
    return this.addresses(3, 3);
  }

  // SIGKILL; says nothing to anybody.
  kill(port) {
    process.kill(Number(readFileSync(join(this.folder, String(port), 'pid'), 'utf8')), 'SIGKILL');
  }

  restart(port) {
    return this.script(['sentinel-group', 'restart'], { NODE: String(port) });
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
