// The slot map: 128 by 128 cells, one row per 128 slots, colored by owner or by a value.

const SIDE = 128;
export const SLOTS = SIDE * SIDE;
const CELL = 4;

/** Color-blind safe palette for light and dark mode. */
const OWNERS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#77aadd", "#44bb99", "#aaaa00"];

export const ownerColour = (index) => (index < 0 ? "#88888855" : OWNERS[index % OWNERS.length]);

/** Maps 0 to 1 to a color. The square root spreads small values, since few slots have most of the load. */
function heat(part) {
  const at = Math.sqrt(part);
  const hue = 220 - 190 * at;
  return `hsl(${hue} ${55 + 30 * at}% ${32 + 28 * at}%)`;
}

export class SlotMap {
  constructor(canvas, onmove) {
    this.canvas = canvas;
    this.onmove = onmove;
    this.owners = new Int16Array(SLOTS).fill(-1);
    this.figures = new Float64Array(SLOTS);
    this.by = "owner";
    this.chosen = null;
    this.slot = 0;
    canvas.width = canvas.height = SIDE * CELL;
    canvas.addEventListener("pointerdown", (event) => this.point(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /** Sets the owners from ranges [first, last, owner index]. */
  setOwners(runs) {
    this.owners.fill(-1);
    for (const [first, last, owner] of runs) this.owners.fill(owner, first, last + 1);
  }

  setFigures(figures) {
    this.figures.fill(0);
    figures.forEach((value, slot) => { this.figures[slot] = value; });
  }

  /** Shows one owner's slots alone; `null` shows all. */
  choose(owner) {
    this.chosen = owner;
    this.draw();
  }

  go(slot) {
    this.slot = Math.max(0, Math.min(SLOTS - 1, slot));
    this.draw();
    this.onmove(this.slot);
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const cell = (at, from, size) => Math.max(0, Math.min(SIDE - 1, Math.floor(((at - from) / size) * SIDE)));
    this.go(cell(event.clientY, box.top, box.height) * SIDE + cell(event.clientX, box.left, box.width));
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -SIDE, ArrowDown: SIDE, PageUp: -8 * SIDE, PageDown: 8 * SIDE };
    const ends = { Home: 0, End: SLOTS - 1 };
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key in steps) this.go(this.slot + steps[event.key] * (event.shiftKey ? 8 : 1));
    else if (event.key in ends) this.go(ends[event.key]);
    else return;
    event.preventDefault();
  }

  draw() {
    const context = this.canvas.getContext("2d");
    const most = Math.max(1, ...this.figures);
    context.clearRect(0, 0, SIDE * CELL, SIDE * CELL);
    for (let slot = 0; slot < SLOTS; slot += 1) {
      const owner = this.owners[slot];
      const faint = this.chosen !== null && owner !== this.chosen;
      const figure = this.figures[slot];
      if (this.by === "owner") context.fillStyle = ownerColour(owner);
      else if (figure === 0) context.fillStyle = "#88888833";
      else context.fillStyle = heat(figure / most);
      context.globalAlpha = faint ? 0.15 : 1;
      context.fillRect((slot % SIDE) * CELL, Math.floor(slot / SIDE) * CELL, CELL, CELL);
    }
    context.globalAlpha = 1;
    const [x, y] = [(this.slot % SIDE) * CELL, Math.floor(this.slot / SIDE) * CELL];
    context.lineWidth = 2;
    context.strokeStyle = "#000";
    context.strokeRect(x - 3, y - 3, CELL + 6, CELL + 6);
    context.strokeStyle = "#fff";
    context.strokeRect(x - 1, y - 1, CELL + 2, CELL + 2);
  }
}
