// The playground: paint a world, watch algorithms solve it or learn it, next to the exact solution.

import { NAMES, PARAMETERS, STRIDES } from "./algorithms.js";
import { Chart, nearest } from "./chart.js";
import { addressOf, announce, call, copy, debounced, documentation, fragment, h, isForPage, save, setFragment, whole } from "./dom.js";
import { editor } from "./editor.js";
import { Panel } from "./panel.js";
import { copyOf, decoded, drawingOf, encoded, kindOf, rewardOf, withoutLooseEnds, worldOf } from "./world.js";

const SPEEDS = [1, 2, 5, 10, 20, 40, 80];
const VIEWS = [["values", "Values"], ["q", "Q"], ["visits", "Visits"], ["error", "Error"]];
const KEYS = [
  ["Space", "play or pause"], [". ,", "next, previous frame"], ["Shift > <", "ten frames forward, back"], ["Home End", "first, last frame"],
  ["[ ]", "slower, faster"], ["v", "next view"], ["o", "exact values on or off"], ["Ctrl z", "undo an edit"], ["Ctrl Shift z", "redo"],
  ["← ↑ ↓ →", "move between cells"], ["Enter", "use the tool on the cell"],
];

class Playground {
  constructor(root, presets) {
    this.presets = presets;
    this.root = root;
    this.undone = [];
    this.edits = [];
    this.held = null;
    this.playing = 0;
    this.panels = [];
    this.read();
    this.build();
    addEventListener("popstate", () => this.reread());
    document.addEventListener("keydown", (event) => this.key(event));
  }

  /** Read the state from the address. */
  read() {
    const given = fragment();
    const preset = this.presets.find((one) => one.name === given.get("world")) ?? this.presets[0];
    const own = given.has("grid") ? decoded(given.get("grid")) : null;
    const number = (name, usual) => {
      const value = Number(given.get(name) ?? NaN);
      return given.has(name) && Number.isFinite(value) ? value : usual;
    };
    const among = (name, names, usual) => (names.includes(given.get(name)) ? given.get(name) : usual);
    this.state = {
      preset: preset.name, own: own !== null,
      a: among("a", [...NAMES.keys()], "policy-iteration"), b: among("b", [...NAMES.keys()], null),
      seed: number("seed", 0), stride: number("stride", 100), view: among("view", VIEWS.map(([name]) => name), "values"), overlay: given.get("exact") !== "0" && given.has("exact"),
      frame: Math.max(0, Math.floor(number("frame", 0))), speed: Number(among("speed", SPEEDS.map(String), 5)),
    };
    const unknown = ["a", "b"].map((slot) => given.get(slot)).filter((name) => name && !NAMES.has(name));
    this.fault = [...unknown.map((name) => `There is no algorithm ${name}.`), given.has("grid") && !own ? "The world in the address is incomplete, so another one is shown." : ""].join(" ").trim();
    for (const [name, knob] of Object.entries(PARAMETERS)) this.state[name] = number(knob.letter, name === "gamma" ? preset.gamma : knob.usual);
    this.world = own ?? worldOf(preset);
  }

  reread() {
    const text = this.parameters().toString();
    if (location.hash.slice(1) === text) return;
    this.read();
    this.held = null;
    this.build();
  }

  parameters() {
    const { state } = this;
    const preset = this.preset();
    const found = new URLSearchParams();
    found.set("v", "1");
    found.set("world", state.preset);
    if (state.own) found.set("grid", encoded(this.world));
    for (const [name, knob] of Object.entries(PARAMETERS)) {
      if (state[name] !== (name === "gamma" ? preset.gamma : knob.usual)) found.set(knob.letter, state[name]);
    }
    found.set("a", state.a);
    if (state.b) found.set("b", state.b);
    for (const [name, usual] of [["seed", 0], ["stride", 100], ["view", "values"], ["speed", 5], ["frame", 0]]) {
      if (state[name] !== usual) found.set(name, state[name]);
    }
    if (state.overlay) found.set("exact", "1");
    return found;
  }

  preset() {
    return this.presets.find((one) => one.name === this.state.preset);
  }

  remember(push = false) {
    setFragment(this.parameters(), push);
  }

  build() {
    const { state } = this;
    const focused = document.activeElement?.id;
    this.pause();
    this.act = this.act.bind(this);
    for (const panel of this.panels) panel.grid.close();
    this.panels = [new Panel(this, "a", state.a), ...(state.b ? [new Panel(this, "b", state.b)] : [])];
    this.errors = new Chart({ title: "Distance to the exact solution", xLabel: "", log: true, onpick: (x) => this.pick(x) });
    this.course = new Chart({ title: "Return of episodes", xLabel: "environment steps", sparse: true, onpick: (x) => this.pick(x), empty: "no episode has ended" });
    this.editor = editor(this);
    const compare = h("button", { type: "button", className: "quiet", onclick: () => this.choose("b", state.a === "q-learning" ? "sarsa" : "q-learning") }, "Compare with another");
    this.root.replaceChildren(
      h("div", { className: "playground" },
        h("aside", { className: "side" }, this.editor.element, this.knobs(), h("p", { className: "hint" }, documentation("web#playground", "Documentation of this page", { how: true }))),
        h("div", { className: `stage ${state.b ? "two" : "one"}` },
          h("div", { className: "panels" }, this.panels.map((panel) => panel.element)),
          this.transport(),
          h("div", { className: "charts" }, this.errors.element, this.course.element),
          state.b ? null : h("p", { className: "compare" }, compare, h("span", { className: "hint" }, " on the same world, with the same seed")))));
    if (focused) document.getElementById(focused)?.focus();
    this.drawWorld();
    this.compute();
  }

  knobs() {
    const { state } = this;
    const used = new Set(this.panels.flatMap((panel) => [...panel.knobs()]));
    const sliders = Object.entries(PARAMETERS).filter(([name]) => name === "gamma" || used.has(name)).map(([name, knob]) => {
      const output = h("input", { type: "number", min: knob.low, max: knob.high, step: "any", value: state[name], "aria-label": `${knob.label}, number` });
      const slider = h("input", { type: "range", min: knob.low, max: knob.high, step: knob.step, value: state[name], "aria-label": knob.label, id: `knob-${name}` });
      const take = (value, push) => {
        if (!Number.isFinite(value) || value < knob.low || value > knob.high) return;
        state[name] = value;
        slider.value = value;
        output.value = value;
        this.remember(push);
        this.compute();
      };
      slider.addEventListener("input", () => take(Number(slider.value), false));
      output.addEventListener("change", () => take(Number(output.value), true));
      return h("div", { className: "knob" }, h("label", { htmlFor: `knob-${name}` }, knob.label), output, slider);
    });
    const seed = h("input", { type: "number", min: 0, step: 1, value: state.seed, id: "knob-seed", onchange: () => {
      state.seed = Math.max(0, Math.floor(Number(seed.value) || 0));
      seed.value = state.seed;
      this.remember(true);
      this.compute();
    } });
    const dice = h("button", { type: "button", className: "quiet small", title: "Another seed", "aria-label": "Another seed", onclick: () => {
      seed.value = state.seed + 1;
      seed.dispatchEvent(new Event("change"));
    } }, "Next");
    const stride = h("select", { id: "knob-stride", onchange: () => {
      state.stride = Number(stride.value);
      state.frame = 0;
      this.remember(true);
      this.compute();
    } }, STRIDES.map((n) => h("option", { value: n, selected: n === state.stride }, n === 1 ? "1 step" : `${whole(n)} steps`)));
    return h("section", { className: "card", "aria-label": "Parameters" }, h("h2", {}, "Parameters"), sliders,
      used.has("stride") ? h("div", { className: "knob pair" }, h("label", { htmlFor: "knob-stride" }, "A frame is"), stride) : null,
      used.has("seed") ? h("div", { className: "knob pair" }, h("label", { htmlFor: "knob-seed" }, "Seed"), seed, dice) : null);
  }

  transport() {
    const { state } = this;
    const button = (label, text, action) => h("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
    this.playButton = button("Play", "▶", () => this.toggle());
    this.playButton.classList.add("main");
    this.scrub = h("input", { type: "range", min: 0, max: 0, value: 0, step: 1, "aria-label": "Frame", className: "scrub", oninput: () => this.go(Number(this.scrub.value)) });
    this.position = h("output", { className: "position" }, "");
    this.speed = h("select", { "aria-label": "Speed", onchange: () => {
      state.speed = Number(this.speed.value);
      this.remember();
      if (this.playing) this.play();
    } }, SPEEDS.map((n) => h("option", { value: n, selected: n === state.speed }, `${n} / s`)));
    this.views = h("div", { className: "segments", role: "radiogroup", "aria-label": "Shown in cells" }, VIEWS.map(([name, title]) =>
      h("button", { type: "button", role: "radio", "aria-checked": String(state.view === name), "data-view": name, onclick: () => this.see(name) }, title)));
    this.overlay = h("input", { type: "checkbox", checked: state.overlay, onchange: () => {
      state.overlay = this.overlay.checked;
      this.remember();
      this.refresh();
    } });
    return h("div", { className: "transport" },
      h("div", { className: "buttons" }, button("First frame", "|‹", () => this.go(0)), button("One back", "‹", () => this.step(-1)), this.playButton,
        button("One on", "›", () => this.step(1)), button("Last frame", "›|", () => this.go(this.last))),
      h("div", { className: "track" }, this.scrub, this.position),
      h("div", { className: "looks" }, this.views, h("label", { className: "check" }, this.overlay, "Exact values"), this.speed));
  }

  see(view) {
    this.state.view = view;
    for (const button of this.views.children) button.setAttribute("aria-checked", String(button.dataset.view === view));
    this.remember();
    this.refresh();
  }

  get last() {
    return Math.max(0, ...this.panels.map((panel) => panel.frames - 1));
  }

  drawWorld() {
    for (const panel of this.panels) panel.grid.draw(this.world, this.held);
  }

  /** Show the changed world immediately, and request its numbers; a pushed change is undone on its own. */
  edited(next, push = true) {
    if (push) this.edits.push(copyOf(this.world));
    if (this.edits.length > 200) this.edits.shift();
    this.undone = [];
    this.replace(next, push);
  }

  replace(next, push = true) {
    this.world = next;
    this.held = null;
    this.state.own = true;
    this.drawWorld();
    this.refresh();
    this.editor.refresh();
    this.remember(push);
    this.computeSoon ??= debounced(() => this.compute(), 120);
    this.computeSoon();
  }

  undo(from, to) {
    const next = from.pop();
    if (!next) return;
    to.push(copyOf(this.world));
    this.replace(next);
    announce("undone");
  }

  /** Handle a cell that was clicked, painted or chosen by a key. */
  act(cell, first) {
    const columns = this.world.cells[0].length;
    const [r, c] = [Math.floor(cell / columns), cell % columns];
    this.fresh ||= first;
    const token = this.world.cells[r][c];
    const tool = this.editor.tool();
    if (tool === "move") {
      if (first) this.move(cell, r, c, token);
      return;
    }
    const painted = this.editor.token(first, token);
    if (painted === null || painted === token) return;
    const next = copyOf(this.world);
    if (painted === "S" && this.world.cells.flat().includes("C")) next.cells = next.cells.map((row) => row.map((one) => (one === "S" ? "." : one)));
    next.cells[r][c] = painted;
    this.edited(withoutLooseEnds(next), this.fresh); // a stroke is one change
    this.fresh = false;
  }

  /** Pick up the content of a cell, or put it down. */
  move(cell, r, c, token) {
    if (this.held === null) {
      if (kindOf(token) === "floor") return;
      this.held = cell;
      announce("picked up; choose a cell to put it down");
      this.drawWorld();
      this.refresh();
      return;
    }
    const columns = this.world.cells[0].length;
    const [fromR, fromC] = [Math.floor(this.held / columns), this.held % columns];
    this.held = null;
    if (fromR === r && fromC === c) {
      this.drawWorld();
      this.refresh();
      return;
    }
    const next = copyOf(this.world);
    [next.cells[r][c], next.cells[fromR][fromC]] = [next.cells[fromR][fromC], next.cells[r][c]];
    this.edited(next);
    announce(`put down at row ${r + 1} column ${c + 1}`);
  }

  choose(slot, algorithm) {
    this.state[slot] = algorithm;
    this.state.frame = 0;
    this.remember(true);
    this.build();
  }

  usePreset(name) {
    this.state.preset = name;
    this.state.own = false;
    this.state.frame = 0;
    this.held = null;
    [this.edits, this.undone] = [[], []];
    this.world = worldOf(this.preset());
    this.state.gamma = this.preset().gamma;
    this.remember(true);
    this.build();
  }

  compute() {
    const drawing = drawingOf(this.world);
    for (const panel of this.panels) panel.compute(drawing);
  }

  /** Handle new frames of a panel. */
  computed() {
    if (this.panels.some((panel) => panel.busy)) return;
    this.scrub.max = this.last;
    if (this.state.frame > this.last) this.state.frame = this.last;
    const visited = this.panels.some((panel) => panel.data?.visits);
    this.views.querySelector('[data-view="visits"]').disabled = !visited;
    this.plot();
    this.refresh();
    this.root.dataset.ready = String(Number(this.root.dataset.ready ?? 0) + 1);
  }

  plot() {
    const shown = this.panels.filter((panel) => panel.data);
    const units = new Set(shown.map((panel) => panel.data.unit));
    this.byFrame = units.size > 1;
    this.errors.options.xLabel = this.byFrame ? "frames" : [...units][0] ?? "";
    const series = [];
    for (const panel of shown) {
      const color = panel.slot === "a" ? 1 : 2;
      const x = this.byFrame ? panel.data.ticks.map((_, i) => i) : panel.data.ticks;
      series.push({ name: panel.name, color, x, y: panel.data.errors });
      if (panel.data.bounds.some((bound) => bound !== null)) series.push({ name: `${panel.name}, certified`, color, x, y: panel.data.bounds, dashed: true });
    }
    this.errors.show(series);
    const learners = shown.filter((panel) => panel.data.returns);
    this.course.element.hidden = !learners.length;
    this.course.show(learners.map((panel) => ({ name: panel.name, color: panel.slot === "a" ? 1 : 2, x: panel.data.ticks, y: panel.data.returns })));
    this.errors.element.classList.toggle("wide", !learners.length);
  }

  /** Go to the frame of an x in a chart. */
  pick(x) {
    const longest = this.panels.filter((panel) => panel.data).sort((a, b) => b.frames - a.frames)[0];
    if (longest) this.go(this.byFrame ? Math.round(x) : nearest(longest.data.ticks, x));
  }

  refresh() {
    const { frame } = this.state;
    for (const panel of this.panels) if (panel.data && panel.data.states === this.world.cells.flat().length) panel.show(frame, this.playing);
    this.scrub.value = frame;
    this.scrub.setAttribute("aria-valuetext", `frame ${frame} of ${this.last}`);
    this.position.textContent = `${frame} / ${this.last}`;
    const longest = this.panels.filter((panel) => panel.data).sort((a, b) => b.frames - a.frames)[0];
    if (longest) {
      const tick = longest.data.ticks[Math.min(frame, longest.frames - 1)];
      this.errors.cursor(this.byFrame ? frame : tick);
      this.course.cursor(longest.data.returns ? tick : null);
    }
  }

  go(frame) {
    this.pause();
    this.move_to(frame);
    this.remember();
  }

  move_to(frame) {
    this.state.frame = Math.max(0, Math.min(this.last, frame));
    this.refresh();
  }

  step(count) {
    this.go(this.state.frame + count);
    const panel = this.panels[0];
    if (panel.data) announce(`${panel.line.textContent}; ${panel.spoken(panel.grid.focused, this.state.frame)}`);
  }

  toggle() {
    if (this.playing) this.go(this.state.frame);
    else {
      if (this.state.frame >= this.last) this.move_to(0);
      this.play();
    }
  }

  play() {
    this.pause();
    this.playButton.textContent = "❚❚";
    this.playButton.setAttribute("aria-label", "Pause");
    let before = performance.now();
    let due = 0;
    const tick = (now) => {
      due += ((now - before) / 1000) * this.state.speed;
      before = now;
      if (due >= 1) {
        this.move_to(this.state.frame + Math.floor(due));
        due %= 1;
      }
      if (this.state.frame >= this.last) this.go(this.last);
      else this.playing = requestAnimationFrame(tick);
    };
    this.playing = requestAnimationFrame(tick);
  }

  pause() {
    cancelAnimationFrame(this.playing);
    this.playing = 0;
    if (!this.playButton) return;
    this.playButton.textContent = "▶";
    this.playButton.setAttribute("aria-label", "Play");
  }

  key(event) {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && !event.target.closest?.("input, textarea")) {
      event.preventDefault();
      if (event.shiftKey) this.undo(this.undone, this.edits);
      else this.undo(this.edits, this.undone);
      return;
    }
    if (!isForPage(event)) return;
    const views = VIEWS.map(([name]) => name).filter((name) => name !== "visits" || this.panels.some((panel) => panel.data?.visits));
    const actions = {
      " ": () => this.toggle(), ".": () => this.step(1), ",": () => this.step(-1), ">": () => this.step(10), "<": () => this.step(-10),
      Home: () => this.go(0), End: () => this.go(this.last), v: () => this.see(views[(views.indexOf(this.state.view) + 1) % views.length]),
      o: () => this.overlay.click(), "[": () => this.faster(-1), "]": () => this.faster(1),
      Escape: () => { this.held = null; this.drawWorld(); this.refresh(); },
    };
    if (!(event.key in actions) || (event.key === " " && event.target.closest?.("button, summary, a"))) return;
    event.preventDefault();
    actions[event.key]();
  }

  faster(by) {
    const place = SPEEDS.indexOf(this.state.speed);
    this.state.speed = SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, (place < 0 ? 2 : place) + by))];
    this.speed.value = this.state.speed;
    this.remember();
  }

  async exportModel() {
    const { text } = await call("playground/export", { drawing: drawingOf(this.world) });
    save("world.json", text, "application/json");
  }

  exportDrawing() {
    save("world.txt", drawingOf(this.world));
  }

  async open(file) {
    const answer = await call("playground/read", { drawing: await file.text() });
    this.edited(worldOf(answer));
  }

  async share() {
    this.remember();
    await copy(location.origin + addressOf(this.parameters()));
  }

  reward(token) {
    return rewardOf(this.world, token);
  }
}

export async function show(root) {
  const presets = await call("playground/presets");
  const page = new Playground(root, presets);
  root.page = page;
  return KEYS;
}
