// What the adapters of libraries for Node.js share: the loop over requests, addresses, and messages of channels.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

// Libraries are those of the current folder.
export const require = createRequire(`${process.cwd()}/`);

export class Unsupported extends Error {}

export const addresses = (nodes) => nodes.map((node) => {
  const [host, port] = node.split(':');
  return { host, port: Number(port) };
});

export const authority = (file) => (file ? { ca: readFileSync(file) } : undefined);

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
export const tell = (channel, data) => say({ message: { channel, data } });

// Answers requests until there are no more. `answers` has a function for each kind; `shown` makes text of an error.
export async function answerAll(answers, shown = (error) => `${error.name}: ${error.message}`) {
  for await (const line of createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    const { id } = request;
    try {
      if (!answers[request.do]) throw new Unsupported(`the adapter has no ${request.do}`);
      say({ id, ok: (await answers[request.do](request)) ?? null });
    } catch (error) {
      say(error instanceof Unsupported ? { id, unsupported: error.message } : { id, error: shown(error) });
    }
  }
  process.exit();
}
