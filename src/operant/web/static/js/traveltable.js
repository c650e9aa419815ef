// The table of an update: on the grid if there is one, next to the exact solution if the model is known.

import { Chart } from "./chart.js";
import { GridView, masksOf } from "./gridview.js";
import { call, h, put, short, unpack } from "./dom.js";

const VIEWS = [["values", "Values"], ["q", "Actions"], ["error", "Errors"], ["visits", "Visits"]];

export class TravelTable {
  constructor(page) {
    this.page = page;
    this.view = "values";
    this.errors = new Map();
    this.grid = new GridView("The table of the seed", () => {});
    this.views = h("div", { className: "segments", role: "radiogroup", "aria-label": "Table" }, VIEWS.map(([name, title]) =>
      h("button", { type: "button", role: "radio", "data-view": name, onclick: () => this.look(name) }, title)));
    this.facts = h("dl", { className: "facts" });
    this.profile = new Chart({ title: "Values of the states", xLabel: "state", height: 190 });
    this.distance = new Chart({ title: "Distance from the exact values, at the updates you visited", xLabel: "budget used by a seed", height: 170, log: true, onpick: (x) => page.pick(x), onpicked: () => page.release() });
    this.world = h("div", {}, this.views, this.grid.element);
    this.element = h("section", { className: "tables", hidden: true, "aria-label": "Table" },
      this.world, h("div", { className: "minds" }, this.facts, this.distance.element, this.profile.element));
  }

  forget() {
    this.errors = new Map();
    this.data = null;
  }

  /** Load the table of the update at which the server is. */
  async read(at, seed) {
    const answer = await call("travel/table", { run: this.page.run, at, seed_index: seed });
    if (answer.away || !answer.table) {
      this.element.hidden = !this.data || !answer.away;
      return;
    }
    const fresh = JSON.stringify(answer.world) !== this.drawn;
    this.data = { ...answer, values: unpack(answer.values), q: unpack(answer.q), policy: masksOf(unpack(answer.policy, "u1"), answer.actions), visits: unpack(answer.visits, "i4"), exact: unpack(answer.exact) };
    this.element.hidden = false;
    this.world.hidden = !answer.world;
    if (answer.world && fresh) {
      this.grid.draw(answer.world);
      this.drawn = JSON.stringify(answer.world);
    }
    if (this.seed !== seed) this.errors = new Map();
    this.seed = seed;
    if (answer.exact) this.errors.set(at, answer.error);
    this.show();
  }

  look(view) {
    this.view = view;
    this.show();
  }

  /** Mark the state of the agent. */
  place(state) {
    this.state = state;
    if (this.data?.world) this.paint();
  }

  show() {
    const { data } = this;
    if (!data) return;
    for (const button of this.views.children) {
      button.setAttribute("aria-checked", String(button.dataset.view === this.view));
      button.hidden = (button.dataset.view === "q" && !data.q) || (button.dataset.view === "error" && !data.exact);
    }
    if (data.world) this.paint(true);
    const symbol = data.symbol ?? "V*";
    put(this.facts, (data.exact ? [[`Maximum |V − ${symbol}|`, short(data.error, 4)], [`Mean |V − ${symbol}|`, short(data.mean_error, 4)], ...(data.loss === undefined ? [] : [["The greedy policy loses", data.loss === null ? "has no value at γ = 1" : short(Math.abs(data.loss) < 1e-9 ? 0 : data.loss, 4)]])] : [["Exact values", "the model is unknown"]])
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    const x = Array.from(data.values, (_, i) => i);
    this.profile.show([{ name: "learned", color: 1, x, y: [...data.values] }, ...(data.exact ? [{ name: symbol, color: 3, dashed: true, x, y: [...data.exact] }] : [])]);
    const visited = [...this.errors].sort(([a], [b]) => a - b);
    this.distance.element.hidden = !data.exact;
    this.distance.show([{ name: `maximum |V − ${symbol}|`, color: 2, x: visited.map(([at]) => at), y: visited.map(([, error]) => error) }]);
  }

  paint(everything = false) {
    const { data, view } = this;
    const truth = data.exact ?? data.values;
    const most = (numbers) => numbers.reduce((found, number) => Math.max(found, Math.abs(number)), 0);
    const scale = view === "visits" ? most(data.visits) : view === "error" ? most(data.exact) || 1 : Math.max(most(data.values), most(truth));
    this.grid.show({ values: data.values, q: data.q, policy: data.policy, visits: data.visits, exact: data.exact, view, scale, place: this.state, actions: data.actions, overlay: true });
    if (everything) this.grid.describeAll();
  }
}
