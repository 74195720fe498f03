// The groups of a roll-up: what their sensors have together, in the newest window or in a range, ranked or not.

import { get } from "./api.js";
import { download } from "./download.js";
import { labelOf, rollupOf } from "./group.js";
import { comparing, drawRows, linkTo, reading, rowWith } from "./rows.js";
import { address, go, listAddress } from "./state.js";
import { formatter, ownZone, withUnit } from "./times.js";
import { inFile, statisticsOf, titleOf, unitOf } from "./windows.js";

const PAGE = 200;
const MOST_READINGS = 8;

export function showGroups(main, schema) {
  const form = main.querySelector("form");
  const body = main.querySelector("tbody");
  const status = main.querySelector("[data-status]");
  const more = main.querySelector("[data-more]");
  const file = main.querySelector("[data-download]");
  const chosen = comparing(main, "group", (group) => address("chart", { rollup: shown.rollup, group }));
  let shown = {};
  let rollup = null;
  let pages = 1;
  let listed = []; // the groups that are drawn
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

  file.addEventListener("click", () => download(shown.rollup, listed.flatMap((group) => (
    Object.entries(group.metrics).map(([metric, statistics]) => {
      const { window_start: time, window, sensors, reading_count } = group;
      return { rollup: shown.rollup, group: group.group, ...inFile(schema, metric), time, window, sensors, reading_count, ...statistics };
    })))));

  async function refresh(signal) {
    if (!rollup) return;
    const asked = { rollup: shown.rollup, tier: shown.tier, start: shown.since, limit: PAGE * pages };
    if (shown.by && !metrics.length) note((await get("rollups/groups", asked, signal)).groups);
    const found = await get("rollups/groups", shown.by ? { ...asked, by: shown.by, metric: metrics } : asked, signal);
    note(found.groups);
    offerRanks(found.groups);
    more.hidden = !found.more;
    status.textContent = described(found);
    listed = found.groups;
    file.hidden = !listed.length;
    drawRows(body, "group", found.groups, ({ group }) => group, rowOf, fill);
    chosen.show();
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
      if (level) known.set(`${level}_${metric}`, `${level === "avg" ? "mean" : level} of ${titleOf(schema, metric)}`);
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
    const label = labelOf(rollup, group);
    const link = linkTo(address("chart", { rollup: shown.rollup, group }), label);
    return rowWith([["", chosen.tick(group, label)], ["sensor", link], ["age", ""], ["readings", document.createElement("div")]]);
  }

  function fill(row, group) {
    const [, , sensors, { firstChild: readings }] = row.cells;
    const many = group.expected === undefined ? group.sensors : `${group.sensors} of ${group.expected}`;
    sensors.textContent = `${many} sensor${many === 1 ? "" : "s"}`;
    sensors.title = `${group.reading_count} events`;
    const entries = Object.entries(group.metrics);
    const items = entries.slice(0, MOST_READINGS).map(([metric, statistics]) => {
      const { level } = statisticsOf([group], metric);
      const target = address("chart", { rollup: shown.rollup, group: group.group, metric });
      const item = reading(target, metric, titleOf(schema, metric), withUnit(statistics[level], unitOf(schema, metric, level)));
      item.lastChild.title = level === "avg" ? "mean" : (level ?? "");
      return item;
    });
    const rest = entries.length - items.length;
    readings.replaceChildren(...items, ...(rest ? [`and ${rest} more`] : []));
  }

  return { update, refresh };
}
