// Elements, calls to the server and formats of numbers for all pages.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && !(element instanceof SVGElement) && name !== "list" && name !== "form") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Create an HTML element; properties named on... are listeners. */
export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
/** Create an SVG element. */
export const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

/** Replace the children of an element; null and false are left out. */
export function put(element, ...children) {
  element.replaceChildren();
  return fill(element, {}, children);
}

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Call the server; return its JSON, or throw its error. */
export async function call(name, body = {}, signal = undefined) {
  let response;
  try {
    response = await fetch(`/api/${name}`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-operant": "1" },
      body: JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("the server does not respond: is `operant serve` still running?", 0);
  }
  const text = await response.text();
  let answer;
  try {
    answer = JSON.parse(text);
  } catch {
    throw new ServerError(text.trim() || `status ${response.status}`, response.status);
  }
  if (!response.ok) throw new ServerError(answer.error ?? `status ${response.status}`, response.status);
  return answer;
}

const KINDS = { f8: Float64Array, f4: Float32Array, u2: Uint16Array, i4: Int32Array, u1: Uint8Array };

/** Return an array from base64; null stays null. */
export function unpack(text, kind = "f8") {
  if (text === null || text === undefined) return null;
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return new KINDS[kind](bytes.buffer);
}

/** Format a number for reading. */
export function short(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-3 ? value.toExponential(Math.max(0, digits - 2)) : Number(value.toPrecision(digits)).toString();
  return text.replace("-", "−");
}

/** Format the number of a cell: two decimals, or fewer if there is no room. */
export function cellNumber(value) {
  const size = Math.abs(value);
  const text = size >= 1000 ? value.toExponential(0) : size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
  return /^-0(\.0+)?$/.test(text) ? text.slice(1) : text.replace("-", "−");
}

export const count = (n, what) => `${whole(n)} ${what}${n === 1 ? "" : "s"}`;
export const whole = (value) => value.toLocaleString("en-US");

let spoken = -Infinity;
let speaking = 0;
/** Announce a text to screen readers: at most one per second, the latest. */
export function announce(text) {
  clearTimeout(speaking);
  const speak = () => {
    spoken = performance.now();
    document.getElementById("announcer").textContent = text;
  };
  const wait = spoken + 1000 - performance.now();
  if (wait > 0) speaking = setTimeout(speak, wait);
  else speak();
}

/** Return a line with a command, and a button that copies it. */
export function commandLine(label = "The same on the command line") {
  const code = h("code", {});
  const button = h("button", {
    type: "button",
    className: "quiet small",
    onclick: async () => {
      await copy(code.textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1200);
    },
  }, "Copy");
  const line = h("div", { className: "command" }, h("span", { className: "label" }, label), h("div", { className: "line" }, code, button));
  line.show = (text) => {
    code.textContent = text;
    line.hidden = !text;
  };
  return line;
}

let about = null;
/** Return the server's description of itself, loaded once. */
export const facts = () => (about ??= call("about"));

/** The command that builds the documentation and serves it here. */
const READING = "make docs && operant serve --docs site";

/** Return a link to a page of the documentation; without an address, the command that provides one, or nothing. */
export function documentation(page, label, { how = false } = {}) {
  const place = h("span", { className: "documentation" });
  const [file, part] = page.split("#");
  facts().then(({ documentation: address }) => {
    if (address) put(place, h("a", { href: `${address}${file}/${part ? `#${part}` : ""}`, rel: "noreferrer" }, label));
    else if (how) put(place, h("span", { className: "hint" }, `${label}: `, h("code", {}, READING)));
  }, () => {});
  return place;
}

/** Quote a word for a shell. */
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { value: text, className: "unseen" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** Let the user save a text as a file. */
export function save(name, text, type = "text/plain") {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** Return a callback that runs after calls have paused for some time. */
export function debounced(action, milliseconds) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}

/** Return a callback for an action that takes time: calls while it runs count as one, after it. */
export function latest(action) {
  let [busy, again] = [false, false];
  return async () => {
    again = true;
    if (busy) return;
    busy = true;
    try {
      while (again) {
        again = false;
        await action();
      }
    } finally {
      busy = false;
    }
  };
}

/** Return whether a field contains a number within its limits; only whole steps have to be met. */
export function isUsable({ value, step, validity }) {
  return value !== "" && !validity.rangeUnderflow && !validity.rangeOverflow && !(validity.stepMismatch && Number(step) >= 1);
}

/** Return whether a key is meant for the page, and not for a field. */
export function isForPage(event) {
  const target = event.target;
  return !(event.ctrlKey || event.metaKey || event.altKey) && !target.closest?.("input, select, textarea, dialog[open]");
}

/** Return the state in the fragment of the address. */
export const fragment = () => new URLSearchParams(location.hash.slice(1));

/** Return the path and the fragment of this page in a state. */
export function addressOf(parameters) {
  const text = parameters.toString();
  return `${location.pathname}${text ? `#${text}` : ""}`;
}

const WRITES = 20;
const WRITES_MILLISECONDS = 10_000;
const PAUSE_MILLISECONDS = 500;
let writes = [];
let delayed = null;
function undelay() {
  clearTimeout(delayed?.timer);
  delayed = null;
}
addEventListener("popstate", undelay);

/**
 * Write a state to the fragment of the address; a pushed one is a step for the back button. After many in a short time,
 * they come twice per second: browsers ignore or reject more than 100 in 30 seconds.
 */
export function setFragment(parameters, push = false) {
  const pushed = push || Boolean(delayed?.pushed);
  undelay();
  const address = addressOf(parameters);
  if (address === location.pathname + location.hash) return;
  const now = performance.now();
  writes = writes.filter((at) => now - at < WRITES_MILLISECONDS);
  const wait = writes.length < WRITES ? 0 : writes.at(-1) + PAUSE_MILLISECONDS - now;
  if (wait > 0) {
    delayed = { pushed, timer: setTimeout(() => setFragment(parameters, pushed), wait) };
    return;
  }
  writes.push(now);
  history[pushed ? "pushState" : "replaceState"](null, "", address);
}
