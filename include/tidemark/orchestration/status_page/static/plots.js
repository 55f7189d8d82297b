// Plots: lines over time by uPlot, small bars as one path, and the graph of what reads what. Each says in words what it shows.

import { el, number, svgLink, timeText } from "./dom.js";

const HEIGHT = 180;
const COLOURS = 6;

/** Returns a figure with lines over time; `series` are `{label, points: [[ms, value], …]}`, `format` makes texts of values. */
export function lines(title, series, format) {
  const drawn = series.filter(({ points }) => points.length);
  if (!drawn.length) return el("p", {}, `${title}: nothing was measured yet.`);
  const words = drawn.map(({ label, points }) => `${label}: ${inWords(points, format)}`).join("; ");
  const plot = el("div", { class: "plot", role: "img", "aria-label": `${title}. ${words}` });
  plot.plotted = { series: drawn, format };
  const names = drawn.map(({ label }, index) => el("li", { class: `series-${index % COLOURS}` }, label));
  return el("figure", { "data-key": `plot-${title}` }, el("figcaption", {}, title), plot, el("ul", { class: "legend" }, names));
}

function inWords(points, format) {
  const values = points.map(([, value]) => value);
  const [lastMs, last] = points[points.length - 1];
  const most = points[values.indexOf(Math.max(...values))];
  return `${points.length} points, at most ${format(most[1])} at ${timeText(most[0])}, last ${format(last)} at ${timeText(lastMs)}`;
}

/** Draws every plot below `root` that is new or has changed. */
export function drawPlots(root, { anew = false } = {}) {
  for (const place of root.querySelectorAll(".plot")) {
    const data = uPlot.join(place.plotted.series.map(({ points }) => [points.map((p) => p[0]), points.map((p) => p[1])]));
    const text = JSON.stringify(data);
    if (!anew && place.drawn === text) continue;
    place.drawn = text;
    place.uplot?.destroy();
    place.uplot = new uPlot(options(place), data, place);
  }
}

/** Lets go of every plot below `root`, which is about to be replaced. */
export function dropPlots(root) {
  for (const place of root.querySelectorAll(".plot")) place.uplot?.destroy();
}

function options(place) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
  const { series, format } = place.plotted;
  return {
    width: Math.max(240, place.clientWidth),
    height: HEIGHT,
    ms: 1,
    tzDate: (ms) => uPlot.tzDate(new Date(ms), "UTC"),
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    scales: { y: { range: (_plot, _least, most) => [0, most > 0 ? most * 1.1 : 1] } },
    axes: [{ ...axis, space: 110, values: timeTicks }, { ...axis, size: 70, values: (_plot, ticks) => ticks.map(format) }],
    series: [{}, ...series.map(({ label }, index) => (
      { label, stroke: colour(`series-${index % COLOURS}`), width: 2, spanGaps: true, points: { size: 5 } }))],
  };
}

/** Returns the texts of ticks that are `step` ms apart: as much of the time as tells them apart. */
function timeTicks(_plot, ticks, _axis, _space, step) {
  const [from, until] = step >= 86_400_000 ? [0, 10] : step >= 60_000 ? [5, 16] : [11, 19];
  return ticks.map((ms) => timeText(ms).slice(from, until));
}

/** Returns a bar for each day, today's last, as a picture of a few pixels. */
export function sparkline(days, today) {
  const most = Math.max(0, ...days);
  if (!most) return el("span", { class: "muted" }, days.length ? "none" : "");
  const bars = days.map((rows, day) => (rows ? `M${day} 10V${(10 - Math.max(1, (10 * rows) / most)).toFixed(1)}h.8V10z` : ""));
  const total = number(days.reduce((sum, rows) => sum + rows, 0));
  const busiest = timeText((today - (days.length - 1 - days.indexOf(most))) * 86_400_000).slice(0, 10);
  const words = `${total} rows in ${days.length} days, most on ${busiest}: ${number(most)}`;
  const box = { viewBox: `0 0 ${days.length} 10`, preserveAspectRatio: "none", class: "spark", role: "img", "aria-label": words };
  return el("svg", box, el("title", {}, words), el("path", { d: bars.join("") }));
}

/** Returns a bar whose length is the share of `value` in `most`. */
export function bar(value, most) {
  const box = { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "bar", "aria-hidden": "true" };
  return el("svg", box, el("path", { d: `M0 0h${(100 * value) / Math.max(1, most)}v10H0z` }));
}

// -- what reads what ---------------------------------------------------------------------------------------------------

const WIDTH = 190, ROW = 46, GAP = 60, BOX = 32, LETTERS = 25;

/** Returns the graph, from left to right along the flow of rows; `name` is the object that it is about. */
export function lineageGraph({ nodes, edges }, name) {
  const depth = new Map(nodes.map(({ id }) => [id, 0]));
  for (let round = 0; round < nodes.length; round += 1) { // sources first: each node right of all that it reads
    for (const [from, to] of edges) depth.set(to, Math.max(depth.get(to), Math.min(depth.get(from) + 1, nodes.length)));
  }
  const columns = [];
  const places = new Map();
  for (const node of nodes) {
    const column = depth.get(node.id);
    columns[column] ??= 0;
    places.set(node.id, [column * (WIDTH + GAP), columns[column] * ROW]);
    columns[column] += 1;
  }
  const width = columns.length * (WIDTH + GAP) - GAP, height = Math.max(...columns.map((count) => count ?? 0)) * ROW;
  const arrows = edges.map(([from, to]) => arrow(places.get(from), places.get(to)));
  const boxes = nodes.map((node) => box(node, places.get(node.id), name));
  const words = `What reads what: ${edges.map(([from, to]) => `${nameOf(from)} to ${nameOf(to)}`).join(", ")}`;
  const svg = el("svg", { viewBox: `-2 -2 ${width + 4} ${height + 4}`, width: width + 4, height: height + 4, class: "graph",
    role: "group", "aria-label": words }, arrows, boxes);
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Graph of what reads what" }, svg);
}

function arrow([x, y], [toX, toY]) {
  const from = [x + WIDTH, y + BOX / 2], to = [toX, toY + BOX / 2], middle = (from[0] + to[0]) / 2;
  return el("path", { class: "edge", d: `M${from}C${middle} ${from[1]} ${middle} ${to[1]} ${to}` });
}

function box({ kind, name: own }, [x, y], name) {
  const text = own.length > LETTERS ? `${own.slice(0, LETTERS - 1)}…` : own;
  const shape = el("rect", { x, y, width: WIDTH, height: BOX, rx: 4 });
  const words = [el("text", { x: x + 8, y: y + 13, class: "kind" }, kind), el("text", { x: x + 8, y: y + 26 }, text)];
  const whole = el("title", {}, `${kind} ${own}`);
  const drawn = el("g", { class: `node ${kind} ${own === name && kind !== "source" ? "self" : ""}` }, whole, shape, words);
  const isLinked = (kind === "collection" || kind === "sink") && own !== name;
  return isLinked ? svgLink(`#/collections/${encodeURIComponent(own)}`, drawn) : drawn;
}

function nameOf(id) {
  return id.slice(id.indexOf(":") + 1);
}
