// The page itself: which view the address names, its data every five seconds while somebody looks, and the theme.

import { ageText, el, patchChildren, timeText } from "./dom.js";
import { drawPlots, dropPlots } from "./plots.js";
import { views } from "./views.js";

const POLL_MS = 5_000;
const main = document.getElementById("main");
const search = document.getElementById("search");

let current = null; // the view that is shown, with what it has loaded
let skewMs = 0; // of this machine's clock: ages are by the server's

function now() {
  return Date.now() + skewMs;
}

/** Returns the view, its argument and its parameters, as the address after # names them. */
function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [word = "", argument = ""] = path.split("/").map(decodeURIComponent);
  return { word, argument, params: new URLSearchParams(query), loaded: new Map(), shown: false };
}

async function load(url) {
  const answer = await fetch(`api/v1/${url}`, { cache: "no-cache", credentials: "same-origin" });
  const date = Date.parse(answer.headers.get("Date"));
  if (date) skewMs = date - Date.now();
  if (answer.status === 401) throw new Error("You are not logged in to Airflow any more: log in, then load this page again.");
  if (answer.status === 403) throw new Error("Your role in Airflow may not see this page: it needs access to plugins.");
  const body = await answer.json();
  return { tag: answer.headers.get("ETag") ?? JSON.stringify(body), body, ok: answer.ok };
}

async function refresh() {
  const view = current;
  const { urls } = views[view.word] ?? views.unknown;
  try {
    const [first] = urls(view);
    const tags = [...view.loaded.values()].map(({ tag }) => tag).join();
    if (first) {
      const before = view.loaded.get(first)?.tag;
      const answer = await load(first);
      view.loaded.set(first, answer);
      // Rows are read again only when the object has changed, or could not be read. Tasks tell of a change after its commit.
      const isStale = (url) => before !== answer.tag || !view.loaded.get(url)?.ok || url.endsWith("/tasks");
      const stale = answer.ok ? urls(view).slice(1).filter(isStale) : [];
      await Promise.all(stale.map(async (url) => view.loaded.set(url, await load(url))));
    }
    if (view !== current) return;
    const isSame = view.shown && tags === [...view.loaded.values()].map(({ tag }) => tag).join();
    if (!isSame) render(view);
    tell("");
    document.getElementById("freshness").textContent = `as of ${timeText(now()).slice(11)} UTC`;
  } catch (error) {
    if (view === current) tell(error instanceof TypeError ? `Airflow does not answer: ${error.message}` : error.message);
  }
}

function render(view) {
  const { title, urls, show } = views[view.word] ?? views.unknown;
  const [first, ...others] = urls(view).map((url) => view.loaded.get(url));
  const failed = first && !first.ok ? first.body.error : null;
  const wanted = el("main", {}, failed
    ? [el("h1", {}, title(view)), el("p", { class: "error" }, failed.message), failed.hint ? el("p", {}, `→ ${failed.hint}`) : ""]
    : show({ ...view, data: first?.body, more: others.map((answer) => answer?.body), now: now() }));
  if (view.shown) patchChildren(main, wanted);
  else {
    dropPlots(main);
    main.replaceChildren(...wanted.childNodes);
  }
  document.title = `${title(view)} · Tidemark`;
  view.shown = true;
  drawPlots(main);
}

/** Says what is wrong; only what is news is read out. */
function tell(text) {
  const notice = document.getElementById("notice");
  if (notice.textContent !== text) notice.textContent = text;
}

async function open() {
  const isFirst = current === null;
  current = route();
  const opened = current;
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.hash.replace(/^#\/?/, "") === current.word;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const wanted = current.params.get("search") ?? "";
  if (search.value !== wanted) search.value = wanted;
  await refresh();
  if (!isFirst && opened === current && document.activeElement !== search) {
    main.scrollIntoView();
    main.focus({ preventScroll: true });
  }
}

// Whoever types goes on typing: the address changes, and the table below.
search.addEventListener("input", () => {
  const address = search.value ? `#/?search=${encodeURIComponent(search.value)}` : "#/";
  if (current.word) {
    location.hash = address;
  } else {
    history.replaceState(null, "", address);
    current.params = route().params;
    if (current.shown) render(current);
  }
});

document.addEventListener("submit", (event) => {
  event.preventDefault();
  const fields = new URLSearchParams(new FormData(event.target));
  for (const [name, value] of [...fields]) if (!value) fields.delete(name);
  location.hash = `${event.target.dataset.address}?${fields}`;
});

document.addEventListener("click", (event) => {
  if (event.target.id === "skip") {
    event.preventDefault();
    main.focus();
  }
  // Airflow shows this page in a frame that may not leave: a link of the page around it may.
  const link = event.target.closest?.("a[data-airflow]");
  if (link && window.parent !== window && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    const outside = window.parent.document.createElement("a");
    outside.href = link.href;
    outside.click();
  }
});

// -- theme: Airflow's, which it keeps in this place, else the system's ---------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");

function applyTheme() {
  const chosen = localStorage.getItem("theme");
  const theme = chosen === "dark" || chosen === "light" ? chosen : dark.matches ? "dark" : "light";
  if (document.documentElement.dataset.theme === theme) return;
  document.documentElement.dataset.theme = theme;
  drawPlots(main, { anew: true });
}

addEventListener("storage", applyTheme);
dark.addEventListener("change", applyTheme);
addEventListener("hashchange", open);
addEventListener("resize", () => drawPlots(main, { anew: true }));
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && refresh());
setInterval(() => {
  if (document.visibilityState !== "visible") return;
  for (const place of document.querySelectorAll("time[data-ms]")) {
    place.lastChild.textContent = ageText(Number(place.dataset.ms), now());
  }
  refresh();
}, POLL_MS);
applyTheme();
open();
