// A batch of a run for the explorables: the run and one of its updates. A run in training is followed.

import { call, debounced, h, put, whole } from "./dom.js";

const FOLLOW_SECONDS = 5;
const WAIT_MILLISECONDS = 80;

export class BatchPicker {
  /** Calls onbatch(batch) with the columns of `travel/batch`, or null. */
  constructor(runs, given, onbatch) {
    this.runs = runs;
    this.onbatch = onbatch;
    this.run = runs.includes(given.get("run")) ? given.get("run") : "";
    [this.at, this.seed, this.environment] = ["at", "seed", "env"].map((name) => (this.run && given.has(name) ? Number(given.get(name)) : null));
    this.status = h("span", { className: "hint", role: "status" });
    this.place = h("span", { className: "picker" });
    this.choosers = h("span", { className: "bar" });
    this.asked = debounced(() => this.load(), WAIT_MILLISECONDS);
    const choices = [["", "none"], ...runs.map((name) => [name, name])];
    const select = h("select", { onchange: (event) => {
      [this.run, this.at, this.seed, this.environment, this.seen] = [event.target.value, null, null, null, null];
      put(this.place);
      put(this.choosers);
      this.load();
    } }, choices.map(([value, text]) => h("option", { value, selected: value === this.run }, text)));
    this.element = runs.length
      ? h("div", { className: "bar batch" }, h("label", { className: "picker" }, h("span", {}, "Batch of a run"), select), this.choosers, this.place, this.status)
      : h("p", { className: "hint" }, "Batches of PPO and GRPO runs in the folder appear here.");
  }

  /** Return the values that differ from the defaults. */
  get changed() {
    const places = [["at", this.at], ["seed", this.seed], ["env", this.environment]];
    return this.run ? [["run", this.run], ...places.filter(([, value]) => value !== null)] : [];
  }

  async load() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    clearTimeout(this.timer);
    if (!this.run) {
      this.status.textContent = "";
      await this.onbatch(null);
      return;
    }
    try {
      let answer = { done: false, at: this.at };
      while (!answer.done) {
        answer = await call("travel/batch", { run: this.run, at: answer.at, seed: this.seed, environment: this.environment ?? 0 });
        if (turn !== this.turn) return;
        if (!answer.done) this.status.textContent = "recomputing the update…";
      }
      this.slide(answer);
      this.choose(answer);
      this.status.textContent = `the update from ${whole(answer.at)} on, ${whole(answer.samples)} samples${answer.samples > answer.advantages.length ? `, ${whole(answer.advantages.length)} of them shown` : ""}`;
      await this.onbatch(answer);
      if (this.at === null) this.timer = setTimeout(() => this.follow(), FOLLOW_SECONDS * 1000);
    } catch (error) {
      if (turn !== this.turn) return;
      this.status.textContent = error.message;
      await this.onbatch(null);
    }
  }

  /** Load the latest update again when the run has progressed, unless it has ended. */
  async follow() {
    const { run } = this;
    const found = await call("runs/index").catch(() => null); // without an answer, it is asked again
    const entry = found?.runs.find(({ name }) => name === run);
    if (this.run !== run || this.at !== null || (found && entry?.outcome !== "running")) return;
    if (!entry || document.hidden || entry.consumed === this.seen) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.follow(), FOLLOW_SECONDS * 1000);
      return;
    }
    this.seen = entry.consumed;
    await this.load();
  }

  slide({ at, end, every }) {
    if (!end) return;
    if (!this.place.firstChild) {
      put(this.place, h("input", { type: "range", min: 0, "aria-label": "Update, by the budget used", oninput: (event) => {
        this.at = Number(event.target.value);
        this.asked();
      } }));
    }
    Object.assign(this.place.firstChild, { max: end, step: every, value: at });
  }

  /** Show choosers of the seed and of the environment of the rollout, if there are several. */
  choose({ seeds, seed, environments, environment }) {
    const known = `${seeds} ${environments}`;
    if (this.choosers.firstChild && known === this.known) return;
    this.known = known;
    const chooser = (label, values, chosen, take) => values.length > 1 && h("label", { className: "picker" }, h("span", {}, label),
      h("select", { "aria-label": label, onchange: (event) => {
        take(Number(event.target.value));
        this.load();
      } }, values.map((value) => h("option", { value, selected: value === chosen }, String(value)))));
    put(this.choosers, chooser("Seed", seeds, seed, (value) => (this.seed = value)),
      chooser("Rollout of environment", [...Array(environments).keys()], environment, (value) => (this.environment = value)));
  }
}
