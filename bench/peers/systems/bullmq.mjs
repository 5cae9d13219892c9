// BullMQ on Node.  The same verbs as agent.py, and its own worker, which BullMQ leaves to the user to write.
import { openSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const require = createRequire(`${process.env.PEERS_NODE}/package.json`);
const { Queue, Worker } = require("bullmq");

const BEST = process.env.PEERS_PROFILE === "best";
const PAD = "x".repeat(79);
const BATCH = 1000;
const DAY_MS = 86_400_000;
const WARM_UP = 10;
const PROBE = 100;
const ME = fileURLToPath(import.meta.url);

const version = (name) => require(`${name}/package.json`).version;
const connection = () => {
  const url = new URL(process.env.PEERS_URL);
  return { host: url.hostname, port: Number(url.port) };
};
// Milliseconds since 1970 with their fractions, which Date.now() cuts off.
const now = () => performance.timeOrigin + performance.now();
const options = (rest = {}) => (BEST ? { removeOnComplete: true, ...rest } : rest);

function describe() {
  const docs = "https://docs.bullmq.io/guide";
  return {
    name: "BullMQ (Node)",
    packages: ["bullmq", "ioredis", "node"],
    default: { words: "`new Worker(…)`: one process, one job at once", links: [`${docs}/workers`] },
    best: {
      words: "`concurrency: 300`, ended jobs are not kept (`removeOnComplete: true`)",
      links: [`${docs}/parallelism-and-concurrency`, `${docs}/queues/auto-removal-of-jobs`],
    },
    bulk: "`addBulk`, 1,000 at a time",
    delays: "`addBulk` with `delay`",
    crash: "runs again after 30 to 60 s, when it is found stalled",
    lacks: {},
    versions: {
      bullmq: version("bullmq"),
      ioredis: version("ioredis"),
      node: process.versions.node,
    },
    commands: { worker: [process.execPath, ME, "work"], beside: null },
  };
}

async function work() {
  const ledger = openSync(process.env.PEERS_LEDGER, "a");
  const record = Buffer.alloc(24);
  record.writeBigInt64LE(BigInt(process.env.PEERS_WORKER ?? 0), 16);
  const handler = async (job) => {
    record.writeBigInt64LE(BigInt(job.data.n), 0);
    record.writeDoubleLE(now() / 1000, 8);
    writeSync(ledger, record);
  };
  const worker = new Worker("bench", handler, {
    connection: connection(),
    ...(BEST ? { concurrency: 300 } : {}),
  });
  worker.on("error", (error) => console.error(error));
  process.on("SIGTERM", async () => {
    await worker.close();
    process.exit(0);
  });
}

async function produce(verb) {
  const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const tell = (answer) => writeSync(1, JSON.stringify(answer) + "\n");
  const ready = async () => {
    tell({ ready: true });
    const { value, done } = await lines.next();
    if (done) throw new Error("the driver is gone");
    return JSON.parse(value);
  };
  const queue = new Queue("bench", { connection: connection() });
  await queue.waitUntilReady();

  const enqueue = (n) => queue.add("noop", { n, pad: PAD }, options());
  const addAll = async (count, job) => {
    for (let at = 0; at < count; at += BATCH) {
      const size = Math.min(BATCH, count - at);
      await queue.addBulk(Array.from({ length: size }, (_, k) => job(at + k)));
    }
  };
  const enqueueMany = (count, sign = (n) => n) =>
    addAll(count, (n) => ({ name: "noop", data: { n: sign(n), pad: PAD }, opts: options() }));
  const schedule = (count, numberOf, dueOf) =>
    addAll(count, (n) => ({
      name: "noop",
      data: { n: numberOf(n), pad: PAD },
      opts: options({ delay: Math.max(0, Math.ceil(dueOf(n) - Date.now())) }),
    }));
  const warm = (n) => -1 - n;

  const verbs = {
    async single() {
      for (let n = 0; n < WARM_UP; n++) await enqueue(warm(n));
      const count = await ready();
      const began = now();
      for (let n = 0; n < count; n++) await enqueue(n);
      return { took_s: (now() - began) / 1000 };
    },
    async bulk() {
      await enqueueMany(WARM_UP, warm);
      const count = await ready();
      const began = now();
      await enqueueMany(count);
      return { took_s: (now() - began) / 1000 };
    },
    async preload() {
      await enqueueMany(await ready());
      return {};
    },
    async wait() {
      const count = await ready();
      const tomorrow = Date.now() + DAY_MS;
      await schedule(count, (n) => n, (n) => tomorrow + n);
      return {};
    },
    async schedule() {
      const offsets = await ready();
      const began = now();
      await schedule(PROBE, warm, () => began + DAY_MS);
      const each = (now() - began) / PROBE;
      const start = Math.round(now() + 2000 + 1.5 * each * offsets.length);
      await schedule(offsets.length, (n) => n, (n) => start + offsets[n]);
      return { start_ms: start, spare_ms: start - now() };
    },
  };
  tell(await verbs[verb]());
  await queue.close();
  process.exit(0);
}

const verb = process.argv[2];
if (verb === "describe") console.log(JSON.stringify(describe()));
else if (verb === "work") await work();
else await produce(verb);
