// Formats numbers and times, and creates elements.

const UNITS = ["", "k", "M", "G", "T"];

/** A count with at most five characters and a unit prefix. */
export function count(value) {
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit + 1 < UNITS.length) {
    value /= 1000;
    unit += 1;
  }
  const digits = unit === 0 && Number.isInteger(value) ? 0 : Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0;
  return value.toFixed(digits) + UNITS[unit];
}

const BINARY = ["B", "KB", "MB", "GB", "TB"];

export function bytes(value) {
  let unit = 0;
  while (value >= 1024 && unit + 1 < BINARY.length) {
    value /= 1024;
    unit += 1;
  }
  return (unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)) + " " + BINARY[unit];
}

/** A time in microseconds. */
export function micros(value) {
  if (value < 1000) return (value < 10 ? value.toFixed(1) : value.toFixed(0)) + " µs";
  if (value < 1e6) return (value / 1000).toFixed(value < 1e4 ? 1 : 0) + " ms";
  return (value / 1e6).toFixed(1) + " s";
}

export function percent(part) {
  return (part * 100).toFixed(part > 0 && part < 0.1 ? 1 : 0) + " %";
}

export function span(seconds) {
  const days = Math.floor(seconds / 86400);
  const hours = Math.floor((seconds % 86400) / 3600);
  const minutes = Math.floor((seconds % 3600) / 60);
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  if (minutes > 0) return `${minutes} min`;
  return `${Math.floor(seconds)} s`;
}

/** A date and time in the browser's time zone. */
export function clock(millis) {
  const at = new Date(millis);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return `${day} ${time}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** Creates an element. Text children are never parsed as HTML. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined));
  return element;
}

/** Replaces the rows of a table body and restores the focus by the `data-key` of the focused row. */
export function fill(body, rows) {
  const focused = body.contains(document.activeElement) ? document.activeElement.closest("[data-key]") : null;
  const key = focused?.dataset.key;
  body.replaceChildren(...rows);
  if (key === undefined) return;
  const again = [...body.querySelectorAll("[data-key]")].find((row) => row.dataset.key === key);
  (again?.querySelector("button") ?? again)?.focus();
}
