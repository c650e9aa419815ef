// One run: its configuration, its outcome, its plots and videos.

import { commandLine, count, documentation, h, whole } from "./dom.js";

const FILMS = /\.(mp4|webm)$/;

/** Return a sentence on the progress of a run. */
export const progressOf = (run) => `${run.algorithm} on ${run.task}, ${count(run.seeds, "seed")}, ${whole(run.consumed)} of ${whole(run.budget)} used by each; ${run.outcome}${run.reason ? `: ${run.reason}` : ""}`;

/** Return the description of a run. */
export function details(run) {
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const table = (rows) => h("table", {}, h("tbody", {}, Object.entries(rows).map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, name)), h("td", {}, text(value))))));
  const sessions = run.sessions.map((session) => h("tr", {},
    h("td", {}, session.started ?? ""), h("td", {}, session.ended ?? ""), h("td", {}, session.outcome ?? "open"), h("td", {}, session.host ?? ""), h("td", {}, h("code", {}, (session.command ?? []).join(" ")))));
  const media = run.media.map((medium) => {
    const address = `/media/${run.name}/${encodeURIComponent(medium.name)}`;
    const shown = FILMS.test(medium.name) ? h("video", { src: address, controls: true, loop: true, muted: true, preload: "metadata" }) : h("img", { src: address, alt: medium.name, loading: "lazy" });
    return h("figure", { className: "medium" }, shown, h("figcaption", {}, medium.name, h("span", { className: "hint" }, ` ${whole(Math.ceil(medium.bytes / 1000))} kB`)));
  });
  const commands = Object.entries(run.commands).map(([name, command]) => {
    const line = commandLine({ show: "All results", evaluate: "Evaluate it again", resume: "Resume it", chat: "Chat with it", watch: "Record a video" }[name]);
    line.show(command);
    return line;
  });
  return h("section", { className: "card", "aria-label": run.name },
    h("h2", { className: "title" }, run.name), h("p", { className: "hint" }, progressOf(run)),
    run.page ? h("p", {}, documentation(run.page, `Documentation of ${run.algorithm}`, { how: true })) : null,
    run.has_answers ? h("p", {}, h("a", { href: `/completions#${new URLSearchParams({ run: run.name })}` }, "Completions at every step")) : null,
    run.commands.chat ? h("p", {}, h("a", { href: `/chat#${new URLSearchParams({ a: run.name })}` }, "Chat with it here")) : null,
    media.length ? h("div", { className: "media" }, media) : null,
    h("details", { open: true }, h("summary", {}, "Configuration"), h("div", { className: "scroll", tabIndex: 0 }, table(run.config))),
    h("details", {}, h("summary", {}, "Settings and resolved values"), h("div", { className: "scroll", tabIndex: 0 }, table({ ...run.settings, ...run.resolved }))),
    h("details", {}, h("summary", {}, "Sessions"), h("div", { className: "scroll", tabIndex: 0 }, h("table", {}, h("thead", {}, h("tr", {}, ["Started", "Ended", "Outcome", "Host", "Command"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, sessions)))),
    commands);
}
