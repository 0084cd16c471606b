// Refreshes the pages, follows the log and shows progress. Everything else works without this script.
"use strict";

const notice = document.getElementById("notice");
const say = (text) => { if (notice.textContent !== text) notice.textContent = text; };

// --- light and dark ---------------------------------------------------------------------------------------------

const theme = document.getElementById("theme");
const dark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
const remembered = localStorage.getItem("durabus-theme");
if (remembered) document.documentElement.dataset.theme = remembered;
if (theme) {
  theme.hidden = false;
  theme.textContent = dark() ? "Light" : "Dark";
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    localStorage.setItem("durabus-theme", document.documentElement.dataset.theme);
    theme.textContent = dark() ? "Light" : "Dark";
  });
}

// --- parts that refresh themselves --------------------------------------------------------------------------------

const pause = document.getElementById("pause");
let paused = false;

const togglePause = () => {
  paused = !paused;
  pause.setAttribute("aria-pressed", String(paused));
  pause.textContent = paused ? "Resume" : "Pause";
};

// Whether the user selects or types in a part: then it must not change.
const busy = (part) => {
  const selection = getSelection();
  if (selection && !selection.isCollapsed && part.contains(selection.anchorNode)) return true;
  const active = document.activeElement;
  return part.contains(active) && active.matches("input, select, textarea");
};

// The same element in the new part, found by id or address, so that the keyboard focus stays in place.
const again = (part, active) => {
  if (!part || !active || active === document.body) return null;
  if (active.id) return part.querySelector(`#${CSS.escape(active.id)}`);
  const all = [...part.querySelectorAll(active.tagName)];
  return all.find((one) => one.getAttribute("href") === active.getAttribute("href") && one.textContent === active.textContent) || null;
};

const replace = (part, fresh) => {
  const open = new Map([...part.querySelectorAll("details[data-key]")].map((one) => [one.dataset.key, one.open]));
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  part.replaceWith(fresh);
  for (const one of fresh.querySelectorAll("details[data-key]")) {
    if (open.has(one.dataset.key)) one.open = open.get(one.dataset.key);
  }
  const target = again(fresh, focused);
  if (target) target.focus({ preventScroll: true });
};

const refresh = async () => {
  const response = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
  if (response.redirected) { location.reload(); return; }
  if (!response.ok) throw new Error(`the server responded with status ${response.status}`);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(part.id);
    if (fresh && !paused && !busy(part)) replace(part, document.adoptNode(fresh));
  }
};

const seconds = () => Number(document.querySelector("[data-live]")?.dataset.live || 0);

const keepFresh = async () => {
  if (!seconds()) return;
  if (!paused && !document.hidden) {
    try {
      await refresh();
      say("");
    } catch (error) {
      say(`The page could not be refreshed: ${error.message}. It tries again.`);
    }
  }
  setTimeout(keepFresh, (seconds() || 2) * 1000);
};

if (seconds()) {
  pause.hidden = false;
  pause.addEventListener("click", togglePause);
  setTimeout(keepFresh, seconds() * 1000);
}

// --- retry and purge of many: step after step ---------------------------------------------------------------------

const runSteps = async (form) => {
  const progress = form.querySelector(".progress");
  const [bar, text, stop] = [form.querySelector("progress"), form.querySelector("output"), form.querySelector("[data-stop]")];
  const fields = new URLSearchParams(new FormData(form));
  const operation = fields.get("operation") === "retry" ? "retried" : "purged";
  let stopped = false;
  stop.addEventListener("click", () => { stopped = true; });
  form.querySelector(".actions").hidden = true;
  progress.hidden = false;
  for (;;) {
    const response = await fetch(form.action, { method: "POST", body: fields, headers: { Accept: "application/json" } });
    const step = await response.json();
    if (!response.ok) throw new Error(step.detail);
    bar.max = Math.max(bar.max, step.done);
    bar.value = step.done;
    text.textContent = `${step.done.toLocaleString("en")} ${operation}`;
    if (step.before === null || stopped) {
      bar.max = stopped ? bar.max : Math.max(step.done, 1);
      bar.value = step.done || (stopped ? 0 : 1);
      text.textContent += stopped && step.before !== null ? ", stopped" : ", all done";
      break;
    }
    fields.set("before", step.before);
    fields.set("done", step.done);
  }
  stop.hidden = true;
  const after = form.querySelector("[data-after]");
  after.hidden = false;
  after.focus();
};

for (const form of document.querySelectorAll("form[data-steps]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    runSteps(form).catch((error) => say(`Stopped: ${error.message}`));
  });
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

// --- the log as it is written -------------------------------------------------------------------------------------

const MOST_ROWS = 500;

const cell = (row, label, child, style) => {
  const made = row.insertCell();
  made.dataset.label = label;
  if (style) made.className = style;
  made.append(child);
};

const rowOf = (entry, address) => {
  const row = document.createElement("tr");
  const time = new Date(entry.at_ts * 1000).toISOString();
  const link = Object.assign(document.createElement("a"), { className: "row", textContent: `#${entry.id}`, href: address(entry.id) });
  const kind = Object.assign(document.createElement("span"), { className: `badge ${entry.action.toLowerCase()}`, textContent: entry.action.toLowerCase().replaceAll("_", " ") });
  const type = Object.assign(document.createElement("code"), { textContent: entry.type });
  cell(row, "At", time.slice(11, 23));
  cell(row, "Entry", kind);
  cell(row, "Event", link);
  cell(row, "Type", type);
  cell(row, "Worker", entry.worker_id || "", "quiet");
  cell(row, "Attempt", String(entry.attempt || ""), "right");
  cell(row, "Error or reason", (entry.error || entry.reason || "").split("\n")[0], entry.error ? "error-text" : "");
  row.className = "fresh";
  return row;
};

const followLog = (table) => {
  const body = table.tBodies[0];
  const state = document.getElementById("tail-state");
  const button = document.getElementById("tail-pause");
  const filter = document.getElementById("tail-filter");
  const place = new URL(table.dataset.event, location.href);
  const address = (id) => `${place.pathname}${id}${place.search}`;
  const source = new EventSource(table.dataset.source);
  let held = false;
  let waiting = [];
  let drawing = [];

  const wanted = (entry) => {
    const text = filter.elements.text.value.trim();
    const action = filter.elements.action.value;
    if (action && entry.action !== action) return false;
    return !text || (text.startsWith("#") ? text === `#${entry.id}` : entry.type.includes(text));
  };
  // Draw at most once per frame, however fast entries arrive.
  const draw = () => {
    const rows = drawing.slice(-MOST_ROWS).reverse().map((entry) => rowOf(entry, address));
    drawing = [];
    body.prepend(...rows);
    while (body.rows.length > MOST_ROWS) body.deleteRow(-1);
  };
  const show = (entry) => {
    if (!drawing.length) requestAnimationFrame(draw);
    drawing.push(entry);
  };
  const onEntry = (message) => {
    const entry = JSON.parse(message.data);
    if (!wanted(entry)) return;
    if (!held) { show(entry); return; }
    waiting.push(entry);
    if (waiting.length > MOST_ROWS) waiting = waiting.slice(-MOST_ROWS);
    state.textContent = `paused, ${waiting.length}${waiting.length === MOST_ROWS ? "+" : ""} waiting`;
  };

  for (const option of filter.elements.action.options) if (option.value) source.addEventListener(option.value, onEntry);
  source.addEventListener("open", () => { if (!held) state.textContent = "following"; });
  source.addEventListener("error", () => { state.textContent = "disconnected, reconnecting"; });
  button.addEventListener("click", () => {
    held = !held;
    button.setAttribute("aria-pressed", String(held));
    button.textContent = held ? "Resume" : "Pause";
    state.textContent = held ? "paused" : "following";
    if (!held) { waiting.forEach(show); waiting = []; }
  });
  document.getElementById("tail-clear").addEventListener("click", () => body.replaceChildren());
  filter.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("pagehide", () => source.close());
};

const tail = document.getElementById("tail");
if (tail) followLog(tail);

// --- keys: / focuses the filter, j and k select rows, p pauses ----------------------------------------------------

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const rows = [...document.querySelectorAll("main a.row")];
  const here = rows.indexOf(document.activeElement);
  if (event.key === "/" && document.querySelector("[data-filter]")) {
    document.querySelector("[data-filter]").focus();
  } else if (event.key === "j" && rows.length) {
    rows[Math.min(here + 1, rows.length - 1)].focus();
  } else if (event.key === "k" && rows.length) {
    rows[Math.max(here - 1, 0)].focus();
  } else if (event.key === "p" && document.getElementById("tail-pause")) {
    document.getElementById("tail-pause").click();
  } else if (event.key === "p" && !pause.hidden) {
    togglePause();
  } else {
    return;
  }
  event.preventDefault();
});
