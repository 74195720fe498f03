import { showAlerts } from "./alerts.js";
import { PAUSE, Problem, get, spent } from "./api.js";
import { showChart } from "./chart.js";
import { showGroups } from "./groups.js";
import { showList } from "./list.js";
import { read } from "./state.js";

const REFRESH_MS = 5000;

const VIEWS = { alerts: showAlerts, chart: showChart, groups: showGroups, list: showList };
const main = document.getElementById("main");
const problem = document.getElementById("problem");
let schema = null;
let current = null; // the view: update(parameters, signal) draws it, refresh(signal) fetches what is new
let name = null;
let running = null;
let timer = null;

// Draws the view of the address. A newer address interrupts what is under way.
async function show(refreshing = false) {
  clearTimeout(timer);
  running?.abort();
  const mine = (running = new AbortController());
  const before = spent.ms;
  let failed = false;
  try {
    schema ??= await get("schema", {}, mine.signal);
    document.getElementById("table").textContent = `${schema.project} / ${schema.instance} / ${schema.table}`;
    const { view, isKnown, path, parameters } = read();
    if (view !== name) {
      name = view;
      main.replaceChildren(document.getElementById(`${view}-view`).content.cloneNode(true));
      current = VIEWS[view](main, schema);
      refreshing = false;
    }
    await (refreshing ? current.refresh(mine.signal) : current.update(parameters, mine.signal));
    problem.textContent = isKnown ? "" : `The page has no view ${path}. These are the sensors.`;
    problem.hidden = isKnown;
  } catch (error) {
    if (mine.signal.aborted) return;
    if (!(error instanceof Problem)) throw error;
    failed = true;
    problem.textContent = error.message;
    problem.hidden = false;
  }
  const pause = Math.max(REFRESH_MS, PAUSE * (spent.ms - before));
  if (mine === running) timer = setTimeout(again, failed ? REFRESH_MS : pause, failed);
}

function again(failed) {
  if (document.hidden) timer = setTimeout(again, REFRESH_MS, failed);
  else show(!failed);
}

addEventListener("hashchange", () => show());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show());
show();
