// Draws the sections of the page from the latest state.

import { bytes, clock, count, fill, make, micros, percent, span } from "./format.js";
import { ownerColour } from "./map.js";

const number = (text) => Number(text ?? 0) || 0;
const cell = (text, kind = "n") => make("td", { class: kind }, text);
const link = (text, onclick) => make("button", { class: "link", type: "button", onclick }, text);

/** A metric with a sparkline of its recent values. */
function figure(name, value, course) {
  const box = make("div", { class: "figure" }, make("span", {}, name), make("b", {}, value));
  if (course.length > 1) {
    const most = Math.max(...course, 1e-9);
    const points = course.map((part, index) => `${(index / (course.length - 1)) * 100},${27 - (part / most) * 25}`);
    const svg = document.getElementById("course").content.firstElementChild.cloneNode(true);
    svg.firstElementChild.setAttribute("points", points.join(" "));
    box.append(svg);
  }
  return box;
}

/** INFO counters that are shown as rates. */
const COUNTERS = {
  commands: "total_commands_processed",
  input: "total_net_input_bytes",
  output: "total_net_output_bytes",
  hits: "keyspace_hits",
  misses: "keyspace_misses",
  errors: "total_error_replies",
  user: "used_cpu_user",
  system: "used_cpu_sys",
};

/** The increase per second of each counter between two states. */
export function rates(before, now) {
  const seconds = before ? (now.at - before.at) / 1000 : 0;
  const grown = {};
  for (const [name, field] of Object.entries(COUNTERS)) {
    const more = before ? number(now.info[field]) - number(before.info[field]) : 0;
    grown[name] = seconds > 0 ? Math.max(0, more) / seconds : 0;
  }
  return grown;
}

/** The mean of a percentile over all recently called commands, weighted by calls. */
function latency(state, quantile) {
  const called = state.commands.filter((command) => command.recent > 0);
  const known = called.map((command) => [command.recent, percentile(command, quantile)]).filter(([, value]) => value !== undefined);
  const calls = known.reduce((sum, [recent]) => sum + recent, 0);
  return calls > 0 ? known.reduce((sum, [recent, value]) => sum + recent * value, 0) / calls : undefined;
}

const percentile = (command, quantile) => command.percentiles.find(([part]) => Math.abs(part - quantile) < 1e-9)?.[1];

export function drawFigures(element, state, history) {
  const info = state.info;
  const now = history[history.length - 1];
  const course = (name) => history.map((rates) => rates[name]);
  const looked = now.hits + now.misses;
  const limit = number(info.maxmemory);
  const used = number(info.used_memory);
  const shown = (value) => (value === undefined ? "–" : micros(value));
  element.replaceChildren(
    figure("commands/s", count(now.commands), course("commands")),
    figure("p50 / p99", `${shown(latency(state, 0.5))} / ${shown(latency(state, 0.99))}`, []),
    figure("CPU", percent(now.user + now.system), history.map((rates) => rates.user + rates.system)),
    figure(limit > 0 ? `memory (max ${bytes(limit)})` : "memory", bytes(used), history.map((rates) => rates.memory)),
    figure("keys", count(keysOf(info)), []),
    figure("hit rate", looked > 0 ? percent(now.hits / looked) : "–", []),
    figure("network in", `${bytes(now.input)}/s`, course("input")),
    figure("network out", `${bytes(now.output)}/s`, course("output")),
    figure("clients", count(number(info.connected_clients)), []),
    figure("errors/s", count(now.errors), course("errors")),
  );
}

function keysOf(info) {
  const databases = Object.entries(info).filter(([name]) => /^db\d+$/.test(name));
  return databases.reduce((sum, [, value]) => sum + number(/keys=(\d+)/.exec(value)?.[1]), 0);
}

export function drawState(elements, state) {
  const info = state.info;
  const mode = info.redis_mode === "cluster" ? "cluster" : "standalone";
  const role = info.role === "slave" ? `replica of ${info.master_host}:${info.master_port}` : "master";
  elements.who.textContent =
    `port ${info.tcp_port}, ${role}, ${mode}, version ${info.redoubt_version}, up ${span(number(info.uptime_in_seconds))}`;
  const ready = state.hindrances.length === 0;
  const text = ready ? "ready" : `not ready: ${state.hindrances.map((name) => name.replaceAll("_", " ")).join(", ")}`;
  if (elements.state.textContent !== text) elements.state.textContent = text;
  elements.state.className = ready ? "healthy" : "bad";
  document.title = `${ready ? "" : "! "}Redoubt ${info.tcp_port}`;
}

/** Without cluster mode: this server, and the master or replicas in INFO. */
function nodesOfInfo(info) {
  const offset = number(info.master_repl_offset);
  const replica = info.role === "slave";
  const myself = {
    id: "", name: "", address: `port ${info.tcp_port}`, myself: true, master: replica ? "m" : null, shard: "",
    epoch: 0, offset, state: replica && info.master_link_status !== "up" ? "suspected" : "healthy", linked: true, slots: replica ? 0 : 16384,
  };
  const others = Object.entries(info).filter(([name]) => /^slave\d+$/.test(name)).map(([name, value]) => {
    const parts = Object.fromEntries(value.split(",").map((part) => part.split("=")));
    return {
      id: name, name: "", address: `${parts.ip}:${parts.port}`, myself: false, master: "", shard: "",
      epoch: 0, offset: number(parts.offset), state: parts.state === "online" ? "healthy" : parts.state, linked: true, slots: 0,
    };
  });
  const master = { ...myself, id: "m", address: `${info.master_host}:${info.master_port}`, myself: false, master: null, slots: 16384,
    state: info.master_link_status === "up" ? "healthy" : "suspected" };
  return replica ? [master, myself, ...others] : [myself, ...others];
}

/** Nodes in display order: each master is followed by its replicas. */
export function ordered(state) {
  const nodes = state.nodes.length > 0 ? state.nodes : nodesOfInfo(state.info);
  const masters = nodes.filter((node) => node.master === null).sort((a, b) => b.slots - a.slots || a.address.localeCompare(b.address));
  const replicas = (master) => nodes.filter((node) => node.master === master.id).sort((a, b) => a.address.localeCompare(b.address));
  const rows = masters.flatMap((master) => [[master, null], ...replicas(master).map((node) => [node, master])]);
  const shown = new Set(rows.map(([node]) => node));
  return [...rows, ...nodes.filter((node) => !shown.has(node)).map((node) => [node, null])];
}

export function drawNodes(elements, state, owners, chosen, choose) {
  const epoch = state.cluster.cluster_current_epoch;
  elements.epoch.textContent = epoch === undefined
    ? "Cluster mode is off."
    : `Epoch ${epoch}, state ${state.cluster.cluster_state}, ${state.cluster.cluster_slots_ok} slots served by healthy nodes.`;
  const classes = { healthy: "healthy", suspected: "warn", failed: "bad" };
  fill(elements.nodes, ordered(state).map(([node, master]) => {
    const behind = master ? Math.max(0, master.offset - node.offset) : undefined;
    const owner = owners.indexOf((master ?? node).id);
    const dot = make("span", { class: "dot" });
    dot.style.background = ownerColour(owner);
    const name = [node.name, node.address].filter((part) => part !== "").join(" ") + (node.myself ? " (this node)" : "");
    const press = make("button", { class: "link", type: "button", title: node.id, onclick: () => choose(owner) }, name);
    const kind = [node.master === null ? "" : "replica", chosen !== null && chosen === owner ? "chosen" : ""].join(" ").trim();
    return make("tr", { class: kind || undefined, "data-key": node.id || "self" },
      make("td", {}, dot, press),
      make("td", {}, node.master === null ? "master" : "replica"),
      make("td", { class: classes[node.state] ?? "warn" }, node.state + (node.linked ? "" : ", no link")),
      cell(node.slots > 0 ? String(node.slots) : ""),
      cell(epoch === undefined ? "" : String(node.epoch)),
      cell(String(node.offset)),
      cell(behind === undefined ? "" : bytes(behind)));
  }));
}

export function drawCommands(elements, state, seconds, filter, choose) {
  const time = state.commands.reduce((sum, command) => sum + command.micros, 0);
  const rows = [...state.commands].sort((a, b) => b.micros - a.micros).slice(0, 40);
  const at = (command, quantile) => {
    const value = percentile(command, quantile);
    return cell(value === undefined ? "" : micros(value));
  };
  fill(elements.commandRows, rows.map((command) => make("tr", { "data-key": command.name, class: filter === command.name ? "chosen" : undefined },
    make("td", {}, link(command.name, () => choose(command.name))),
    cell(seconds > 0 ? count(command.recent / seconds) : ""),
    cell(count(command.calls)),
    cell(command.calls > 0 ? micros(command.micros / command.calls) : ""),
    at(command, 0.5), at(command, 0.99), at(command, 0.999),
    make("td", { class: "bar" }, make("meter", { min: 0, max: 1, value: time > 0 ? command.micros / time : 0, "aria-label": `share of ${command.name}` }),
      ` ${percent(time > 0 ? command.micros / time : 0)}`))));
}

export function drawSlow(elements, state, filter) {
  const name = (words) => words.split(" ")[0].toLowerCase();
  const wanted = filter?.split("|")[0];
  const shown = state.slow.filter((slow) => !wanted || name(slow.words) === wanted);
  elements.slowFilter.textContent = wanted
    ? `Showing ${shown.length} of ${state.slow.length} entries, only ${wanted}. Click the command again to show all.`
    : shown.length === 0 ? "No command exceeded slowlog-log-slower-than." : "Newest entries of SLOWLOG.";
  fill(elements.slow, shown.map((slow) => make("tr", {},
    cell(clock(slow.at), "when"), cell(micros(slow.micros)), cell(slow.words, "wrap"), cell(slow.client, "when"))));
}

export function drawFailovers(element, failovers, choose) {
  const open = new Set([...element.querySelectorAll("details[open]")].map((details) => details.dataset.key));
  if (failovers.length === 0) {
    element.replaceChildren(make("p", {}, "None since this node started."));
    return;
  }
  const classes = { replaced: "healthy", "came-back": "healthy", "given-up": "bad", open: "bad" };
  fill(element, failovers.map((failover, index) => {
    const first = Date.now() - failover["began-ms-ago"];
    const took = failover.steps.find((step) => step.text.includes("takes over"))?.ms ?? failover.steps.at(-1)?.ms ?? 0;
    // Newer entries may be added; the number of older ones does not change.
    const key = `${failover.node}${failovers.length - index}`;
    const steps = failover.steps.map((step) => make("li", {}, `+${step.ms} ms  ${step.text}`));
    return make("details", { "data-key": key, open: open.has(key) || (open.size === 0 && index === 0) },
      make("summary", {}, `${clock(first)}  ${failover.address || failover.node.slice(0, 8)}: `,
        make("span", { class: classes[failover.outcome] }, failover.outcome), ` after ${took} ms`),
      make("ol", {}, ...steps),
      link("Show node", () => choose(failover.node)));
  }));
}

export function drawWalk(elements, walk, go) {
  elements.walkNote.textContent = walk.keys === walk.sampled
    ? `Covers all ${walk.keys} keys of this node.`
    : `Sampled ${walk.sampled} of ${walk.keys} keys; the values are extrapolated to all keys.`;
  const most = Math.max(1, ...walk.types.map((share) => share.bytes));
  const row = (share) => make("tr", {}, cell(share.name, "wrap"), cell(count(Math.round(share.keys))), cell(bytes(share.bytes)));
  fill(elements.types, walk.types.map((share) => make("tr", {}, cell(share.name, ""), cell(count(Math.round(share.keys))), cell(bytes(share.bytes)),
    make("td", {}, make("meter", { min: 0, max: most, value: share.bytes, "aria-label": `share of ${share.name}` })))));
  fill(elements.patterns, walk.patterns.map(row));
  fill(elements.largest, walk.largest.map((large) => make("tr", { "data-key": large.key },
    make("td", { class: "wrap" }, link(large.key, () => go(large.slot))), cell(large.kind, ""), cell(bytes(large.bytes)))));
}

export function drawLoad(elements, keys, slots, go) {
  fill(elements.hotSlots, slots.map(([slot, rate]) => {
    const button = make("button", { type: "button", onclick: () => go(slot) }, `${slot}: ${count(rate)}/s`);
    button.dataset.key = String(slot);
    return button;
  }));
  fill(elements.hotKeys, keys.map((hot) => make("tr", { "data-key": hot.key },
    make("td", { class: "wrap" }, link(hot.key, () => go(hot.slot))), cell(`${count(hot.rate)}/s`))));
  elements.loadNote.textContent = slots.length === 0
    ? "No command accessed a key during the samples."
    : "Commands are sampled for 10 ms of every second; rates are averages over the last 30 seconds.";
}

export function drawInfo(elements, state, filter) {
  const all = Object.entries({ ...state.info, ...state.cluster }).sort(([a], [b]) => a.localeCompare(b));
  const wanted = filter.trim().toLowerCase();
  const rows = all.filter(([name]) => name.includes(wanted));
  fill(elements.info, rows.map(([name, value]) => make("tr", {}, cell(name, "wrap"), cell(value, "wrap"))));
}
