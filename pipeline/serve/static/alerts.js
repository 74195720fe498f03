// The list of alerts: what fires now, or what fired and resolved lately.

import { get } from "./api.js";
import { address, go, listAddress } from "./state.js";
import { ago, number } from "./times.js";

const MOST = 1000;

export function showAlerts(main) {
  document.title = "Alerts – Tidetable";
  const form = main.querySelector("form");
  const body = main.querySelector("tbody");
  const status = main.querySelector("[data-status]");
  let shown = {};

  const back = document.createElement("a");
  back.href = listAddress();
  back.textContent = "Sensors";
  main.querySelector("[data-trail]").append(back);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.since.addEventListener("change", () => go("alerts", { since: form.since.value }));

  async function update(parameters, signal) {
    shown = { since: parameters.get("since") ?? "" };
    form.since.value = shown.since;
    await refresh(signal);
  }

  async function refresh(signal) {
    const { alerts, count, more } = await get("alerts", { start: shown.since, limit: MOST }, signal);
    const many = `${count} ${shown.since ? "transition" : "alert"}${count === 1 ? "" : "s"}`;
    const nothing = shown.since ? "Nothing fired or resolved in this time." : "No alert fires.";
    status.textContent = !count ? nothing : more ? `The first ${alerts.length} of ${many}` : many;
    const kept = new Map([...body.rows].map((row) => [row.dataset.key, row]));
    alerts.forEach((alert, index) => {
      const key = [alert.rule, alert.sensor_id, alert.kind, alert.event_time].join("\n");
      const row = kept.get(key) ?? rowOf(alert, key);
      row.querySelector(".age").textContent = ago(alert.age_s);
      if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
    });
    while (body.rows.length > alerts.length) body.rows[alerts.length].remove();
  }

  return { update, refresh };
}

function rowOf(alert, key) {
  const row = document.createElement("tr");
  row.dataset.key = key;
  row.className = alert.kind;
  const link = document.createElement("a");
  link.href = address("chart", { sensor: alert.sensor_id });
  link.textContent = alert.sensor_id;
  const value = alert.value === null ? "" : number(alert.value);
  const cells = [["kind", alert.kind], ["rule", alert.rule], ["sensor", link], ["age", ""], ["value", value], ["severity", alert.severity]];
  for (const [name, content] of cells) {
    const cell = row.insertCell();
    cell.className = name;
    cell.append(content);
  }
  row.querySelector(".age").title = alert.event_time;
  return row;
}
