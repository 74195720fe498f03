// The groups of a roll-up: what their sensors have together, in the newest window or in a range, ranked or not.

import { get } from "./api.js";
import { labelOf, linkTo, rollupOf } from "./group.js";
import { address, go, listAddress } from "./state.js";
import { formatter, number, ownZone } from "./times.js";
import { statisticsOf } from "./windows.js";

const PAGE = 200;
const MOST_COMPARED = 6;
const MOST_READINGS = 8;

export function showGroups(main, schema) {
  const form = main.querySelector("form");
  const body = main.querySelector("tbody");
  const status = main.querySelector("[data-status]");
  const more = main.querySelector("[data-more]");
  const compare = main.querySelector("[data-compare]");
  const most = main.querySelector("[data-most]");
  const chosen = new Set();
  let shown = {};
  let rollup = null;
  let pages = 1;
  let metrics = []; // of all groups, as far as they are known

  main.querySelector("[data-trail]").append(linkTo(listAddress(), "Sensors"));
  form.rollup.replaceChildren(...schema.rollups.map((each) => new Option(each.rollup)));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.rollup.addEventListener("change", () => go("groups", { rollup: form.rollup.value, since: shown.since }));
  for (const name of ["tier", "since", "by"]) {
    form[name].addEventListener("change", () => go("groups", { ...shown, [name]: form[name].value }));
  }
  more.addEventListener("click", () => {
    pages += 1;
    dispatchEvent(new HashChangeEvent("hashchange"));
  });
  body.addEventListener("change", (event) => {
    const { value, checked } = event.target;
    const full = checked && chosen.size >= MOST_COMPARED;
    if (full) event.target.checked = false;
    else if (checked) chosen.add(value);
    else chosen.delete(value);
    most.textContent = full ? `A chart compares ${MOST_COMPARED} groups at most. Untick one first.` : "";
    showChosen();
  });

  function showChosen() {
    compare.hidden = chosen.size < 2;
    compare.href = address("chart", { rollup: shown.rollup, group: [...chosen] });
    compare.textContent = `Compare ${chosen.size} groups`;
  }

  async function update(parameters, signal) {
    const next = Object.fromEntries(["rollup", "tier", "since", "by"].map((name) => [name, parameters.get(name) ?? ""]));
    rollup = rollupOf(schema, parameters) ?? schema.rollups[0];
    if (!rollup) {
      status.textContent = "The table has no roll-ups.";
      return;
    }
    next.rollup = rollup.rollup;
    if (next.rollup !== shown.rollup) {
      chosen.clear();
      body.replaceChildren();
      [metrics, pages] = [[], 1];
      form.tier.replaceChildren(...rollup.tiers.map((tier) => new Option(tier)));
    }
    shown = next;
    main.querySelector("h1").textContent = rollup.by.length ? `Groups by ${rollup.by.join(" and ")}` : rollup.rollup;
    document.title = `${rollup.rollup} – Tidetable`;
    form.rollup.value = shown.rollup;
    form.tier.value = shown.tier || rollup.tiers[0];
    form.since.value = shown.since;
    await refresh(signal);
  }

  async function refresh(signal) {
    if (!rollup) return;
    const asked = { rollup: shown.rollup, tier: shown.tier, start: shown.since, limit: PAGE * pages };
    if (shown.by && !metrics.length) note((await get("rollups/groups", asked, signal)).groups);
    const found = await get("rollups/groups", shown.by ? { ...asked, by: shown.by, metric: metrics } : asked, signal);
    note(found.groups);
    offerRanks(found.groups);
    more.hidden = !found.more;
    status.textContent = described(found);
    const rows = new Map([...body.rows].map((row) => [row.dataset.group, row]));
    found.groups.forEach((group, index) => {
      const row = rows.get(group.group) ?? rowOf(group);
      fill(row, group);
      if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
    });
    while (body.rows.length > found.groups.length) body.rows[found.groups.length].remove();
    showChosen();
  }

  function note(groups) {
    const names = groups.flatMap((group) => Object.keys(group.metrics));
    metrics = [...new Set([...metrics, ...names])].sort().slice(0, 100);
  }

  // The orders in which groups can be listed: by name, by the number of sensors, by a metric's level.
  function offerRanks(groups) {
    const known = new Map([["", "name"], ["sensors", "sensors"], ["reading_count", "events"]]);
    for (const metric of metrics) {
      const { level } = statisticsOf(groups, metric);
      if (level) known.set(`${level}_${metric}`, `${level === "avg" ? "mean" : level} of ${metric}`);
    }
    if (!known.has(shown.by)) known.set(shown.by, shown.by.replace("_", " of "));
    if (form.by.dataset.offered !== [...known.keys()].join()) {
      form.by.dataset.offered = [...known.keys()].join();
      form.by.replaceChildren(...[...known].map(([value, text]) => new Option(text, value)));
    }
    form.by.value = shown.by;
  }

  function described({ groups, count, more: isPart }) {
    if (!groups.length) return shown.since ? "No group has a window in this time." : "The roll-up has no groups yet.";
    const many = `${count} group${count === 1 ? "" : "s"}`;
    const first = isPart ? `The first ${groups.length} of ${many}` : many;
    if (shown.since) return `${first}; of each, all windows of ${groups[0].window} together`;
    const start = formatter(ownZone())(Date.parse(groups[0].window_start) / 1000).slice(0, 16);
    return `${first} in the window of ${groups[0].window} from ${start}`;
  }

  function rowOf({ group }) {
    const row = document.createElement("tr");
    row.dataset.group = group;
    const label = labelOf(rollup, group);
    const box = document.createElement("input");
    box.type = "checkbox";
    box.value = group;
    box.checked = chosen.has(group);
    box.setAttribute("aria-label", `Compare ${label}`);
    const link = linkTo(address("chart", { rollup: shown.rollup, group }), label);
    for (const [name, child] of [["", box], ["sensor", link], ["age", null], ["readings", document.createElement("div")]]) {
      const cell = row.insertCell();
      cell.className = name;
      if (child) cell.append(child);
    }
    return row;
  }

  function fill(row, group) {
    const [, , sensors, { firstChild: readings }] = row.cells;
    const many = group.expected === undefined ? group.sensors : `${group.sensors} of ${group.expected}`;
    sensors.textContent = `${many} sensor${many === 1 ? "" : "s"}`;
    sensors.title = `${group.reading_count} events`;
    const entries = Object.entries(group.metrics);
    const items = entries.slice(0, MOST_READINGS).map(([metric, statistics]) => {
      const { level } = statisticsOf([group], metric);
      const item = linkTo(address("chart", { rollup: shown.rollup, group: group.group, metric }), "");
      item.className = "reading";
      const name = document.createElement("span");
      name.className = "name";
      name.textContent = `${metric} `;
      const figure = document.createElement("b");
      figure.textContent = number(statistics[level]);
      figure.title = level === "avg" ? "mean" : (level ?? "");
      item.append(name, figure);
      return item;
    });
    const rest = entries.length - items.length;
    readings.replaceChildren(...items, ...(rest ? [`and ${rest} more`] : []));
  }

  return { update, refresh };
}
