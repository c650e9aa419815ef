// Explorables: equations to turn knobs on. Every curve comes from operant.ops on the server; nothing is computed here.

import { Chart } from "./chart.js";
import { call, commandLine, debounced, documentation, fragment, h, put, setFragment, short } from "./dom.js";

const WAIT_MILLISECONDS = 40;

class Explorable {
  constructor(about, given, onchange) {
    this.about = about;
    this.onchange = onchange;
    this.values = Object.fromEntries(about.knobs.map((knob) => {
      const text = given.get(`${about.name}.${knob.name}`);
      const value = Number(text);
      return [knob.name, text !== null && value >= knob.least && value <= knob.most ? value : knob.value];
    }));
    this.chart = new Chart({ title: about.title, xLabel: about.xLabel, height: 280 });
    this.facts = h("dl", { className: "facts" });
    this.problem = h("p", { className: "notice bad", role: "alert", hidden: true });
    this.code = commandLine("The same in Python");
    this.ask = debounced(() => this.draw(), WAIT_MILLISECONDS);
    this.element = h("section", { className: "card explorable", id: about.name, "aria-label": about.title },
      h("h2", {}, about.title), h("p", { className: "hint" }, about.idea, " ", documentation(about.page, "Documentation")),
      h("div", { className: "knobs" }, about.knobs.map((knob) => this.knob(knob))), this.problem, this.chart.element, this.facts, this.code);
  }

  knob({ name, title, least, most, step }) {
    const id = `${this.about.name}-${name}`;
    const inputs = ["range", "number"].map((type) => h("input", { type, min: least, max: most, step, value: this.values[name], ...(type === "range" ? { id } : { "aria-label": `${title}, as a number` }), oninput: (event) => {
      if (event.target.value === "" || !event.target.checkValidity()) return;
      this.values[name] = Number(event.target.value);
      for (const other of inputs) if (other !== event.target) other.value = event.target.value;
      this.ask();
    } }));
    return h("div", { className: "knob" }, h("label", { htmlFor: id }, title), inputs[1], inputs[0]);
  }

  /** What differs from the beginning. */
  get changed() {
    return this.about.knobs.filter(({ name, value }) => this.values[name] !== value).map(({ name }) => [`${this.about.name}.${name}`, this.values[name]]);
  }

  async draw() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    try {
      const { curves, facts, code } = await call("explorables/draw", { explorable: this.about.name, values: this.values });
      if (turn !== this.turn) return;
      this.problem.hidden = true;
      this.chart.show(curves.map((curve, i) => ({ ...curve, color: (i % 6) + 1, dashed: i > 2 })));
      put(this.facts, Object.entries(facts).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", { "data-name": name, "data-value": String(value) }, short(value, 5)))));
      this.code.show(code);
      this.onchange();
    } catch (error) {
      this.problem.textContent = error.message;
      this.problem.hidden = false;
    }
  }
}

export async function show(root) {
  const { explorables } = await call("explorables/index");
  const given = fragment();
  const remember = () => setFragment(new URLSearchParams(shown.flatMap((one) => one.changed)));
  const shown = explorables.map((about) => new Explorable(about, given, remember));
  put(root, h("p", { className: "hint" }, documentation("web#explorables", "Documentation of this page")), h("div", { className: "explorables" }, shown.map((one) => one.element)));
  await Promise.all(shown.map((one) => one.draw()));
  addEventListener("hashchange", () => location.reload());
  root.dataset.ready = "1";
  return [["Tab", "next knob"], ["← →", "turn it"]];
}
