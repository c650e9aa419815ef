// Labels so far: their annotators, the agreement, and the labels as a file.

import { call, commandLine, h, put, save, short, whole } from "./dom.js";

const FORMS = [["pairs", "pairs, as TRL reads them"], ["rankings", "rankings"], ["events", "the log of all answers"]];
const HELD_OUT = [["without", "left out"], ["with", "with them"], ["only", "those alone"]];

export class Overview {
  /** Show the labels of a run, which the command line calls `path`. */
  constructor(run, path) {
    this.run = run;
    this.path = path;
    this.body = h("div", {});
    this.status = h("span", { className: "hint", role: "status" });
    this.command = commandLine();
    const choice = (label, options) => {
      const select = h("select", { onchange: () => this.shown() }, options.map(([value, text]) => h("option", { value }, text)));
      return [select, h("label", { className: "picker" }, h("span", {}, label), select)];
    };
    const [[form, forms], [heldOut, prompts]] = [choice("Export", FORMS), choice("Held-out prompts", HELD_OUT)];
    Object.assign(this, { form, heldOut });
    this.element = h("details", { className: "card overview" }, h("summary", {}, "Agreement and export"), this.body,
      h("div", { className: "bar" }, forms, prompts, h("button", { type: "button", onclick: () => this.export() }, "Save as a file"), this.status), this.command);
    this.element.addEventListener("toggle", () => this.refresh());
    this.shown();
  }

  shown() {
    const held = this.heldOut.value === "without" ? "" : ` --held-out ${this.heldOut.value}`;
    this.command.show(`operant label ${this.path} --export labels.jsonl --format ${this.form.value}${held}`);
  }

  async refresh() {
    if (!this.element.open) return;
    try {
      const { items, annotators, statistics } = await call("labels/overview", { run: this.run });
      const row = (...cells) => h("tr", {}, cells.map((cell, i) => (i ? h("td", { className: "number" }, cell) : h("th", { scope: "row" }, cell))));
      const table = (columns, rows) => h("div", { className: "scroll", tabIndex: 0 }, h("table", {}, h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows)));
      const value = (one) => (one === null ? "undefined" : short(one));
      put(this.body,
        annotators.length ? table(["Annotator", "Labels"], annotators.map(({ name, labels }) => row(name, `${whole(labels)} of ${whole(items)}`))) : h("p", { className: "hint" }, "There are no labels yet."),
        annotators.length ? table(["Agreement", "Value", "95 % interval", "Comparisons"], statistics.map((one) => row(one.name, value(one.value), one.low === null ? "–" : `[${short(one.low)}, ${short(one.high)}]`, whole(one.count)))) : null);
    } catch (error) {
      put(this.body, h("p", { className: "notice bad", role: "alert" }, error.message));
    }
  }

  async export() {
    try {
      const { text, rows, left_out: left, held_out: held } = await call("labels/exported", { run: this.run, form: this.form.value, held_out: this.heldOut.value });
      const missing = Object.entries(left).map(([outcome, count]) => `${whole(count)} ${outcome}`).join(", ");
      const warning = held && this.heldOut.value !== "only" && this.form.value !== "events" ? `; ${whole(held)} are on held-out prompts: do not evaluate on prompts that are trained on` : "";
      this.status.textContent = `${whole(rows)} lines${missing ? `; left out: ${missing}` : ""}${warning}`;
      if (rows) save(`${this.run.replaceAll("/", "-")}-${this.form.value}.jsonl`, text, "application/jsonl");
    } catch (error) {
      this.status.textContent = error.message;
    }
  }
}
