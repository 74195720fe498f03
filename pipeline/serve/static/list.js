// The list of sensors: what each says now, and how long ago.

import { follow, get } from "./api.js";
import { address, go } from "./state.js";
import { ago, number, seconds } from "./times.js";

const PAGE = 200;
const MOST_COMPARED = 6;
const MOST_READINGS = 8;

export function showList(main) {
  document.title = "Sensors – Tidetable";
  const form = main.querySelector("form");
  const body = main.querySelector("tbody");
  const status = main.querySelector("[data-status]");
  const more = main.querySelector("[data-more]");
  const compare = main.querySelector("[data-compare]");
  const chosen = new Set();
  let shown = {};
  let pages = 1;
  let typing = null;

  const change = (changes, options) => {
    clearTimeout(typing); // what is typed counts now
    go("list", { ...shown, search: form.search.value, ...changes }, options);
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => change({}, { replace: true }), 150);
  });
  form.silent.addEventListener("change", () => change({ silent: form.silent.value }));
  form.only.addEventListener("change", () => change({ only: form.only.checked ? "1" : "" }));
  more.addEventListener("click", () => {
    pages += 1;
    dispatchEvent(new HashChangeEvent("hashchange"));
  });
  body.addEventListener("change", (event) => {
    const { value, checked } = event.target;
    if (checked) chosen.add(value);
    else chosen.delete(value);
    showChosen();
  });

  function showChosen() {
    compare.hidden = chosen.size < 2;
    compare.href = address("chart", { sensor: [...chosen] });
    compare.textContent = `Compare ${chosen.size} sensors`;
    for (const box of body.querySelectorAll("input")) {
      box.disabled = !box.checked && chosen.size >= MOST_COMPARED;
    }
  }

  async function update(parameters, signal) {
    const next = {
      search: parameters.get("search") ?? "",
      silent: parameters.get("silent") ?? "1h",
      only: parameters.get("only") ?? "",
    };
    if (next.search !== shown.search || next.only !== shown.only) pages = 1;
    shown = next;
    if (document.activeElement !== form.search) form.search.value = shown.search;
    form.silent.value = shown.silent;
    form.only.checked = Boolean(shown.only);
    await refresh(signal);
  }

  async function refresh(signal) {
    const asked = { search: shown.search, limit: PAGE, silent_for: shown.only ? shown.silent : "" };
    const sensors = [];
    let page = await get("latest", shown.only ? { ...asked, limit: PAGE * pages } : asked, signal);
    sensors.push(...page.sensors);
    for (let count = 1; page.next && (count < pages || sensors.length < PAGE); count++) {
      page = await follow(page.next, signal);
      sensors.push(...page.sensors);
    }
    more.hidden = !page.more && !page.next;
    status.textContent = described(sensors.length, !more.hidden);
    draw(sensors);
    showChosen();
  }

  function described(count, isPart) {
    if (!count) return shown.search || shown.only ? "No sensor matches." : "The table has no sensors yet.";
    const sensors = `${count} ${shown.only ? "silent " : ""}sensor${count === 1 ? "" : "s"}`;
    return isPart ? `The first ${sensors}` : sensors;
  }

  // Changes the rows in place, so that a refresh keeps the focus.
  function draw(sensors) {
    const rows = new Map([...body.rows].map((row) => [row.dataset.sensor, row]));
    sensors.forEach((sensor, index) => {
      const row = rows.get(sensor.sensor_id) ?? rowOf(sensor.sensor_id, chosen);
      fill(row, sensor, sensor.age_s > seconds(shown.silent));
      if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
    });
    while (body.rows.length > sensors.length) body.rows[sensors.length].remove();
  }

  return { update, refresh };
}

function rowOf(sensorId, chosen) {
  const row = document.createElement("tr");
  row.dataset.sensor = sensorId;
  const box = document.createElement("input");
  box.type = "checkbox";
  box.value = sensorId;
  box.checked = chosen.has(sensorId);
  box.setAttribute("aria-label", `Compare ${sensorId}`);
  const link = document.createElement("a");
  link.href = address("chart", { sensor: sensorId });
  link.textContent = sensorId;
  for (const [name, child] of [["", box], ["sensor", link], ["age", null], ["readings", null]]) {
    const cell = row.insertCell();
    cell.className = name;
    if (child) cell.append(child);
  }
  return row;
}

function fill(row, sensor, isSilent) {
  const [, , age, readings] = row.cells;
  row.classList.toggle("silent", isSilent);
  const text = ago(sensor.age_s) + (isSilent ? " " : "");
  if (age.firstChild?.data !== text || Boolean(age.querySelector(".badge")) !== isSilent) {
    const badge = document.createElement("span");
    badge.className = "badge";
    badge.textContent = "silent";
    age.replaceChildren(text, ...(isSilent ? [badge] : []));
  }
  age.title = sensor.event_time;
  const entries = Object.entries(sensor.readings);
  const key = JSON.stringify(entries);
  if (row.dataset.readings === key) return;
  row.dataset.readings = key;
  const shown = entries.slice(0, MOST_READINGS).map(([metric, value]) => {
    const item = document.createElement("span");
    item.className = "reading";
    const label = document.createElement("span");
    label.className = "name";
    label.textContent = `${metric} `;
    const figure = document.createElement("b");
    figure.textContent = number(value);
    item.append(label, figure);
    return item;
  });
  const rest = entries.length - shown.length;
  readings.replaceChildren(...shown, ...(rest ? [`and ${rest} more`] : []));
}
