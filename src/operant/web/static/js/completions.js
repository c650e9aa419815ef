// Completions: the answers of a language model at each step, the advantages of their tokens, and two steps in comparison.

import { announce, call, commandLine, debounced, fragment, h, isForPage, put, setFragment, short, unpack, whole } from "./dom.js";
import { COLORS, describe, ledgerTable, tokens } from "./ledger.js";

const MOST_TOKENS = 12000;
const SOURCES = [["training", "Training batches"], ["held-out", "Held-out answers"]];
const FILTERS = [["q", "Contains", "search"], ["least", "Reward from", "number"], ["most", "Reward to", "number"], ["short", "Length from", "number"], ["long", "Length to", "number"]];
const KEYS = [[". ,", "next, previous step"], ["c", "compare two steps"], ["j k", "next, previous answer"], ["Enter", "its ledger"], ["/", "filter"], ["Esc", "clear the filter"]];

class Completions {
  constructor(root, runs) {
    this.root = root;
    this.runs = runs;
    this.panels = [];
    this.read();
    this.build();
    addEventListener("hashchange", () => location.reload());
    document.addEventListener("keydown", (event) => this.key(event));
  }

  read() {
    const given = fragment();
    this.run = this.runs.includes(given.get("run")) ? given.get("run") : this.runs[0];
    this.missing = given.has("run") && given.get("run") !== this.run ? `There are no completions of ${given.get("run")}, so another run is shown. ` : "";
    this.source = given.get("source") ?? "";
    this.seed = given.get("seed") ?? "";
    this.color = given.get("color") in COLORS ? given.get("color") : "advantage";
    this.places = [given.get("at"), given.get("with")].filter((at) => at !== null).map(Number);
    this.filters = Object.fromEntries(FILTERS.map(([name]) => [name, given.get(name) ?? ""]));
  }

  remember(push = false) {
    const found = new URLSearchParams({ run: this.run, source: this.source, seed: this.seed });
    this.panels.forEach((panel, i) => found.set(["at", "with"][i], panel.step.consumed));
    if (this.color !== "advantage") found.set("color", this.color);
    for (const [name, value] of Object.entries(this.filters)) if (value !== "") found.set(name, value);
    setFragment(found, push);
  }

  build() {
    const picker = (label, options, chosen, onchange) => h("label", { className: "picker" }, h("span", {}, label), h("select", { onchange: (event) => onchange(event.target.value) }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text))));
    this.sources = h("div", { className: "segments", role: "radiogroup", "aria-label": "Answers" });
    this.seeds = h("span", {});
    const filters = FILTERS.map(([name, label, type]) => h("label", { className: "picker" }, h("span", {}, label), h("input", { type, step: "any", value: this.filters[name], "data-filter": name, size: 8, oninput: (event) => {
      this.filters[name] = event.target.value;
      this.refilter();
    } })));
    this.refilter = debounced(() => {
      this.remember();
      for (const panel of this.panels) panel.list();
    }, 150);
    this.double = h("button", { type: "button", onclick: () => this.compare() });
    this.note = h("p", { className: "hint", hidden: true });
    this.stage = h("div", { className: "steps" });
    this.command = commandLine();
    put(this.root, h("div", { className: "completions" },
      h("section", { className: "card", "aria-label": "Filter" },
        h("div", { className: "bar" }, picker("Run", this.runs.map((name) => [name, name]), this.run, (name) => {
            this.missing = "";
            this.open(name);
          }), this.sources, this.seeds,
          picker("Color", Object.entries(COLORS).map(([name, { title }]) => [name, title]), this.color, (name) => {
            this.color = name;
            this.remember();
            for (const panel of this.panels) panel.list();
          }), this.double),
        h("div", { className: "bar filters" }, filters), this.note),
      this.stage, this.command));
  }

  /** Show another run, or another kind of answers. */
  async open(run, source = "", seed = "", places = []) {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const answer = await call("completions/steps", { run }).catch((error) => ({ steps: { training: [], "held-out": [] }, command: "", note: "", failed: error.message }));
    if (turn !== this.turn) return;
    Object.assign(this, { run, about: answer });
    const kinds = SOURCES.filter(([name]) => answer.steps[name].length);
    this.source = kinds.some(([name]) => name === source) ? source : kinds[0]?.[0] ?? "training";
    const all = answer.steps[this.source];
    const seeds = [...new Set(all.map((step) => String(step.seed)))];
    this.seed = seeds.includes(seed) ? seed : seeds[0] ?? "";
    this.steps = all.filter((step) => String(step.seed) === this.seed);
    put(this.sources, kinds.map(([name, title]) => h("button", { type: "button", role: "radio", "aria-checked": String(name === this.source), onclick: () => this.open(run, name, this.seed) }, title)));
    put(this.seeds, seeds.length > 1 ? h("label", { className: "picker" }, h("span", {}, "Seed"), h("select", { onchange: (event) => this.open(run, this.source, event.target.value) }, seeds.map((one) => h("option", { value: one, selected: one === this.seed }, one)))) : null);
    this.command.show(answer.command);
    put(this.note, this.missing, answer.note);
    this.note.hidden = !(this.missing || answer.note);
    const found = places.map((at) => this.steps.findIndex((step) => step.consumed === at)).filter((i) => i >= 0);
    this.panels = (found.length ? found : [this.steps.length - 1]).filter((i) => i >= 0).map((i) => new Panel(this, i));
    if (answer.failed) put(this.stage, h("p", { className: "notice bad", role: "alert" }, answer.failed));
    else if (!this.panels.length) put(this.stage, h("p", { className: "notice" }, "This run has no answers yet; they are saved at its next evaluation."));
    await this.arrange();
  }

  async arrange() {
    this.double.textContent = this.panels.length > 1 ? "One step" : "Compare two steps";
    this.stage.classList.toggle("two", this.panels.length > 1);
    if (this.panels.length) put(this.stage, this.panels.map((panel) => panel.element));
    this.remember();
    await Promise.all(this.panels.map((panel) => panel.load()));
  }

  /** Show two steps, at first the earliest next to the present one, or a single step again. */
  async compare() {
    if (!this.panels.length) return;
    this.panels = this.panels.length > 1 ? this.panels.slice(0, 1) : [new Panel(this, 0), this.panels[0]];
    await this.arrange();
  }

  /** Return whether an answer passes the filters. */
  passes(batch, answer) {
    const { q, least, most, short: fewest, long } = this.filters;
    const length = batch.length(answer);
    const text = `${plain(batch.prompts[answer.prompt])} ${answer.text}`.toLowerCase();
    return (!q || text.includes(q.toLowerCase()))
      && (least === "" || (answer.reward !== null && answer.reward >= Number(least))) && (most === "" || (answer.reward !== null && answer.reward <= Number(most)))
      && (fewest === "" || length >= Number(fewest)) && (long === "" || length <= Number(long));
  }

  key(event) {
    if (event.key === "Escape" && document.activeElement?.dataset?.filter) document.activeElement.blur();
    if (!isForPage(event) || !this.panels?.length) return;
    const current = this.panels.find((panel) => panel.element.contains(document.activeElement)) ?? this.panels[this.panels.length - 1];
    const actions = {
      ".": () => current.go(current.at + 1), ",": () => current.go(current.at - 1), c: () => this.compare(),
      j: () => current.focus(1), k: () => current.focus(-1), "/": () => this.root.querySelector("[data-filter=q]").focus(),
    };
    if (!(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
  }
}

/** One step: a slider to choose it, its description, and its answers. */
class Panel {
  constructor(page, at) {
    this.page = page;
    this.at = at;
    const last = page.steps.length - 1;
    this.slider = h("input", { type: "range", min: 0, max: last, value: at, "aria-label": "Step", oninput: () => this.go(Number(this.slider.value)) });
    this.label = h("strong", { className: "at" });
    this.facts = h("div", {});
    this.answers = h("div", { className: "groups" });
    this.element = h("div", { className: "card step", role: "group", "aria-label": "Answers of a step" },
      h("div", { className: "bar" }, h("button", { type: "button", "aria-label": "Previous step", onclick: () => this.go(this.at - 1) }, "‹"), this.slider, h("button", { type: "button", "aria-label": "Next step", onclick: () => this.go(this.at + 1) }, "›"), this.label),
      this.facts, this.answers);
  }

  get step() {
    return this.page.steps[this.at];
  }

  go(at) {
    if (at < 0 || at >= this.page.steps.length || at === this.at) return;
    this.at = at;
    this.slider.value = at;
    this.page.remember();
    this.load();
  }

  async load() {
    const { run, source, steps } = this.page;
    const turn = (this.turn = (this.turn ?? 0) + 1);
    this.batch = null;
    this.label.textContent = `after ${whole(this.step.consumed)}`;
    this.slider.setAttribute("aria-valuetext", `${this.label.textContent}, ${this.at + 1} of ${steps.length}`);
    this.element.ariaBusy = "true";
    try {
      const batch = new Batch(await call("completions/batch", { run, source, ...this.step }));
      if (turn !== this.turn) return;
      this.batch = batch;
      this.list();
      this.page.root.dataset.ready = `${this.step.consumed}`;
    } catch (error) {
      if (turn !== this.turn) return;
      put(this.facts, h("p", { className: "notice bad", role: "alert" }, error.message));
      put(this.answers);
    }
    this.element.ariaBusy = "false";
  }

  list() {
    const { batch, page } = this;
    if (!batch) return;
    const kept = batch.answers.filter((answer) => page.passes(batch, answer));
    put(this.facts, describe(batch, kept));
    announce(`${kept.length} of ${batch.answers.length} answers`);
    const groups = new Map();
    let room = MOST_TOKENS;
    let shown = 0;
    for (const answer of kept) {
      if (room <= 0) break;
      if (!groups.has(answer.prompt)) groups.set(answer.prompt, []);
      groups.get(answer.prompt).push(this.answer(answer));
      room -= batch.length(answer);
      shown += 1;
    }
    put(this.answers, [...groups].map(([prompt, answers]) => h("div", { className: "group", role: "group", "aria-label": "Prompt and its answers" }, h("div", { className: "text prompt" }, said(batch.prompts[prompt])), answers)),
      shown < kept.length ? h("p", { className: "hint" }, `and ${whole(kept.length - shown)} more: filter them`) : null);
  }

  answer(answer) {
    const { batch } = this;
    const visit = batch.visit(answer);
    const place = h("div", {});
    const head = h("span", { className: "reward", "data-sign": Math.sign(answer.reward ?? 0) }, answer.reward === null || answer.reward === undefined ? "no reward" : short(answer.reward, 3));
    const note = answer.truncated ? "cut off" : answer.temperature === 0 ? "greedy" : answer.counts === false ? "not trained on" : "";
    const text = h("span", { className: "tokens" }, visit ? tokens(batch, visit, this.page.color) : said(answer.text));
    const row = h("div", { className: "answer" }, head, text, note ? h("span", { className: "tag" }, note) : null);
    if (visit) {
      const button = h("button", { type: "button", className: "quiet small open", "aria-expanded": "false", "aria-label": `Ledger of ${answer.text}`, onclick: () => {
        const open = button.getAttribute("aria-expanded") !== "true";
        button.setAttribute("aria-expanded", String(open));
        put(place, open ? batch.visitsOf(answer).map((one) => ledgerTable(batch, one)) : null);
      } }, "Ledger");
      row.append(button);
    }
    return h("div", {}, row, place);
  }

  /** Move to another answer, unless the answers of another step are being loaded, which would replace these. */
  focus(by) {
    if (this.element.ariaBusy === "true") return;
    const buttons = [...this.element.querySelectorAll("button.open")];
    const at = buttons.indexOf(document.activeElement);
    buttons[Math.max(0, Math.min(buttons.length - 1, at + by))]?.focus();
  }
}

/** Data of a step from the server, with the passes of each answer. */
class Batch {
  constructor(found) {
    Object.assign(this, found);
    this.answers.forEach((answer, i) => (answer.index = i));
    this.has = Boolean(found.columns);
    if (!this.has) return;
    this.columns = Object.fromEntries(Object.entries(found.columns).map(([name, text]) => [name, unpack(text, found.kinds[name] ?? "f4")]));
    this.visits = found.visits.map(([answer, step, start, length]) => ({ answer, step, start, length }));
    this.byAnswer = Map.groupBy ? Map.groupBy(this.visits, (visit) => visit.answer) : grouped(this.visits);
  }

  visitsOf(answer) {
    return this.has ? this.byAnswer.get(answer.index) ?? [] : [];
  }

  /** Return the last pass of an answer. */
  visit(answer) {
    return this.visitsOf(answer).at(-1);
  }

  /** Return the number of tokens of an answer, or of characters if it is unknown. */
  length(answer) {
    return this.visit(answer)?.length ?? answer.tokens ?? plain(answer.text).length;
  }
}

function grouped(visits) {
  const found = new Map();
  for (const visit of visits) found.set(visit.answer, [...(found.get(visit.answer) ?? []), visit]);
  return found;
}

const plain = (given) => (typeof given === "string" ? given : given.map((message) => message.content).join(" "));
const said = (given) => (typeof given !== "string" ? given.map((message) => h("div", { className: "message" }, h("strong", {}, message.role), h("div", {}, message.content))) : given === "" ? h("em", {}, "(empty)") : given);

export async function show(root) {
  const { runs } = await call("completions/index");
  if (!runs.length) {
    const line = commandLine("");
    line.show("operant train grpo arithmetic");
    put(root, h("div", { className: "card empty-page" }, h("h2", { className: "title" }, "No completions yet"), h("p", {}, "Language models save answers at every evaluation. To start:"), line));
    root.dataset.ready = "1";
    return KEYS;
  }
  const page = new Completions(root, runs);
  await page.open(page.run, page.source, page.seed, page.places);
  return KEYS;
}
