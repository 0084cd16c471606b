// What the page shows at the moment: the data of the report, filtered by bus, type and range.
"use strict";

const report = JSON.parse(document.getElementById("data").textContent);
const activity = report.activity;
const state = { bus: "", type: "", from: 0, to: activity ? activity.count - 1 : 0, span: "end_to_end", log: true };
const listeners = [];

const change = (part) => {
  Object.assign(state, part);
  for (const listener of listeners) listener();
};

const setRange = (from, to) => {
  const last = activity.count - 1;
  const begin = Math.max(0, Math.min(Math.round(from), last));
  change({ from: begin, to: Math.min(last, Math.max(Math.round(to), begin)) });
};

const start = (index) => activity.first + index * activity.seconds;

// A worker serves all types, so a filter by type leaves it as it is.
const seriesOf = (facet) => activity.series.filter((one) =>
  one.facet === facet && (!state.bus || one.bus === state.bus) && (!state.type || facet === "worker" || one.type === state.type));

const sum = (all, counter) => {
  let total = 0;
  for (const one of all) {
    const values = one.counters[counter];
    if (values) one.at.forEach((at, n) => { if (at >= state.from && at <= state.to) total += values[n]; });
  }
  return total;
};

// One value for each period of the whole history. A period without a row is a period in which nothing happened.
const overTime = (all, ...counters) => {
  const found = new Array(activity.count).fill(0);
  for (const one of all) {
    for (const counter of counters) {
      const values = one.counters[counter];
      if (values) one.at.forEach((at, n) => { found[at] += values[n]; });
    }
  }
  return found;
};

const runningSum = (values) => { let total = 0; return values.map((value) => (total += value)); };

const percentilesNow = () => activity.percentiles.find((one) => (one.bus || "") === state.bus && (one.type || "") === state.type);

const percentilesOverTime = (share) => {
  const found = new Array(activity.count).fill(null);
  const one = percentilesNow();
  if (one) one.at.forEach((at, n) => { found[at] = one.spans[state.span][share][n]; });
  return found;
};

// A pattern such as order.* has * for any text.
const matches = (pattern, name) =>
  new RegExp(`^${pattern.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&")).join(".*")}$`).test(name);

const slosNow = () => {
  const seen = new Map();
  for (const slo of report.slos) {
    const bus = !state.bus || !slo.bus || slo.bus === state.bus;
    if (slo.within_ms !== null && bus && (!state.type || matches(slo.type || "*", state.type))) seen.set(slo.slo, slo);
  }
  return [...seen.values()];
};

// --- numbers for people -------------------------------------------------------------------------------------------

const whole = (value) => Math.round(value).toLocaleString("en-US");

const short = (value) => {
  for (const [limit, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= limit) return `${Number((value / (letter === "k" ? 1e3 : limit)).toPrecision(3))}${letter}`;
  }
  return Number(value.toPrecision(3)).toLocaleString("en-US");
};

const share = (part, all) => {
  if (!all) return "–";
  const percent = 100 * part / all;
  if (part && percent < 0.01) return "<0.01 %";
  if (part < all && percent > 99.9) return ">99.9 %";
  return `${part && part < all ? percent.toPrecision(percent < 10 ? 2 : 3) : percent} %`;
};

// Three digits. With `zeros` it keeps those at the end, so that the numbers of a column look alike.
const duration = (ms, zeros = false) => {
  if (ms === null || ms === undefined) return "–";
  if (!ms) return "0 s";
  const [size, unit] = ms < 1 ? [1e-3, "µs"] : ms < 1e3 ? [1, "ms"] : ms < 120e3 ? [1e3, "s"] : ms < 7200e3 ? [60e3, "min"] : [3600e3, "h"];
  const value = ms / size;
  const digits = zeros ? Math.max(0, 2 - Math.floor(Math.log10(value))) : 0;
  return `${Number(value.toPrecision(3)).toLocaleString("en-US", { minimumFractionDigits: digits })} ${unit}`;
};

const two = (value) => String(value).padStart(2, "0");
const day = (at) => { const d = new Date(at * 1000); return `${d.getUTCFullYear()}-${two(d.getUTCMonth() + 1)}-${two(d.getUTCDate())}`; };
const minute = (at) => { const d = new Date(at * 1000); return `${two(d.getUTCHours())}:${two(d.getUTCMinutes())}`; };
const clock = (at) => (activity.seconds < 60 ? `${minute(at)}:${two(new Date(at * 1000).getUTCSeconds())}` : minute(at));
const instant = (at) => (activity.period === "day" ? day(at) : `${day(at)} ${clock(at)}`);

// --- elements -----------------------------------------------------------------------------------------------------

const make = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

// The name of a column begins with > if it has numbers, with = if its texts stay on one line, and with # if they are ids.
const STYLE_OF = { ">": "number", "=": "one-line", "#": "one-line id" };

// Makes a table. A cell is a text or {text, bar, title, bad, strong}; `bar` is a share of 1. A phone shows rows as cards.
const tableOf = (columns, rows, style = "cards") => {
  const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col", className: STYLE_OF[name[0]] || "", textContent: name.replace(/^[>=#]/, "") })));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell, n) => {
    const given = cell !== null && typeof cell === "object" ? cell : { text: cell };
    const made = make("td", { className: STYLE_OF[columns[n][0]] || "", textContent: given.text ?? "", title: given.title || "" });
    made.dataset.label = columns[n].replace(/^[>=#]/, "");
    for (const kind of ["bad", "strong"]) if (given[kind]) made.classList.add(kind);
    if (given.bar !== undefined) {
      const bar = make("i", { className: "bar" });
      bar.style.width = `${Math.max(0, Math.min(1, given.bar)) * 100}%`;
      made.classList.add("with-bar");
      made.append(bar);
    }
    return made;
  })));
  return make("div", { className: `scroll ${style}`, tabIndex: 0 }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
};
