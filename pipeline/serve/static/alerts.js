// The list of alerts: what fires now, or what fired and resolved lately.

import { get } from "./api.js";
import { drawRows, linkTo, rowWith } from "./rows.js";
import { address, go, listAddress } from "./state.js";
import { ago, formatter, ownZone, withUnit } from "./times.js";

const MOST = 1000;

export function showAlerts(main) {
  document.title = "Alerts – Tidetable";
  const form = main.querySelector("form");
  const body = main.querySelector("tbody");
  const status = main.querySelector("[data-status]");
  let shown = {};

  main.querySelector("[data-trail]").append(linkTo(listAddress(), "Sensors"));
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
    const keyOf = (alert) => [alert.rule, alert.sensor_id, alert.kind, alert.event_time].join("\n");
    drawRows(body, "key", alerts, keyOf, rowOf, (row, alert) => {
      row.querySelector(".age").textContent = ago(alert.age_s);
    });
  }

  return { update, refresh };
}

function rowOf(alert) {
  const link = linkTo(address("chart", { sensor: alert.sensor_id }), alert.sensor_id);
  const value = alert.value === null ? "" : [alert.label, withUnit(alert.value, alert.unit)].filter(Boolean).join(" ");
  const since = formatter(ownZone())(Date.parse(alert.since) / 1000);
  const row = rowWith([["kind", alert.kind], ["rule", alert.rule], ["sensor", link], ["age", ""], ["since", since], ["value", value], ["severity", alert.severity]]);
  row.className = alert.kind;
  row.querySelector(".age").title = alert.event_time;
  return row;
}
