// What a browser has and node has not, around the script of a page: given to node before that.
import { EventSource as Standard } from "eventsource";

const [service, application] = process.argv.slice(2);
const said = (what) => process.stdout.write(JSON.stringify(what) + "\n");
const anywhere = fetch;

globalThis.fetch = (path) => anywhere(new URL(path, application));
globalThis.EventSource = class extends Standard {
  constructor(path) {
    super(new URL(path, service));
    this.addEventListener("open", () => said("open"));
    this.addEventListener("error", () => said(this.readyState === this.CLOSED ? "closed" : "lost"));
  }
};
globalThis.reload = (gap) => said({ gap });
console.log = said;
