// Polls the server once a second while the page is visible, and draws the result.

import { SLOTS, SlotMap } from "./map.js";
import { bytes, count } from "./format.js";
import {
  drawCommands, drawFailovers, drawFigures, drawInfo, drawLoad, drawNodes, drawSlow, drawState, drawWalk, ordered, rates,
} from "./parts.js";

const PERIOD = 1000;
/** Length of the sparklines in seconds. */
const COURSE = 120;
/** Time constant of the moving average of the load, in samples. */
const MEMORY = 30;

const by = (id) => document.getElementById(id);
const elements = {
  who: by("who"), state: by("state"), epoch: by("epoch"), nodes: by("nodes"), commandRows: by("command-rows"),
  slow: by("slow"), slowFilter: by("slow-filter"), types: by("types"), patterns: by("patterns"), largest: by("largest"),
  walkNote: by("walk-note"), hotSlots: by("hot-slots"), hotKeys: by("hot-keys"), loadNote: by("load-note"), info: by("info"),
};

const page = {
  state: null, history: [], owners: [], chosen: null, command: null, paused: false, turn: 0, seconds: 0,
  load: new Float64Array(SLOTS), keys: new Map(), figures: [], failovers: "",
};

const map = new SlotMap(by("map"), tellSlot);

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

/** Whether a section is on the screen. Data of invisible sections is not requested. */
function seen(id) {
  const box = by(id).getBoundingClientRect();
  return box.bottom > 0 && box.top < window.innerHeight;
}

async function turn() {
  if (page.paused || document.visibilityState !== "visible") return;
  const [quick, slow] = [page.turn % 2 === 0, page.turn % 5 === 0];
  page.turn += 1;
  await takeState();
  const asks = [];
  if (seen("slots")) {
    if (map.by === "owner" ? slow : quick) asks.push(takeSlots());
    asks.push(takeLoad());
  }
  if (slow) asks.push(takeFailovers());
  await Promise.all(asks);
}

async function takeState() {
  const [before, state] = [page.state, await ask("api/state")];
  page.seconds = before ? (state.at - before.at) / 1000 : 0;
  const calls = new Map(before?.commands.map((command) => [command.name, command.calls]));
  for (const command of state.commands) command.recent = before ? Math.max(0, command.calls - (calls.get(command.name) ?? 0)) : 0;
  page.history.push({ ...rates(before, state), memory: Number(state.info.used_memory) });
  if (page.history.length > COURSE) page.history.shift();
  page.state = state;
  draw();
}

function draw() {
  const state = page.state;
  drawState(elements, state);
  // The first state has no predecessor, so it has no rates.
  drawFigures(by("figures"), state, page.history.length > 1 ? page.history.slice(-COURSE).filter((_, index) => index > 0 || page.history.length === COURSE) : page.history);
  drawNodes(elements, state, page.owners, page.chosen, chooseOwner);
  drawCommands(elements, state, page.seconds, page.command, chooseCommand);
  drawSlow(elements, state, page.command);
  if (seen("all")) drawInfo(elements, state, by("filter").value);
}

async function takeSlots() {
  const figure = map.by === "bytes" ? "bytes" : "keys";
  const slots = await ask(`api/slots?by=${figure}`);
  const owners = ordered(page.state).filter(([node]) => node.master === null).map(([node]) => node.id);
  for (const [, , id] of slots.owners) if (!owners.includes(id)) owners.push(id);
  page.owners = owners;
  page.figures = slots.figures;
  map.setOwners(slots.owners.map(([first, last, id]) => [first, last, owners.indexOf(id)]));
  showFigures();
  drawNodes(elements, page.state, page.owners, page.chosen, chooseOwner);
}

function showFigures() {
  map.setFigures(map.by === "load" ? page.load : page.figures);
  map.draw();
  tellSlot(map.slot);
}

async function takeLoad() {
  const sample = await ask("api/load");
  const fade = 1 - 1 / MEMORY;
  page.load.forEach((rate, slot) => { page.load[slot] = rate < 0.5 ? 0 : rate * fade; });
  for (const hot of page.keys.values()) hot.rate *= fade;
  for (const [slot, named] of sample.slots) page.load[slot] += named / sample.seconds / MEMORY;
  for (const { key, slot, named } of sample.keys) {
    const hot = page.keys.get(key) ?? { key, slot, rate: 0 };
    hot.rate += named / sample.seconds / MEMORY;
    page.keys.set(key, hot);
  }
  const keys = [...page.keys.values()].sort((a, b) => b.rate - a.rate).slice(0, 200);
  page.keys = new Map(keys.filter((hot) => hot.rate > 0.5).map((hot) => [hot.key, hot]));
  const slots = [...page.load].map((rate, slot) => [slot, rate]).filter(([, rate]) => rate > 0).sort((a, b) => b[1] - a[1]);
  drawLoad(elements, keys.slice(0, 10), slots.slice(0, 8), goToSlot);
  if (map.by === "load") showFigures();
}

async function takeFailovers() {
  const failovers = await ask("api/failovers");
  const text = JSON.stringify(failovers);
  if (text === page.failovers) return;
  page.failovers = text;
  drawFailovers(by("failover-list"), failovers, chooseNode);
}

async function walk() {
  by("walk").disabled = true;
  try {
    drawWalk(elements, await ask("api/keys"), goToSlot);
  } catch (error) {
    elements.walkNote.textContent = `The server did not respond (${error.message}).`;
  }
  by("walk").disabled = false;
}

function tellSlot(slot) {
  const node = page.state ? ordered(page.state).find(([node]) => page.owners.indexOf(node.id) === map.owners[slot])?.[0] : undefined;
  const owner = map.owners[slot] < 0 ? "unassigned" : `served by ${node?.address ?? "…"}`;
  const value = page.figures[slot] ?? 0;
  const figure = map.by === "bytes" ? bytes(value) : `${value} keys`;
  const load = page.load[slot] > 0 ? `, ${count(page.load[slot])} key accesses/s` : "";
  by("slot").textContent = `Slot ${slot}: ${owner}, ${figure} on this node${load}`;
  if (document.activeElement !== by("go")) by("go").value = slot;
}

function goToSlot(slot) {
  by("slots").scrollIntoView();
  map.go(slot);
  map.canvas.focus({ preventScroll: true });
}

function chooseOwner(owner) {
  page.chosen = page.chosen === owner || owner < 0 ? null : owner;
  map.choose(page.chosen);
  drawNodes(elements, page.state, page.owners, page.chosen, chooseOwner);
}

function chooseNode(id) {
  by("topology").scrollIntoView();
  const row = [...elements.nodes.querySelectorAll("[data-key]")].find((row) => row.dataset.key === id);
  row?.querySelector("button").focus({ preventScroll: true });
}

function chooseCommand(name) {
  page.command = page.command === name ? null : name;
  draw();
  if (page.command !== null) by("slow-title").scrollIntoView({ block: "nearest" });
}

function setPaused(paused) {
  page.paused = paused;
  by("pause").setAttribute("aria-pressed", String(paused));
  by("pause").textContent = paused ? "Resume" : "Pause";
}

const SECTIONS = ["topology", "slots", "commands", "failovers", "memory", "all"];

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "radio") return;
  const section = SECTIONS[Number(event.key) - 1];
  if (section) {
    by(section).scrollIntoView();
    by(section).querySelector("button, canvas, input, summary")?.focus({ preventScroll: true });
  } else if (event.key === "p") setPaused(!page.paused);
  else if (event.key === "/") {
    by("all").scrollIntoView();
    by("filter").focus({ preventScroll: true });
  } else return;
  event.preventDefault();
});

by("pause").addEventListener("click", () => setPaused(!page.paused));
by("walk").addEventListener("click", walk);
by("filter").addEventListener("input", () => page.state && drawInfo(elements, page.state, by("filter").value));
by("go").addEventListener("change", (event) => map.go(Number(event.target.value)));
by("by").addEventListener("change", async (event) => {
  map.by = event.target.value;
  if (map.by === "load") showFigures();
  else await takeSlots();
});

async function first() {
  await takeState();
  await Promise.all([takeSlots(), takeFailovers(), walk()]);
}

async function forever() {
  let begun = false;
  for (;;) {
    try {
      if (begun) await turn();
      else await first();
      begun = true;
      document.body.classList.remove("lost");
      document.body.dataset.drawn = String(page.turn);
    } catch (error) {
      document.body.classList.add("lost");
      elements.state.textContent = "not responding";
      elements.state.className = "bad";
    }
    await new Promise((resolve) => setTimeout(resolve, PERIOD));
  }
}

forever();
