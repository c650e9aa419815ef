// The frame of all pages: navigation, colors and global keys.

import { facts, h, isForPage } from "./dom.js";

const PAGES = {
  "/": ["Playground", () => import("./playground.js")],
  "/runs": ["Runs", () => import("./runs.js")],
  "/completions": ["Completions", () => import("./completions.js")],
  "/chat": ["Chat", () => import("./chat.js")],
  "/labels": ["Labels", () => import("./labels.js")],
  "/explorables": ["Explorables", () => import("./explorables.js")],
  "/map": ["Map", () => import("./map.js")],
};
const GO = { p: "/", r: "/runs", c: "/completions", t: "/chat", l: "/labels", e: "/explorables", m: "/map" };
const THEMES = ["auto", "light", "dark"];

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = { auto: "Auto", light: "Light", dark: "Dark" }[name];
  try {
    localStorage.setItem("operant-theme", name);
  } catch { /* private windows store nothing */ }
}

function theme() {
  try {
    const kept = localStorage.getItem("operant-theme");
    return THEMES.includes(kept) ? kept : "auto";
  } catch {
    return "auto";
  }
}

function showKeys(keys) {
  const dialog = document.getElementById("keys");
  const everywhere = [["g p", "Playground"], ["g r", "Runs"], ["g c", "Completions"], ["g t", "Chat"], ["g l", "Labels"], ["g e", "Explorables"], ["g m", "Map"], ["?", "these keys"]];
  if (GO.d) everywhere.splice(-1, 0, ["g d", "Documentation"]);
  const rows = [...keys, ...everywhere].map(([key, what]) =>
    h("tr", {}, h("td", {}, key.split(" ").map((part) => [h("kbd", {}, part), " "])), h("td", {}, what)));
  dialog.replaceChildren(
    h("h2", { id: "keys-title" }, "Keys"),
    h("table", {}, h("tbody", {}, rows)),
    h("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); dialog.close(); } },
      h("button", { type: "submit" }, "Close")),
  );
  dialog.showModal();
}

/** Add the documentation to the pages, if it has an address. */
async function addDocumentation() {
  const { documentation: address } = await facts();
  if (!address) return;
  GO.d = address;
  document.querySelector(".top nav").append(h("a", { href: address, rel: "noreferrer" }, "Docs"));
}

async function start() {
  setTheme(theme());
  const [title, load] = PAGES[location.pathname] ?? PAGES["/"];
  document.title = `${title} · operant`;
  document.getElementById("title").textContent = title;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === location.pathname) link.setAttribute("aria-current", "page");
  }
  document.getElementById("theme").addEventListener("click", () =>
    setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]));
  addDocumentation().catch(() => {}); // the page itself reports that the server does not respond
  const page = document.getElementById("page");
  let keys = [];
  document.getElementById("help").addEventListener("click", () => showKeys(keys));
  let gone = -Infinity;
  document.addEventListener("keydown", (event) => {
    if (!isForPage(event)) return;
    if (event.key === "?") showKeys(keys);
    else if (event.key === "g") gone = performance.now();
    else if (performance.now() - gone < 1200 && GO[event.key]) {
      event.stopImmediatePropagation();
      location.href = GO[event.key];
    }
  }, true);
  try {
    const module = await load();
    keys = (await module.show(page)) ?? [];
  } catch (error) {
    page.replaceChildren(h("div", { className: "notice bad", role: "alert" }, error.message));
    throw error;
  }
}

start();
