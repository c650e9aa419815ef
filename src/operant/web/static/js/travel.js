// Time travel: any update of a run, with its policy at play. The curve, the slider and keys select the update.

import { announce, call, commandLine, count, h, put, whole } from "./dom.js";
import { Theater } from "./theater.js";
import { TravelTable } from "./traveltable.js";

export const TRAVEL_KEYS = [["→ ←", "time travel: next, previous update; with Shift ten"], ["space", "play, pause"], [". ,", "next, previous step of the episode; with Shift ten"], ["] [", "faster, slower"], ["v", "confirm the hash"], ["t", "to the slider of updates"]];

const MOST_QUEUED = 20;
const HELD_MILLISECONDS = 5000;
const ORIGINS = { checkpoint: "the checkpoint at", memory: "the state kept in memory at", start: "the start of training", here: "the previous state, at" };

export class Travel {
  /** page has: cursor(at or null), remember(push). */
  constructor(page) {
    this.page = page;
    this.run = null;
    this.at = null;
    this.want = null;
    this.queued = 0;
    this.theater = new Theater(this);
    this.table = new TravelTable(this);
    this.slider = h("input", { type: "range", className: "updates", min: 0, max: 1, step: 1, value: 0, list: "kept-states", "aria-label": "Update, by the budget used", oninput: () => this.pick(Number(this.slider.value)), onchange: () => this.release() });
    this.ticks = h("datalist", { id: "kept-states" });
    this.where = h("output", { className: "position" });
    this.status = h("p", { className: "arrival" });
    this.progress = h("progress", { max: 1, value: 0, hidden: true, "aria-label": "Updates recomputed" });
    this.cancel = h("button", { type: "button", className: "quiet small", hidden: true, onclick: () => this.stop() }, "Give up");
    this.verify = h("button", { type: "button", className: "quiet small", hidden: true, onclick: () => this.confirm() }, "Confirm");
    this.problem = h("div", { className: "notice bad", role: "alert", hidden: true });
    this.watch = commandLine("The same on the command line");
    this.evaluate = commandLine("Evaluate the policies of this update");
    this.body = h("div", { hidden: true },
      h("div", { className: "bar journey" }, this.status, this.progress, this.cancel, this.verify),
      this.theater.element, this.table.element, this.watch, this.evaluate);
    this.hint = h("p", { className: "hint" });
    this.element = h("section", { className: "card travel", "aria-label": "Time travel", hidden: true },
      h("h2", {}, "Time travel"), this.hint,
      h("div", { className: "track" }, this.slider, this.where), this.ticks, this.problem, this.body);
  }

  /** Offer the updates of a run, or none (null); `end` is the budget that it has used. */
  async open(entry) {
    if (!entry) {
      this.leave();
      return;
    }
    const moved = this.run !== entry.name;
    this.end = entry.consumed ?? 0;
    this.slider.max = Math.max(1, this.end);
    if (!moved) return;
    const asked = this.asked;
    this.leave();
    this.run = entry.name;
    const about = await call("runs/states", { run: entry.name });
    if (this.run !== entry.name) return;
    this.about = about;
    this.element.hidden = false;
    this.slider.disabled = Boolean(about.problem);
    put(this.hint, about.problem ? `Time travel is not available for this run: ${about.problem}` : [
      "Click the curve, or drag along it, to see the policy of that update. ",
      about.kept.length > 2 ? `${whole(about.kept.length)} states were saved; updates between them are recomputed, bit for bit.` : "No states were saved during training, so updates are recomputed from the start, bit for bit. Train with ", about.kept.length > 2 ? null : h("code", {}, "--keep-checkpoints"), about.kept.length > 2 ? null : " for faster access."]);
    put(this.ticks, (about.kept ?? []).map((value) => h("option", { value })));
    this.theater.name(about.seeds);
    if (about.problem) return;
    this.asked = null;
    if (!asked) call("travel/load", { run: entry.name }).catch(() => {}); // a click shows the error
    if (asked) {
      Object.assign(this.theater, { seed: Math.min(asked.seed, about.seeds.length - 1), speed: asked.speed, sample: asked.sample });
      this.theater.seeds.value = this.theater.seed;
      await this.go(asked.at, { position: asked.step });
    }
  }

  leave() {
    this.run = null;
    this.element.hidden = true;
    this.table.forget();
    this.depart();
  }

  /** Leave the update, but not the run. */
  depart() {
    this.at = this.want = this.wish = this.arrival = null;
    this.queued = 0;
    this.body.hidden = this.problem.hidden = true;
    this.theater.toggle(false);
    this.theater.key = null;
    this.slider.value = 0;
    this.where.textContent = "";
    this.page.cursor(null);
  }

  /** Read the state of a run from the address; it applies once the run is open. */
  read(given, run) {
    const at = given.get("at");
    this.asked = at === null || !/^\d+$/.test(at) ? null : {
      at: Number(at), step: Number(given.get("step")) || 0, seed: Number(given.get("seed")) || 0,
      speed: Number(given.get("speed")) || 1, sample: given.get("actions") === "sampled",
    };
    if (!this.run || this.run !== run || this.about?.problem) return;
    const { asked } = this;
    if (!asked) {
      this.depart();
      return;
    }
    this.asked = null;
    Object.assign(this.theater, { seed: asked.seed, speed: asked.speed, sample: asked.sample });
    this.go(asked.at, { position: asked.step });
  }

  write(found, run) {
    if (this.run && this.run !== run) return;
    const asked = this.asked;
    const at = this.want ?? this.at ?? asked?.at;
    if (at === undefined || at === null) return;
    found.set("at", at);
    const { seed, position, speed, sample } = asked ? { ...asked, position: asked.step } : this.theater;
    if (seed) found.set("seed", seed);
    if (position) found.set("step", position);
    if (speed !== 1) found.set("speed", speed);
    if (sample) found.set("actions", "sampled");
  }

  changed(push) {
    if (this.at !== null) this.page.remember(push);
  }

  /** Handle a point of a curve that is pressed or dragged. */
  pick(x) {
    if (!this.run || this.about?.problem) return;
    this.dragging = true;
    this.go(Math.max(0, Math.min(this.end, Math.round(x))), { play: true });
  }

  release() {
    if (!this.dragging) return;
    this.dragging = false;
    this.page.remember(true);
  }

  mark(at) {
    this.slider.value = at;
    this.slider.setAttribute("aria-valuetext", `update at ${whole(at)} of ${whole(this.end)}`);
    this.where.textContent = `${whole(at)} of ${whole(this.end)}`;
    this.page.cursor(at);
  }

  /** Go to an update; only the latest request counts. */
  async go(at, { way = "to", position = 0, play = false, times = 1 } = {}) {
    this.want = at;
    this.wish = { at, way, position, play, times };
    if (way === "to") this.mark(at);
    if (this.going) return;
    this.going = true;
    this.problem.hidden = true;
    try {
      while (this.wish) {
        const wish = this.wish;
        const arrival = await this.journey(wish);
        if (wish !== this.wish) continue;
        if (arrival && wish.times > 1 && wish.way !== "confirm" && !(wish.way === "back" && !arrival.consumed) && !(wish.way === "to" && arrival.consumed >= this.end)) {
          this.wish = { ...wish, at: wish.way === "to" ? arrival.consumed + 1 : arrival.consumed, times: wish.times - 1 };
          continue;
        }
        this.wish = null;
        if (arrival) this.arrived(arrival, wish);
      }
    } catch (error) {
      this.wish = null;
      this.queued = 0;
      this.fail(error);
    } finally {
      this.going = false;
      this.waiting(null);
      const { queued } = this;
      this.queued = 0;
      if (queued) this.by(queued);
    }
  }

  async journey(wish) {
    const from = this.at ?? 0;
    const began = performance.now();
    while (wish === this.wish) {
      const answer = await call("travel/go", { run: this.run, at: wish.at, way: wish.way });
      if (answer.done) return answer;
      if (wish === this.wish && performance.now() - began > 400) this.waiting(answer.consumed, Math.min(from, answer.consumed ?? 0), wish.at);
    }
    return null;
  }

  waiting(consumed, from = 0, to = 1) {
    const away = consumed !== null && consumed !== undefined;
    this.progress.hidden = this.cancel.hidden = !away;
    this.body.hidden = this.body.hidden && !away;
    if (!away) return;
    this.progress.value = to > from ? (consumed - from) / (to - from) : 0;
    this.status.textContent = `Computing again: ${whole(consumed)} of ${whole(to)}`;
  }

  /** Cancel the request: the updates so far stay in memory. */
  stop() {
    this.queued = 0;
    this.wish = null;
    this.want = this.at;
    if (this.at !== null) this.mark(this.at);
    this.status.textContent = "Given up";
  }

  arrived(arrival, { position, play, way }) {
    const same = this.at === arrival.consumed && way === "confirm";
    this.arrival = arrival;
    this.landed = performance.now();
    this.at = this.want = arrival.consumed;
    if (!same) this.theater.position = position;
    this.body.hidden = false;
    this.mark(arrival.consumed);
    this.tell(arrival);
    this.watch.show(this.command(arrival.commands.watch));
    this.evaluate.show(arrival.commands.evaluate);
    this.page.remember(false);
    announce(`Update at ${whole(arrival.consumed)}`);
    if (same && this.theater.scenes.length) return;
    this.seedChanged(); // not awaited: another key may follow
    this.theater.begin(arrival.consumed, position);
    if (play) this.theater.start();
  }

  tell(arrival) {
    const from = arrival.origin === "start" ? ORIGINS.start : `${ORIGINS[arrival.origin]} ${whole(arrival.began)}`;
    const how = arrival.updates ? `, ${count(arrival.updates, "update")} recomputed from ${from}` : arrival.origin === "start" ? ", the start of training" : arrival.origin === "checkpoint" ? ", loaded from its checkpoint" : "";
    const sure = arrival.verified ? ["good", "verified", "Training recorded the same hash"]
      : arrival.confirmed !== null ? ["good", `confirmed at ${whole(arrival.confirmed)}`, "Continued from here, the state has the hash that training recorded there"]
        : ["", "not compared", "Training recorded no hash at this update"];
    put(this.status, `Update at ${whole(arrival.consumed)}${how}. SHA-256 `, h("code", { className: "hash", title: arrival.sha256 }, arrival.sha256.slice(0, 16)), " ",
      h("span", { className: `badge ${sure[0]}`, title: sure[2] }, sure[1]));
    this.verify.hidden = arrival.verified || arrival.confirmed !== null || arrival.next_recorded === null;
    this.verify.title = arrival.next_recorded === null ? "" : `Continue to ${whole(arrival.next_recorded)}, where training recorded a hash`;
  }

  command(text) {
    const { seed, sample } = this.theater;
    return `${text}${seed ? ` --seed-index ${seed}` : ""}${sample ? " --sample" : ""}`;
  }

  confirm() {
    if (this.verify.hidden || this.at === null || this.going) return;
    this.go(this.at, { way: "confirm", position: this.theater.position });
  }

  /** Handle a server at another update: its process has ended, or another page has moved it, which keeps it for a while. */
  away() {
    if (this.at === null || this.going) return;
    if (performance.now() - this.landed > HELD_MILLISECONDS) {
      this.go(this.at, { position: this.theater.position });
      return;
    }
    this.theater.toggle(false);
    this.fail(new Error("Another window or user has gone to another update or run. To continue here, play the episode or choose an update."));
  }

  async seedChanged() {
    if (this.arrival) this.watch.show(this.command(this.arrival.commands.watch));
    if (this.at !== null) await this.table.read(this.at, this.theater.seed).catch((error) => this.fail(error));
  }

  placed(scene) {
    if (scene.obs.length === 1) this.table.place(scene.obs[0]);
  }

  fail(error) {
    this.problem.textContent = error.message;
    this.problem.hidden = false;
  }

  /** Move forward by some updates, or back. */
  by(updates, play = true) {
    if (!this.run || this.about?.problem) return;
    if (this.going) {
      this.queued = Math.max(-MOST_QUEUED, Math.min(MOST_QUEUED, this.queued + updates));
      return;
    }
    const here = this.at ?? this.end;
    if (this.at === null) this.go(here, { play });
    else if (updates > 0 && here < this.end) this.go(here + 1, { play, times: updates });
    else if (updates < 0 && here > 0) this.go(here, { way: "back", play, times: -updates });
  }

  /** Handle a key, and return whether it was one of these. */
  key(event) {
    if (this.element.hidden || this.about?.problem) return false;
    const many = event.shiftKey ? 10 : 1;
    const is = (keys, code) => keys.includes(event.key) || (event.shiftKey && event.code === code);
    const button = event.target.closest?.("button, summary, a, video, [role=gridcell]");
    const own = event.target === this.theater.scrub || event.target.closest?.("video"); // arrows move these themselves
    if ((event.key === "ArrowRight" || event.key === "ArrowLeft") && !own) this.by(event.key === "ArrowRight" ? many : -many);
    else if (event.key === "t") this.slider.focus();
    else if (this.at === null) return false;
    else if (event.key === " " && !button) this.theater.toggle();
    else if (is([".", ">"], "Period")) this.theater.step(many);
    else if (is([",", "<"], "Comma")) this.theater.step(-many);
    else if (event.key === "]") this.theater.faster(1);
    else if (event.key === "[") this.theater.faster(-1);
    else if (event.key === "v") this.confirm();
    else return false;
    return true;
  }
}
