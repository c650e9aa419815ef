// Lines over an axis: linear or logarithmic, with bands, a cursor, and a table of the same numbers.

import { h, put, s, short, whole } from "./dom.js";

const PAD = { left: 46, right: 12, top: 12, bottom: 36 };
const ROUNDING = 1e-12;

/** Return the distance of two numbers; 0 if they are equal except for rounding, since no number lies between those. */
const spanOf = (low, high) => (high - low > ROUNDING * Math.max(Math.abs(low), Math.abs(high)) ? high - low : 0);

function ticksOf(low, high, count) {
  const span = spanOf(low, high);
  if (!span) return [low];
  const step = 10 ** Math.floor(Math.log10(span / count));
  const size = [1, 2, 5, 10].map((m) => m * step).find((m) => span / m <= count) ?? step * 10;
  const found = [];
  for (let at = Math.ceil(low / size) * size; at <= high + size * 1e-6; at += size) found.push(Math.abs(at) < size * 1e-9 ? 0 : at);
  return found;
}

/** Return the numbers 1, 2 and 5 of every power of ten between two numbers. */
const decades = (low, high) => Array.from({ length: Math.ceil(Math.log10(high)) - Math.floor(Math.log10(low)) + 1 }, (_, i) => 10 ** (Math.floor(Math.log10(low)) + i))
  .flatMap((power) => [power, 2 * power, 5 * power]).filter((value) => value >= low && value <= high);

const compact = (value) => (Math.abs(value) >= 1e6 ? `${short(value / 1e6)}M` : Math.abs(value) >= 1e4 ? `${short(value / 1e3)}k` : short(value));

export class Chart {
  /** Options: title, xLabel, log, logX (positive x on a logarithmic axis), onpick(x) while a point is pressed or dragged, onpicked() on release. */
  constructor(options) {
    this.options = options;
    this.svg = s("svg", { class: "chart", role: "img", "aria-label": options.title });
    this.title = h("strong", {}, options.title);
    this.legend = h("div", { className: "legend" });
    this.table = h("table", {});
    this.details = h("details", { className: "twin" }, h("summary", {}, "Table"), h("div", { className: "scroll", tabIndex: 0 }, this.table));
    this.readout = h("span", { className: "readout" });
    this.element = h("figure", { className: "figure" },
      h("figcaption", {}, this.title, this.legend, this.readout), this.svg, this.details);
    this.details.addEventListener("toggle", () => this.fillTable());
    if (options.onpick) {
      const pick = (event) => event.buttons & 1 && this.scale && options.onpick(this.xAt(event));
      this.svg.addEventListener("pointerdown", (event) => {
        this.svg.setPointerCapture(event.pointerId); // a drag may end outside
        pick(event);
      });
      this.svg.addEventListener("pointermove", pick);
      for (const end of ["pointerup", "pointercancel"]) this.svg.addEventListener(end, () => options.onpicked?.());
      this.svg.classList.add("picked");
    }
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => (this.readout.textContent = ""));
    this.series = [];
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  /** Change the title, also for screen readers. */
  setTitle(text) {
    this.title.textContent = text;
    this.svg.setAttribute("aria-label", text);
  }

  /** Show series: {name, color (1..6), x (ascending, except for dots), y, low?, high?, faint?, dashed?, dots?}; y may hold null. */
  show(series) {
    this.series = series.filter((one) => one.x.length);
    this.draw();
    if (this.details.open) this.fillTable();
  }

  usable(value) {
    return value !== null && value !== undefined && Number.isFinite(value) && (!this.options.log || value > 0);
  }

  draw() {
    const width = Math.max(240, this.element.clientWidth || 320);
    const height = Math.round(Math.min(this.options.height ?? 210, width * 0.62));
    this.size = { width, height };
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.style.height = `${height}px`;
    const ys = this.series.flatMap((one) => [...one.y, ...(one.low ?? []), ...(one.high ?? [])]).filter((y) => this.usable(y));
    const xs = this.series.flatMap((one) => (one.dots ? [] : [one.x[0], one.x[one.x.length - 1]]));
    if (!ys.length) {
      this.scale = null;
      this.svg.replaceChildren(s("text", { class: "empty", x: width / 2, y: height / 2 }, this.options.empty ?? "no data yet"));
      this.legend.replaceChildren();
      return;
    }
    let [low, high] = ys.reduce(([a, b], y) => [Math.min(a, y), Math.max(b, y)], [Infinity, -Infinity]);
    const [left, right] = [Math.min(...xs), Math.max(...xs)];
    if (this.options.log) {
      low = Math.max(low, high * 1e-14);
      [low, high] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high) + 1e-9)];
      if (low === high) low -= 1;
    } else {
      const margin = (spanOf(low, high) || Math.abs(high) || 1) * 0.06;
      [low, high] = [low - margin, high + margin];
    }
    const inner = { w: width - PAD.left - PAD.right, h: height - PAD.top - PAD.bottom };
    const across = this.options.logX && left > 0 ? [Math.log, Math.exp] : [Number, Number];
    const [start, end] = [across[0](left), across[0](right)];
    const x = (value) => PAD.left + ((across[0](value) - start) / (end - start || 1)) * inner.w;
    const level = (value) => (this.options.log ? Math.log10(Math.max(value, 10 ** low)) : value);
    const y = (value) => PAD.top + (1 - (level(value) - low) / (high - low)) * inner.h;
    const back = (place) => across[1](start + ((place - PAD.left) / inner.w) * (end - start));
    this.scale = { x, y, back, left, right, inner };
    const steps = this.options.log
      ? Array.from({ length: high - low + 1 }, (_, i) => low + i).filter((_, i) => i % Math.ceil((high - low + 1) / 6) === 0).map((power) => 10 ** power)
      : ticksOf(low, high, 5);
    const grid = steps.map((value) => [
      s("line", { class: "rule", x1: PAD.left, x2: width - PAD.right, y1: y(value), y2: y(value) }),
      s("text", { class: "tick", x: PAD.left - 6, y: y(value) + 4, "text-anchor": "end" }, this.options.log ? power10(value) : compact(value)),
    ]);
    const marked = this.options.logX && left > 0 ? decades(left, right) : ticksOf(left, right, Math.max(2, Math.floor(inner.w / 80)));
    const below = marked.map((value) =>
      s("text", { class: "tick", x: x(value), y: height - 20, "text-anchor": x(value) > width - PAD.right - 14 ? "end" : "middle" }, compact(value)));
    const label = s("text", { class: "tick axis", x: width - PAD.right, y: height - 5, "text-anchor": "end" }, this.options.xLabel ?? "");
    const marks = this.series.flatMap((one) => (one.dots ? [s("path", { class: `dots c${one.color}`, d: this.points(one) })] : [
      one.low ? s("path", { class: `band c${one.color}`, d: this.band(one) }) : null,
      ...(one.x.length <= 3 ? [...one.x].map((at, i) => (this.usable(one.y[i]) ? s("circle", { class: `point c${one.color}`, cx: x(at), cy: y(one.y[i]), r: 3.5 }) : null)) : []),
      s("path", { class: `curve c${one.color}${one.faint ? " faint" : ""}${one.dashed ? " dashed" : ""}`, d: this.path(one.x, one.y) }),
    ].filter(Boolean)));
    this.cursorLine = s("line", { class: "cursor", y1: PAD.top, y2: height - PAD.bottom, visibility: "hidden" });
    this.svg.replaceChildren(...grid.flat(), ...below, label, ...marks, this.cursorLine);
    const named = new Map(this.series.filter((one) => one.name).map((one) => [one.name, one]));
    this.legend.replaceChildren(...[...named.values()].map((one) =>
      h("span", { className: `key c${one.color}${one.dashed ? " dashed" : ""}${one.dots ? " dotted" : ""}` }, one.name)));
    this.cursor(this.at);
  }

  /** Return a path of points, as lines of zero length with round ends. */
  points({ x, y }) {
    return x.map((at, i) => (this.usable(y[i]) ? `M${this.scale.x(at).toFixed(1)} ${this.scale.y(y[i]).toFixed(1)}h0` : "")).join("");
  }

  path(xs, ys) {
    let text = "";
    let pen = "M";
    for (let i = 0; i < xs.length; i++) {
      if (ys[i] === 0 && this.options.log) {
        text += `${pen}${this.scale.x(xs[i]).toFixed(1)} ${(this.size.height - PAD.bottom).toFixed(1)}`;
        pen = "L";
      } else if (!this.usable(ys[i])) {
        if (!this.options.sparse) pen = "M";
      } else {
        text += `${pen}${this.scale.x(xs[i]).toFixed(1)} ${this.scale.y(ys[i]).toFixed(1)}`;
        pen = "L";
      }
    }
    return text;
  }

  band({ x, low, high }) {
    const places = x.map((_, i) => i).filter((i) => this.usable(low[i]) && this.usable(high[i]));
    if (places.length < 2) return "";
    const point = (i, values) => `${this.scale.x(x[i]).toFixed(1)} ${this.scale.y(values[i]).toFixed(1)}`;
    return `M${places.map((i) => point(i, high)).join("L")}L${places.reverse().map((i) => point(i, low)).join("L")}Z`;
  }

  xAt(event) {
    const box = this.svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * this.size.width;
    return this.scale.back(at);
  }

  /** Move the cursor to an x, or hide it (null). */
  cursor(at) {
    this.at = at;
    if (!this.cursorLine || !this.scale) return;
    const shown = at !== null && at !== undefined;
    this.cursorLine.setAttribute("visibility", shown ? "visible" : "hidden");
    if (!shown) return;
    this.cursorLine.setAttribute("x1", this.scale.x(at));
    this.cursorLine.setAttribute("x2", this.scale.x(at));
  }

  hover(event) {
    if (!this.scale) return;
    const at = this.xAt(event);
    const lines = this.series.filter((one) => !one.dots);
    const parts = lines.filter((one) => one.name && !one.faint).map((one) => {
      const i = nearest(one.x, at);
      return `${this.series.length > 1 ? `${one.name} ` : ""}${short(one.y[i], 4)}`;
    });
    const one = lines[0];
    this.readout.textContent = one ? `${whole(one.x[nearest(one.x, at)])}: ${parts.slice(0, 4).join(" · ")}` : "";
  }

  fillTable() {
    if (!this.details.open) return;
    const named = this.series.filter((one) => one.name && !one.dots);
    const dots = this.series.filter((one) => one.dots);
    const xs = [...new Set(named.flatMap((one) => [...one.x]))].sort((a, b) => a - b);
    const kept = xs.length > 200 ? xs.filter((_, i) => i % Math.ceil(xs.length / 200) === 0 || i === xs.length - 1) : xs;
    const maps = named.map((one) => new Map([...one.x].map((x, i) => [x, one.y[i]])));
    put(this.table,
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, this.options.xLabel ?? "x"), named.map((one) => h("th", { scope: "col" }, one.name)))),
      h("tbody", {}, kept.map((x) => h("tr", {}, h("th", { scope: "row" }, whole(x)), maps.map((map) => h("td", {}, short(map.get(x), 6)))))),
      dots.map((one) => h("tbody", {}, h("tr", {}, h("th", { scope: "rowgroup", colSpan: named.length + 1 }, `${one.name}: ${this.options.xLabel ?? "x"}, height`)),
        [...one.x].slice(0, 200).map((x, i) => h("tr", {}, h("th", { scope: "row" }, short(x, 6)), h("td", {}, short(one.y[i], 6)))))),
    );
  }
}

function power10(value) {
  const power = Math.round(Math.log10(value));
  const digits = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  if (power >= -2 && power <= 3) return short(value);
  return `10${power < 0 ? "⁻" : ""}${[...String(Math.abs(power))].map((d) => digits[d]).join("")}`;
}

export function nearest(xs, at) {
  let best = 0;
  for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - at) <= Math.abs(xs[best] - at)) best = i;
  return best;
}
