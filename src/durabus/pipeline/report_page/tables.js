// The filters, the numbers at the top, and the tables below the charts.
"use strict";

const put = (id, rows, columns, nothing) => {
  const left = activity.left_out[id];
  document.querySelector(`#${id === "worker" ? "worker-rows" : `${id}s`} .rows`).replaceChildren(
    rows.length ? tableOf(columns, rows) : make("p", { className: "nothing", textContent: nothing }),
    ...(left ? [make("p", { textContent: `${whole(left)} more are not shown; gold.activity has them.` })] : []),
  );
};

const nameOf = (one) => `${one.bus} / ${one.type}`;
const p = (one, span, number) => duration(one.spans[span] ? one.spans[span][number] : null, true);

const held = (claims) => claims.toFixed(claims < 10 ? 3 : 1);

const showTiles = () => {
  const types = seriesOf("type");
  const done = { published: sum(types, "published"), completed: sum(types, "completed"), dead: sum(types, "dead"), failed: sum(types, "failed") + sum(types, "abandoned"), claimed: sum(types, "claimed") };
  const known = percentilesNow();
  const tiles = [
    ["Published", whole(done.published), "events"],
    ["Completed", whole(done.completed), share(done.completed, done.completed + done.dead) + " of ended events"],
    ["Dead letters", whole(done.dead), share(done.dead, done.completed + done.dead) + " of ended events", done.dead > 0],
    ["Failed attempts", whole(done.failed), share(done.failed, done.claimed) + " of all attempts"],
    ["End to end, p95", duration(known ? known.whole.end_to_end[1] : null), "whole history"],
    ["Handler time", duration(sum(types, "handler_us") / 1000), "in all handlers"],
  ];
  document.getElementById("tiles").replaceChildren(...tiles.map(([name, value, note, bad]) =>
    make("div", { className: "tile" }, make("dt", { textContent: name }), make("dd", { className: bad ? "bad" : "", textContent: value }), make("dd", { className: "sub", textContent: note }))));
};

const showTypes = () => {
  const rows = seriesOf("type").map((one) => [one, sum([one], "published")]);
  const most = Math.max(1, ...rows.map((row) => row[1]));
  put("type", rows.sort((a, b) => b[1] - a[1]).map(([one, published]) => {
    const [completed, dead] = [sum([one], "completed"), sum([one], "dead")];
    return [nameOf(one), { text: whole(published), bar: published / most }, whole(completed), { text: whole(dead), bad: dead > 0 }, share(dead, completed + dead), share(sum([one], "retried"), sum([one], "claimed")),
      p(one, "end_to_end", 0), p(one, "end_to_end", 1), p(one, "end_to_end", 2), duration(sum([one], "handler_us") / 1000, true)];
  }), ["Bus / type", ">Published", ">Completed", ">Dead", ">Dead share", ">Retried", ">p50", ">p95", ">p99", ">Handler time"], "No event of this choice.");
};

const showHandlers = () => {
  const rows = seriesOf("handler").map((one) => [one, sum([one], "handler_us")]);
  const most = Math.max(1, ...rows.map((row) => row[1]));
  put("handler", rows.sort((a, b) => b[1] - a[1]).map(([one, time]) => {
    const [succeeded, failed] = [sum([one], "completed"), sum([one], "failed")];
    return [one.name, nameOf(one), whole(succeeded), { text: whole(failed), bad: failed > 0 }, share(failed, succeeded + failed), p(one, "running", 0), p(one, "running", 1), p(one, "running", 2), { text: duration(time / 1000, true), bar: time / most }];
  }), ["Handler", "=Bus / type", ">Succeeded", ">Failed", ">Failed share", ">p50", ">p95", ">p99", ">Time"], "No handler has ended an event of this choice.");
};

const showErrors = () => {
  const rows = seriesOf("error").map((one) => [one, sum([one], "failed") + sum([one], "abandoned"), sum([one], "dead")]).filter((row) => row[1] || row[2]);
  const most = Math.max(1, ...rows.map((row) => Math.max(row[1], row[2])));
  put("error", rows.sort((a, b) => b[1] + b[2] - a[1] - a[2]).map(([one, failed, dead]) =>
    [{ text: one.name || "(no error)", title: one.example || "" }, nameOf(one), { text: whole(failed), bar: failed / most }, { text: whole(dead), bad: dead > 0 }, one.last_at || "", one.example_event_id || ""]),
  ["Error", "=Bus / type", ">Failed attempts", ">Dead letters", "=Last (UTC)", "#An event"], "Nothing has failed in this range.");
};

const showWorkers = () => {
  const seconds = (state.to - state.from + 1) * activity.seconds;
  const rows = seriesOf("worker").map((one) => [one, sum([one], "busy_us")]);
  const most = Math.max(1, ...rows.map((row) => row[1]));
  put("worker", rows.sort((a, b) => b[1] - a[1]).map(([one, busy]) =>
    [one.name, one.bus, whole(sum([one], "claimed")), whole(sum([one], "completed")), whole(sum([one], "failed")), { text: whole(sum([one], "abandoned")), bad: sum([one], "abandoned") > 0 }, { text: held(busy / 1e6 / seconds), bar: busy / most }]),
  ["Worker", "Bus", ">Claims", ">Completed", ">Failed", ">Lost", ">Claims held on average"], "No worker has claimed an event of this choice.");
};

// A parent may be of another bus than its children, so its events are counted on all buses.
const showFunnel = () => {
  const parents = new Map();
  for (const one of seriesOf("parent")) parents.set(one.name, [...(parents.get(one.name) || []), one]);
  const rows = [];
  const publishedOf = (parent) => sum(activity.series.filter((one) => one.facet === "type" && one.type === parent), "published");
  for (const [parent, children] of [...parents].sort((a, b) => publishedOf(b[0]) - publishedOf(a[0]))) {
    const published = publishedOf(parent);
    rows.push([{ text: parent, strong: true }, { text: whole(published), bar: 1 }, "", "", "", ""]);
    for (const one of children.sort((a, b) => sum([b], "published") - sum([a], "published"))) {
      const [made, dead] = [sum([one], "published"), sum([one], "dead")];
      rows.push([`↳ ${nameOf(one)}`, { text: whole(made), bar: published ? made / published : 0 }, share(made, published), whole(sum([one], "completed")), { text: whole(dead), bad: dead > 0 }, p(one, "end_to_end", 1)]);
    }
  }
  put("parent", rows, ["Parent, then its children", ">Published", ">Share of parents", ">Completed", ">Dead", ">p95 from parent to end"], "No event of this choice was published by a handler of another event.");
};

const showRange = () => {
  const end = start(state.to) + activity.seconds;
  const all = state.from === 0 && state.to === activity.count - 1;
  document.getElementById("range").textContent = `${instant(start(state.from))} to ${day(end) === day(start(state.from)) && activity.period !== "day" ? clock(end) : instant(end)} UTC, ${activity.period.includes(" ") ? "in steps of" : "by the"} ${activity.period}`;
  for (const button of document.querySelectorAll("#ranges button[data-step]")) {
    button.disabled = { earlier: state.from === 0, later: state.to === activity.count - 1, in: state.from === state.to, out: all }[button.dataset.step];
  }
  for (const button of document.querySelectorAll("#ranges button[data-periods]")) {
    const periods = Number(button.dataset.periods);
    button.setAttribute("aria-pressed", String(periods ? state.to - state.from + 1 === periods && state.to === activity.count - 1 : all));
  }
};

const fillFilters = () => {
  const types = activity.series.filter((one) => one.facet === "type");
  for (const name of ["bus", "type"]) {
    const select = document.getElementById(name);
    const values = [...new Set(types.filter((one) => name === "bus" || !state.bus || one.bus === state.bus).map((one) => one[name]))].sort();
    select.replaceChildren(make("option", { value: "", textContent: name === "bus" ? "all buses" : "all types" }), ...values.map((value) => make("option", { value, textContent: value })));
    select.value = state[name];
  }
};

const showRanges = () => {
  const lengths = [["10 s", 10], ["1 min", 60], ["5 min", 300], ["15 min", 900], ["1 h", 3600], ["6 h", 21600], ["24 h", 86400], ["7 d", 604800], ["30 d", 2592000]];
  const fitting = lengths.map(([name, seconds]) => [name, Math.ceil(seconds / activity.seconds)]).filter(([, periods]) => periods >= 6 && periods < activity.count).slice(-4);
  const buttons = [["All", 0], ...fitting].map(([name, periods]) => {
    const button = make("button", { type: "button", textContent: name });
    button.dataset.periods = periods;
    button.addEventListener("click", () => setRange(periods ? activity.count - periods : 0, activity.count - 1));
    return button;
  });
  const width = () => state.to - state.from + 1;
  const step = (name, label, text, go) => { const button = make("button", { type: "button", textContent: text, title: label }); button.dataset.step = name; button.setAttribute("aria-label", label); button.addEventListener("click", go); return button; };
  const shift = (by) => { const from = Math.max(0, Math.min(state.from + by, activity.count - width())); setRange(from, from + width() - 1); };
  document.getElementById("ranges").replaceChildren(...buttons,
    step("earlier", "Earlier", "‹", () => shift(-Math.ceil(width() / 2))), step("later", "Later", "›", () => shift(Math.ceil(width() / 2))),
    step("in", "Zoom in", "+", () => setRange(state.from + width() / 4, state.to - width() / 4)), step("out", "Zoom out", "−", () => setRange(state.from - width() / 2, state.to + width() / 2)));
};

if (activity) {
  document.getElementById("bus").addEventListener("change", (event) => change({ bus: event.target.value, type: "" }));
  document.getElementById("type").addEventListener("change", (event) => change({ type: event.target.value }));
  document.getElementById("span").addEventListener("change", (event) => change({ span: event.target.value }));
  document.getElementById("log").addEventListener("change", (event) => change({ log: event.target.checked }));
  listeners.unshift(fillFilters, showRange, showTiles);
  listeners.push(showTypes, showErrors, showFunnel, showHandlers, showWorkers);
  showRanges();
  change({});
}
