// Distributions as draggable bars: each bar is a slider, and the others share the rest. A table shows the same numbers.

import { h, s, short } from "./dom.js";

const PAD = { left: 34, right: 8, top: 10, bottom: 34 };
const LEAST = 0.01;
const MOST = 0.97;
const STEPS = { ArrowUp: 0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowLeft: -0.01, PageUp: 0.1, PageDown: -0.1 };

export class Bars {
  /** Options: title, xLabel, height, ondrag(name, probabilities). */
  constructor(options) {
    this.options = options;
    this.svg = s("svg", { class: "chart bars", role: "group", "aria-label": options.title });
    this.legend = h("div", { className: "legend" });
    this.table = h("table", {});
    this.element = h("figure", { className: "figure" }, h("figcaption", {}, h("strong", {}, options.title), this.legend), this.svg,
      h("details", { className: "twin" }, h("summary", {}, "Table"), h("div", { className: "scroll", tabIndex: 0 }, this.table)));
    this.svg.addEventListener("pointermove", (event) => this.held && event.buttons && this.move(this.held, this.levelAt(event)));
    this.svg.addEventListener("pointerup", () => (this.held = null));
    this.series = [];
    this.bars = [];
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  /** Show distributions: {name, color (1..6), x, y}. */
  show(series) {
    const same = series.length === this.series.length && series.every((one, i) => one.y.length === this.series[i].y.length);
    this.series = series;
    if (same && this.bars.length) this.place();
    else this.draw();
  }

  draw() {
    if (!this.series.length) return;
    const width = Math.max(240, this.element.clientWidth || 320);
    const height = Math.round(Math.min(this.options.height, width * 0.62));
    this.size = { width, height, inner: height - PAD.top - PAD.bottom };
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.style.height = `${height}px`;
    const count = this.series[0].x.length;
    const group = (width - PAD.left - PAD.right) / count;
    const thick = Math.min(44, (group * 0.76) / this.series.length);
    const rules = [0, 0.25, 0.5, 0.75, 1].map((level) => [
      s("line", { class: "rule", x1: PAD.left, x2: width - PAD.right, y1: this.y(level), y2: this.y(level) }),
      s("text", { class: "tick", x: PAD.left - 6, y: this.y(level) + 4, "text-anchor": "end" }, String(level)),
    ]);
    const labels = this.series[0].x.map((x, i) => s("text", { class: "tick", x: PAD.left + (i + 0.5) * group, y: height - 18, "text-anchor": "middle" }, short(x)));
    this.bars = this.series.flatMap((one, k) => one.x.map((x, i) => {
      const left = PAD.left + (i + 0.5) * group + (k - this.series.length / 2) * thick;
      const bar = { k, i, box: s("rect", { x: left + 1, width: thick - 2, rx: 3 }), text: s("text", { class: "tick", x: left + thick / 2, "text-anchor": "middle" }) };
      bar.element = s("g", {
        class: `bar c${one.color}`, role: "slider", tabindex: 0, "aria-label": `${one.name}, ${this.options.xLabel} ${x}`, "aria-valuemin": LEAST, "aria-valuemax": MOST,
        onkeydown: (event) => {
          if (!(event.key in STEPS)) return;
          event.preventDefault();
          event.stopPropagation();
          this.move(bar, this.series[k].y[i] + STEPS[event.key]);
        },
        onpointerdown: (event) => {
          this.held = bar;
          this.svg.setPointerCapture(event.pointerId);
          this.move(bar, this.levelAt(event));
        },
      }, s("rect", { class: "reach", x: left, width: thick, y: PAD.top, height: this.size.inner }), bar.box, bar.text);
      return bar;
    }));
    const axis = s("text", { class: "tick axis", x: width - PAD.right, y: height - 3, "text-anchor": "end" }, this.options.xLabel);
    this.svg.replaceChildren(...rules.flat(), ...labels, axis, ...this.bars.map(({ element }) => element));
    this.legend.replaceChildren(...this.series.map((one) => h("span", { className: `key c${one.color}` }, one.name)));
    this.place();
  }

  /** Set the height of every bar; the elements stay the same, and so does the focus. */
  place() {
    for (const { k, i, element, box, text } of this.bars) {
      const value = this.series[k].y[i];
      element.setAttribute("aria-valuenow", value.toFixed(3));
      box.setAttribute("y", this.y(value));
      box.setAttribute("height", Math.max(1, this.y(0) - this.y(value)));
      text.setAttribute("y", this.y(value) - 3);
      text.textContent = value.toFixed(2);
    }
    this.table.replaceChildren(
      h("thead", {}, h("tr", {}, [this.options.xLabel, ...this.series.map(({ name }) => name)].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, this.series[0].x.map((x, i) => h("tr", {}, h("th", { scope: "row" }, short(x)), this.series.map((one) => h("td", {}, short(one.y[i], 6)))))));
  }

  y(level) {
    return PAD.top + (1 - level) * this.size.inner;
  }

  levelAt(event) {
    const box = this.svg.getBoundingClientRect();
    return 1 - (((event.clientY - box.top) / box.height) * this.size.height - PAD.top) / this.size.inner;
  }

  /** Change the height of a bar; the others keep their proportions. */
  move({ k, i }, wanted) {
    const { name, y } = this.series[k];
    const level = Math.min(MOST, Math.max(LEAST, wanted));
    const rest = 1 - y[i] || 1;
    this.options.ondrag(name, y.map((value, j) => (j === i ? level : Math.max(LEAST, (value * (1 - level)) / rest))));
  }
}
