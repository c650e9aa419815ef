// A world and the numbers of its states as a drawing that can be clicked, painted and navigated by keys.

import { cellNumber, h, s, short } from "./dom.js";
import { kindOf, rewardOf } from "./world.js";

const SIDE = 60;
const MOVES = [[-1, 0], [0, 1], [1, 0], [0, -1], [-1, 1], [1, 1], [1, -1], [-1, -1], [0, 0]];
const NAMES = ["up", "right", "down", "left", "up right", "down right", "down left", "up left", "stay"];
const MANY = 900;
const STRONGEST = 80;
const TRIANGLES = [[0, 0, 1, 0], [1, 0, 1, 1], [1, 1, 0, 1], [0, 1, 0, 0]];
const PLACES = [[0.5, 0.17, "middle"], [0.95, 0.53, "end"], [0.5, 0.9, "middle"], [0.05, 0.53, "start"]];

/** Return the names of the actions in a bit mask. */
export const actionNames = (bits) => NAMES.filter((_, a) => bits & (1 << a));

/** Return the bit mask of each state from flags `[states, actions]`; only actions with a name have a bit. */
export function masksOf(flags, actions) {
  const masks = new Uint16Array(flags.length / actions);
  for (let i = 0; i < flags.length; i++) {
    const action = i % actions;
    if (flags[i] && action < NAMES.length) masks[Math.floor(i / actions)] |= 1 << action;
  }
  return masks;
}

/** Format a number with the digits that fit into a triangle. */
function tight(value) {
  const size = Math.abs(value);
  if (size >= 1000) return cellNumber(value);
  const text = value.toFixed(size >= 10 ? 0 : size >= 1 ? 1 : 2).replace("-", "−");
  return /^−?0\.00$/.test(text) ? "0" : text.replace("0.", ".");
}

/** Return the strength of a value's color in percent, with its sign. */
function strengthOf(value, scale) {
  const share = scale > 0 ? Math.min(1, Math.abs(value) / scale) : 0;
  return Math.round(share ** 0.75 * STRONGEST) * (value < 0 ? -1 : 1);
}

/** Return the color of a strength, as a style. */
const colorOf = (strength) => strength ? `color-mix(in oklab, var(--${strength < 0 ? "neg" : "pos"}) ${Math.abs(strength)}%, var(--cell))` : "var(--cell)";

/** Color an element, unless it has this color already. */
function shade(element, value, scale) {
  const strength = strengthOf(value, scale);
  if (element.strength === strength) return;
  element.strength = strength;
  element.style.fill = colorOf(strength);
}

function arrow(bits) {
  let path = "";
  const several = (bits & (bits - 1)) !== 0;
  const size = several ? 11 : 14;
  for (let a = 0; a < MOVES.length; a++) {
    if (!(bits & (1 << a))) continue;
    const [dr, dc] = MOVES[a];
    if (!dr && !dc) {
      path += "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0";
      continue;
    }
    const n = Math.hypot(dr, dc);
    const [x, y] = [dc / n, dr / n];
    const from = several ? 0 : -size * 0.75;
    const tip = [x * size * 0.75, y * size * 0.75];
    const left = [tip[0] - 5 * x - 4 * y, tip[1] - 5 * y + 4 * x];
    const right = [tip[0] - 5 * x + 4 * y, tip[1] - 5 * y - 4 * x];
    path += `M${from * x} ${from * y}L${tip[0]} ${tip[1]}M${left[0]} ${left[1]}L${tip[0]} ${tip[1]}L${right[0]} ${right[1]}`;
  }
  return path;
}

/** The colors of a large grid on a canvas with one pixel per cell: styling ten thousand elements is too slow. */
class Pixels {
  constructor() {
    this.canvas = h("canvas", { className: "pixels", "aria-hidden": "true" });
    this.probe = h("span", { className: "probe", hidden: true });
    this.palettes = new Map();
  }

  /** Resize for the colors of this many cells. */
  resize(columns, rows) {
    Object.assign(this.canvas, { width: columns, height: rows });
    this.image = new ImageData(columns, rows);
    this.colors = new Uint32Array(this.image.data.buffer);
  }

  /** Return the colors of all strengths in the present theme, as pixels. */
  get palette() {
    const theme = getComputedStyle(this.probe).backgroundColor;
    if (!this.palettes.has(theme)) {
      const count = 2 * STRONGEST + 1;
      const context = new OffscreenCanvas(count, 1).getContext("2d");
      for (let i = 0; i < count; i++) {
        this.probe.style.color = colorOf(i - STRONGEST);
        context.fillStyle = getComputedStyle(this.probe).color;
        context.fillRect(i, 0, 1, 1);
      }
      this.palettes.set(theme, new Uint32Array(context.getImageData(0, 0, count, 1).data.buffer));
    }
    return this.palettes.get(theme);
  }

  /** Color each cell by the number that a function returns for its state. */
  show(numberOf, scale) {
    const { palette, colors } = this;
    for (let i = 0; i < colors.length; i++) colors[i] = palette[strengthOf(numberOf(i), scale) + STRONGEST];
    this.canvas.getContext("2d").putImageData(this.image, 0, 0);
  }
}

/** Return the number that colors a state of a frame: its value, visits or error. */
function paintedOf({ values, visits, exact, view }, state) {
  if (view === "visits") return visits?.[state] ?? 0;
  return view === "error" ? -Math.abs(exact ? values[state] - exact[state] : 0) : values[state];
}

/** Return whether a cell has a value that the agent learns. */
const isKnown = ({ kind }) => kind !== "wall" && kind !== "end" && kind !== "cliff";

export class GridView {
  /** act(state, first): a cell was clicked or chosen by a key (first), or the pointer was dragged over it. */
  constructor(label, act) {
    this.label = label;
    this.act = act;
    this.cells = [];
    this.focused = 0;
    this.svg = s("svg", { class: "world", role: "grid", "aria-label": label });
    this.pixels = new Pixels();
    this.element = h("div", { className: "world-box" }, this.pixels.canvas, this.pixels.probe, this.svg);
    const recolor = () => this.plain && this.shown && this.color();
    this.themes = new MutationObserver(recolor);
    this.themes.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    this.ended = new AbortController();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor, this.ended);
    this.svg.addEventListener("pointerdown", (event) => this.press(event));
    this.svg.addEventListener("pointermove", (event) => this.paint(event));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("focusin", (event) => this.focusOn(event.target.closest("[data-state]")));
    addEventListener("pointerup", () => (this.painting = null), this.ended);
  }

  /** Stop listening to the window, which would keep this grid in memory. */
  close() {
    this.ended.abort();
    this.themes.disconnect();
  }

  /** Draw the cells of a world; `show` adds their numbers. */
  draw(world, held = null) {
    const rows = world.cells.length;
    const columns = world.cells[0].length;
    this.world = world;
    this.columns = columns;
    this.plain = rows * columns > MANY;
    const windy = !this.plain && world.rules.wind.some((strength) => strength !== 0);
    this.shown = null;
    this.element.classList.toggle("plain", this.plain);
    if (this.plain) this.pixels.resize(columns, rows);
    const margin = this.plain ? 0 : 1; // the canvas has no margin
    this.svg.setAttribute("viewBox", `${-margin} ${-margin} ${columns * SIDE + 2 * margin} ${rows * SIDE + 2 * margin + (windy ? 22 : 0)}`);
    this.svg.style.maxWidth = `${Math.max(260, Math.min(760, columns * 84))}px`;
    this.svg.setAttribute("aria-rowcount", rows);
    this.svg.setAttribute("aria-colcount", columns);
    this.cells = [];
    const lines = world.cells.map((row, r) => s("g", { role: "row" }, row.map((token, c) => this.cell(world, token, r, c, held))));
    const wind = windy ? world.rules.wind.map((strength, c) =>
      s("text", { class: "wind", x: (c + 0.5) * SIDE, y: rows * SIDE + 17 }, strength ? `${strength}↑` : "")) : [];
    this.agent = s("circle", { class: "agent", r: SIDE * 0.13, visibility: "hidden" });
    this.svg.replaceChildren(...lines, ...wind, this.agent);
    this.focused = Math.min(this.focused, this.cells.length - 1);
    this.cells[this.focused]?.group.setAttribute("tabindex", "0");
  }

  cell(world, token, r, c, held) {
    const state = this.cells.length;
    const kind = kindOf(token);
    const reward = rewardOf(world, token);
    const tint = kind === "end" ? (reward > 0 ? " gain" : reward < 0 ? " loss" : " blank") : "";
    const group = s("g", {
      class: `cell ${kind}${tint}${held === state ? " held" : ""}`, role: "gridcell", "data-state": state, tabindex: "-1",
      transform: `translate(${c * SIDE} ${r * SIDE})`, "aria-rowindex": r + 1, "aria-colindex": c + 1,
    });
    const base = s("rect", { class: "base", width: SIDE, height: SIDE });
    group.append(base);
    const cell = { group, base, kind, token, row: r, column: c, reward };
    if (!this.plain && (kind === "floor" || kind === "start" || kind === "bonus" || kind === "jump")) {
      cell.triangles = TRIANGLES.map(([x1, y1, x2, y2]) => s("path", { class: "triangle", d: `M${SIDE / 2} ${SIDE / 2}L${x1 * SIDE} ${y1 * SIDE}L${x2 * SIDE} ${y2 * SIDE}Z` }));
      cell.numbers = PLACES.map(([x, y, side]) => s("text", { class: `q ${side}`, x: x * SIDE, y: y * SIDE }));
      cell.value = s("text", { class: "value", x: SIDE / 2, y: SIDE * 0.36 });
      cell.arrow = s("path", { class: "arrow", transform: `translate(${SIDE / 2} ${SIDE * 0.68})` });
      cell.exact = s("text", { class: "exact", x: SIDE / 2, y: SIDE * 0.54 });
      group.append(...cell.triangles, ...cell.numbers, cell.value, cell.exact, cell.arrow);
    }
    const sign = kind === "start" ? "S" : kind === "jump" ? token : "";
    if (sign && !this.plain) group.append(s("text", { class: "sign", x: 9, y: SIDE - 6 }, sign));
    if (reward !== null && !this.plain) {
      const corner = kind === "bonus";
      group.append(s("text", { class: corner ? "reward corner" : "reward", x: corner ? SIDE - 5 : SIDE / 2, y: corner ? 14 : SIDE / 2 + 5 }, `${reward > 0 ? "+" : ""}${short(reward)}`));
    }
    if (kind === "cliff" && !this.plain) group.append(s("path", { class: "hatch", d: `M0 ${SIDE}L${SIDE} 0M0 ${SIDE / 2}L${SIDE / 2} 0M${SIDE / 2} ${SIDE}L${SIDE} ${SIDE / 2}` }));
    group.append(s("rect", { class: "frame", x: 1.5, y: 1.5, width: SIDE - 3, height: SIDE - 3, rx: 3 }));
    this.cells.push(cell);
    return group;
  }

  /**
   * Show numbers: `values`, `q`, `policy`, `visits`, `exact` of one frame, each per state; `view` selects what is colored,
   * `scale` is the value of the strongest color, `place` the state of the agent.
   */
  show(frame) {
    this.shown = frame;
    this.svg.dataset.view = frame.view;
    if (this.plain) this.color();
    else this.cells.forEach((cell, state) => this.fill(cell, state));
    const there = this.cells[frame.place];
    this.agent.setAttribute("visibility", there ? "visible" : "hidden");
    if (there) {
      this.agent.setAttribute("cx", (there.column + 0.82) * SIDE);
      this.agent.setAttribute("cy", (there.row + 0.82) * SIDE);
    }
    this.describe(this.focused);
  }

  /** Color the cells of a large grid. */
  color() {
    this.pixels.show((state) => paintedOf(this.shown, state), this.shown.scale);
  }

  /** Show the numbers of the frame in a cell. */
  fill(cell, state) {
    const { values, q, policy, visits, exact, view, scale, actions, overlay } = this.shown;
    this.note(cell, state);
    if (!isKnown(cell)) return;
    const triangular = view === "q" && q && actions === 4;
    shade(cell.base, triangular ? 0 : paintedOf(this.shown, state), scale);
    for (let a = 0; a < 4; a++) {
      const number = triangular ? q[state * actions + a] : 0;
      cell.triangles[a].style.display = triangular ? "" : "none";
      cell.numbers[a].textContent = triangular ? tight(number) : "";
      cell.numbers[a].classList.toggle("best", Boolean(policy[state] & (1 << a)));
      if (triangular) shade(cell.triangles[a], number, scale);
    }
    const error = exact ? Math.abs(values[state] - exact[state]) : 0;
    const main = view === "visits" ? String(visits?.[state] ?? "") : view === "error" ? short(error, 2) : cellNumber(values[state]);
    cell.value.textContent = triangular ? "" : main;
    const small = overlay && exact && view === "values";
    cell.exact.textContent = small && !triangular ? cellNumber(exact[state]) : "";
    cell.value.setAttribute("y", SIDE * (small ? 0.32 : 0.36));
    cell.arrow.setAttribute("d", triangular ? "" : arrow(policy[state]));
    cell.arrow.setAttribute("transform", `translate(${SIDE / 2} ${SIDE * (small ? 0.78 : 0.7)})`);
  }

  /** Write the numbers of the frame into the attributes of a cell. */
  note(cell, state) {
    const { values, exact, policy } = this.shown;
    if (cell.number !== values[state]) cell.group.dataset.value = cell.number = values[state];
    if (exact && cell.solution !== exact[state]) cell.group.dataset.exact = cell.solution = exact[state];
    if (isKnown(cell)) cell.best = policy[state];
  }

  /** Set the description of every cell for screen readers; only the focused cell changes while frames play. */
  describeAll() {
    this.cells.forEach((_, state) => this.describe(state));
  }

  describe(state) {
    const cell = this.cells[state];
    if (!cell) return;
    if (this.shown) this.note(cell, state);
    const what = { wall: "wall", start: "start", end: `end, reward ${cell.reward}`, cliff: `cliff, reward ${cell.reward}`, bonus: `pays ${cell.reward}`, jump: `jump ${cell.token}`, floor: "" }[cell.kind];
    const best = cell.best ? `best action ${actionNames(cell.best).join(" or ")}` : "";
    const value = cell.kind === "wall" || cell.group.dataset.value === undefined ? "" : `value ${short(Number(cell.group.dataset.value))}`;
    cell.group.setAttribute("aria-label", [`row ${cell.row + 1} column ${cell.column + 1}`, what, value, best].filter(Boolean).join(", "));
  }

  stateAt(event) {
    const group = document.elementFromPoint(event.clientX, event.clientY)?.closest?.(".cell");
    return group && this.svg.contains(group) ? Number(group.dataset.state) : null;
  }

  press(event) {
    const state = this.stateAt(event);
    if (state === null || event.button) return;
    this.painting = state;
    this.act(state, true);
  }

  paint(event) {
    if (this.painting === null || this.painting === undefined || !event.buttons) return;
    const state = this.stateAt(event);
    if (state === null || state === this.painting) return;
    this.painting = state;
    this.act(state, false);
  }

  focusOn(group) {
    if (!group) return;
    this.cells[this.focused]?.group.setAttribute("tabindex", "-1");
    this.focused = Number(group.dataset.state);
    group.setAttribute("tabindex", "0");
    this.describe(this.focused);
  }

  key(event) {
    const steps = { ArrowUp: -this.columns, ArrowDown: this.columns, ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in steps) {
      const next = this.focused + steps[event.key];
      const sideways = Math.abs(steps[event.key]) === 1;
      if (this.cells[next] && (!sideways || this.cells[next].row === this.cells[this.focused].row)) this.cells[next].group.focus();
    } else if (event.key === "Enter" || event.key === " ") this.act(this.focused, true);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
