// What each view shows of its data, as elements. `now` is the server's time in ms.

import { airflowLink, badge, duration, el, facts, number, objectLink, section, table, time, timeText, upper } from "./dom.js";
import { bar, lineageGraph, lines, sparkline } from "./plots.js";

const DAY_MS = 86_400_000;
const TONES = { running: "good", starting: "good", stalled: "bad", suspended: "bad", paused: "warn", dropped: "muted" };
const WHAT = {
  catalog: ["catalog", "bad"], damaged: ["damaged", "bad"], failed: ["failed", "bad"], suspended: ["suspended", "bad"],
  "read-only": ["read-only", "warn"], late: ["late", "warn"], buffer: ["buffer", "bad"], hold: ["overdue hold", "warn"], stale: ["stale corrections", "warn"],
  paused: ["paused", "warn"],
};
const RUNS = 20;
const PARTITIONS = 60;

function encoded(name) {
  return encodeURIComponent(name);
}

function status({ status: word, damaged }) {
  if (damaged) return badge("damaged", "bad");
  return word ? badge(word, TONES[word] ?? "muted") : badge("never run", "muted");
}

// -- overview ----------------------------------------------------------------------------------------------------------

function overview({ data, params, now }) {
  const wanted = (params.get("search") ?? "").toLowerCase();
  const isFound = (each) => `${each.name} ${each.kind} ${each.status ?? "never run"} ${each.reason ?? ""}`.toLowerCase().includes(wanted);
  const objects = data.objects.filter(isFound);
  const needs = data.needs.map((each) => Object.assign([
    badge(...WHAT[each.what]),
    el("a", { href: `#/${each.view}` }, each.name),
    time(each.since_ms, now),
    each.why,
    each.hint,
  ], { what: each.what, name: each.name }));
  const rows = objects.map((each) => [
    objectLink(each.name), each.kind, [status(each), each.late_why ? [" ", badge("late", "warn")] : ""], upper(each.upper, now),
    duration(each.lag_ms), time(each.last_run_ms, now), each.seconds === null ? "" : `${each.seconds.toFixed(1)} s`,
    number(each.rows), sparkline(each.rows_by_day, Math.floor(now / DAY_MS)),
  ]);
  const columns = ["object", "kind", "status", "upper", "lag", "last run", "took", "rows", `rows changed a day, ${data.days} days`];
  const counted = wanted ? `${objects.length} of ${data.objects.length} match “${params.get("search")}”` : `${objects.length} objects`;
  return [
    el("h1", {}, "Overview"),
    section(`Needs a person (${needs.length})`, table("What needs a person, the most urgent first", ["what", "object", "since", "why", "what to do"], needs,
      { key: (index) => `${needs[index].what} ${needs[index].name} ${index}`, nothing: "Nothing needs a person." })),
    section("All objects", el("p", { "aria-live": "polite" }, counted),
      table("All objects", columns, rows, { key: (index) => objects[index].name, nothing: data.objects.length ? "None matches." : "Nothing is declared: run tidemark apply PATH." })),
  ];
}

// -- collection --------------------------------------------------------------------------------------------------------

function collection({ data, more, params, now }) {
  const [published, contents, changes] = more;
  const runs = data.runs.slice(-RUNS).reverse();
  return [
    el("h1", {}, `${data.kind} ${data.name}`),
    facts([
      ["status", [status(data), data.since_ms ? [" since ", time(data.since_ms, now)] : ""]],
      ["why", data.reason], ["what to do", data.hint ?? data.late_hint],
      ["late since", data.late_since_ms ? [time(data.late_since_ms, now), `: ${data.late_why}`] : null],
      ["tried again at", data.retry_at_ms ? time(data.retry_at_ms, now) : null],
      ["rows", number(data.rows)], ["upper", upper(data.upper, now)], ["history since", time(data.since, now)],
      ["lag at the end of the last run", duration(data.lag_ms)], ["last run", time(data.last_run_ms, now)], ["last good run", time(data.last_good_run_ms, now)],
      ["written by", data.generation ? `deployment ${data.generation}, epoch ${data.epoch}` : null],
      ["key", data.key.join(", ")],
      ["in Airflow", data.dags.map((dag, index) => [index ? ", " : "", airflowLink(`dags/${dag}`, dag)])],
    ]),
    data.reports.filter(({ error, is_over: isOver }) => error && !isOver).map((report) => refusal(report, now)),
    changes ? section("What changed last", corrections(changes, now)) : "",
    contents ? section("Contents", contentsForm(data, params), contentsTable(contents)) : "",
    section("Over time",
      lines("Rows changed by each run", byOperation(data.runs, "rows"), number),
      lines("Lag at the end of each run", byOperation(data.runs, "lag_ms"), duration),
      data.history ? lines("Rows in the collection", [{ label: "rows", points: data.history.map((each) => [each.time_ms, each.rows]) }], number) : ""),
    data.partitions?.length ? section("Rows per partition", partitions(data.partitions)) : "",
    data.holds ? section("What holds history back", holds(data.holds, now)) : "",
    data.staged_batches?.length ? section("Staged", stagedTable(data.staged_batches, now)) : "",
    section("What reads what", data.lineage.nodes.length ? lineageGraph(data.lineage, data.name) : el("p", {}, "Nothing is known.")),
    section("Changed by", changedBy(published, now)),
    section("Last runs", table("Last runs", ["at", "operation", "outcome", "rows", "lag", "took", "error"], runs.map((run) => [
      time(run.measured_at, now), run.operation, run.outcome, number(run.rows), duration(run.lag_ms), run.seconds === null ? "" : `${run.seconds.toFixed(1)} s`, run.error]))),
    data.history ? section("History of the upper", table("History of the upper", ["committed", "what", "upper", "rows"],
      data.history.slice(-RUNS).reverse().map((each) => [time(each.time_ms, now), each.commit, upper(each.upper, now), number(each.rows)]))) : "",
    data.schema ? section("Schema", table("Columns", ["column", "type", "required", "whose"], data.schema.map((each) => [
      each.name, each.type, each.required ? "yes" : "", each.system ? "Tidemark's" : ""]))) : "",
    Object.keys(data.guards).length ? section("Guards", facts(Object.entries(data.guards).map(([name, value]) => [name, valueText(value)]))) : "",
    section("Declaration", facts(Object.entries(data.declaration).map(([name, value]) => [name, valueText(value)]))),
  ];
}

function refusal({ dag_id: dag, error, outcome, finished_ms: finished }, now) {
  const columns = [...new Set((error.sample ?? []).flatMap(Object.keys))];
  return el("section", { "data-key": `report-${dag}` }, el("h2", {}, `Why it was ${outcome}`),
    el("p", { class: "error" }, `${error.kind}: ${error.message}`),
    error.hint ? el("p", {}, `→ ${error.hint}`) : "",
    columns.length ? table("Rows that were refused", columns, error.sample.map((row) => columns.map((column) => valueText(row[column])))) : "",
    el("p", {}, "The last run of ", airflowLink(`dags/${dag}`, dag), finished ? [" ended at ", time(finished, now)] : ""));
}

function byOperation(runs, field) {
  const found = Map.groupBy(runs.filter((run) => run[field] !== null), ({ operation }) => operation);
  return [...found].map(([label, each]) => ({ label, points: each.map((run) => [run.measured_at, run[field]]) }));
}

function corrections({ corrections: found, error }, now) {
  if (error) return el("p", { class: "error" }, error.message);
  if (!found.length) return el("p", {}, "No correction is in the history that is kept.");
  return found.map((each) => {
    const told = each.inserted === null ? `${number(each.changes)} changes, too many to show` : `${number(each.inserted)} came, ${number(each.retracted)} went`;
    const rows = each.samples.flatMap(({ before, after }) => [
      before ? sampleRow(after ? "before" : "went", before, after, each.columns) : null,
      after ? sampleRow(before ? "after" : "came", after, before, each.columns) : null,
    ]).filter(Boolean);
    return el("div", { "data-key": `c-${each.time_ms}` }, el("h3", {}, time(each.time_ms, now), ` ${each.commit}: ${told}`),
      rows.length ? table(`Sample of the changes at ${timeText(each.time_ms)}`, ["change", ...each.columns], rows) : "");
  });
}

function sampleRow(word, row, other, columns) {
  const cells = columns.map((column) => {
    const text = valueText(row[column]);
    return other && valueText(other[column]) !== text ? el("mark", {}, text) : text;
  });
  return Object.assign([word, ...cells], { tone: word === "before" || word === "went" ? "gone" : "new" });
}

function contentsForm({ name, upper: end, since }, params) {
  const [from, until] = [since, end - 1].map((ms) => (ms > 0 ? timeText(ms).replace(" ", "T") : null)); // NaN if it is sealed
  return el("form", { "data-address": `/collections/${encoded(name)}` },
    el("label", { for: "as-of" }, "as of (UTC)"),
    el("input", { id: "as-of", name: "as_of", type: "datetime-local", step: "1", min: from, max: until, value: params.get("as_of") }),
    el("label", { for: "limit" }, "rows"),
    el("input", { id: "limit", name: "limit", type: "number", min: "1", max: "200", value: params.get("limit") ?? "20" }),
    el("button", {}, "Show"));
}

function contentsTable({ columns, rows, error }) {
  if (error) return el("div", {}, el("p", { class: "error" }, error.message), error.hint ? el("p", {}, `→ ${error.hint}`) : "");
  return table("Contents", columns, rows.map((row) => row.map(valueText)), { nothing: "No rows." });
}

function changedBy({ tasks, error }, now) {
  if (error) return el("p", { class: "error" }, error.message);
  const rows = tasks.map((each) => [time(each.time_ms, now), airflowLink(`dags/${encoded(each.dag_id)}`, each.dag_id),
    airflowLink(each.run_path, each.run_id), airflowLink(each.path, each.task_id)]);
  return table("Tasks that changed it last", ["at", "DAG", "run", "task"], rows, { nothing: "No task has told Airflow of a change." });
}

function partitions(found) {
  const newest = found.slice(-PARTITIONS).reverse();
  const most = Math.max(...newest.map(({ rows }) => rows));
  return table("Partitions by event time, the latest first", ["partition", "rows", "share", "of these late", "state"], newest.map((each) => [
    each.partition, number(each.rows), bar(each.rows, most), number(each.late_rows), each.closed ? "closed" : "open"]));
}

function holds(found, now) {
  return table("Holds", ["reader", "keeps from", "keeps", "ends", "state", "what to do"], found.map((each) => [
    each.reader, time(each.since, now), duration(each.age_ms), each.expires_at === null ? "never" : time(each.expires_at, now),
    each.overdue ? badge("overdue", "warn") : each.live ? "" : "has ended", each.hint ?? ""]),
  { nothing: "Nothing: maintenance trims the history." });
}

function valueText(value) {
  if (value === null || value === undefined) return "NULL";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// -- staged ------------------------------------------------------------------------------------------------------------

function staged({ data, now }) {
  return [
    el("h1", {}, "Staged"),
    el("p", {}, `Deployment ${data.leader} leads, and is ${data.mode}`, data.mode_since_ms ? [" since ", time(data.mode_since_ms, now)] : "", data.mode_why ? `: ${data.mode_why}` : ""),
    stagedTable(data.batches, now),
  ];
}

function stagedTable(batches, now) {
  const rows = batches.map((each) => [
    objectLink(each.collection), each.slice ? `corrections of ${each.slice}` : `${each.producer} ${each.range.join(":")}`, number(each.rows),
    time(each.staged_at, now), `deployment ${each.generation}`, each.stale ? [badge("stale", "warn"), ` ${each.stale}`] : each.waits_for,
  ]);
  return table("What is staged, the oldest first", ["collection", "what", "rows", "staged", "by", "waits for"], rows, { nothing: "Nothing is staged." });
}

// -- buffers -----------------------------------------------------------------------------------------------------------

function buffers({ data, now }) {
  const { workers, objects } = data.storage;
  const lags = Object.entries(data.lags).flatMap(([name, sequencers]) =>
    Object.entries(sequencers).map(([number, points]) => ({ label: `${name}, sequencer ${number}`, points })));
  return [
    el("h1", {}, "Buffers"),
    section("Lag over time", lines("Lag on each sequencer at the end of each ingest, and now", lags, duration)),
    data.buffers.map((buffer) => section(`Buffer ${buffer.name}`,
      buffer.error ? [el("p", { class: "error" }, buffer.error.message), el("p", {}, `→ ${buffer.error.hint}`)] : "",
      table(`Progress on ${buffer.name}`, ["collection", "sequencer", "lag", "entries behind", "published below", "accepted below", "batches that wait"],
        buffer.progress.map((each) => [objectLink(each.collection), each.sequencer, duration(each.lag_ms), number(each.lag), number(each.published),
          number(each.committed), number(each.waiting_batches)]), { nothing: "No collection reads it." }),
      buffer.writers.length ? el("p", {}, "Written by appends to ", buffer.writers.map((name, index) => [index ? ", " : "", objectLink(name)])) : "")),
    data.buffers.length ? "" : el("p", {}, "No declaration names a write buffer."),
    section("Storage workers",
      table("Workers", ["worker", "state", "process", "since", "objects"], workers.map((each) => [each.worker, each.state, each.process, each.since, number(each.objects)]), { nothing: "No worker runs." }),
      table("What workers run", ["object", "state", "lag", "behind", "rounds", "rows", "held", "waiting", "upper", "error"], objects.map((each) => [
        objectLink(each.name), each.state, duration(each.lag_ms), duration(each.behind_ms), number(each.rounds), number(each.rows), number(each.held),
        number(each.waiting), upper(each.upper, now), each.error]), { nothing: "Nothing declares every." })),
  ];
}

// -- catalog -----------------------------------------------------------------------------------------------------------

function catalog({ data, now }) {
  return [
    el("h1", {}, "Catalog"),
    data.problems.map((each) => el("p", { class: "error" }, each.message, each.hint ? ` → ${each.hint}` : "")),
    facts([
      ["truth", data.truth === "stash" ? "the stash" : "the persist catalog"],
      ["tombstone", data.tombstone === null ? "unset" : String(data.tombstone)],
      ["leader", data.leader ? `deployment ${data.leader.generation} at epoch ${data.leader.epoch}` : "nobody leads"],
      ["epoch of the stash", data.stash_epoch], ["epoch of the persist catalog", data.persist_epoch],
    ]),
    section("At work", table("Who is at work", ["operation", "on", "deployment", "process", "since", "renewed"], data.leases.map((each) => [
      each.operation, each.collections.join(", ") || "any", each.generation, each.writer, time(each.since, now),
      `${each.renewed_s_ago.toFixed(0)} s ago${each.renewed_s_ago > each.lease_s ? " (ran out)" : ""}`]), { nothing: "Nobody." })),
    section("Audit", table("Who changed what, the newest first", ["at", "who", "did", "what", "why"], data.audit.map((each) => [
      time(each.at_ms, now), each.who, each.did, `${each.kind} ${each.what}${each.mode ? `: ${each.mode}` : ""}`, each.why]), { nothing: "Nothing was changed yet." })),
  ];
}

// -- deployments -------------------------------------------------------------------------------------------------------

function deployments({ data, now }) {
  const behind = data.objects.filter(({ state }) => state === "catching up");
  const answers = {
    "is-leader": `There is nothing to promote: this deployment (${data.generation}) leads.`,
    "deposed": `No: deployment ${data.leader} leads, and has replaced this one (${data.generation}) for good.`,
    "promoting": `A promotion of this deployment (${data.generation}) is under way, or died: run it again.`,
    "ready-to-promote": `Yes: this deployment (${data.generation}) is ready to take over from ${data.leader}.`,
  };
  const { obstacle } = data;
  const undecided = obstacle ? "Nobody can tell now: the catalog cannot be read." : `Not yet: ${behind.length} of ${data.objects.length} objects are not caught up.`;
  const answer = answers[data.state] ?? undecided;
  const newer = data.standing_by.map((each) => [each.generation, "stands by", "read-only", "", "", ["last run ", time(each.last_run_ms, now)]]);
  return [
    el("h1", {}, "Deployments"),
    section("May I promote?", el("p", { class: "answer" }, answer),
      obstacle && !answers[data.state] ? [el("p", { class: "error" }, obstacle.message), obstacle.hint ? el("p", {}, `→ ${obstacle.hint}`) : ""] : "",
      data.state === "ready-to-promote" ? el("p", {}, "→ run ", airflowLink("dags/promote_deployment", "promote_deployment"), ", or tidemark deployment promote") : "",
      data.objects.length ? table("Objects of this deployment", ["object", "kind", "state", "lag", "staged", "stale", "why", "what to do"], [...behind, ...data.objects.filter((each) => !behind.includes(each))].map((each) => [
        objectLink(each.name), each.kind, badge(each.state, each.state === "catching up" ? "warn" : "good"), duration(each.lag_ms), number(each.staged), number(each.stale), each.why, each.hint])) : ""),
    section("All deployments", table("All deployments", ["deployment", "state", "mode", "since", "who", "why"], [...data.deployments.map((each) => [
      each.generation, each.state, each.mode, time(each.since_ms, now), each.who, each.why]), ...newer],
    { nothing: obstacle ? "They cannot be read now." : "The mode was never switched." })),
  ];
}

// -- which view has which data -----------------------------------------------------------------------------------------

export const views = {
  "": { title: () => "Overview", urls: () => ["overview"], show: overview },
  collections: { title: ({ argument }) => argument, urls: collectionUrls, show: collection },
  staged: { title: () => "Staged", urls: () => ["staged"], show: staged },
  buffers: { title: () => "Buffers", urls: () => ["buffers"], show: buffers },
  catalog: { title: () => "Catalog", urls: () => ["catalog"], show: catalog },
  deployments: { title: () => "Deployments", urls: () => ["deployments"], show: deployments },
  unknown: { title: () => "No such view", urls: () => [], show: () => [el("h1", {}, "No such view"), el("p", {}, el("a", { href: "#/" }, "Overview"))] },
};

/** Returns the object itself first; its rows are read once it is known to have some. */
function collectionUrls({ argument, params, loaded }) {
  const own = `collections/${encoded(argument)}`;
  const known = loaded.get(own)?.body;
  const tasks = `${own}/tasks`;
  if (known?.layout === null) return [own, tasks];
  const asOf = params.get("as_of") ? Date.parse(`${params.get("as_of")}Z`) : null;
  const contents = `${own}/contents?limit=${encoded(params.get("limit") ?? "20")}${asOf === null ? "" : `&as_of=${asOf}`}`;
  return known && !known.has_changes ? [own, tasks, contents] : [own, tasks, contents, `${own}/corrections`];
}
