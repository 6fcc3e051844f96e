// The page of the lens: what is wrong, a time line of all requests and events, why each write was made, and the life of an object.
//
//   document ─► entries, by number ─► model: entries by time, and lanes ─► canvas and tables, of what is seen
//
// The document is in the page, or comes from the server, which then sends what is new. Everything on the page follows from `entries`, `report`
// and `state`: after a change of one of them, `refresh` draws again.

const $ = (id) => document.getElementById(id);

/** Most entries that the page keeps. The server forgets as well. */
const ENTRIES_MAX = 200_000;
/** Most lines of writes, and of the writes of a line. */
const [GROUPS_MAX, WRITES_MAX] = [200, 50];
/** Heights in pixels, as in page.css. */
const [ROW, AXIS] = [26, 22];
/** Most rows for watches of the same objects that are open at once. Further ones are in the last. */
const ROWS_MAX = 8;
/** The shortest and the longest pause of a replay, in milliseconds. */
const [PAUSE_MIN, PAUSE_MAX] = [60, 2000];

/** The entries by their number `n`. */
const entries = new Map();
/** How many older ones there were. */
let forgotten = 0;
let start = 0;
let report = { findings: [], clients: [], writes: [], notes: [] };
/** The writes of the report by `n`. */
let writes = new Map();
/** What the user chose. A view of `null` is all. An arrow leads from an event to the write that it caused. */
const state = { view: null, selected: null, arrow: null, object: "", live: "" };
const filter = { client: "", verb: "", object: "" };

// The document.

/** What the server offers to change, of which a file of its own makes the page. */
let controls = null;

function load(recording) {
  entries.clear();
  forgotten = recording.forgotten;
  start = Date.parse(recording.start);
  tell(recording.report);
  add(recording.entries);
  if (recording.controls) controls ??= import("./controls.js").then(({ show }) => show($("controls"), recording.controls));
}

function add(news) {
  for (const entry of news) entries.set(entry.n, entry);
  for (const n of entries.keys()) {
    if (entries.size <= ENTRIES_MAX) break;
    entries.delete(n);
    forgotten += 1;
  }
  isStale = true;
  refresh();
}

function tell(news) {
  report = news;
  $("tool").textContent = [report.tool, report.version].filter(Boolean).join(" ");
  writes = new Map(report.writes.map((write) => [write.n, write]));
  isStale = true;
  refresh();
}

/** Takes the document, and what is new, from the server. */
function follow() {
  const source = new EventSource("events");
  const file = element("a", { href: "lens.html", download: "", title: "All requests and events so far, and what is wrong, as one HTML file" }, "Save as a file");
  $("live").after(file);
  const on = (name, act) => source.addEventListener(name, ({ data }) => {
    if (name !== "end") state.live = "New requests and events appear as they come.";
    act(JSON.parse(data));
  });
  on("recording", load);
  on("entries", add);
  on("report", tell);
  on("controls", (news) => controls?.then((tell) => tell(news)));
  on("end", ({ why }) => {
    source.close();
    file.remove();
    state.live = `The recording has ended: ${why}.`;
    refresh();
  });
  source.onerror = () => {
    state.live = "The connection is lost. The page tries again.";
    refresh();
  };
}

// The model: the entries that the filter leaves, by time, and the lanes.

/** The index of the first of the sorted `times` that is not before `time`. */
function indexOf(times, time, from = 0) {
  let to = times.length;
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (times[middle] < time) from = middle + 1;
    else to = middle;
  }
  return from;
}

/** Gives each entry what others say of it: an event has the client and the verb of its watch. */
function complete(entry, requests) {
  if (entry.kind === "event") {
    entry.of = requests.get(entry.watch);
    entry.client = entry.of?.client ?? "";
    entry.connection = entry.of?.connection;
    entry.verb = "watch";
  } else if (entry.kind === "write") {
    entry.verb = { ADDED: "create", DELETED: "delete" }[entry.event] ?? "update";
  }
  entry.isAlarm = entry.status >= 400 || entry.event === "ERROR";
  entry.changedNothing = writes.get(entry.n)?.effect === "nothing";
  [entry.pages, entry.row, entry.end] = [undefined, 0, undefined];
}

/** Finds what lasts: an open watch, and a list in pages. Each has an `end`, and another `row` than its like of the same time. */
function arrange(all) {
  const [lasting, lists, rows] = [[], new Map(), new Map()];
  for (const entry of all.filter(({ kind }) => kind === "request")) {
    if (entry.verb === "watch" && entry.status === 200) lasting.push([entry]);
    if (entry.verb !== "list" || entry.status !== 200 || !/[?&](limit|continue)=/.test(entry.target)) continue;
    const key = [entry.client, entry.object, ...selectors(entry)].join("\n");
    if (!queryOf(entry).has("continue")) lists.delete(key);
    if (!lists.has(key)) lasting.push(lists.set(key, []).get(key));
    entry.pages = lists.get(key);
    entry.pages.push(entry);
  }
  for (const [first, ...others] of lasting.filter(([first, ...others]) => first.verb === "watch" || others.length)) {
    const { t, took } = others.at(-1) ?? first;
    first.end = took === null ? Infinity : t + took;
    const lane = laneOf(first).join("\n");
    if (!rows.has(lane)) rows.set(lane, []);
    const ends = rows.get(lane);
    const free = ends.findIndex((end) => end <= first.t);
    first.row = free >= 0 ? free : Math.min(ends.length, ROWS_MAX - 1);
    ends[first.row] = Math.max(first.end, ends[first.row] ?? 0);
  }
}

const isInPages = ({ pages }) => pages?.length > 1;

function fits({ client, connection, verb, object, target }) {
  return (!filter.client || client === filter.client) && (!filter.verb || verb === filter.verb)
    && (!filter.object || filter.object === `connection ${connection}` || `${object} ${target ?? ""}`.includes(filter.object));
}

function laneOf(entry) {
  const { verb, client } = entry;
  if (entry.kind === "write" && !client) return ["server", "its controllers write"];
  if (verb !== "watch" && !isInPages(entry)) return [client, ["get", "list"].includes(verb) ? "gets and lists" : "writes"];
  const request = entry.of ?? entry;
  return [client, [verb, request.object, ...selectors(request)].join(" ")];
}

const selectors = (request) => ["labelSelector", "fieldSelector"].flatMap((name) => queryOf(request).getAll(name));

function modelOf(all) {
  const requests = new Map(all.filter(({ kind }) => kind === "request").map((entry) => [entry.id, entry]));
  for (const entry of all) complete(entry, requests);
  arrange(all);
  const seen = all.filter(fits);
  const clients = [...new Set([...report.clients, ...all.map(({ client }) => client).filter(Boolean)])];
  const lanes = new Map([...clients, "server"].map((client) => [client, new Map()]));
  const laneIn = (own, label, row) => {
    const key = `${label} ${row}`;
    if (!own.has(key)) own.set(key, { key, label: row ? `also ${label}` : label, marks: [], alarms: [], open: [], covered: [], gaps: [] });
    return own.get(key);
  };
  const first = all[0]?.t ?? 0;
  const last = all.reduce((last, { t, took }) => Math.max(last, t + (took ?? 0)), first);
  for (const entry of seen) {
    const [client, label] = laneOf(entry);
    const own = lanes.get(client) ?? lanes.get("server");
    entry.lane = laneIn(own, label, (entry.of ?? entry.pages?.[0] ?? entry).row);
    entry.lane[entry.isAlarm ? "alarms" : "marks"].push(entry);
    if (entry.end === undefined) continue;
    open(entry.lane.open, entry);
    if (entry.verb === "watch") open(laneIn(own, label, 0).covered, entry);
  }
  const margin = Math.max((last - first) * 0.02, 1e-3);
  const shown = [];
  for (const [client, own] of lanes) {
    if (own.size) shown.push({ title: client });
    // What woke it is above what it did.
    shown.push(...[...own.values()].sort((one, other) => rank(one) - rank(other) || one.key.localeCompare(other.key)));
  }
  for (const lane of shown.filter(({ marks }) => marks)) {
    const ends = lane.covered.map(([, end], index) => [end, lane.covered[index + 1]?.[0] ?? last]);
    lane.gaps = ends.filter(([from, to]) => from < to);
    const begins = (times) => times.map(([begin]) => begin);
    lane.times = { marks: timesOf(lane.marks), alarms: timesOf(lane.alarms), open: begins(lane.open), gaps: begins(lane.gaps) };
  }
  return { all, seen, times: timesOf(seen), clients, lanes: shown, range: [first - margin, last + margin], last };
}

const timesOf = (entries) => entries.map(({ t }) => t);
const rank = ({ key }) => (key.startsWith("watch") ? 0 : key.startsWith("writes") ? 2 : 1);

/** Adds the time of a watch. Times that overlap are one. They come by their begin. */
function open(times, { t, end }) {
  const last = times.at(-1);
  if (last && t <= last[1]) last[1] = Math.max(last[1], end);
  else times.push([t, end]);
}

// Words.

const seconds = (time) => `${time < 0 ? "−" : "+"}${Math.abs(time).toFixed(3)} s`;

function what(entry) {
  if (entry.kind === "event") return entry.event;
  return entry.subresource ? `${entry.verb} ${entry.subresource}` : entry.verb;
}

function about(entry) {
  return entry.object || entry.target?.split("?")[0] || "";
}

function result(entry) {
  const names = fields(entry);
  const changed = entry.changedNothing ? "changed nothing" : names && `changed ${names}`;
  const version = entry.version && entry.version !== "0" ? `version ${entry.version}` : "";
  const from = entry.kind === "request" && entry.verb === "watch" ? queryOf(entry).get("resourceVersion") : null;
  const status = entry.status === 410 ? "410: the version is too old, list again" : entry.status;
  // The first pages may be forgotten.
  const page = isInPages(entry) && !queryOf(entry.pages[0]).has("continue") ? `page ${entry.pages.indexOf(entry) + 1} of ${entry.pages.length}` : "";
  return [status, page, changed, version, from && from !== "0" ? `from version ${from}` : "", entry.meaning].filter(Boolean).join(", ");
}

const queryOf = ({ target }) => new URLSearchParams((target ?? "").split("?")[1]);

/** `.spec.replicas (kubectl)`: the changed fields, and who owns each. */
function fields({ changed }) {
  return (changed ?? []).map(({ path, manager }) => (manager ? `${path} (${manager})` : path)).join(", ");
}

/** How long a watch was open, or how long the server took. */
function lasted({ verb, kind, status, took }) {
  if (kind !== "request") return "";
  if (verb !== "watch" || status !== 200) return `answered in ${duration(took)}`;
  return took === null ? "still open" : `open for ${duration(took)}`;
}

function duration(secs) {
  return secs < 1 ? `${(secs * 1000).toPrecision(secs < 0.01 ? 2 : 3)} ms` : `${secs.toFixed(1)} s`;
}

const line = (entry) => [seconds(entry.t), what(entry), about(entry), result(entry)].filter(Boolean).join("  ");

/** An element with attributes, properties that are functions, and children. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made[key] = value;
    else if (value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== ""));
  return made;
}

/** Replaces what is in an element, and keeps the focus on what has the same `data-key`. */
function replace(parent, ...children) {
  const key = parent.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  parent.replaceChildren(...children);
  if (key) parent.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

/** A line that shows an entry in the time line. */
function link(n, text, act = () => reveal(n)) {
  return element("button", { class: "link", type: "button", "data-key": `${n}`, onclick: act }, text);
}

/** Marks the lines of the selected entry, and of the ends of the arrow. */
function pressLinks() {
  const on = [state.selected, state.arrow?.from, state.arrow?.to].map(String);
  for (const button of document.querySelectorAll(".link")) button.setAttribute("aria-pressed", `${on.includes(button.dataset.key)}`);
}

// What is wrong.

/** What the user opened or closed, by a key that stays in the next report. */
const opened = new Map();

function folded(key, isOpen, summary, body) {
  const details = element("details", { open: (opened.get(key) ?? isOpen) ? "" : undefined }, element("summary", { "data-key": key }, ...summary));
  const fill = () => { if (details.open && details.childElementCount === 1) details.append(body()); };
  fill();
  details.ontoggle = () => { opened.set(key, details.open); fill(); };
  return details;
}

function showFindings() {
  const counts = new Map();
  const findings = report.findings.map(({ rule, severity, client, text, cause, entries: shown }, index) => {
    const key = `${rule} ${client} ${counts.get(rule + client) ?? 0}`;
    counts.set(rule + client, (counts.get(rule + client) ?? 0) + 1);
    const word = element("span", { class: severity === "note" ? "tag note" : "tag" }, severity === "note" ? "Note" : "Problem");
    const links = () => shown.map(({ n, text }) => link(n, entries.has(n) ? line(entries.get(n)) : text));
    return folded(key, index === 0, [word, ` ${client} ${text}`], () => element("div", {}, element("p", {}, sentence(cause)), ...links()));
  });
  const notes = report.notes.map((note) => element("p", { class: "soft" }, note));
  const nothing = findings.length ? [] : [element("p", {}, "Nothing is wrong, as far as this recording shows.")];
  $("wrong-title").textContent = findings.length ? `What is wrong (${findings.length})` : "What is wrong";
  replace($("findings"), ...nothing, ...findings, ...notes);
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

// Why: writes that are alike are one line.

function groups() {
  const groups = new Map();
  for (const write of report.writes.filter(fits)) {
    const key = [write.client, write.text, write.reason].join("\n");
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(write);
  }
  return groups;
}

function showWhy() {
  const all = [...groups()];
  const shown = all.slice(0, GROUPS_MAX).map(([key, alike]) => {
    const { client, text, reason } = alike[0];
    const count = alike.length > 1 ? `${alike.length} × ` : "";
    const by = report.clients.length > 1 && !filter.client ? `${client}: ` : "";
    const summary = [count + by + text, element("br"), element("span", { class: "soft" }, reason + after(alike))];
    return folded(`why ${key}`, false, summary, () => whyOf(alike));
  });
  const left = all.length - shown.length;
  if (left) shown.push(element("p", { class: "soft" }, `${left} more lines: filter by client, verb or object.`));
  if (!all.length) shown.push(element("p", { class: "soft" }, "No write of an operator."));
  replace($("why"), ...shown);
}

/** `; 16 ms after it (median)` */
function after(alike) {
  const took = alike.flatMap(({ causes }) => causes.slice(0, 1)).map(({ milliseconds }) => milliseconds / 1000);
  took.sort((one, other) => one - other);
  if (!took.length) return "";
  return `; ${duration(took[took.length >> 1])} after it${took.length > 1 ? " (median)" : ""}`;
}

/** Writes that are alike, and the events that can have caused the chosen one. */
function whyOf(alike) {
  const body = element("div");
  const show = (chosen) => {
    const lines = alike.slice(0, WRITES_MAX).map((write) => link(write.n, entries.has(write.n) ? line(entries.get(write.n)) : write.text, () => { show(write); reveal(write.n); }));
    const left = alike.length - lines.length;
    const causes = chosen.causes.map(({ n, text, milliseconds }, index) =>
      link(n, `${chosen.certain ? "woken by" : index ? "or" : "likeliest"}: ${text}, ${duration(milliseconds / 1000)} before`, () => reveal(n, { from: n, to: chosen.n })));
    const ofWhich = alike.length > 1 ? `of the write at ${seconds(entries.get(chosen.n)?.t ?? chosen.seconds)} ` : "";
    const concluded = `the cause ${ofWhich}is an event that the client was sent before.`;
    replace(body,
      element("p", {}, element("b", {}, causes.length && !chosen.certain ? "Concluded: " : "Cause: "), causes.length && !chosen.certain ? concluded : `${chosen.reason}.`),
      ...causes, ...chosen.others.map((other) => element("p", {}, `woken by: ${other}`)),
      element("p", {}, element("b", {}, "Certain: "), "the writes, the answers, and the fields that changed."),
      ...lines, left > 0 ? element("p", { class: "soft" }, `and ${left} more`) : "");
    pressLinks();
  };
  show(alike.find(({ n }) => n === state.arrow?.to) ?? alike[0]);
  return body;
}

// A table of which only the rows that are seen exist.

/** Makes a table, and returns the function that gives it other rows. Its arrow keys select. */
function table(parent, label, headings, cells) {
  let list = [];
  let active = -1;
  let selected = null;
  const body = element("div", { role: "rowgroup" });
  const rows = element("div", { class: "rows", role: "grid", tabindex: "0", "aria-label": label });
  const row = (role, words, attributes = {}) => element("div", { role: "row", ...attributes }, ...words.map((word) => element("span", { role, title: role === "gridcell" ? word : undefined }, word)));
  rows.append(row("columnheader", headings, { class: "heading", "aria-rowindex": "1" }), body);
  parent.append(rows);
  const paint = () => {
    const first = Math.floor(rows.scrollTop / ROW);
    const last = Math.min(list.length, first + Math.ceil(rows.clientHeight / ROW) + 1);
    const shown = list.slice(first, last).map((entry, at) => {
      const index = first + at;
      const made = row("gridcell", cells(entry), { id: `${parent.id}-${index}`, "aria-rowindex": `${index + 2}`, "aria-selected": `${entry.n === state.selected}`, class: entry.isAlarm ? "failed" : undefined });
      made.style.top = `${index * ROW}px`;
      made.onclick = () => pick(index);
      return made;
    });
    body.style.height = `${list.length * ROW}px`;
    body.replaceChildren(...shown);
    rows.setAttribute("aria-rowcount", `${list.length + 1}`);
    if (active >= first && active < last) rows.setAttribute("aria-activedescendant", `${parent.id}-${active}`);
    else rows.removeAttribute("aria-activedescendant");
  };
  const scrollTo = (index) => {
    const top = index * ROW;
    if (top < rows.scrollTop) rows.scrollTop = top;
    else if (top + 3 * ROW > rows.scrollTop + rows.clientHeight) rows.scrollTop = top + 3 * ROW - rows.clientHeight;
  };
  const pick = (index) => {
    active = Math.max(0, Math.min(list.length - 1, index));
    if (list.length) select(list[active].n);
  };
  rows.onscroll = paint;
  rows.onkeydown = (event) => {
    const page = Math.max(1, Math.floor(rows.clientHeight / ROW) - 2);
    const next = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: list.length - 1, Enter: active }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    pick(next);
  };
  return (news) => {
    list = news;
    active = list.findIndex(({ n }) => n === state.selected);
    paint();
    if (active >= 0 && selected !== state.selected) scrollTo(active);
    selected = state.selected;
  };
}

const showEntries = table($("entries"), "Entries in view", ["time", "client", "what", "object", "result"],
  (entry) => [seconds(entry.t), entry.client || "server", what(entry), about(entry), result(entry)]);
const showVersions = table($("versions"), "Versions", ["time", "version", "what", "by", "changed fields, and who owns them"],
  (entry) => [seconds(entry.t), entry.version, what(entry), entry.client || "a controller of the server", fields(entry) || { create: "all", delete: "all" }[entry.verb] || ""]);

// The life of an object.

const isChange = ({ changed }) => Boolean(changed);

function showLife() {
  const changes = model.all.filter(isChange);
  const versions = changes.filter(({ object }) => object === state.object);
  suggest("objects", changes.map(({ object }) => object));
  const count = versions.length === 1 ? "1 version" : `${versions.length} versions`;
  $("life-text").textContent = state.object ? `${count} in this recording, which has the names of fields, and no values.` : "Each version of an object: when, by whom, and what changed.";
  showVersions(versions);
}

function life(object) {
  state.object = object;
  $("life-object").value = object;
  openTab("life");
}

// The time line.

function range() {
  return state.view ?? model.range;
}

function view(from, to) {
  const [first, last] = model.range;
  const width = Math.min(Math.max(to - from, 1e-5), last - first);
  const begin = Math.max(first, Math.min(from, last - width));
  state.view = width === last - first ? null : [begin, begin + width];
  refresh();
}

function zoom(factor, at = (range()[0] + range()[1]) / 2) {
  const [from, to] = range();
  view(at - (at - from) * factor, at + (to - at) * factor);
}

function move(part) {
  const [from, to] = range();
  view(from + (to - from) * part, to + (to - from) * part);
}

/** Selects an entry. That of a write has an arrow from the likeliest cause. */
function select(n, arrow) {
  const cause = writes.get(n)?.causes[0]?.n;
  const isEnd = state.arrow?.from === n;
  state.arrow = arrow ?? (cause !== undefined ? { from: cause, to: n } : isEnd ? state.arrow : null);
  state.selected = n;
  refresh();
}

/** Selects an entry, and moves and narrows the view so that it, or its arrow, is seen. */
function reveal(n, arrow) {
  const entry = entries.get(n);
  if (!entry) return;
  if (!fits(entry)) $("filters").reset();
  select(n, arrow);
  const [from, to] = range();
  const ends = [state.arrow?.from, state.arrow?.to].map((n) => entries.get(n)?.t ?? entry.t);
  const at = indexOf(model.times, entry.t);
  const around = (model.times[at + 30] ?? model.last) - (model.times[at - 30] ?? from);
  const wanted = Math.max(12 * (ends[1] - ends[0]) || around, 1e-4);
  if (entry.t < from || entry.t > to || to - from > 8 * wanted) {
    const [middle, half] = [(ends[0] + ends[1]) / 2, Math.min(to - from, wanted) / 2];
    view(middle - half, middle + half);
  }
  const box = $("lanes");
  box.scrollIntoView({ block: "nearest" });
  const { top } = entry.lane;
  if (top < AXIS || top + 40 > box.clientHeight) box.scrollTop += top - 2 * AXIS;
}

const canvas = document.querySelector("canvas");
const pen = canvas.getContext("2d");
const colors = {};
let scale;
/** How many marks were drawn. A test reads it. */
let drawn = 0;

function readColors() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["back", "text", "soft", "accent", "watch", "event", "alarm"]) colors[name] = style.getPropertyValue(`--${name}`);
}

function scaleOf(width) {
  const [from, to] = range();
  const left = width > 600 ? 230 : 8;
  const factor = (width - left - 8) / (to - from);
  return { from, to, left, width, isNarrow: width <= 600, x: (time) => left + (time - from) * factor, time: (x) => from + (x - left) / factor };
}

const heightOf = (lane) => (lane.title ? 26 : scale.isNarrow ? 34 : 22);

function draw() {
  const box = $("lanes");
  scale = scaleOf(box.clientWidth);
  const lanesHeight = model.lanes.reduce((height, lane) => height + heightOf(lane), AXIS + 6);
  box.firstElementChild.style.height = `${lanesHeight}px`;
  const height = Math.min(box.clientHeight, lanesHeight);
  canvas.width = scale.width * devicePixelRatio;
  canvas.height = height * devicePixelRatio;
  canvas.style.width = `${scale.width}px`;
  canvas.style.height = `${height}px`;
  pen.scale(devicePixelRatio, devicePixelRatio);
  drawn = 0;
  let top = AXIS - box.scrollTop;
  for (const lane of model.lanes) {
    lane.top = top;
    lane.middle = top + heightOf(lane) - 11;
    if (top + heightOf(lane) > AXIS && top < height) drawLane(lane);
    top += heightOf(lane);
  }
  drawArrow();
  if (timer) hideLater(height);
  drawAxis(height);
  canvas.ariaDescription = model.lanes.map(({ title, label }) => title ?? label).join(", ");
  canvas.dataset.drawn = drawn;
  canvas.dataset.selected = state.selected ?? "";
  canvas.dataset.arrow = state.arrow ? `${state.arrow.from} ${state.arrow.to}` : "";
  canvas.dataset.view = range().join(" ");
}

function drawAxis(height) {
  pen.fillStyle = colors.back;
  pen.fillRect(0, 0, scale.width, AXIS);
  pen.fillStyle = colors.soft;
  pen.font = "11px system-ui, sans-serif";
  const rough = ((scale.to - scale.from) * 90) / (scale.width - scale.left);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  for (let at = Math.ceil(scale.from / step); at * step <= scale.to; at += 1) {
    const x = Math.round(scale.x(at * step));
    if (x > scale.width - 40) continue;
    pen.fillText(`${(at * step).toFixed(digits)} s`, x + 4, 14);
    pen.globalAlpha = 0.5;
    pen.fillRect(x, 0, 1, AXIS - 4);
    pen.globalAlpha = 0.12;
    pen.fillRect(x, AXIS, 1, height);
    pen.globalAlpha = 1;
  }
}

function drawLane(lane) {
  const middle = lane.middle;
  pen.fillStyle = lane.title ? colors.text : colors.soft;
  pen.font = lane.title ? "600 12px system-ui, sans-serif" : "12px system-ui, sans-serif";
  const labelWidth = scale.isNarrow || lane.title ? scale.width - 16 : scale.left - 18;
  pen.fillText(fitted(lane.title ?? lane.label, labelWidth), lane.title ? 8 : scale.isNarrow ? 8 : 14, scale.isNarrow && !lane.title ? lane.top + 10 : middle + 4);
  if (lane.title) return;
  pen.save();
  pen.beginPath();
  pen.rect(scale.left, lane.top, scale.width - scale.left, heightOf(lane));
  pen.clip();
  drawTimes(lane.gaps, lane.times.gaps, (from, to) => drawGap(from, to, middle));
  drawTimes(lane.open, lane.times.open, (from, to) => drawBar(from, to, middle));
  columns(lane.times.marks, (x, from, to) => drawMark(lane.marks, from, to, x, middle), 2);
  columns(lane.times.alarms, (x, from) => drawAlarm(lane.alarms[from], x, middle), 8);
  const selected = [state.selected, state.arrow?.from].map((n) => entries.get(n)).filter((entry) => entry?.lane === lane);
  for (const entry of selected) {
    pen.strokeStyle = colors.text;
    pen.lineWidth = 2;
    pen.strokeRect(scale.x(entry.t) - 6, middle - 8, 12, 16);
  }
  pen.restore();
}

/** Calls `show` with the begin of each column of `width` pixels in which there are times, and their indexes. */
function columns(times, show, width) {
  let at = indexOf(times, scale.from);
  while (at < times.length && times[at] <= scale.to) {
    const x = Math.floor(scale.x(times[at]) / width) * width;
    const next = Math.max(at + 1, indexOf(times, scale.time(x + width), at));
    show(next === at + 1 ? scale.x(times[at]) : x, at, next);
    at = next;
  }
}

/** Draws what is seen of times that do not overlap. They come by their begin. */
function drawTimes(times, begins, show) {
  let at = Math.max(0, indexOf(begins, scale.from) - 1);
  while (at < times.length && begins[at] <= scale.to) {
    const [begin, end] = times[at];
    if (end > scale.from) show(scale.x(begin), Math.min(scale.x(end), scale.width));
    // Those that begin in this pixel cannot be seen.
    at = Math.max(at + 1, indexOf(begins, scale.time(Math.floor(scale.x(begin)) + 1), at));
  }
}

function drawBar(from, to, middle) {
  drawn += 1;
  pen.fillStyle = colors.watch;
  pen.fillRect(from, middle - 6, Math.max(to - from, 1), 12);
}

function drawGap(from, to, middle) {
  drawn += 1;
  pen.strokeStyle = colors.alarm;
  pen.lineWidth = 1.5;
  pen.setLineDash([3, 3]);
  pen.beginPath();
  pen.moveTo(Math.max(from, 0), middle);
  pen.lineTo(to, middle);
  pen.stroke();
  pen.setLineDash([]);
}

/** One entry, or a bar that is the higher the more there are. */
function drawMark(marks, from, to, x, middle) {
  drawn += 1;
  const entry = marks[from];
  const isEvent = entry.kind === "event";
  pen.fillStyle = isEvent ? colors.event : colors.accent;
  if (to - from > 1) {
    const half = Math.min(4 + Math.log2(to - from), 9);
    pen.fillRect(x, middle - half, 2, 2 * half);
  } else if (isEvent) {
    const half = entry.event === "BOOKMARK" ? 2 : 5;
    pen.fillRect(x - 1, middle - half, 2, 2 * half);
  } else if (entry.verb === "watch" || isInPages(entry)) {
    pen.fillRect(x - 1, middle - 7, 2, 14);
  } else {
    const width = Math.max(4, scale.x(entry.t + (entry.took ?? 0)) - x);
    pen.strokeStyle = colors.accent;
    pen.lineWidth = 1;
    if (entry.changedNothing) pen.strokeRect(x + 0.5, middle - 4.5, width, 9);
    else pen.fillRect(x, middle - 5, width, 10);
  }
}

/** A triangle; for a 410, or an error in a watch, a diamond; for a 429, an hourglass. */
function drawAlarm({ status, event }, x, middle) {
  drawn += 1;
  let points = [[0, -6], [6, 5], [-6, 5]];
  if (status === 410 || event === "ERROR") points = [[0, -7], [6, 0], [0, 7], [-6, 0]];
  if (status === 429) points = [[-5, -6], [5, -6], [-5, 6], [5, 6]];
  pen.fillStyle = colors.alarm;
  pen.beginPath();
  for (const [right, down] of points) pen.lineTo(x + right, middle + down);
  pen.fill();
}

/** From the event to the write that it caused. */
function drawArrow() {
  const [cause, write] = [entries.get(state.arrow?.from), entries.get(state.arrow?.to)];
  if (!cause?.lane || !write?.lane || !fits(cause) || !fits(write)) return;
  drawn += 1;
  const [x, y, right, down] = [scale.x(cause.t), cause.lane.middle, scale.x(write.t), write.lane.middle];
  const side = down < y ? -1 : 1;
  const bend = (down - y) / 2;
  pen.strokeStyle = pen.fillStyle = colors.text;
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(x, y + 8 * side);
  pen.bezierCurveTo(x, y + bend, right, down - bend, right, down - 14 * side);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(right, down - 8 * side);
  pen.lineTo(right - 5, down - 16 * side);
  pen.lineTo(right + 5, down - 16 * side);
  pen.fill();
}

/** A text that is cut so that it fits into a width. */
function fitted(text, width) {
  if (pen.measureText(text).width <= width) return text;
  let to = text.length;
  while (to > 1 && pen.measureText(`${text.slice(0, to)}…`).width > width) to -= 1;
  return `${text.slice(0, to)}…`;
}

/** The entry at a point of the canvas: the nearest within some pixels, those that failed first; or that whose bar is there. */
function entryAt({ offsetX, offsetY }) {
  const lane = model.lanes.find((lane) => lane.marks && offsetY >= lane.top && offsetY < lane.top + heightOf(lane));
  if (!lane || offsetY < AXIS) return undefined;
  for (const kind of ["alarms", "marks"]) {
    const times = lane.times[kind];
    const at = indexOf(times, scale.time(offsetX));
    const distance = (index) => Math.abs(scale.x(times[index] ?? Infinity) - offsetX);
    const nearest = distance(at - 1) < distance(at) ? at - 1 : at;
    if (distance(nearest) < 7) return lane[kind][nearest];
  }
  const time = scale.time(offsetX);
  return lane.marks.findLast(({ kind, t, took, end }) => kind !== "event" && t <= time && (end ?? t + (took ?? Infinity)) >= time);
}

function listen() {
  let from = null;
  canvas.onpointerdown = (event) => {
    from = event.offsetX;
    canvas.setPointerCapture(event.pointerId);
  };
  canvas.onpointermove = (event) => {
    const entry = entryAt(event);
    canvas.title = entry ? line(entry) : "";
    if (from === null || !event.buttons) return;
    if (event.pointerType === "touch") {
      const [begin, end] = range();
      view(begin + scale.time(from) - scale.time(event.offsetX), end + scale.time(from) - scale.time(event.offsetX));
      from = event.offsetX;
      return;
    }
    draw();
    pen.fillStyle = colors.accent;
    pen.globalAlpha = 0.2;
    pen.fillRect(from, 0, event.offsetX - from, canvas.height);
    pen.globalAlpha = 1;
  };
  canvas.onpointerup = (event) => {
    const to = event.offsetX;
    if (from !== null && Math.abs(to - from) > 5 && event.pointerType !== "touch") view(scale.time(Math.min(from, to)), scale.time(Math.max(from, to)));
    else if (entryAt(event)) select(entryAt(event).n);
    from = null;
  };
  canvas.onpointercancel = () => { from = null; };
  canvas.ondblclick = () => view(...model.range);
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move((event.deltaX || event.deltaY) / 1000);
    else zoom(1.002 ** event.deltaY, scale.time(event.offsetX));
  }, { passive: false });
  canvas.onkeydown = ({ key, ctrlKey, metaKey }) => {
    if (ctrlKey || metaKey) return;
    const act = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => view(...model.range), ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2) }[key];
    act?.();
  };
  $("zoom-in").onclick = () => zoom(0.5);
  $("zoom-out").onclick = () => zoom(2);
  $("zoom-all").onclick = () => view(...model.range);
  $("lanes").onscroll = draw;
  const form = $("filters");
  form.onsubmit = (event) => event.preventDefault();
  form.oninput = () => filtered(new FormData(form));
  form.onreset = () => filtered(new FormData());
  $("life-object").oninput = ({ target }) => { state.object = target.value; refresh(); };
  new ResizeObserver(refresh).observe($("time"));
  matchMedia("(prefers-color-scheme: dark)").onchange = () => { readColors(); refresh(); };
}

function search(text) {
  $("filters").elements.object.value = text;
  filtered(new FormData($("filters")));
}

function filtered(form) {
  for (const name of Object.keys(filter)) filter[name] = form.get(name) ?? "";
  update();
  refresh();
}

// The replay: the entries in view, as they came.

/** Shows the next entry. `null`: nothing is played. */
let timer = null;
/** The last entry that was shown. */
let played = null;

function play(entry) {
  played = entry;
  // A filter may leave it out now: then this is the end.
  const at = model.seen.indexOf(entry);
  const next = at < 0 ? undefined : model.seen[at + 1];
  const pause = next && next.t <= range()[1] ? (next.t - entry.t) * 1000 : null;
  timer = pause === null ? null : setTimeout(play, Math.min(Math.max(pause, PAUSE_MIN), PAUSE_MAX), next);
  select(entry.n);
  showPlay();
}

function showPlay() {
  $("play").textContent = timer ? "Pause" : "Play";
  // A screen reader reads what the user chooses, and not each entry of a replay.
  $("detail").ariaLive = timer ? "off" : "polite";
}

function playOrPause() {
  if (timer) {
    clearTimeout(timer);
    timer = null;
    showPlay();
    refresh();
    return;
  }
  const [first, end] = range().map((time) => indexOf(model.times, time));
  const next = model.seen.findIndex(({ n }) => n === state.selected) + 1;
  openTab("entries");
  if (first < model.seen.length) play(model.seen[next > first && next < end ? next : first]);
}

/** What comes after the present entry of the replay is only a hint. */
function hideLater(height) {
  const x = Math.max(scale.left, scale.x(played.t) + 7);
  pen.fillStyle = colors.back;
  pen.globalAlpha = 0.85;
  pen.fillRect(x, AXIS, scale.width, height);
  pen.globalAlpha = 1;
}

$("play").onclick = playOrPause;

// The tabs.

const TABS = ["why", "entries", "life"];

function openTab(name) {
  for (const tab of TABS) {
    $(`tab-${tab}`).setAttribute("aria-selected", String(tab === name));
    $(`tab-${tab}`).tabIndex = tab === name ? 0 : -1;
    $(tab).hidden = tab !== name;
  }
  refresh();
}

for (const [index, name] of TABS.entries()) {
  $(`tab-${name}`).onclick = () => openTab(name);
  $(`tab-${name}`).onkeydown = ({ key }) => {
    const step = { ArrowLeft: 2, ArrowRight: 1 }[key];
    if (step === undefined) return;
    const next = TABS[(index + step) % TABS.length];
    openTab(next);
    $(`tab-${next}`).focus();
  };
}

// Everything again, at most once a frame.

let model = modelOf([]);
/** Whether there are entries, or a report, that the model does not have. */
let isStale = false;
let isWaiting = false;
let nextUpdate = 0;

function refresh() {
  if (isWaiting) return;
  isWaiting = true;
  requestAnimationFrame(() => {
    isWaiting = false;
    if (isStale && performance.now() >= nextUpdate) update();
    else if (isStale) setTimeout(refresh, nextUpdate - performance.now());
    show();
  });
}

/** Makes the model again. While the operator writes without a pause, this takes at most a fifth of the time. */
function update() {
  const began = performance.now();
  isStale = false;
  model = modelOf([...entries.values()].sort((one, other) => one.t - other.t));
  options("client", model.clients);
  options("verb", [...new Set(model.all.map(({ verb }) => verb))].sort());
  suggest("kinds", model.all.map(({ resource }) => resource).filter(Boolean));
  showFindings();
  showWhy();
  nextUpdate = performance.now() + 4 * (performance.now() - began);
}

function options(name, values) {
  const list = $("filters").elements[name];
  if (list.childElementCount === values.length + 1) return;
  const chosen = list.value;
  list.replaceChildren(element("option", { value: "" }, "all"), ...values.map((value) => element("option", { value }, value)));
  list.value = chosen;
}

/** The suggestions of an input. */
function suggest(list, values) {
  const names = [...new Set(values)].sort();
  if (names.length !== $(list).childElementCount) $(list).replaceChildren(...names.map((value) => element("option", { value })));
}

/** Shows what is seen of the model. */
function show() {
  draw();
  const [from, to] = range();
  const end = timer ? model.seen.indexOf(played) + 1 : indexOf(model.times, to);
  if (!$("entries").hidden) showEntries(model.seen.slice(indexOf(model.times, from), end));
  if (!$("life").hidden) showLife();
  // The recording of a client has no date.
  const begin = start ? `, from ${new Date(start).toISOString().slice(0, 19).replace("T", " ")} UTC` : "";
  const older = forgotten ? ` The page has the latest: ${forgotten.toLocaleString("en")} older ones were dropped.` : "";
  $("state").textContent = `${entries.size.toLocaleString("en")} requests and events in ${duration(model.last)}${begin}.${older}`;
  if ($("live").textContent !== state.live) $("live").textContent = state.live;
  showDetail();
  pressLinks();
}

function showDetail() {
  const entry = entries.get(state.selected);
  if (!entry) {
    $("detail").textContent = "Choose an entry to see it here. Drag over a part of the time line to zoom in.";
    return;
  }
  const cause = writes.get(entry.n)?.reason;
  const lives = isChange(entry) || (entry.kind === "event" && entry.object);
  replace($("detail"),
    element("b", {}, `${seconds(entry.t)}  ${what(entry)} ${about(entry)}`),
    lives ? element("button", { type: "button", "data-key": "life", onclick: () => life(entry.object) }, "Life of this object") : "",
    element("br"),
    [entry.client || "a controller of the server", entry.target, result(entry), lasted(entry)].filter(Boolean).join(" · "),
    entry.connection ? element("button", { type: "button", "data-key": "connection", title: "Show only what this connection of the client sent and received", onclick: () => search(`connection ${entry.connection}`) }, `connection ${entry.connection}`) : "",
    cause ? element("br") : "", cause ? `Cause: ${cause}` : "",
    entry.content ? element("pre", { tabindex: "0", role: "region", "data-key": "content", "aria-label": entry.kind === "event" ? "The object of the event" : "The body of the answer" }, pretty(entry.content)) : "");
}

/** JSON with indentation. That of a longer text is cut, so it stays as it is. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

readColors();
listen();
if ($("recording")) {
  load(JSON.parse($("recording").textContent));
  // Such as a lesson about reading.
  if (!report.writes.length) openTab("entries");
} else follow();
