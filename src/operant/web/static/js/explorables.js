// Explorables: interactive equations. The library on the server computes every curve, and this page none.

import { Bars } from "./bars.js";
import { BatchPicker } from "./batches.js";
import { Chart } from "./chart.js";
import { call, commandLine, debounced, documentation, fragment, h, isUsable, put, setFragment, short } from "./dom.js";

const WAIT_MILLISECONDS = 40;

class Explorable {
  constructor(about, given, onchange) {
    this.about = about;
    this.onchange = onchange;
    this.batch = null;
    this.values = Object.fromEntries(about.knobs.map((knob) => {
      const text = given.get(`${about.name}.${knob.name}`);
      const value = Number(text);
      return [knob.name, text !== null && value >= knob.least && value <= knob.most ? value : knob.value];
    }));
    this.ask = debounced(() => this.draw(), WAIT_MILLISECONDS);
    const bars = about.kind === "bars";
    const options = { title: about.title, xLabel: about.xLabel, height: 280, logX: about.logX && given.get(`${about.name}.x`) === "log" };
    this.chart = bars ? new Bars({ ...options, ondrag: (name, levels) => this.drag(name, levels) }) : new Chart(options);
    this.facts = h("dl", { className: "facts" });
    this.problem = h("p", { className: "notice bad", role: "alert", hidden: true });
    this.code = commandLine("The same in Python");
    this.element = h("section", { className: "card explorable", id: about.name, "aria-label": about.title },
      h("h2", {}, about.title), h("p", { className: "hint" }, about.idea, " ", documentation(about.page, "Documentation")),
      bars ? null : h("div", { className: "knobs" }, about.knobs.map((knob) => this.knob(knob))), about.logX ? this.axis() : null, this.problem, this.chart.element, this.facts, this.code);
  }

  knob({ name, title, least, most, step }) {
    const id = `${this.about.name}-${name}`;
    const inputs = ["range", "number"].map((type) => h("input", { type, min: least, max: most, step, value: this.values[name], ...(type === "range" ? { id } : { "aria-label": `${title}, as a number` }), oninput: (event) => {
      if (!isUsable(event.target)) return;
      this.values[name] = Number(event.target.value);
      for (const other of inputs) if (other !== event.target) other.value = event.target.value;
      this.ask();
    } }));
    return h("div", { className: "knob" }, h("label", { htmlFor: id }, title), inputs[1], inputs[0]);
  }

  axis() {
    const box = h("input", { type: "checkbox", checked: this.chart.options.logX, onchange: () => {
      this.chart.options.logX = box.checked;
      this.chart.draw();
      this.onchange();
    } });
    return h("label", { className: "check" }, box, "Logarithmic axis");
  }

  /** Set the levels of bars immediately: the server returns the same levels, and the curves that depend on them. */
  drag(name, levels) {
    levels.forEach((level, i) => (this.values[`${name}${i + 1}`] = Number(level.toFixed(4))));
    this.chart.show(this.chart.series.map((one) => (one.name === name ? { ...one, y: levels } : one)));
    this.ask();
  }

  /** Show a batch of a run, or none (null). */
  take(batch) {
    const { batch: names } = this.about;
    const found = [batch, batch?.rollout].find((one) => one && names.length && names.every((name) => name in one));
    if (!found && !this.batch) return null;
    this.batch = found ? Object.fromEntries(names.map((name) => [name, found[name].map((one) => (typeof one === "boolean" ? Number(one) : one))])) : null;
    return this.draw();
  }

  /** Return the values that differ from the defaults. */
  get changed() {
    const turned = this.about.knobs.filter(({ name, value }) => this.values[name] !== value).map(({ name }) => [`${this.about.name}.${name}`, this.values[name]]);
    return this.chart.options.logX ? [...turned, [`${this.about.name}.x`, "log"]] : turned;
  }

  async draw() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    try {
      const { curves, dots, facts, code } = await call("explorables/draw", { explorable: this.about.name, values: this.values, batch: this.batch });
      if (turn !== this.turn) return;
      this.problem.hidden = true;
      this.chart.show([...curves.map((curve, i) => ({ ...curve, color: (i % 6) + 1, dashed: i > 2 })), ...dots.map((one, i) => ({ ...one, color: i + 1, dots: true }))]);
      put(this.facts, Object.entries(facts).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", { "data-name": name, "data-value": String(value) }, short(value, 5)))));
      this.code.show(code);
      this.onchange();
    } catch (error) {
      if (turn !== this.turn) return;
      this.problem.textContent = error.message;
      this.problem.hidden = false;
    }
  }
}

export async function show(root) {
  const [{ explorables }, { runs }] = await Promise.all([call("explorables/index"), call("runs/batches")]);
  const given = fragment();
  const remember = () => setFragment(new URLSearchParams([...picker.changed, ...shown.flatMap((one) => one.changed)]));
  const shown = explorables.map((about) => new Explorable(about, given, remember));
  const picker = new BatchPicker(runs, given, (batch) => {
    remember();
    return Promise.all(shown.map((one) => one.take(batch)));
  });
  put(root, h("div", { className: "bar" }, picker.element, h("p", { className: "hint" }, documentation("web#explorables", "Documentation of this page", { how: true }))),
    h("div", { className: "explorables" }, shown.map((one) => one.element)));
  await Promise.all(shown.map((one) => one.draw()));
  await picker.load();
  addEventListener("hashchange", () => location.reload());
  root.dataset.ready = "1";
  return [["Tab", "next knob"], ["← →", "turn it"], ["↑ ↓", "drag a bar"]];
}
