// One algorithm in the world: its frames, its drawing, its messages.

import { actionNames, GridView } from "./gridview.js";
import { ALGORITHMS, KNOBS, NAMES, PARAMETERS } from "./algorithms.js";
import { call, commandLine, documentation, h, put, short, unpack, whole } from "./dom.js";

function decode(answer) {
  const found = { ...answer, values: unpack(answer.values), q: unpack(answer.q), policy: unpack(answer.policy, "u2"), visits: unpack(answer.visits, "i4") };
  found.exact = { ...answer.exact, values: unpack(answer.exact.values), policy: unpack(answer.exact.policy, "u2"), q: unpack(answer.exact.q) };
  return found;
}

export class Panel {
  /** page has: state, world, held, act(state, first), choose(slot, algorithm), computed(). */
  constructor(page, slot, algorithm) {
    this.page = page;
    this.slot = slot;
    this.algorithm = algorithm;
    this.data = null;
    this.asked = 0;
    this.grid = new GridView(`World, ${slot === "a" ? "first" : "second"} algorithm`, page.act);
    this.select = h("select", { id: `algorithm-${slot}`, "aria-label": `Algorithm ${slot.toUpperCase()}`, onchange: () => page.choose(slot, this.select.value) },
      ALGORITHMS.map(([group, list]) => h("optgroup", { label: group }, list.map(([name, title]) => h("option", { value: name }, title)))));
    this.select.value = algorithm;
    this.line = h("p", { className: "phase", "aria-live": "off" }, "Preparing…");
    this.facts = h("dl", { className: "facts" });
    this.command = commandLine();
    this.guide = h("p", { className: "hint" });
    this.notice = h("div", { className: "notice bad", role: "alert", hidden: true });
    this.element = h("section", { className: `panel ${slot}`, "aria-label": `Algorithm ${slot.toUpperCase()}` },
      h("header", {}, h("span", { className: `dot c${slot === "a" ? 1 : 2}` }), this.select,
        slot === "b" ? h("button", { className: "quiet small", type: "button", onclick: () => page.choose("b", null), "aria-label": "Remove the second algorithm" }, "✕") : null),
      this.line, this.grid.element, this.facts, this.notice, this.command, this.guide);
  }

  get name() {
    return NAMES.get(this.algorithm);
  }

  knobs() {
    return KNOBS.get(this.algorithm);
  }

  /** Request the frames of the present world; while a request is in progress, only the newest one waits. */
  async compute(drawing) {
    this.wanted = drawing;
    if (this.busy) {
      this.again = true;
      return;
    }
    this.busy = true;
    this.element.setAttribute("aria-busy", "true");
    const slow = setTimeout(() => (this.line.textContent = "Computing… The first time on a machine, kernels are compiled; later it is fast."), 1500);
    const { state } = this.page;
    const knobs = this.knobs();
    const body = { drawing, algorithm: this.algorithm, gamma: state.gamma };
    for (const [name, { field }] of Object.entries(PARAMETERS)) if (knobs.has(name)) body[field] = state[name];
    if (knobs.has("seed")) body.seed = state.seed;
    if (knobs.has("stride")) body.stride = state.stride;
    if (knobs.has("backups")) body.stride = 1;
    try {
      const answer = await call("playground/frames", body);
      this.data = decode(answer);
      this.notice.hidden = true;
      this.command.show(answer.command);
      put(this.guide, documentation(answer.page, `Documentation of ${this.name}`));
    } catch (error) {
      this.data = null;
      this.notice.textContent = error.message;
      this.notice.hidden = false;
      this.line.textContent = "No answer";
      this.facts.replaceChildren();
      this.grid.draw(this.page.world, this.page.held);
      this.command.show("");
    }
    clearTimeout(slow);
    this.busy = false;
    this.element.removeAttribute("aria-busy");
    if (this.again) {
      this.again = false;
      this.compute(this.wanted);
      return;
    }
    this.page.computed(this);
  }

  get frames() {
    return this.data?.frames ?? 0;
  }

  slice(name, i, size) {
    return this.data[name]?.subarray(i * size, (i + 1) * size) ?? null;
  }

  /** Return the value of the strongest color, the same for all frames. */
  scale(view) {
    if (view === "visits") return Math.max(1, ...this.slice("visits", this.frames - 1, this.data.states) ?? [1]);
    const exact = this.data.exact.values;
    let most = 0;
    for (const value of exact) most = Math.max(most, Math.abs(value));
    return most || Math.max(1e-12, ...Array.from(this.slice("values", this.frames - 1, this.data.states), Math.abs));
  }

  show(frame, playing) {
    const data = this.data;
    if (!data) return;
    const i = Math.min(frame, data.frames - 1);
    const { view, overlay } = this.page.state;
    const shown = (view === "q" && !data.q) || (view === "visits" && !data.visits) ? "values" : view;
    this.grid.show({
      values: this.slice("values", i, data.states), q: this.slice("q", i, data.states * data.actions),
      policy: this.slice("policy", i, data.states), visits: this.slice("visits", i, data.states),
      exact: data.exact.values, view: shown, scale: this.scale(shown), place: data.places?.[i], actions: data.actions, overlay,
    });
    if (!playing) this.grid.describeAll();
    this.line.textContent = this.sentence(i);
    const last = data.frames - 1;
    this.facts.replaceChildren(...[
      [data.predicts ? "Distance to Vπ" : "Distance to V*", short(data.errors[i]), "Maximum difference of a value from the exact solution"],
      ["Certified", data.bounds[i] === null ? "no bound" : `≤ ${short(data.bounds[i])}`, data.bounds[i] === null ? "At γ = 1 one backup gives no bound" : "Bound of this distance from one Bellman backup, without the solution"],
      data.residuals ? ["Last change", short(data.residuals[i]), "Maximum change of a value in this step"] : ["Return", short(lastReturn(data.returns, i)), "Mean undiscounted return of the latest episodes"],
      [data.unit[0].toUpperCase() + data.unit.slice(1), `${whole(data.ticks[i])}${i === last && !data.complete && data.residuals ? " (cut off)" : ""}`, ""],
    ].map(([term, text, title]) => h("div", { title }, h("dt", {}, term), h("dd", { "data-fact": term }, text))));
  }

  sentence(i) {
    const { phases, ticks, unit, frames, complete } = this.data;
    if (i === 0) return unit === "environment steps" ? "Before the first step" : "Before the first sweep: all values 0";
    const phase = phases[i];
    const round = phases.slice(0, i + 1).filter((name) => name === "improvement").length;
    let text = `Sweep ${whole(ticks[i])}`;
    if (phase === "evaluation" && phases.includes("improvement")) text = `Evaluation sweep ${i - Math.max(0, phases.lastIndexOf("improvement", i))} of policy ${round + 1}`;
    else if (phase === "improvement") text = `Policy improvement ${round}`;
    else if (phase === "backups") text = unit === "backups" ? `Backup ${whole(ticks[i])}` : `Backups of single states, round ${Math.ceil(ticks[i] / 2)}`;
    else if (phase === "learning") text = `After ${whole(ticks[i])} steps`;
    return i === frames - 1 && complete ? `${text}: finished` : text;
  }

  /** Describe the focused cell. */
  spoken(state, frame) {
    const i = Math.min(frame, this.frames - 1);
    const value = this.data.values[i * this.data.states + state];
    return `value ${short(value)}, ${actionNames(this.data.policy[i * this.data.states + state]).join(" or ")}`;
  }
}

function lastReturn(returns, i) {
  for (let k = i; k > 0; k--) if (returns[k] !== null) return returns[k];
  return null;
}
