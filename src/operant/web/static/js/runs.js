// Runs: the list, live curves, comparison with a pinned run, differences, plots and videos.

import { Chart } from "./chart.js";
import { call, commandLine, fragment, h, isForPage, latest, put, setFragment, short, whole } from "./dom.js";
import { details, progressOf } from "./rundetails.js";
import { Travel, TRAVEL_KEYS } from "./travel.js";

const LIST_SECONDS = 2;
const SLOW_SECONDS = 15;
const SHOWN_ROWS = 500;
const MOST_FOLLOWED = 64;
const KEYS = [["/", "filter"], ["b", "band or single seeds"], ["j k", "next, previous run"], ["x", "select it"], ["p", "pin it"], ["c", "compare: to the table"], ["Esc", "clear the filter"], ...TRAVEL_KEYS];

class Runs {
  constructor(root) {
    this.root = root;
    this.entries = [];
    this.version = "";
    this.follow = latest(() => this.update(false));
    this.contrast = latest(() => this.compare());
    this.travel = new Travel({ cursor: (at) => this.chart.cursor(at), remember: (push) => this.remember(push) });
    this.read();
    this.build();
    addEventListener("popstate", () => { // unlike "hashchange", before anything can write the address of the state that is left
      this.read();
      this.filter.value = this.query;
      this.list();
      this.update(true);
    });
    document.addEventListener("keydown", (event) => this.key(event));
  }

  read() {
    const given = fragment();
    this.selected = (given.get("runs") ?? "").split(",").filter(Boolean);
    this.pinned = given.get("pin") ?? "";
    if (this.pinned && !this.selected.includes(this.pinned)) this.selected.push(this.pinned);
    this.metric = given.get("metric") ?? "";
    this.seeds = given.get("show") === "seeds";
    this.query = given.get("q") ?? "";
    this.travel.read(given, this.selected.length === 1 ? this.selected[0] : null);
  }

  remember(push = true) {
    if (!push && this.travel.dragging) return; // the address from before the drag is a step of the back button
    const found = new URLSearchParams();
    if (this.selected.length) found.set("runs", this.selected.join(","));
    if (this.pinned) found.set("pin", this.pinned);
    if (this.metric) found.set("metric", this.metric);
    if (this.seeds) found.set("show", "seeds");
    if (this.query) found.set("q", this.query);
    if (this.selected.length === 1) this.travel.write(found, this.selected[0]);
    setFragment(found, push);
  }

  build() {
    this.filter = h("input", { type: "search", placeholder: "Filter: name, algorithm, task, status", value: this.query, "aria-label": "Filter", oninput: () => {
      this.query = this.filter.value;
      this.remember(false);
      this.list();
    } });
    this.count = h("span", { className: "hint" });
    this.hidden = h("p", { className: "hint" });
    this.body = h("tbody", {});
    this.table = h("table", { className: "runs" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { className: "unseen" }, "Selected")), ["Run", "Algorithm", "Task", "Score", "State"].map((name) => h("th", { scope: "col" }, name)))), this.body);
    this.chart = new Chart({ title: "Score", xLabel: "budget used by a seed", height: 330, sparse: true, empty: "select runs with evaluations", onpick: (x) => this.travel.pick(x), onpicked: () => this.travel.release() });
    this.metrics = h("select", { "aria-label": "Metric", onchange: () => {
      this.metric = this.metrics.value;
      this.remember();
      this.update(true);
    } });
    this.mode = h("div", { className: "segments", role: "radiogroup", "aria-label": "Lines" }, [["band", "Band"], ["seeds", "Seeds"]].map(([name, title]) =>
      h("button", { type: "button", role: "radio", "data-mode": name, onclick: () => this.lines(name === "seeds") }, title)));
    this.live = h("span", { className: "hint live" });
    this.comparison = h("section", { className: "card", id: "comparison", "aria-label": "Comparison" });
    this.detail = h("div", {});
    this.problem = h("div", { className: "notice bad", role: "alert", hidden: true });
    this.content = h("div", { className: "runs-page" },
      h("section", { className: "card list", "aria-label": "Runs" }, h("div", { className: "bar" }, this.filter, this.count), h("div", { className: "scroll tall", tabIndex: 0 }, this.table), this.hidden),
      h("div", { className: "stage" }, this.problem,
        h("section", { className: "card" }, h("div", { className: "bar" }, this.metrics, this.mode, this.live), this.chart.element),
        this.travel.element, this.comparison, this.detail));
    this.root.replaceChildren(this.content);
  }

  async start() {
    await this.refresh(true);
    await this.update(true);
    this.root.dataset.ready = "1";
    this.listen();
    setInterval(() => this.relist(), SLOW_SECONDS * 1000); // runs that are not selected
    document.addEventListener("visibilitychange", () => this.listen());
  }

  /** Follow the files of the selected runs, of as many as the server allows; records written while the page is hidden are read when it is shown. */
  listen() {
    const wanted = document.hidden ? "" : `/events?${new URLSearchParams({ runs: this.known().slice(0, MOST_FOLLOWED).join(","), file: this.metric ? "metrics" : "evaluations" })}`;
    if (wanted === this.followed) return;
    this.followed = wanted;
    this.source?.close();
    this.source = null;
    if (!wanted) return;
    const source = (this.source = new EventSource(wanted));
    source.addEventListener("message", () => {
      this.relist();
      this.follow();
    });
    source.addEventListener("list", () => this.relist());
    source.addEventListener("open", () => (this.problem.hidden = true));
    source.addEventListener("error", () => {
      if (source !== this.source) return;
      if (source.readyState !== EventSource.CLOSED) this.fail(new Error("the server does not respond: is `operant serve` still running?"));
      else {
        this.followed = "";
        setTimeout(() => this.listen(), SLOW_SECONDS * 1000);
      }
    });
  }

  /** Read the list again, with a minimum interval. */
  async relist() {
    if (document.hidden) return;
    if (this.relisting) {
      this.stale = true;
      return;
    }
    this.relisting = true;
    await this.refresh().catch((error) => this.fail(error));
    setTimeout(() => {
      this.relisting = false;
      if (this.stale) this.relist();
      this.stale = false;
    }, LIST_SECONDS * 1000);
  }

  fail(error) {
    this.problem.textContent = error.message;
    this.problem.hidden = false;
  }

  /** Select a run if none is selected: a running one, or one with a score. */
  choose() {
    if (this.selected.length || !this.entries.length) return;
    const first = this.entries.find((entry) => entry.outcome === "running") ?? this.entries.find((entry) => entry.iqm !== null) ?? this.entries[0];
    this.selected = [first.name];
    this.remember(false);
  }

  async refresh(first = false) {
    const answer = await call("runs/index");
    const text = JSON.stringify([answer.runs, answer.hidden]);
    const appeared = answer.runs.length > 0 && !this.content.isConnected;
    const hidden = Object.entries(answer.hidden).map(([name, reason]) => `Not shown: ${name}, because ${reason}.`).join(" ");
    this.problem.hidden = true;
    if (!answer.runs.length) this.root.replaceChildren(nothing(answer, hidden));
    if (text === this.text) return;
    this.text = text;
    this.entries = answer.runs;
    this.notShown = hidden;
    if (first || appeared) this.choose();
    this.list();
    if (appeared) {
      this.root.replaceChildren(this.content);
      this.update(true);
    } else if (this.source !== undefined) this.listen();
  }

  /** Return the selected runs that exist. */
  known() {
    return this.selected.filter((name) => this.entries.some((entry) => entry.name === name));
  }

  matching() {
    const words = this.query.toLowerCase().split(/\s+/).filter(Boolean);
    return this.entries.filter((entry) => {
      const text = `${entry.name} ${entry.algorithm} ${entry.task} ${entry.outcome}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }

  list() {
    const matching = this.matching();
    this.count.textContent = `${matching.length === this.entries.length ? "" : `${whole(matching.length)} of `}${whole(this.entries.length)} runs`;
    const gone = this.selected.filter((name) => !this.known().includes(name)).map((name) => `There is no run ${name}.`);
    this.hidden.textContent = [this.notShown ?? "", ...gone].join(" ");
    const active = document.activeElement;
    const focused = active?.closest?.("tr")?.dataset.run;
    this.body.replaceChildren(...matching.slice(0, SHOWN_ROWS).map((entry) => this.row(entry)));
    if (matching.length > SHOWN_ROWS) this.body.append(h("tr", {}, h("td", { colSpan: 6, className: "hint" }, `and ${whole(matching.length - SHOWN_ROWS)} more: filter them`)));
    if (focused) this.body.querySelector(`tr[data-run="${CSS.escape(focused)}"] ${active.localName}`)?.focus();
  }

  row(entry) {
    const { name } = entry;
    const chosen = this.selected.includes(name);
    const box = h("input", { type: "checkbox", checked: chosen, "aria-label": `Select ${name}`, onchange: () => this.toggle(name) });
    const share = entry.budget ? Math.min(1, entry.consumed / entry.budget) : 0;
    const progress = entry.outcome === "finished" ? null : h("progress", { max: 1, value: share, title: `${whole(entry.consumed ?? 0)} of ${whole(entry.budget ?? 0)}`, "aria-label": "progress" });
    return h("tr", { "data-run": name, className: chosen ? "chosen" : "" },
      h("td", {}, h("span", { className: `swatch c${chosen ? this.color(name) : 0}` }), box),
      h("td", {}, h("button", { type: "button", className: "link", onclick: () => this.only(name) }, name), this.pinned === name ? h("span", { className: "tag" }, "pinned") : null),
      h("td", {}, entry.algorithm ?? ""), h("td", {}, entry.task ?? ""), h("td", { className: "number" }, entry.iqm === null || entry.iqm === undefined ? "–" : short(entry.iqm, 4)),
      h("td", { title: entry.reason || entry.problem || "" }, h("span", { className: `state ${entry.outcome}` }, entry.outcome), progress));
  }

  color(name) {
    return (this.selected.indexOf(name) % 6) + 1;
  }

  toggle(name) {
    this.selected = this.selected.includes(name) ? this.selected.filter((one) => one !== name) : [...this.selected, name];
    if (!this.selected.includes(this.pinned)) this.pinned = "";
    this.remember();
    this.list();
    this.update(true);
  }

  only(name) {
    this.selected = [name];
    if (this.pinned && this.pinned !== name) this.selected.unshift(this.pinned);
    this.remember();
    this.list();
    this.update(true);
  }

  pin(name) {
    this.pinned = this.pinned === name ? "" : name;
    if (this.pinned && !this.selected.includes(name)) this.selected = [...this.selected, name];
    this.remember();
    this.list();
    this.update(true);
  }

  lines(seeds) {
    this.seeds = seeds;
    this.remember();
    this.plot();
  }

  /** Return the selected runs that exist, the pinned one first: the others are compared with it. */
  ordered() {
    const names = this.known();
    return names.includes(this.pinned) ? [this.pinned, ...names.filter((name) => name !== this.pinned)] : names;
  }

  async update(all) {
    if (this.source !== undefined) this.listen();
    const names = this.known();
    const turn = (this.turn = (this.turn ?? 0) + (all ? 1 : 0));
    try {
      const answer = names.length ? await call("runs/curves", { names, metric: this.metric || null, known: all ? "" : this.version }) : { version: "", curves: {} };
      if (turn !== this.turn) return;
      this.version = answer.version;
      if (answer.unchanged) return;
      this.curves = answer.curves;
      this.plot();
      await this.describe(names, turn);
    } catch (error) {
      this.fail(error);
    }
  }

  plot() {
    for (const button of this.mode.children) button.setAttribute("aria-checked", String((button.dataset.mode === "seeds") === this.seeds));
    const running = this.entries.filter((entry) => this.selected.includes(entry.name) && entry.outcome === "running").length;
    this.live.textContent = running ? "● live" : "";
    const series = this.selected.flatMap((name) => {
      const curve = this.curves?.[name];
      if (!curve) return [];
      const color = this.color(name);
      const dashed = name === this.pinned && this.selected.length > 1;
      const center = { name, color, x: curve.x, y: curve.center, dashed };
      if (this.seeds) return [...curve.seeds.map((y) => ({ name: "", color, x: curve.x, y, faint: true })), center];
      return [{ ...center, low: curve.low, high: curve.high }];
    });
    this.chart.setTitle(this.metric ? `${this.metric}: mean, minimum and maximum of the seeds` : "Score of greedy evaluations: IQM and 95 % interval");
    this.chart.show(series);
  }

  async describe(names, turn) {
    const run = names.length ? await shown(this.entries.find((entry) => entry.name === names[0])) : null;
    if (turn !== this.turn) return;
    const options = ["", ...(run?.metrics ?? [])];
    if (this.metric && !options.includes(this.metric)) options.push(this.metric);
    const offered = JSON.stringify([options, this.metric]);
    if (offered !== this.offered) this.metrics.replaceChildren(...options.map((name) => h("option", { value: name, selected: name === this.metric }, name || "Score of evaluations")));
    this.offered = offered;
    this.travel.open(names.length === 1 && !run.damage ? this.entries.find((entry) => entry.name === names[0]) : null).catch((error) => this.fail(error));
    this.detailed(names.length === 1 ? run : null);
    this.comparison.hidden = names.length < 2;
    if (names.length < 2) return;
    if (String(names) !== this.compared) {
      this.compared = "";
      put(this.comparison, h("h2", {}, "Comparison"), h("p", { className: "hint" }, "Comparing…"));
    }
    this.contrast(); // not awaited: it takes longer than the curves
  }

  /** Show a run, or none (null); if only its progress has changed, opened parts stay open and videos play on. */
  detailed(run) {
    const text = run && JSON.stringify({ ...run, metrics: [], consumed: 0, iqm: 0, interval: [] });
    if (run && !run.damage && text === this.described) this.detail.querySelector(".hint").textContent = progressOf(run);
    else this.detail.replaceChildren(...(run ? [run.damage ? h("div", { className: "notice bad", role: "alert" }, run.damage) : details(run)] : []));
    this.described = text;
  }

  async compare() {
    const names = this.ordered();
    if (names.length < 2) return;
    const { metric } = this;
    let answer;
    try {
      answer = await call("runs/compare", { names, metric: metric || null });
    } catch (error) {
      answer = { failed: error.message };
    }
    if (String(names) !== String(this.ordered()) || metric !== this.metric) return; // the next one is on its way
    const text = JSON.stringify([names, answer]);
    if (String(this.known()) === this.compared && text === this.shown) return;
    Object.assign(this, { compared: String(this.known()), shown: text });
    if (answer.failed) put(this.comparison, h("h2", {}, "Comparison"), h("p", { className: "notice bad", role: "alert" }, answer.failed));
    else this.contrasted(names, answer);
  }

  contrasted(names, answer) {
    const line = commandLine();
    line.show(answer.command);
    const pins = h("div", { className: "pins" }, "Compared with ", names.map((name) => h("button", { type: "button", className: "quiet small", "aria-pressed": String(this.pinned === name || (!this.pinned && names[0] === name)), onclick: () => this.pin(name) }, name)));
    const interval = ([low, high]) => `[${short(low, 4)}, ${short(high, 4)}]`;
    const standings = answer.standings.length ? h("div", { className: "scroll", tabIndex: 0 }, h("table", {},
      h("thead", {}, h("tr", {}, ["Run", "IQM", "95 % interval", "Difference", "95 % interval", "P(better)"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, answer.standings.map((one, i) => h("tr", {}, h("th", { scope: "row" }, h("span", { className: `swatch c${this.color(one.name)}` }), one.name), h("td", { className: "number" }, short(one.iqm, 4)), h("td", {}, interval(one.interval)),
        h("td", { className: "number" }, i ? short(one.difference, 4) : "–"), h("td", {}, i ? interval(one.difference_interval) : "–"), h("td", {}, i ? `${short(one.improvement, 3)} ${interval(one.improvement_interval)}` : "–")))))) : null;
    const differ = Object.entries(answer.differ);
    const value = (one) => (one === null ? "–" : typeof one === "string" ? one : JSON.stringify(one));
    put(this.comparison, h("h2", {}, "Comparison"), pins,
      answer.problem ? h("p", { className: "notice" }, `Scores cannot be compared: ${answer.problem}`) : null, standings,
      h("h2", { className: "later" }, differ.length ? "What differs" : "Only the seeds differ"),
      differ.length ? h("div", { className: "scroll", tabIndex: 0 }, h("table", { className: "differ" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting"), names.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, differ.map(([name, values]) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, name)), values.map((one, i) => h("td", { className: value(one) === value(values[0]) && i ? "same" : "" }, value(one)))))))) : null,
      line);
  }

  key(event) {
    if (event.key === "Escape" && document.activeElement === this.filter) {
      this.filter.value = "";
      this.filter.dispatchEvent(new Event("input"));
      this.filter.blur();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return; // keys of the browser, such as back and copy
    if (!isForPage(event) && !(event.target.type === "checkbox") && !(event.target.type === "range")) return;
    if (event.key === " " && event.target.type === "checkbox") return;
    if (this.travel.key(event)) {
      event.preventDefault();
      return;
    }
    const rows = [...this.body.querySelectorAll("tr[data-run]")];
    const at = rows.indexOf(document.activeElement?.closest?.("tr"));
    const focus = (i) => rows[Math.max(0, Math.min(rows.length - 1, i))]?.querySelector("input").focus();
    const actions = {
      "/": () => this.filter.focus(), b: () => this.lines(!this.seeds), j: () => focus(at + 1), k: () => focus(at - 1),
      x: () => rows[at] && this.toggle(rows[at].dataset.run), p: () => rows[at] && this.pin(rows[at].dataset.run),
      c: () => this.comparison.scrollIntoView({ block: "start" }),
    };
    if (!(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
  }
}

/** Return the description of a run in the list, or why its files cannot be read, as `damage`. */
async function shown({ name, problem }) {
  if (problem) return { damage: problem };
  try {
    return await call("runs/show", { run: name });
  } catch (error) {
    if (error.status === 0 || error.status === 503) throw error; // the server does not respond
    return { damage: error.message };
  }
}

/** Return the content of the page without runs. */
function nothing({ found, folder }, hidden) {
  const line = commandLine("");
  line.show("operant train ppo CartPole-v1");
  return h("div", { className: "card empty-page" }, h("h2", { className: "title" }, found ? "No runs yet" : "There is no folder of runs yet"),
    h("p", {}, `Runs appear here as soon as there are some in ${folder}. To start:`), line, hidden ? h("p", { className: "hint" }, hidden) : null);
}

export async function show(root) {
  const page = new Runs(root);
  await page.start();
  return KEYS;
}
