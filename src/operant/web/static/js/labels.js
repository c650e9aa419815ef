// Labels: one prompt, two or more completions, one key. An answer counts after the server confirms that it is on disk.

import { announce, call, commandLine, fragment, h, isForPage, put, quoted, setFragment, whole } from "./dom.js";
import { Overview } from "./labeled.js";

const RETRY_SECONDS = 2;
const MANY = { tie: "All equal", "both-bad": "All bad" };
const OUTCOMES = [["A", "A is better", "A"], ["B", "B is better", "B"], ["tie", "Tie", "T"], ["both-bad", "Both bad", "N"], ["skip", "Skip", "S"]];
const KEYS = [["A 1 ←", "A is better"], ["B 2 →", "B is better"], ["T 3", "tie"], ["N 4", "both bad"], ["S", "skip"], ["U Ctrl z", "undo the last answer"]];
const RANKING_KEYS = [["1 2 3 …", "the next best answer"], ["T", "all equal"], ["N", "all bad"], ["S", "skip"], ["Backspace", "undo the last place"], ["U Ctrl z", "undo the last answer"]];
const LETTERS = "ABCDEFGHI";
const MOST_ANNOTATORS = 20;

class Labels {
  constructor(root, { runs, folder }, keys) {
    this.root = root;
    this.runs = runs;
    this.folder = folder;
    this.keys = keys;
    const given = fragment();
    this.run = given.get("run") ?? "";
    this.annotator = given.get("as") ?? remembered();
    this.overlap = Number(given.get("overlap") ?? 1) || 1;
    this.repeat = given.has("repeat");
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => location.reload());
    addEventListener("beforeunload", (event) => {
      if (this.pending) event.preventDefault();
    });
    if (this.run && this.annotator) this.begin();
    else this.ask();
  }

  /** Show a form for the run and the annotator. */
  ask(problem = "") {
    const run = h("select", { id: "run" }, this.runs.map((name) => h("option", { value: name, selected: name === this.run }, name)));
    const overlap = h("input", { id: "overlap", type: "number", min: 1, max: MOST_ANNOTATORS, step: 1, value: this.overlap, required: true });
    const name = h("input", { id: "annotator", type: "text", value: this.annotator, required: true, maxLength: 100, autocomplete: "off" });
    put(this.root, h("section", { className: "card empty-page" }, h("h2", { className: "title" }, "Which answer is better?"),
      h("p", { className: "hint" }, "Compare answers of language models. Their order is shuffled, and their sources are hidden."),
      problem ? h("p", { className: "notice bad", role: "alert" }, problem) : null,
      this.runs.length
        ? h("form", { onsubmit: (event) => {
          event.preventDefault();
          this.run = run.value;
          this.annotator = name.value.trim();
          this.overlap = Number(overlap.value);
          if (this.annotator) this.begin();
        } }, h("div", { className: "knob pair" }, h("label", { htmlFor: "run" }, "Run"), run), h("div", { className: "knob pair" }, h("label", { htmlFor: "annotator" }, "Your name"), name),
          h("div", { className: "knob pair" }, h("label", { htmlFor: "overlap" }, "Annotators of each prompt"), overlap),
          h("button", { className: "main", type: "submit" }, "Begin"))
        : h("div", {}, h("p", {}, "No run has answers to compare yet. Language models save answers at every evaluation. To start:"), line("operant train sft arithmetic"))));
    this.root.dataset.ready = "1";
  }

  async begin() {
    setFragment(new URLSearchParams({ run: this.run, as: this.annotator, ...(this.overlap > 1 ? { overlap: this.overlap } : {}), ...(this.repeat ? { repeat: 1 } : {}) }));
    try {
      localStorage.setItem("operant-annotator", this.annotator);
    } catch { /* private windows store nothing */ }
    this.build();
    try {
      this.show(await call("labels/following", this.who()));
    } catch (error) {
      this.ask(error.message);
    }
  }

  who() {
    return { run: this.run, annotator: this.annotator, overlap: this.overlap, repeat: this.repeat };
  }

  build() {
    this.state = h("span", { className: "saved", role: "status" });
    this.progress = h("progress", { max: 1, value: 0, "aria-label": "answered" });
    this.count = h("span", { className: "hint" });
    this.prompt = h("div", { className: "text prompt" });
    this.sides = h("div", { className: "sides" });
    this.buttons = h("div", { className: "answers" });
    this.undoButton = h("button", { type: "button", className: "quiet", onclick: () => this.undo() }, "Undo ", h("kbd", {}, "U"));
    const path = quoted(`${this.folder}/${this.run}`);
    this.command = line(`operant label ${path} --annotator ${quoted(this.annotator)}${this.overlap > 1 ? ` --overlap ${this.overlap}` : ""}${this.repeat ? " --repeat" : ""}`);
    this.overview = new Overview(this.run, path);
    put(this.root, h("div", { className: "labels" },
      h("div", { className: "bar" }, h("strong", {}, this.run), h("span", { className: "hint" }, this.annotator), this.progress, this.count, this.state),
      h("section", { className: "card", "aria-label": "Prompt" }, h("h2", {}, "Prompt"), this.prompt),
      this.sides, this.buttons, this.overview.element, this.command));
  }

  show(answer) {
    const focused = this.item ? [...this.root.querySelectorAll("button")].indexOf(document.activeElement) : -1;
    this.item = answer.item;
    this.progress.max = Math.max(1, answer.items);
    this.progress.value = Math.min(answer.answered, answer.items);
    this.count.textContent = `${whole(answer.answered)} of ${whole(answer.items)}`;
    this.since = performance.now();
    this.ranked = [];
    this.overview.refresh();
    if (!this.item) {
      put(this.prompt, h("p", {}, answer.waiting ? `The remaining ${answer.waiting} are open in another window.` : "Nothing is left to label here. Thank you."));
      put(this.sides);
      put(this.buttons, this.repeat || !answer.answered ? null : h("button", { type: "button", onclick: () => this.again() }, "Answer again, to measure your consistency"), this.undoButton);
      this.root.dataset.ready = "end";
      return;
    }
    put(this.prompt, text(this.item.prompt));
    const many = this.item.completions.length > 2;
    this.keys.splice(0, this.keys.length, ...(many ? RANKING_KEYS : KEYS));
    put(this.sides, this.item.completions.map((completion, i) => h("section", { className: "card side-card", "aria-label": `Answer ${LETTERS[i]}` },
      h("header", {}, h("h2", {}, LETTERS[i]), h("button", { type: "button", onclick: () => (many ? this.rank(i) : this.answer(LETTERS[i])) }, many ? ["Next best ", h("kbd", {}, i + 1)] : `${LETTERS[i]} is better`)),
      h("div", { className: "text" }, text(completion)))));
    put(this.buttons, OUTCOMES.filter(([outcome]) => !(many && outcome.length === 1)).map(([outcome, title, key]) =>
      h("button", { type: "button", onclick: () => this.answer(outcome) }, `${many ? MANY[outcome] ?? title : title} `, h("kbd", {}, key))), this.undoButton);
    this.root.querySelectorAll("button")[focused]?.focus();
    this.root.dataset.ready = this.item.id;
  }

  /** Rank the next best of more than two completions; choosing the second last completes the ranking. */
  rank(i) {
    if (this.ranked.includes(i) || this.pending) return;
    this.ranked.push(i);
    const { length } = this.item.completions;
    if (this.ranked.length === length - 1) this.ranked.push([...Array(length).keys()].find((k) => !this.ranked.includes(k)));
    this.places();
    announce(`${LETTERS[i]} is number ${this.ranked.indexOf(i) + 1}`);
    if (this.ranked.length === length) this.answer("ranking", this.item.completions.map((_, k) => this.ranked.indexOf(k) + 1));
  }

  /** Undo the last rank. */
  unrank() {
    this.ranked.pop();
    this.places();
  }

  places() {
    [...this.sides.children].forEach((side, k) => {
      const place = this.ranked.indexOf(k);
      put(side.querySelector("button"), ...(place < 0 ? ["Next best ", h("kbd", {}, k + 1)] : [`Place ${place + 1}`]));
    });
  }

  /** Label answered items again, in another order. */
  async again() {
    this.repeat = true;
    await this.begin();
  }

  async answer(outcome, ranks = undefined) {
    if (!this.item || this.pending) return;
    const body = { ...this.who(), item_id: this.item.id, round: this.item.round, outcome, ranks: ranks ?? null, event_id: identifier(), seconds: (performance.now() - this.since) / 1000 };
    delete body.repeat; // the round of the item determines it
    const answer = await this.send("labels/record", body);
    if (!answer) {
      this.ranked = [];
      if (ranks) this.places();
      return;
    }
    this.say(`Saved: ${OUTCOMES.find(([name]) => name === outcome)?.[1] ?? "ranking"}`, "good");
    this.show(answer);
  }

  async undo() {
    if (this.pending) return;
    const answer = await this.send("labels/undo", { run: this.run, annotator: this.annotator, event_id: identifier() });
    if (!answer) return;
    this.say(answer.undone ? "Undone: asked again" : "There is nothing to undo", answer.undone ? "good" : "");
    if (answer.undone) this.show(answer);
  }

  /** Send until the server responds, always with the same id, so that nothing is stored twice. */
  async send(name, body) {
    this.pending = true;
    this.root.setAttribute("aria-busy", "true");
    this.say("Saving…", "");
    try {
      for (;;) {
        try {
          return await call(name, body);
        } catch (error) {
          if (error.status !== 0 && error.status !== 503) {
            this.say(`Not saved: ${error.message}`, "bad");
            if (error.status === 409) this.show(await call("labels/following", this.who()));
            return null;
          }
          this.say("Not saved yet: the server does not respond. Trying again…", "bad");
          await new Promise((resolve) => setTimeout(resolve, RETRY_SECONDS * 1000));
        }
      }
    } finally {
      this.pending = false;
      this.root.removeAttribute("aria-busy");
    }
  }

  say(text, kind) {
    this.state.textContent = text;
    this.state.className = `saved ${kind}`;
    announce(text);
  }

  key(event) {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && this.buttons) {
      event.preventDefault();
      this.undo();
      return;
    }
    if (!isForPage(event) || event.repeat || !this.buttons) return;
    const many = this.item?.completions.length > 2;
    const digit = Number(event.key) - 1;
    if (many && digit >= 0 && digit < this.item.completions.length) {
      this.rank(digit);
      return;
    }
    if (many && event.key === "Backspace") {
      this.unrank();
      return;
    }
    const outcomes = { a: "A", 1: "A", ArrowLeft: "A", b: "B", 2: "B", ArrowRight: "B", t: "tie", 3: "tie", n: "both-bad", 4: "both-bad", s: "skip" };
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (key === "u") this.undo();
    else if (key in outcomes && !(many && outcomes[key].length === 1)) this.answer(outcomes[key]);
    else return;
    event.preventDefault();
  }
}

function text(given) {
  if (typeof given === "string") return given === "" ? h("em", {}, "(empty)") : given;
  return given.map((message) => h("div", { className: `message ${message.role === "user" ? "user" : ""}` }, h("strong", {}, message.role), h("div", {}, message.content)));
}

function line(text) {
  const found = commandLine();
  found.show(text);
  return found;
}

function remembered() {
  try {
    return localStorage.getItem("operant-annotator") ?? "";
  } catch {
    return "";
  }
}

function identifier() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export async function show(root) {
  const keys = [...KEYS];
  new Labels(root, await call("labels/index"), keys);
  return keys;
}
