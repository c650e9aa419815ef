// Chat: one or two language models answer the same prompts, next to each other, and a reward model scores them.
// The address contains the state: models, sampling, prompts. Changing a setting answers all prompts again.

import { announce, call, commandLine, fragment, h, isForPage, isUsable, put, quoted, setFragment, short } from "./dom.js";

const LONGEST_LINK = 1800;
const SIDES = ["a", "b"];
const KNOBS = [
  { name: "temperature", label: "Temperature", usual: 1, min: 0, max: 5, step: 0.05 },
  { name: "top_p", label: "Top-p", usual: 1, min: 0.01, max: 1, step: 0.01 },
  { name: "max_tokens", label: "Longest answer, in tokens", usual: 64, min: 1, max: 1024, step: 1 },
  { name: "seed", label: "Seed", usual: 0, min: 0, max: 1e9, step: 1 },
];
const KEYS = [["/", "to the prompt"], ["Enter", "ask"], ["Shift Enter", "a new line"], ["Esc", "stop the answers; leave the prompt field"], ["u", "edit the last prompt"], ["n", "a new conversation"]];

class Chat {
  constructor(root, { policies, rewards }) {
    Object.assign(this, { root, policies, rewards });
    this.read();
    this.build();
    addEventListener("hashchange", () => location.reload());
    document.addEventListener("keydown", (event) => this.key(event));
    this.again();
  }

  read() {
    const given = fragment();
    const known = (name, among) => (among.some((one) => one.name === name) ? name : "");
    const gone = [["a", this.policies], ["b", this.policies], ["reward", this.rewards]].map(([name, among]) => !known(given.get(name), among) && given.get(name));
    this.missing = gone.filter(Boolean).map((name) => `There is no model ${name}. `).join("");
    this.models = { a: known(given.get("a"), this.policies) || this.policies[0].name, b: known(given.get("b"), this.policies) };
    this.places = { a: Number(given.get("seed_a") ?? 0), b: Number(given.get("seed_b") ?? 0) };
    for (const side of SIDES) if (!(this.places[side] < (this.policy(side)?.seeds ?? 1))) this.places[side] = 0;
    this.judge = known(given.get("reward"), this.rewards);
    this.sampling = Object.fromEntries(KNOBS.map(({ name, usual, min, max, step }) => {
      const value = Number(given.get(name) ?? usual);
      return [name, value >= min && value <= max && (step < 1 || Number.isInteger(value)) ? value : usual];
    }));
    this.prompts = given.getAll("say").filter((text) => text !== "");
  }

  policy(side) {
    return this.policies.find((one) => one.name === this.models[side]);
  }

  remember(push = false) {
    const found = new URLSearchParams();
    for (const side of SIDES) {
      if (this.models[side]) found.set(side, this.models[side]);
      if (this.models[side] && this.places[side]) found.set(`seed_${side}`, this.places[side]);
    }
    if (this.judge) found.set("reward", this.judge);
    for (const { name, usual } of KNOBS) if (this.sampling[name] !== usual) found.set(name, this.sampling[name]);
    const whole = new URLSearchParams(found);
    for (const prompt of this.prompts) whole.append("say", prompt);
    const fits = whole.toString().length <= LONGEST_LINK;
    setFragment(fits ? whole : found, push);
    this.note.textContent = this.missing + (fits ? "" : "The conversation is too long for a link: the address contains only the settings. ");
    this.command.show(this.prompts.length ? this.asCommand() : "");
  }

  asCommand() {
    const sides = SIDES.filter((side) => this.models[side]);
    const words = ["operant chat", ...sides.map((side) => quoted(this.policy(side).path))];
    if (sides.some((side) => this.places[side])) words.push("--seed-index", ...sides.map((side) => this.places[side]));
    if (this.judge) words.push("--reward-model", quoted(this.rewards.find((one) => one.name === this.judge).path));
    for (const { name } of KNOBS) words.push(`--${name.replace("_", "-")}`, this.sampling[name]);
    return [...words, ...this.prompts.map((prompt) => `--prompt=${quoted(prompt)}`)].join(" ");
  }

  build() {
    const choice = (id, label, options, chosen, onchange) => h("div", { className: "knob pair" }, h("label", { htmlFor: id }, label), h("select", { id, onchange: (event) => onchange(event.target.value) }, options.map(([value, text]) => h("option", { value, selected: value === String(chosen) }, text))));
    const names = this.policies.map((one) => [one.name, `${one.name} (${one.about})`]);
    const sides = SIDES.flatMap((side) => [
      choice(`model-${side}`, side === "a" ? "First model" : "Second model", side === "a" ? names : [["", "none"], ...names], this.models[side], (name) => this.change(() => {
        this.models[side] = name;
        this.places[side] = 0;
      })),
      (this.policy(side)?.seeds ?? 1) > 1 ? choice(`place-${side}`, "its seed", Array.from({ length: this.policy(side).seeds }, (_, i) => [String(i), `number ${i + 1}`]), this.places[side], (place) => this.change(() => (this.places[side] = Number(place)))) : null,
    ]);
    const knobs = KNOBS.map(({ name, label, usual, ...range }) => h("div", { className: "knob" }, h("label", { htmlFor: `knob-${name}` }, label), h("input", { id: `knob-${name}`, type: "number", ...range, value: this.sampling[name], onchange: (event) => {
      if (!isUsable(event.target)) event.target.value = this.sampling[name];
      else this.change(() => (this.sampling[name] = Number(event.target.value)));
    } })));
    this.input = h("textarea", { id: "prompt", value: this.input?.value ?? "", rows: 2, required: true, maxLength: 10000, placeholder: this.policy("a").example, "aria-describedby": "prompt-hint", onkeydown: (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.ask();
    } });
    this.stopper = h("button", { type: "button", hidden: true, onclick: () => this.stop() }, "Stop ", h("kbd", {}, "Esc"));
    this.asker = h("button", { className: "main", type: "submit" }, "Ask");
    this.note = h("span", {});
    this.command = commandLine();
    this.columns = SIDES.filter((side) => this.models[side]).map((side) => new Column(this, side));
    put(this.root, h("div", { className: "chat" },
      h("section", { className: "card chat-settings", "aria-label": "Settings" }, h("h2", { className: "title" }, "Chat"),
        sides, choice("judge", "Scored by", [["", "none"], ...this.rewards.map((one) => [one.name, one.name])], this.judge, (name) => this.change(() => (this.judge = name))),
        h("div", { className: "chat-knobs" }, knobs),
        h("p", { className: "hint" }, "If a setting changes, all prompts are answered again with the same random numbers.")),
      h("div", { className: "chat-main" },
        h("div", { className: `steps ${this.columns.length > 1 ? "two" : ""}` }, this.columns.map((column) => column.element)),
        h("form", { className: "card composer", onsubmit: (event) => {
          event.preventDefault();
          this.ask();
        } }, h("label", { htmlFor: "prompt" }, "Prompt"), this.input,
          h("div", { className: "bar" }, this.asker, this.stopper,
            h("button", { type: "button", className: "quiet", onclick: () => this.back() }, "Take back ", h("kbd", {}, "u")),
            h("button", { type: "button", className: "quiet", onclick: () => this.begin() }, "New ", h("kbd", {}, "n")),
            h("span", { className: "hint", id: "prompt-hint" }, "Enter sends, Shift+Enter adds a line"))),
        h("p", { className: "hint" }, this.note), this.command)));
    this.remember();
  }

  /** Change a setting, and answer all prompts again. */
  change(setting) {
    const focused = document.activeElement?.id;
    this.stop();
    setting();
    this.remember(true);
    this.build();
    document.getElementById(focused)?.focus();
    this.again();
  }

  async ask() {
    const text = this.input.value;
    if (!text.trim() || this.busy) return;
    this.prompts.push(text);
    this.input.value = "";
    this.remember(true);
    await this.again();
  }

  back() {
    this.stop();
    const text = this.prompts.pop();
    if (text === undefined) return;
    const draft = this.input.value === this.taken ? "" : this.input.value;
    this.input.value = this.taken = draft ? `${text}\n${draft}` : text;
    this.columns.forEach((column) => column.keep(this.prompts.length));
    this.remember(true);
    this.input.focus();
  }

  begin() {
    this.stop();
    this.prompts = [];
    this.columns.forEach((column) => column.keep(0));
    this.remember(true);
    this.input.focus();
  }

  /** Let the models answer the prompts without an answer. */
  async again() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    this.busy = true;
    this.stopper.hidden = !this.prompts.length;
    this.asker.disabled = this.prompts.length > 0;
    delete this.root.dataset.ready;
    await Promise.all(this.columns.map((column) => column.answer(() => turn === this.turn)));
    if (turn === this.turn) this.rest();
  }

  /** Enable the form after all answers. */
  rest() {
    this.busy = false;
    this.stopper.hidden = true;
    this.asker.disabled = false;
    this.root.dataset.ready = String(this.prompts.length);
  }

  stop() {
    if (!this.busy) return;
    this.turn += 1;
    this.columns.forEach((column) => column.stopped());
    this.rest();
  }

  key(event) {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
      this.stop();
      if (document.activeElement === this.input) this.input.blur();
    }
    if (!isForPage(event) || event.repeat) return;
    const actions = { "/": () => this.input.focus(), u: () => this.back(), n: () => this.begin() };
    if (!(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
  }
}

/** Conversation with one model. */
class Column {
  constructor(page, side) {
    Object.assign(this, { page, side, turns: [] });
    const { name, about } = page.policy(side);
    this.log = h("div", { className: "turns", role: "log", "aria-live": "off", "aria-label": `Conversation with ${name}`, tabIndex: 0 });
    this.kind = h("span", { className: "hint" });
    this.element = h("div", { className: "card speaker", role: "group", "aria-label": name }, h("header", {}, h("h2", {}, name), h("span", { className: "hint" }, about)), this.kind, this.log);
    this.empty();
  }

  empty() {
    put(this.log, h("p", { className: "hint" }, "No prompts yet."));
  }

  /** Keep only the first turns. */
  keep(count) {
    for (const turn of this.turns.splice(count)) turn.element.remove();
    if (!this.turns.length) this.empty();
  }

  stopped() {
    const last = this.turns.at(-1);
    if (!last || last.complete) return;
    last.complete = true;
    last.cut = true;
    last.note.textContent = "stopped; the command below completes it";
  }

  /** Answer the prompts without an answer, one after another. */
  async answer(goes) {
    const { page, side } = this;
    while (this.turns.length < page.prompts.length) {
      const turn = this.begin(page.prompts[this.turns.length]);
      const before = this.turns.slice(0, -1).filter((one) => !one.failed).map(({ prompt, text }) => ({ prompt, answer: text }));
      const body = { model: page.models[side], prompt: turn.prompt, before, ...page.sampling, seed_index: page.places[side] };
      try {
        await this.write(turn, body, goes);
      } catch (error) {
        if (goes()) this.fail(turn, error);
        if (error.status !== 400) return;
      }
      if (!goes()) return;
    }
  }

  async write(turn, body, goes) {
    for (;;) {
      const found = await call("chat/answer", body);
      if (!goes()) return;
      turn.text = found.text;
      turn.shown.textContent = found.text;
      this.kind.textContent = found.in_turns ? "prompts are turns of one conversation" : "each prompt is a separate text to continue";
      this.log.scrollTop = this.log.scrollHeight;
      if (!found.complete) continue;
      if (scoresNext(this.page, body)) {
        body.reward_model = this.page.judge;
        turn.note.textContent = "scoring…";
        continue;
      }
      this.finish(turn, found);
      return;
    }
  }

  begin(prompt) {
    if (!this.turns.length) put(this.log);
    const shown = h("div", { className: "text said" });
    const note = h("span", { className: "hint" }, "writing…");
    const score = h("span", { className: "reward" });
    const element = h("div", { className: "turn" }, h("div", { className: "message user" }, h("strong", {}, "prompt"), h("div", {}, prompt)),
      h("div", { className: "message" }, h("strong", {}, "answer"), shown, h("div", { className: "verdict" }, score, note)));
    const turn = { prompt, text: "", element, shown, note, score, complete: false };
    this.turns.push(turn);
    this.log.append(element);
    return turn;
  }

  finish(turn, found) {
    turn.complete = true;
    turn.note.textContent = `${found.tokens} token${found.tokens === 1 ? "" : "s"}${found.truncated ? ", cut off" : ""}`;
    if (found.text === "") put(turn.shown, h("em", {}, "(empty)"));
    if (this.page.judge) {
      turn.score.textContent = `reward ${found.reward === null ? "none" : short(found.reward, 5)}`;
      turn.score.dataset.value = String(found.reward);
      turn.score.dataset.sign = String(Math.sign(found.reward ?? 0));
    }
    announce(`${this.page.models[this.side]}: ${found.text}`);
  }

  fail(turn, error) {
    Object.assign(turn, { complete: true, failed: true });
    turn.element.lastChild.replaceWith(h("p", { className: "notice bad", role: "alert" }, error.message));
  }
}

/** Return whether a complete answer waits for its score. */
const scoresNext = (page, body) => page.judge !== "" && body.reward_model === undefined;

export async function show(root) {
  const found = await call("runs/models");
  if (!found.policies.length) {
    const line = commandLine("");
    line.show("operant train sft arithmetic");
    put(root, h("div", { className: "card empty-page" }, h("h2", { className: "title" }, "No language models yet"), h("p", {}, "You can chat with the model of a run as soon as it has a checkpoint. To start:"), line));
    root.dataset.ready = "0";
    return KEYS;
  }
  new Chat(root, found);
  return KEYS;
}
