// The map: the catalog as a collapsible tree; each leaf has its idea, its paper and its command.

import { call, commandLine, documentation, fragment, h, isForPage, put, setFragment } from "./dom.js";

const KEYS = [["/", "find an algorithm"], ["Tab", "from node to node"], ["Enter", "open it"], ["Esc", "clear"]];

class Map_ {
  constructor(root, tree) {
    this.root = root;
    this.leaves = [];
    this.search = h("input", { type: "search", placeholder: "Find: a name, an idea, a year", "aria-label": "Find", oninput: () => this.find() });
    this.detail = h("section", { className: "card leaf-detail", "aria-live": "polite", "aria-label": "Algorithm" });
    const columns = tree.children.map((branch, i) => h("section", { className: `branch c${i + 1}`, "aria-label": branch.title },
      h("header", {}, h("h2", {}, branch.title), h("span", { className: "hint" }, branch.note)),
      branch.children.map((family) => h("div", { className: "family" },
        h("h3", {}, family.title, family.note ? h("span", { className: "hint" }, family.note) : null),
        h("div", { className: "leaves" }, family.children.map((leaf) => this.leaf(leaf, branch, family)))))));
    put(root, h("div", { className: "map-page" },
      h("div", { className: "bar" }, h("h2", { className: "title" }, tree.title), this.search), h("div", { className: "trunk", "aria-hidden": "true" }), h("div", { className: "branches" }, columns), this.detail));
    document.addEventListener("keydown", (event) => this.key(event));
    const show = () => this.open(fragment().get("at") ?? "q-learning", false);
    addEventListener("hashchange", show);
    show();
    root.dataset.ready = "1";
  }

  leaf(leaf, branch, family) {
    const id = `${leaf.command.split(" ")[1]}:${leaf.name}`;
    const button = h("button", { type: "button", className: "leaf", "data-leaf": id, title: leaf.idea, onclick: () => this.open(id, true) }, leaf.title);
    this.leaves.push({ id, leaf, branch, family, button, text: `${leaf.name} ${leaf.title} ${leaf.idea} ${leaf.paper ?? ""}`.toLowerCase() });
    return button;
  }

  open(id, push) {
    const found = this.leaves.find((one) => one.id === id) ?? this.leaves.find((one) => one.leaf.name === id);
    if (!found) return;
    for (const { button } of this.leaves) button.removeAttribute("aria-current");
    found.button.setAttribute("aria-current", "true");
    const { leaf, branch, family } = found;
    const line = commandLine("Run it");
    line.show(leaf.command);
    const more = commandLine("Read about it");
    more.show(leaf.paper ? `operant list ${leaf.name}` : "");
    const facts = [leaf.on_policy === undefined ? "" : leaf.on_policy ? "on-policy" : "off-policy", leaf.actions ? `${leaf.actions.join(", ")} actions` : ""].filter(Boolean).join(" · ");
    put(this.detail, h("p", { className: "hint" }, `${branch.title} › ${family.title}`), h("h2", { className: "title" }, leaf.title), h("p", {}, leaf.idea),
      facts ? h("p", { className: "hint" }, facts) : null, leaf.paper ? h("p", { className: "hint" }, leaf.paper) : null, h("p", {}, documentation(leaf.page, "Documentation", { how: true })), line, more);
    this.relate(found);
    if (push) setFragment(new URLSearchParams({ at: id }), true);
  }

  /** Show the algorithms that an algorithm builds on and those that build on it, in the detail and on the map. */
  relate({ id, leaf }) {
    const bases = leaf.builds_on.map((base) => this.leaves.find((one) => one.id === base));
    const heirs = this.leaves.filter((one) => one.leaf.builds_on.includes(id));
    for (const one of this.leaves) one.button.dataset.kin = bases.includes(one) ? "base" : heirs.includes(one) ? "heir" : "";
    const rows = [["Builds on", bases], ["Basis of", heirs]].filter(([, all]) => all.length);
    this.detail.querySelector(".command").before(...rows.map(([label, all]) => h("div", { className: "kin" }, h("span", { className: "hint" }, label),
      h("span", { className: "leaves" }, all.map((one) => h("button", { type: "button", className: "leaf", onclick: () => this.open(one.id, true) }, one.leaf.title))))));
  }

  find() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const one of this.leaves) one.button.classList.toggle("dim", !words.every((word) => one.text.includes(word)));
    const first = words.length ? this.leaves.find((one) => !one.button.classList.contains("dim")) : null;
    if (first) this.open(first.id, false);
  }

  key(event) {
    if (event.key === "/" && isForPage(event)) {
      event.preventDefault();
      this.search.focus();
    } else if (event.key === "Escape") {
      this.search.value = "";
      this.find();
    } else if (event.key === "Enter" && event.target === this.search) this.leaves.find((one) => one.button.getAttribute("aria-current"))?.button.focus();
  }
}

export async function show(root) {
  new Map_(root, await call("map"));
  return KEYS;
}
