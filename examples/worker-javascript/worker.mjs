// A worker in plain Node (18 or later): node worker.mjs TOPIC ./handler.mjs runs the handler for each job.
// Its default export is async (payload, job, signal) => result; what it throws makes the job run again later.
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [topic, file] = process.argv.slice(2);
const handle = (await import(pathToFileURL(resolve(file)))).default;
const { QUEUE_URL: url = "http://127.0.0.1:8420", QUEUE_KEY: key, QUEUE_LEASE: seconds = "60" } = process.env;
const { QUEUE_WORKER: worker = `node-${process.pid}` } = process.env;
const lease = Number(seconds);
const leaving = new AbortController();
for (const name of ["SIGINT", "SIGTERM"]) process.once(name, () => leaving.abort());
const pause = (ms) => new Promise((wake) => setTimeout(wake, ms));

async function post(path, body, { signal, tries = 5 } = {}) {
  const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  try {
    const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body), signal });
    if (answer.ok) return await answer.json();
    throw Object.assign(new Error(await answer.text()), { status: answer.status });
  } catch (error) {
    if (error.status < 500 || signal?.aborted || tries <= 1) throw error;
  }
  await pause(500); // Gone or busy: every call is safe to repeat.
  return post(path, body, { signal, tries: tries - 1 });
}

async function run(job) {
  const lost = new AbortController();
  const end = (verb, body) => post(`/v1/leases/${job.token}/${verb}`, body);
  const extend = () => end("extend", { lease }).catch((error) => error.status === 409 && lost.abort());
  const heart = setInterval(extend, (lease * 1000) / 3);
  try {
    const result = await handle(job.payload, job, lost.signal);
    await end("ack", { result });
  } catch (error) {
    if (lost.signal.aborted) return;
    await end("retry", { error: { type: error?.name ?? "thrown", message: String(error?.message ?? error) } });
  } finally {
    clearInterval(heart);
  }
}

let claims = 0;
while (!leaving.signal.aborted) {
  try {
    // The same request again brings the jobs of an answer that got lost.
    const claim = { worker, limit: 10, wait: 30, lease, request_id: String(claims) };
    const { jobs } = await post(`/v1/topics/${topic}/claim`, claim, { signal: leaving.signal });
    claims += 1;
    await Promise.all(jobs.map((job) => run(job).catch((error) => console.error(job.id, error.message))));
  } catch (error) {
    if (!leaving.signal.aborted) await (console.error(error.message), pause(1000));
  }
}
