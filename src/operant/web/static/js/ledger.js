// The token ledger: colored tokens, with a row of numbers for each.

import { h, short, whole } from "./dom.js";

/** Colorings of tokens: a column, the number without color, and the distance from it with full color (null: the largest). */
export const COLORS = {
  advantage: { title: "Advantage", middle: 0, span: null },
  ratio: { title: "Ratio", middle: 1, span: 0.3 },
  policy: { title: "Term of the policy loss", middle: 0, span: null },
  kl: { title: "Divergence from the reference", middle: 0, span: null },
  entropy: { title: "Entropy", middle: 0, span: null },
  clipped: { title: "Clipped", middle: 0, span: 1 },
  reward: { title: "Reward of the token", middle: 0, span: null },
  value: { title: "Value of the critic", middle: 0, span: null },
};
const COLUMNS = [
  ["reward", "Reward"], ["value", "Value"], ["advantage", "Advantage"], ["weight", "Weight"], ["importance", "Importance"], ["log_prob", "Log-prob."], ["ratio", "Ratio"], ["clipped", "Clipped"],
  ["entropy", "Entropy"], ["kl", "KL to reference"], ["policy", "Policy term"], ["reference", "KL term"],
];

const visible = (piece) => piece.replaceAll("\n", "↵\n").replaceAll("\t", "→\t");

/** Return the tokens of an answer, colored between two colors with none in the middle. */
export function tokens(batch, visit, name) {
  const { piece } = batch.columns;
  const column = batch.columns[name];
  const { middle, span } = COLORS[name];
  const most = column ? span ?? largest(batch, name) : 0;
  return Array.from({ length: visit.length }, (_, i) => {
    const at = visit.start + i;
    const value = column ? column[at] : middle;
    const share = most ? Math.min(1, Math.abs(value - middle) / most) : 0;
    const token = h("span", { className: `token ${value > middle ? "more" : "less"}`, title: facts(batch, at), "data-value": String(value) }, visible(batch.pieces[piece[at]]));
    token.style.setProperty("--share", `${Math.round(share * 70)}%`);
    return token;
  });
}

function largest(batch, name) {
  batch.largest ??= {};
  batch.largest[name] ??= batch.columns[name].reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return batch.largest[name];
}

const shown = (name, value) => (name === "clipped" ? (value ? "yes" : "no") : short(value, 5));

function facts(batch, at) {
  return COLUMNS.filter(([name]) => batch.columns[name]).map(([name, title]) => `${title}: ${shown(name, batch.columns[name][at])}`).join("\n");
}

/** Return the ledger of an answer in an optimizer step: a row per token, and the sums of the terms of the loss. */
export function ledgerTable(batch, visit) {
  const columns = COLUMNS.filter(([name]) => batch.columns[name]);
  const places = Array.from({ length: visit.length }, (_, i) => visit.start + i);
  const sum = (name) => places.reduce((total, at) => total + batch.columns[name][at], 0);
  const adds = (name) => name === "policy" || name === "reference";
  return h("div", { className: "scroll ledger", tabIndex: 0 }, h("table", {},
    h("caption", {}, `Optimizer step ${visit.step + 1} of ${batch.steps}`),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Token"), columns.map(([, title]) => h("th", { scope: "col", className: "number" }, title)))),
    h("tbody", {}, places.map((at) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, visible(batch.pieces[batch.columns.piece[at]]))), columns.map(([name]) => h("td", { className: "number", "data-value": String(batch.columns[name][at]) }, shown(name, batch.columns[name][at])))))),
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "Sum"), columns.map(([name]) => h("td", { className: "number" }, adds(name) ? short(sum(name), 5) : ""))))));
}

/** Return a summary of a batch: its answers, its rewards, and the sums of its columns with the logged loss. */
export function describe(batch, kept) {
  const rewards = kept.map((answer) => answer.reward).filter((reward) => reward !== null && reward !== undefined);
  const mean = rewards.reduce((total, reward) => total + reward, 0) / rewards.length;
  const facts = [["Answers", `${whole(kept.length)} of ${whole(batch.answers.length)}`], ["Mean reward", rewards.length ? short(mean, 4) : "–"]];
  const versions = [...new Set(kept.map((answer) => answer.version ?? null))].filter((version) => version !== null).sort((a, b) => a - b);
  if (versions.length) facts.push(["Version of the weights", versions.map(whole).join(", ")]);
  if (!batch.columns) return list(facts);
  const parts = [["policy", "Policy loss", "losses/policy"], ["reference", "KL penalty", "losses/kl"]].filter(([name]) => name in batch.sums);
  for (const [name, title, metric] of parts) facts.push([`${title}, as logged`, exact(batch.loss[metric], metric)], [`Sum of ${whole(batch.columns.piece.length + batch.rest.tokens)} terms`, exact(batch.sums[name], `sum-${name}`)]);
  const count = batch.columns.clipped.reduce((total, one) => total + one, 0);
  facts.push(["Clipped", `${whole(count)} of ${whole(batch.columns.clipped.length)} tokens`]);
  return h("div", {}, list(facts), batch.rest.tokens ? h("p", { className: "hint" }, `${whole(batch.rest.tokens)} tokens of later groups are saved only as a sum.`) : null);
}

const exact = (value, name) => h("span", { "data-name": name, "data-value": String(value) }, short(value, 6));
const list = (facts) => h("dl", { className: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
