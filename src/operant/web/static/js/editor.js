// The tools that change a world: presets, brushes, rules, files.

import { h } from "./dom.js";
import { resized, signed } from "./world.js";

const TOOLS = [
  ["move", "Move", "Move a reward, a trap or a wall"],
  ["wall", "Wall", "Paint walls; on walls, paint floor"],
  ["start", "Start", "Episodes start here; without a start, anywhere"],
  ["end", "End", "The episode ends here, with the reward below"],
  ["bonus", "Pays", "Floor with the reward below at every visit"],
  ["cliff", "Cliff", "Costs the reward of a cliff and leads back to the start"],
  ["floor", "Erase", "Paint floor"],
];

/** Return the editor of a page's world: its element, `tool()`, `token(first, under)` and `refresh()`. */
export function editor(page) {
  let tool = page.toolKept ?? "move";
  let stroke = null;
  const reward = h("input", { type: "number", value: page.rewardKept ?? 1, step: "any", id: "reward", onchange: () => (page.rewardKept = Number(reward.value)) });
  const hint = h("p", { className: "hint" });
  const buttons = TOOLS.map(([name, title, what]) => h("button", { type: "button", role: "radio", title: what, "data-tool": name, onclick: () => choose(name) }, title));
  const choose = (name) => {
    tool = name;
    page.toolKept = name;
    for (const button of buttons) button.setAttribute("aria-checked", String(button.dataset.tool === name));
    hint.textContent = TOOLS.find(([one]) => one === name)[2];
    rewardLine.hidden = name !== "end" && name !== "bonus";
  };
  const rewardLine = h("div", { className: "knob pair" }, h("label", { htmlFor: "reward" }, "Reward"), reward);
  const select = h("select", { id: "preset", onchange: () => page.usePreset(select.value) }, page.presets.map((one) => h("option", { value: one.name }, one.title)));
  const note = h("p", { className: "hint" });

  const size = (label, id, current, change) => {
    const input = h("input", { type: "number", min: 1, max: 100, id, onchange: () => {
      const value = Math.floor(Number(input.value));
      if (value >= 1 && value <= 100 && value !== current()) page.edited(change(value));
      else input.value = current();
    } });
    return [h("div", { className: "knob pair" }, h("label", { htmlFor: id }, label), input), input, current];
  };
  const rows = size("Rows", "rows", () => page.world.cells.length, (n) => resized(page.world, n, page.world.cells[0].length));
  const columns = size("Columns", "columns", () => page.world.cells[0].length, (n) => resized(page.world, page.world.cells.length, n));

  const rule = (label, name, attributes, toRule = Number, toField = (value) => value ?? "") => {
    const input = h("input", { id: `rule-${name}`, ...attributes, onchange: () => {
      const value = input.type === "checkbox" ? input.checked : toRule(input.value);
      const rules = { ...page.world.rules, [name]: value };
      if (name === "actions" && value !== 4) rules.slip = 0;
      if (name === "slip" && value) rules.actions = 4;
      page.edited({ ...page.world, rules });
    } });
    const show = () => (input.type === "checkbox" ? (input.checked = page.world.rules[name]) : (input.value = toField(page.world.rules[name])));
    return [h("div", { className: "knob pair" }, h("label", { htmlFor: `rule-${name}` }, label), input), show];
  };
  const number = { type: "number", step: "any" };
  const wind = (text) => {
    const given = text.trim().split(/[\s,]+/).filter(Boolean).map((part) => Math.trunc(Number(part)) || 0);
    return given.length ? Array.from({ length: page.world.cells[0].length }, (_, c) => given[c] ?? 0) : [];
  };
  const rules = [
    rule("Reward of a step", "step", number),
    rule("Reward of G", "goal", number),
    rule("Reward of H", "hole", number),
    rule("Reward of a cliff", "cliff", number),
    rule("Reward of a bump", "bump", { ...number, placeholder: "as a step" }, (text) => (text === "" ? null : Number(text))),
    rule("Slip", "slip", { type: "number", min: 0, max: 1, step: "any", title: "Probability of moving sideways" }),
    rule("Wind of the columns", "wind", { type: "text", placeholder: "0 0 1 2 …", title: "Cells upwards, one number per column" }, wind, (value) => value.join(" ")),
    rule("Gusty wind", "gusts", { type: "checkbox" }),
    rule("Actions", "actions", { type: "number", min: 4, max: 9, title: "4, or 8 with diagonals, or 9 with staying" }),
  ];
  const file = h("input", { type: "file", accept: ".txt,text/plain", className: "unseen", tabIndex: -1, "aria-label": "Drawing", onchange: async () => {
    try {
      if (file.files[0]) await page.open(file.files[0]);
      problem.hidden = true;
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
    file.value = "";
  } });
  const problem = h("p", { className: "notice bad", role: "alert", hidden: !page.fault }, page.fault);
  const share = h("button", { type: "button", className: "quiet small", onclick: async () => {
    await page.share();
    share.textContent = "Copied";
    setTimeout(() => (share.textContent = "Copy link"), 1200);
  } }, "Copy link");
  const attempt = (action) => async () => {
    try {
      await action();
      problem.hidden = true;
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
  };
  const element = h("section", { className: "card", "aria-label": "World" },
    h("div", { className: "knob pair" }, h("label", { htmlFor: "preset" }, "World"), select), note,
    h("div", { className: "segments tools", role: "radiogroup", "aria-label": "Tool" }, buttons), hint, rewardLine,
    h("details", {}, h("summary", {}, "Size and rules"), rows[0], columns[0], rules.map(([line]) => line)),
    h("details", {}, h("summary", {}, "Files and link"),
      h("div", { className: "files" }, share,
        h("button", { type: "button", className: "quiet small", onclick: () => page.exportDrawing() }, "Save drawing"),
        h("button", { type: "button", className: "quiet small", onclick: attempt(() => page.exportModel()) }, "Save model"),
        h("button", { type: "button", className: "quiet small", onclick: () => file.click() }, "Open drawing…"), file),
      h("p", { className: "hint" }, "The drawing is for ", h("code", {}, "operant solve --map"), " and ", h("code", {}, "operant train"), "; the model for ", h("code", {}, "operant solve --mdp"), ".")),
    problem);
  const refresh = () => {
    const preset = page.preset();
    select.value = preset.name;
    note.textContent = page.state.own ? `Your own, from ${preset.title}.` : preset.note;
    for (const [, input, current] of [rows, columns]) input.value = current();
    for (const [, show] of rules) show();
  };
  choose(tool);
  refresh();
  return {
    element,
    refresh,
    tool: () => tool,
    /** Return the token to paint; a stroke continues with its first token. */
    token(first, under) {
      const value = Number(reward.value);
      const tokens = { wall: under === "#" ? "." : "#", start: under === "S" ? "." : "S", cliff: "C", floor: ".", end: Number.isFinite(value) ? signed(value) : null, bonus: Number.isFinite(value) ? `(${signed(value)})` : null };
      if (first) stroke = tokens[tool] ?? null;
      return stroke;
    },
  };
}
