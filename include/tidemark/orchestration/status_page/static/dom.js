// Builds elements, and brings what is shown up to date without touching what is equal: focus and scrolling stay.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "rect", "text", "title", "g"]);

/** Returns an element; children that are not elements become text, so that markup in them is shown as it is. */
export function el(tag, attributes = {}, ...children) {
  const made = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

/** Returns a link inside a drawing. */
export function svgLink(href, ...children) {
  const made = document.createElementNS(SVG, "a");
  made.setAttribute("href", href);
  made.append(...children);
  return made;
}

/** Makes the children of `live` equal to those of `wanted`. Elements with the same `data-key` are the same element. */
export function patchChildren(live, wanted) {
  const wantedKeys = new Set([...wanted.children].map(keyOf).filter(Boolean));
  const byKey = new Map([...live.children].filter(keyOf).map((child) => [keyOf(child), child]));
  let place = live.firstChild;
  for (const child of [...wanted.childNodes]) {
    while (place && keyOf(place) && !wantedKeys.has(keyOf(place))) place = removed(place);
    const known = keyOf(child) ? byKey.get(keyOf(child)) : place;
    if (!known || (keyOf(known) ?? "") !== (keyOf(child) ?? "") || known.nodeName !== child.nodeName) {
      live.insertBefore(child, place);
      continue;
    }
    if (known === place) place = place.nextSibling;
    else live.insertBefore(known, place);
    patch(known, child);
  }
  while (place) place = removed(place);
}

function patch(live, wanted) {
  if (live.nodeType === Node.TEXT_NODE) {
    if (live.data !== wanted.data) live.data = wanted.data;
    return;
  }
  for (const { name, value } of wanted.attributes) {
    if (live.getAttribute(name) !== value) live.setAttribute(name, value);
  }
  for (const { name } of [...live.attributes]) {
    if (!wanted.hasAttribute(name) && !(live.nodeName === "DETAILS" && name === "open")) live.removeAttribute(name);
  }
  if (wanted.plotted) live.plotted = wanted.plotted; // its children are uPlot's
  else patchChildren(live, wanted);
}

function keyOf(node) {
  return node.dataset?.key;
}

function removed(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

// -- texts -------------------------------------------------------------------------------------------------------------

const NUMBER = new Intl.NumberFormat("en");
const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000]];

export function number(value) {
  return value === null || value === undefined ? "" : NUMBER.format(value);
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "";
  const [unit, size] = UNITS.find(([, size]) => ms >= 2 * size) ?? ["s", 1_000];
  return `${NUMBER.format(size === 1_000 && ms < 10_000 ? Math.floor(ms / 100) / 10 : Math.floor(ms / size))} ${unit}`;
}

/** Returns a time in UTC, to the second, as the command line shows it. */
export function timeText(ms) {
  const text = Number.isFinite(ms) && Math.abs(ms) <= 8.64e15 ? new Date(ms).toISOString() : String(ms);
  return text.slice(0, 19).replace("T", " ");
}

/** Returns an upper: everything before it is final. */
export function upper(value, now) {
  return value === 0 ? "nothing yet" : time(value, now);
}

/** Returns a time with its age, which `age` keeps true. */
export function time(ms, now) {
  if (ms === null || ms === undefined || ms === "") return "";
  if (ms === "empty") return "empty (sealed)";
  if (ms === 0) return "the beginning";
  const age = el("span", { class: "age" }, ageText(ms, now));
  return el("time", { datetime: `${timeText(ms).replace(" ", "T")}Z`, "data-ms": ms }, `${timeText(ms)} `, age);
}

export function ageText(ms, now) {
  return now >= ms ? `${duration(now - ms)} ago` : `in ${duration(ms - now)}`;
}

// -- parts of pages ----------------------------------------------------------------------------------------------------

/** Returns a table that can be scrolled by keyboard; `rows` are lists of cells, the first one names the row. */
export function table(title, columns, rows, { key = null, nothing = "None." } = {}) {
  if (!rows.length) return el("p", {}, nothing);
  const head = el("tr", {}, columns.map((column) => el("th", { scope: "col" }, column)));
  const body = rows.map((cells, index) =>
    el("tr", { "data-key": key ? key(index) : null, class: cells.tone ?? null },
      cells.map((cell, column) => (column ? el("td", {}, cell) : el("th", { scope: "row" }, cell)))));
  const made = el("table", {}, el("caption", { class: "hidden" }, title), el("thead", {}, head), el("tbody", {}, body));
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": title }, made);
}

/** Returns pairs of a term and its value; pairs without a value are left out. */
export function facts(pairs) {
  const told = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", {}, told.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value))));
}

export function badge(text, tone) {
  return el("span", { class: `badge ${tone}` }, text);
}

export function section(title, ...children) {
  return el("section", { "data-key": title }, el("h2", {}, title), ...children);
}

export function objectLink(name) {
  return el("a", { href: `#/collections/${encodeURIComponent(name)}` }, name);
}

/** Returns a link to a page of Airflow itself. */
export function airflowLink(path, text) {
  return el("a", { href: `../${path}`, "data-airflow": true }, text);
}
