// The charts over time, drawn by uPlot: hover, keyboard, range, legend, and the same values as a table.
"use strict";

const colours = () => {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
};
const PALETTE = ["blue", "orange", "green", "red", "violet", "teal"];
const SHOWN_LINES = 6;
const TABLE_ROWS = 400;
const OF_CHOICE = "of this range and filter";
// Distances of the marks on the axis of time, in seconds. A mark never stands within a period, so no label repeats.
const DISTANCES = [1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((n) => n * 60), ...[1, 2, 3, 6, 12].map((n) => n * 3600), ...[1, 2, 3, 5, 7, 10, 15, 30, 60, 90, 180, 365, 730, 1825].map((n) => n * 86400)];

// Events in a period as a rate in a unit that fits the largest value.
const rated = (lists) => {
  const top = Math.max(0, ...lists.flat());
  const [size, unit] = top >= activity.seconds ? [1, "/s"] : top * 60 >= activity.seconds ? [60, "/min"] : [3600, "/h"];
  return { lists: lists.map((values) => values.map((value) => value * size / activity.seconds)), show: (value) => `${short(value)}${unit}` };
};

// The names with the largest sums in the range, each with its series: a worker may serve several buses.
const largest = (all, counters) => {
  const byName = new Map();
  for (const one of all) byName.set(one.name || "(no error)", [...(byName.get(one.name || "(no error)") || []), one]);
  const total = (some) => counters.reduce((whole, counter) => whole + sum(some, counter), 0);
  return [...byName].filter(([, some]) => total(some)).sort((a, b) => total(b[1]) - total(a[1])).slice(0, SHOWN_LINES);
};

const CHARTS = {
  throughput: () => {
    const types = seriesOf("type");
    const { lists, show } = rated(["published", "completed", "dead"].map((name) => overTime(types, name)));
    return {
      show, area: true, lines: [["published", "blue", lists[0]], ["completed", "green", lists[1]], ["dead letters", "red", lists[2]]],
      nothing: `No event ${OF_CHOICE} was published or ended. Choose a longer range or another filter.`,
    };
  },
  depth: () => {
    const types = seriesOf("type");
    const depth = (name) => runningSum(overTime(types, `${name}_change`));
    return {
      show: short, lines: [["waiting", "blue", depth("waiting")], ["in progress", "orange", depth("working")]],
      nothing: `No event ${OF_CHOICE} was waiting or in progress at the end of any period. Events that workers cannot finish in time appear here.`,
    };
  },
  latency: () => ({
    show: duration,
    // The marks of a log scale are powers of ten: 1,000 s reads better than 16.7 min.
    tick: (ms) => (state.log && ms >= 1e3 ? `${whole(ms / 1e3)} s` : duration(ms)),
    log: state.log,
    nothing: `No event ${OF_CHOICE} ${state.span === "waiting" ? "was claimed for the first time. The waiting times of claimed" : "has completed. The times of completed"} events appear here.`,
    lines: [
      // The larger one first, so that the smaller one is drawn over it where both are equal.
      ["p99", "red", percentilesOverTime(2)], ["p95", "orange", percentilesOverTime(1)], ["p50", "green", percentilesOverTime(0)],
      ...(state.span === "end_to_end" ? slosNow() : []).slice(0, 3).map((slo) =>
        [`SLO ${slo.slo}: ${duration(slo.within_ms)}`, "text", new Array(activity.count).fill(slo.within_ms), true]),
    ],
  }),
  failures: () => {
    const types = seriesOf("type");
    const { lists, show } = rated([overTime(types, "failed", "abandoned"), overTime(types, "retried"), overTime(types, "dead")]);
    return {
      show, lines: [["failed attempts", "orange", lists[0]], ["retries", "blue", lists[1]], ["dead letters", "red", lists[2]]],
      nothing: `No attempt ${OF_CHOICE} has failed or was repeated. Failed attempts, retries and dead letters appear here.`,
    };
  },
  reasons: () => {
    const top = largest(seriesOf("error"), ["failed", "abandoned", "dead"]);
    const attempts = (all) => all.some((one) => one.counters.failed || one.counters.abandoned);
    const { lists, show } = rated(top.map(([, all]) => overTime(all, ...(attempts(all) ? ["failed", "abandoned"] : ["dead"]))));
    return { show, lines: top.map(([name], n) => [name, PALETTE[n], lists[n]]), nothing: `No attempt ${OF_CHOICE} has failed. The errors of failed attempts appear here.` };
  },
  workers: () => ({
    show: short,
    nothing: "No worker has ended an attempt in this range. The time that a worker held a claim appears here once the attempt has ended.",
    lines: largest(seriesOf("worker"), ["busy_us"]).map(([name, all], n) =>
      [name, PALETTE[n], overTime(all, "busy_us").map((busy) => busy / 1e6 / activity.seconds)]),
  }),
};

const drawn = new Map();
const hidden = new Map();
const times = activity ? Array.from({ length: activity.count }, (_, n) => start(n)) : [];

// A value between two gaps is no line: it is drawn as a point.
const lonely = (u, index) => {
  const values = u.data[index];
  const found = [];
  values.forEach((value, n) => { if (value !== null && (n === 0 || values[n - 1] === null) && (n === values.length - 1 || values[n + 1] === null)) found.push(n); });
  return found;
};

// The day stands below the first label and the first one of each day; if labels are days, it is the year.
const timeLabel = (at, step, before) => {
  const [label, below] = step >= 86400 ? [day(at).slice(5), (one) => day(one).slice(0, 4)] : [step < 60 ? clock(at) : minute(at), (one) => day(one).slice(5)];
  return before === undefined || below(at) !== below(before) ? `${label}\n${below(at)}` : label;
};

const optionsFor = (name, chart, plot) => {
  const colour = colours();
  const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const smallest = Math.min(...chart.lines.flatMap((line) => line[2].filter((value) => value > 0)));
  return {
    width: plot.clientWidth,
    height: plot.clientWidth < 500 ? 210 : 240,
    // Half of the last label of time may stand beside the plot.
    padding: [8, activity.seconds < 60 ? 28 : 20, 0, 0],
    tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
    legend: { show: false },
    scales: {
      x: { time: true, min: start(state.from), max: start(state.to) },
      y: chart.log ? { distr: 3 } : { range: (u, min, max) => [0, Math.max(max, Number.isFinite(smallest) ? 0 : 1) * 1.05] },
    },
    axes: [
      { ...axis, space: 70, gap: 8, incrs: DISTANCES.filter((step) => step >= activity.seconds), values: (u, ticks, index, space, step) => ticks.map((at, n) => timeLabel(at, step, ticks[n - 1])) },
      { ...axis, size: 64, grid: { ...axis.grid, filter: (u, ticks) => (chart.log ? ticks.map((tick) => (Number.isInteger(Math.round(Math.log10(tick) * 1e6) / 1e6) ? tick : null)) : ticks) }, values: (u, ticks) => ticks.map((tick) => (tick === null ? "" : (chart.tick || chart.show)(tick))) },
    ],
    cursor: {
      sync: { key: "report", setSeries: false },
      y: false,
      drag: { x: true, y: false, setScale: false },
      points: { size: 7 },
      bind: { dblclick: () => () => { setRange(0, activity.count - 1); return null; } },
    },
    series: [{}, ...chart.lines.map(([label, style, , dashed], n) => ({
      fill: chart.area && n === 0 ? `color-mix(in srgb, ${colour(style)} 14%, transparent)` : undefined,
      label, stroke: colour(style), width: 1.5, dash: dashed ? [7, 5] : undefined, show: !hidden.get(`${name} ${label}`),
      points: dashed ? { show: false } : { size: 5, filter: (u, index, show) => (show ? null : lonely(u, index)) },
    }))],
    hooks: {
      setCursor: [(u) => tell(u, plot, chart)],
      setSelect: [(u) => {
        if (u.select.width > 4) setRange(u.posToIdx(u.select.left), u.posToIdx(u.select.left + u.select.width));
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      }],
    },
  };
};

const read = (chart, name, index) => `${instant(start(index))} UTC: ${chart.lines.filter((line) => !hidden.get(`${name} ${line[0]}`))
  .map((line) => `${line[0]} ${line[2][index] === null ? "–" : chart.show(line[2][index])}`).join(", ")}`;

const tell = (u, plot, chart) => {
  const tip = plot.querySelector(".tip");
  if (!tip) return;
  const index = u.cursor.idx;
  tip.hidden = index === null || index === undefined || u.cursor.left < 0;
  if (tip.hidden) return;
  tip.replaceChildren(make("b", { textContent: `${instant(start(index))} UTC` }), ...chart.lines.filter((line, n) => u.series[n + 1].show).map(([label, style, values]) =>
    make("span", {}, make("i", { className: style }), make("em", { textContent: label }), make("strong", { textContent: values[index] === null ? "–" : chart.show(values[index]) }))));
  const right = u.cursor.left > u.over.clientWidth / 2;
  tip.style.left = right ? "" : `${u.over.offsetLeft + u.cursor.left + 14}px`;
  tip.style.right = right ? `${plot.clientWidth - u.over.offsetLeft - u.cursor.left + 14}px` : "";
};

// Arrow keys move the cursor, plus and minus change the range, 0 shows everything.
const onKey = (event, name) => {
  const { u, chart, plot } = drawn.get(name);
  const width = state.to - state.from;
  const current = u?.cursor.idx ?? state.to;
  const moves = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: state.from, End: state.to };
  if (event.key in moves) {
    const index = Math.max(state.from, Math.min(state.to, moves[event.key]));
    u?.setCursor({ left: u.valToPos(start(index), "x"), top: 10 });
    plot.parentElement.querySelector(".readout").textContent = read(chart, name, index);
  } else if (event.key === "+") setRange(current - width / 4, current + width / 4);
  else if (event.key === "-") setRange(state.from - Math.max(1, width / 2), state.to + Math.max(1, width / 2));
  else if (event.key === "0") setRange(0, activity.count - 1);
  else if (event.key === "Escape") u?.setCursor({ left: -10, top: -10 });
  else return;
  event.preventDefault();
};

const legendOf = (name, chart) => chart.lines.map(([label, style, , dashed]) => {
  const key = `${name} ${label}`;
  const button = make("button", { type: "button", title: label }, make("i", { className: `${style}${dashed ? " dashed" : ""}` }), make("span", { textContent: label }));
  button.setAttribute("aria-pressed", String(!hidden.get(key)));
  button.addEventListener("click", () => { hidden.set(key, !hidden.get(key)); draw(name); document.querySelector(`#${name} .legend button[title="${CSS.escape(label)}"]`).focus(); });
  return button;
});

const fillTable = (details, chart) => {
  if (!details.open) return;
  const rows = [];
  for (let n = state.to; n >= state.from && rows.length < TABLE_ROWS; n -= 1) {
    if (chart.lines.some((line) => line[2][n])) rows.push([instant(start(n)), ...chart.lines.map((line) => (line[2][n] === null ? "–" : chart.show(line[2][n])))]);
  }
  const more = state.to - state.from >= TABLE_ROWS && rows.length === TABLE_ROWS;
  details.querySelector(".fallback").replaceChildren(tableOf(["Time (UTC)", ...chart.lines.map((line) => `>${line[0]}`)], rows, ""),
    make("p", { textContent: more ? `The newest ${TABLE_ROWS} rows of the range. Choose a shorter range for the others.` : rows.length ? "Newest first. Periods in which nothing happened are left out." : "Nothing happened in this range." }));
};

// One period is no line over time: each value is a bar beside its number.
const figuresOf = (name, chart) => {
  const values = chart.lines.filter(([label]) => !hidden.get(`${name} ${label}`)).map(([label, style, all]) => [label, style, all[state.from]]);
  const most = Math.max(...values.map(([, , value]) => value || 0)) || 1;
  return make("dl", { className: "figures" }, ...values.flatMap(([label, style, value]) => {
    const bar = make("i", { className: style });
    bar.style.width = value ? `max(2px, ${100 * value / most}%)` : "0";
    return [make("dt", { textContent: label, title: label }), make("dd", {}, bar), make("dd", { textContent: value === null ? "–" : chart.show(value) })];
  }));
};

const draw = (name) => {
  const card = document.getElementById(name);
  const plot = card.querySelector(".plot");
  const chart = CHARTS[name]();
  const before = drawn.get(name);
  if (before) before.u?.destroy();
  const nothing = !chart.lines.some((line) => !line[3] && line[2].some((value, n) => value && n >= state.from && n <= state.to));
  card.querySelector(".legend").replaceChildren(...legendOf(name, chart));
  const tip = make("div", { className: "tip", hidden: true });
  plot.replaceChildren(tip);
  card.querySelector(".nothing").hidden = !nothing;
  card.querySelector(".nothing").textContent = chart.nothing;
  card.querySelector(".legend").hidden = nothing;
  card.querySelector("details").hidden = nothing;
  plot.hidden = nothing;
  const single = !nothing && state.from === state.to;
  if (single) plot.append(figuresOf(name, chart));
  const u = nothing || single ? null : new uPlot(optionsFor(name, chart, plot), [times, ...chart.lines.map((line) => (chart.log ? line[2].map((value) => (value === null ? null : Math.max(value, 0.001))) : line[2]))], plot);
  drawn.set(name, { u, chart, plot });
  if (!nothing) plot.setAttribute("aria-label", `${card.querySelector("h2").textContent}, ${chart.lines.map((line) => line[0]).join(", ")}. Arrow keys read values, plus and minus zoom, 0 shows everything.`);
  fillTable(card.querySelector("details"), chart);
};

const drawAll = () => { for (const name of Object.keys(CHARTS)) draw(name); };

if (activity) {
  for (const name of Object.keys(CHARTS)) {
    const card = document.getElementById(name);
    const plot = card.querySelector(".plot");
    plot.tabIndex = 0;
    plot.setAttribute("role", "group");
    plot.addEventListener("keydown", (event) => onKey(event, name));
    plot.addEventListener("blur", () => drawn.get(name).u?.setCursor({ left: -10, top: -10 }));
    card.querySelector("details").addEventListener("toggle", (event) => fillTable(event.target, drawn.get(name).chart));
  }
  listeners.push(drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawAll(); } });
}
