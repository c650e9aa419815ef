// An episode on a canvas, frame by frame, next to the policy's outputs in each state.

import { Chart } from "./chart.js";
import { call, debounced, h, put, s, short, unpack, whole } from "./dom.js";

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];
const AHEAD = 80;
const BARS = 18;
const PAUSE_MILLISECONDS = 1000;

const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export class Theater {
  /** page has: run, changed(push), away() for a server that is at another update. */
  constructor(page) {
    this.page = page;
    this.position = 0;
    this.speed = 1;
    this.seed = 0;
    this.sample = false;
    this.playing = false;
    this.scenes = [];
    this.images = new Map();
    this.canvas = h("canvas", { width: 600, height: 400, role: "img", "aria-label": "The episode" });
    this.blind = h("div", { className: "blind", hidden: true });
    this.play = h("button", { type: "button", className: "main", "aria-label": "Play", onclick: () => this.toggle() }, "▶");
    this.scrub = h("input", { type: "range", className: "scrub", min: 0, max: 0, value: 0, "aria-label": "Step of the episode", oninput: () => this.show(Number(this.scrub.value)) });
    this.where = h("span", { className: "position" });
    this.speeds = h("select", { "aria-label": "Speed", onchange: () => this.setSpeed(Number(this.speeds.value)) }, SPEEDS.map((speed) => h("option", { value: speed }, `× ${speed}`)));
    this.seeds = h("select", { "aria-label": "Seed", onchange: () => this.restart({ seed: Number(this.seeds.value) }) });
    this.modes = h("div", { className: "segments", role: "radiogroup", "aria-label": "Actions" }, [[false, "Greedy"], [true, "Sampled"]].map(([sample, title]) =>
      h("button", { type: "button", role: "radio", onclick: () => this.restart({ sample }) }, title)));
    const step = (by, label, text) => h("button", { type: "button", "aria-label": label, title: label, onclick: () => this.step(by) }, text);
    this.facts = h("dl", { className: "facts" });
    this.numbers = h("div", { className: "numbers" });
    this.chart = new Chart({ title: "Along the episode", xLabel: "step", height: 190, empty: "there are no values", onpick: (x) => this.show(Math.round(x)) });
    this.remember = debounced(() => page.changed(false), 250);
    this.element = h("div", { className: "theater" },
      h("div", { className: "screen" }, this.canvas, this.blind,
        h("div", { className: "transport" },
          h("div", { className: "buttons" }, step(-Infinity, "First step", "|◀"), step(-1, "Previous step", "◀"), this.play, step(1, "Next step", "▶|"), this.speeds),
          h("div", { className: "track" }, this.scrub, this.where),
          h("div", { className: "looks" }, h("label", { className: "picker" }, "Seed", this.seeds), this.modes))),
      h("div", { className: "minds" }, this.facts, this.numbers, this.chart.element));
    this.frame = this.frame.bind(this);
  }

  /** Show the seeds by their numbers. */
  name(seeds) {
    put(this.seeds, seeds.map((seed, i) => h("option", { value: i }, String(seed))));
    this.seed = Math.min(this.seed, seeds.length - 1);
    this.seeds.value = this.seed;
  }

  restart({ seed = this.seed, sample = this.sample }) {
    Object.assign(this, { seed, sample });
    this.page.changed(true);
    this.begin(this.at, this.position);
    this.page.seedChanged();
  }

  /** Play the episode of the update at a budget, from a step. */
  async begin(at, position = 0) {
    this.at = at;
    this.key = Symbol("episode"); // answers for an earlier one are ignored, even for the same update
    this.scenes = [];
    this.images = new Map();
    this.rate = 30;
    this.position = position;
    this.wanted = position;
    this.ended = false;
    this.later = 0; // while an episode plays, scenes are not requested before
    this.seeds.value = this.seed;
    this.speeds.value = this.speed;
    [...this.modes.children].forEach((button, i) => button.setAttribute("aria-checked", String(Boolean(i) === this.sample)));
    await this.fill();
  }

  /** Request scenes until enough follow the one that is shown. */
  async fill() {
    if (this.filling === this.key) return;
    const key = (this.filling = this.key);
    try {
      while (key === this.key && !this.ended && this.scenes.length < Math.max(this.position, this.wanted) + AHEAD) {
        const answer = await call("travel/scenes", { run: this.page.run, at: this.at, seed_index: this.seed, start: this.scenes.length, sample: this.sample });
        if (key !== this.key) return;
        if (answer.away) {
          this.filling = null;
          this.later = performance.now() + PAUSE_MILLISECONDS;
          this.page.away();
          return;
        }
        this.rate = answer.rate;
        this.scenes.push(...answer.scenes);
        this.ended = answer.ended;
        this.scrub.max = this.scenes.length - 1;
        await this.show(Math.min(this.wanted, this.scenes.length - 1), false);
        this.plot();
      }
    } catch (error) {
      if (key === this.key) {
        this.toggle(false);
        this.page.fail(error);
      }
    } finally {
      if (this.filling === key) this.filling = null;
    }
  }

  toggle(on = !this.playing) {
    this.playing = on;
    if (on && this.ended && this.position >= this.scenes.length - 1) this.show(0);
    this.play.textContent = on ? "❚❚" : "▶";
    this.play.setAttribute("aria-label", on ? "Pause" : "Play");
    if (!on) {
      this.remember();
      return;
    }
    this.due = performance.now();
    requestAnimationFrame(this.frame);
  }

  frame(now) {
    if (!this.playing) return;
    const pace = 1000 / (this.rate * this.speed);
    if (now >= this.due) {
      const steps = Math.min(Math.floor((now - this.due) / pace) + 1, 60);
      const next = Math.min(this.position + steps, this.scenes.length - 1);
      this.due = Math.max(this.due + steps * pace, now - 250);
      if (next > this.position) this.show(next);
      if (this.ended && next >= this.scenes.length - 1) {
        this.toggle(false);
        return;
      }
      if (now >= this.later) this.fill();
    }
    requestAnimationFrame(this.frame);
  }

  step(by) {
    this.toggle(false);
    const last = Math.max(0, this.scenes.length - 1);
    this.wanted = Math.max(0, this.wanted + by);
    if (this.ended) this.wanted = Math.min(this.wanted, last);
    this.show(Math.min(this.wanted, last), false); // later scenes are shown when they arrive
    this.fill();
    this.page.changed(false);
  }

  setSpeed(speed) {
    this.speed = speed;
    this.speeds.value = speed;
    this.page.changed(false);
  }

  faster(by) {
    this.setSpeed(SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, SPEEDS.indexOf(this.speed) + by))]);
  }

  /** Show one scene. */
  async show(position, moved = true) {
    const scene = this.scenes[position];
    if (!scene) return;
    this.position = position;
    if (moved) this.wanted = position;
    this.scrub.value = position;
    const last = this.scenes.length - 1;
    this.where.textContent = `${whole(scene.step)}${this.ended ? ` of ${whole(last)}` : ""}`;
    this.scrub.setAttribute("aria-valuetext", `step ${scene.step}`);
    this.describe(scene);
    this.chart.cursor(scene.step);
    this.page.placed(scene);
    await this.paint(scene, position);
  }

  async paint(scene, position) {
    this.canvas.hidden = scene.frame === null;
    this.blind.hidden = scene.frame !== null;
    if (scene.frame === null) {
      put(this.blind, h("p", { className: "hint" }, "This task has no frames; its observation:"),
        scene.obs.length ? h("code", {}, scene.obs.map((number) => short(number, 4)).join("  ")) : h("p", {}, "too long to show"));
      return;
    }
    const key = this.key;
    let image = this.images.get(position);
    if (!image) {
      image = await createImageBitmap(new Blob([unpack(scene.frame, "u1")], { type: "image/png" }));
      if (key !== this.key) return;
      if (this.images.size > 400) this.images.clear();
      this.images.set(position, image);
    }
    if (this.position !== position && !this.playing) return;
    if (this.canvas.width !== image.width || this.canvas.height !== image.height) Object.assign(this.canvas, { width: image.width, height: image.height });
    this.canvas.getContext("2d").drawImage(image, 0, 0);
    this.canvas.dataset.step = scene.step;
    this.canvas.classList.toggle("pixels", image.width < 300);
  }

  describe(scene) {
    const verdict = scene.ended ? (scene.terminated ? "terminated by the task" : "truncated by a step limit") : "";
    this.canvas.setAttribute("aria-label", `The episode, step ${scene.step}, return ${short(scene.score, 5)} ${verdict}`);
    put(this.facts, [["Step", whole(scene.step)], ["Return", short(scene.score, 5)], ["Reward", scene.step ? short(scene.reward, 4) : "–"], ["Value", scene.value === null ? "–" : short(scene.value, 4)], ...(verdict ? [["Episode", verdict]] : [])]
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    put(this.numbers, this.rows(scene));
  }

  /** Show the policy's outputs in a state: a bar and a number for each action. */
  rows(scene) {
    const { probabilities, q, mean, std } = scene.told;
    const taken = scene.action?.length === 1 && !mean ? scene.action[0] : null;
    const shares = probabilities ?? null;
    const count = Math.min((shares ?? q ?? mean ?? []).length, BARS);
    if (!count) return h("p", { className: "hint" }, scene.ended ? "The episode is over." : `Takes ${(scene.action ?? []).map((number) => short(number, 4)).join(", ")}`);
    const head = ["Action", ...(shares ? ["Probability"] : []), ...(q ? ["Q"] : []), ...(mean ? ["Mean", ...(std ? ["Deviation"] : []), "Taken"] : [])];
    const low = q ? Math.min(...q.filter((value) => value !== null)) : 0;
    const high = q ? Math.max(...q.filter((value) => value !== null)) : 1;
    const bar = (share, title) => s("svg", { class: "share", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, s("title", {}, title), s("rect", { class: "trough", width: 100, height: 10, rx: 2 }), s("rect", { class: "fill", width: Math.max(0, 100 * share), height: 10, rx: 2 }));
    const cell = (value) => h("td", { className: "number" }, value === null ? "–" : short(value, 4));
    return h("table", { "aria-label": "The policy in this state" },
      h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)), h("td", {}))),
      h("tbody", {}, Array.from({ length: count }, (_, a) => h("tr", { className: taken === a ? "taken" : "", "aria-current": taken === a ? "true" : null },
        h("th", { scope: "row" }, `${a}${taken === a ? " ●" : ""}`),
        shares ? cell(shares[a]) : null, q ? cell(q[a]) : null, mean ? [cell(mean[a]), std ? cell(std[a]) : null, cell(scene.action?.[a] ?? null)] : null,
        h("td", { className: "wide" }, shares ? bar(shares[a], `${short(100 * shares[a])} %`) : q && q[a] !== null ? bar((q[a] - low) / (high - low || 1), short(q[a])) : null)))));
  }

  plot() {
    const x = this.scenes.map((scene) => scene.step);
    const series = [];
    if (this.scenes.some((scene) => scene.value !== null)) series.push({ name: "value", color: 1, x, y: this.scenes.map((scene) => scene.value) });
    series.push({ name: "return so far", color: 2, dashed: true, x, y: this.scenes.map((scene) => scene.score) });
    this.chart.show(series);
  }

  /** Return whether an episode plays by itself when it is shown. */
  start() {
    if (!still() && !this.playing) this.toggle(true);
  }
}
