// A world on the page: cells, rules, jumps. The server computes with its text.

export const WALL = "#";
const MOST_CELLS = 10_000;
const DEFAULTS = { step: 0, goal: 1, hole: 0, cliff: -100, bump: null, slip: 0, gusts: false, actions: 4 };

/** Return a world from a response of the server. */
export const worldOf = ({ cells, rules, jumps }) => ({ cells: cells.map((row) => [...row]), rules: { ...rules, wind: [...rules.wind] }, jumps: [...jumps] });

export const copyOf = (world) => structuredClone(world);

/** Return the drawing of a world. */
export function drawingOf(world) {
  const { rules, cells, jumps } = world;
  const lines = [];
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const value = rules[name];
    if (value === usual || value === undefined) continue;
    lines.push(`${name}: ${value === true ? "yes" : value}`);
  }
  if (rules.wind.some((strength) => strength !== 0)) lines.push(`wind: ${rules.wind.join(" ")}`);
  for (const jump of jumps) lines.push(`jump: ${jump}`);
  const width = Math.max(...cells.flat().map((token) => token.length));
  const rows = cells.map((row) => row.map((token) => token.padStart(width)).join(" ").trimEnd());
  return [...lines, ...(lines.length ? [""] : []), ...rows, ""].join("\n");
}

/** Encode a world in few characters: runs of equal cells are counted, longer tokens are in brackets. */
export function encoded(world) {
  const rows = world.cells.map((row) => {
    let text = "";
    for (let i = 0; i < row.length;) {
      let n = 1;
      while (i + n < row.length && row[i + n] === row[i]) n++;
      text += (n > 1 ? n : "") + (row[i].length > 1 ? `[${row[i]}]` : row[i]);
      i += n;
    }
    return text;
  });
  const rules = Object.entries(DEFAULTS).filter(([name, usual]) => (world.rules[name] ?? usual) !== usual)
    .map(([name]) => `${name}:${world.rules[name]}`);
  if (world.rules.wind.some((strength) => strength !== 0)) rules.push(`wind:${world.rules.wind.join(" ")}`);
  return [rows.join("/"), rules.join(","), world.jumps.join(",")].join("|").replace(/\|+$/, "");
}

/** Return the world of a text from `encoded`, or null if it is invalid. */
export function decoded(text) {
  const [map, rules = "", jumps = ""] = text.split("|");
  const runs = map.split("/").map((row) => [...row.matchAll(/(\d*)(\[[^\]]*\]|[^\d[\]])/g)].map(([, n, token]) => [Number(n || 1), token.replace(/^\[|\]$/g, "")]));
  if (runs.flat().reduce((total, [n]) => total + n, 0) > MOST_CELLS) return null;
  const cells = runs.map((row) => row.flatMap(([n, token]) => Array(n).fill(token)));
  if (cells.some((row) => row.length !== cells[0].length || !row.length)) return null;
  const world = { cells, rules: { ...DEFAULTS, wind: [] }, jumps: jumps ? jumps.split(",") : [] };
  for (const part of rules ? rules.split(",") : []) {
    const [name, value] = part.split(":");
    if (name === "wind") world.rules.wind = value.split(" ").map(Number);
    else if (name === "gusts") world.rules.gusts = value === "true";
    else if (name in DEFAULTS) world.rules[name] = Number(value);
  }
  return world;
}

/** Return a world of another size; cells outside are cut off, new cells are floor. */
export function resized(world, rows, columns) {
  const next = copyOf(world);
  next.cells = Array.from({ length: rows }, (_, r) => Array.from({ length: columns }, (_, c) => world.cells[r]?.[c] ?? "."));
  if (next.rules.wind.length) next.rules.wind = Array.from({ length: columns }, (_, c) => world.rules.wind[c] ?? 0);
  return withoutLooseEnds(next);
}

/** Return a world without the jumps that have lost an end, and without their other ends. */
export function withoutLooseEnds(world) {
  const kept = new Set(world.cells.flat());
  const ends = (jump) => jump.split(" ").slice(0, 2);
  const jumps = world.jumps.filter((jump) => ends(jump).every((letter) => kept.has(letter)));
  const used = new Set(jumps.flatMap(ends));
  return { ...world, jumps, cells: world.cells.map((row) => row.map((token) => (kindOf(token) === "jump" && !used.has(token) ? "." : token))) };
}

/** Return the type of a cell: wall, start, end, cliff, bonus, jump or floor. */
export function kindOf(token) {
  if (token === WALL) return "wall";
  if (token === "S") return "start";
  if (token === "C") return "cliff";
  if (token === "G" || token === "H" || /^[+-]/.test(token)) return "end";
  if (token.startsWith("(")) return "bonus";
  return token === "." || token === "F" ? "floor" : "jump";
}

/** Return the reward of entering an end, a cliff or a bonus; null if a cell has no reward of its own. */
export function rewardOf(world, token) {
  if (token === "G") return world.rules.goal;
  if (token === "H") return world.rules.hole;
  if (token === "C") return world.rules.cliff;
  return /^[(+-]/.test(token) ? Number(token.replace(/[()]/g, "")) : null;
}

/** Return the token of a reward. */
export const signed = (reward) => (reward < 0 || Object.is(reward, -0) ? String(reward) : `+${reward}`);
