// The list of sensors: what each says now, and how long ago.

import { Problem, follow, get } from "./api.js";
import { groupsAddress } from "./group.js";
import { comparing, drawRows, element, linkTo, reading, rowWith } from "./rows.js";
import { spark } from "./spark.js";
import { address, go, rememberList } from "./state.js";
import { ago, iso, number, seconds } from "./times.js";
import { bounded, statisticsOf, steps } from "./windows.js";

const PAGE = 200;
const MOST_READINGS = 8;
const SPARK_WINDOWS = 24; // in the small chart of a reading
const MOST_ALERTS = 10000; // that one request asks for
const SPARKS_AT_ONCE = 25; // sensors whose small charts one request asks for
const RENEWED_MS = 60000; // small charts, and the number of silent sensors of a list that is not complete

export function showList(main, schema) {
  document.title = "Sensors – Tidetable";
  const form = main.querySelector("form");
  const body = main.querySelector("tbody");
  const status = main.querySelector("[data-status]");
  const more = main.querySelector("[data-more]");
  const alerts = main.querySelector("[data-alerts]");
  const rollups = main.querySelector("[data-rollups]");
  const sparks = sparksOf(schema);
  const chosen = comparing(main, "sensor", (sensor) => address("chart", { sensor }));
  let shown = {};
  let pages = 1;
  let typing = null;
  let silent = { key: "", at: -Infinity, count: null };

  rollups.hidden = !schema.rollups.length;
  rollups.append("Groups: ", ...schema.rollups.flatMap((each, index) => {
    const link = linkTo(groupsAddress(each), each.rollup);
    return index ? [", ", link] : [link];
  }));

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

  async function update(parameters, signal) {
    const next = {
      search: parameters.get("search") ?? "",
      silent: parameters.get("silent") ?? "1h",
      only: parameters.get("only") ?? "",
    };
    if (next.search !== shown.search || next.only !== shown.only) pages = 1;
    shown = next;
    rememberList();
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
    const isSilent = (sensor) => sensor.age_s > seconds(shown.silent);
    const count = shown.only ? page.count : more.hidden ? sensors.filter(isSilent).length : await countSilent(signal);
    status.replaceChildren(...described(sensors.length, !more.hidden, count));
    draw(sensors, isSilent, await firing(signal));
    chosen.show();
  }

  // Returns the rules whose alerts fire, by sensor, and tells how many alerts fire.
  async function firing(signal) {
    const found = await get("alerts", { limit: MOST_ALERTS }, signal);
    const text = found.count === 1 ? "1 alert fires" : `${found.count} alerts fire`;
    alerts.hidden = !found.count;
    if (alerts.textContent !== text) alerts.replaceChildren(linkTo(address("alerts", {}), text));
    return Map.groupBy(found.alerts, (alert) => alert.sensor_id);
  }

  // The silent ones of all sensors, of which the list shows only the first; null if that would cost a read for each.
  async function countSilent(signal) {
    const key = [shown.search, shown.silent].join("\n");
    if (schema.latest && (silent.key !== key || performance.now() - silent.at > RENEWED_MS)) {
      const { count } = await get("latest", { search: shown.search, silent_for: shown.silent, limit: 1 }, signal);
      silent = { key, at: performance.now(), count };
    }
    return schema.latest ? silent.count : null;
  }

  function described(count, isPart, silentCount) {
    if (!count) return [shown.search || shown.only ? "No sensor matches." : "The table has no sensors yet."];
    const many = (number, kind = "") => `${number} ${kind}sensor${number === 1 ? "" : "s"}`;
    const longest = form.silent.selectedOptions[0].textContent;
    if (shown.only) return [`${isPart ? `The first ${count} of ` : ""}${many(silentCount, "silent ")}, the longest silent first`];
    const first = isPart ? `The first ${many(count)}` : many(count);
    if (!silentCount) return [first];
    const link = linkTo(address("list", { ...shown, only: "1" }), `${silentCount} silent`);
    return [`${first}; ${isPart ? "of all, " : ""}`, link, ` for ${longest} or longer`];
  }

  function draw(sensors, isSilent, alertsOf) {
    drawRows(body, "sensor", sensors, (sensor) => sensor.sensor_id, rowOf, (row, sensor) => {
      fill(row, sensor, isSilent(sensor));
      mark(row, alertsOf.get(sensor.sensor_id) ?? []);
      sparks.watch(row);
    });
  }

  function rowOf({ sensor_id: id }) {
    const link = linkTo(address("chart", { sensor: id }), id);
    return rowWith([["", chosen.tick(id, id)], ["sensor", link], ["age", ""], ["readings", document.createElement("div")]]);
  }

  return { update, refresh };
}

function fill(row, sensor, isSilent) {
  const [, , age, { firstChild: readings }] = row.cells;
  row.classList.toggle("silent", isSilent);
  const text = ago(sensor.age_s) + (isSilent ? " " : "");
  if (age.firstChild?.data !== text || Boolean(age.querySelector(".badge")) !== isSilent) {
    age.replaceChildren(text, ...(isSilent ? [element("span", "silent", "badge")] : []));
  }
  age.title = sensor.event_time;
  const entries = Object.entries(sensor.readings);
  const key = JSON.stringify(entries);
  if (row.dataset.readings === key) return;
  row.dataset.readings = key;
  const shown = entries.slice(0, MOST_READINGS).map(([metric, value]) => {
    const item = reading(address("chart", { sensor: sensor.sensor_id, metric }), metric, number(value));
    const earlier = [...readings.children].find((each) => each.dataset.metric === metric)?.querySelector("svg");
    if (earlier) item.append(earlier);
    return item;
  });
  const rest = entries.length - shown.length;
  readings.replaceChildren(...shown, ...(rest ? [`and ${rest} more`] : []));
}

// Names the rules whose alerts fire beside the sensor's name.
function mark(row, alerts) {
  const [, name] = row.cells;
  const text = alerts.map((alert) => alert.rule).join(", ");
  const badge = name.querySelector(".alerting");
  if ((badge?.textContent ?? "") === text) return;
  badge?.remove();
  if (text) name.append(linkTo(address("alerts", {}), text, "alerting"));
}

// Draws the last windows of each reading in the rows that a person sees: of an hour, or those next to it in length.
function sparksOf(schema) {
  const tier = schema.tiers.findLast(({ seconds: length }) => length <= 3600) ?? schema.tiers[0];
  const [waiting, drawnAt] = [new Set(), new WeakMap()];
  let timer = null;
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) waiting.add(target);
      else waiting.delete(target);
    }
    clearTimeout(timer);
    timer = setTimeout(drawWaiting, 100);
  });

  async function drawWaiting() {
    const due = (row) => row.isConnected && performance.now() - (drawnAt.get(row) ?? -Infinity) > RENEWED_MS;
    for (let rows; (rows = [...waiting].filter(due).slice(0, SPARKS_AT_ONCE)).length;) {
      rows.forEach((row) => drawnAt.set(row, performance.now()));
      try {
        await drawSparks(rows);
      } catch (error) {
        if (!(error instanceof Problem)) throw error; // the list itself says what is wrong
        return;
      }
    }
    clearTimeout(timer);
    timer = setTimeout(drawWaiting, RENEWED_MS);
  }

  async function drawSparks(rows) {
    const now = Date.now() / 1000;
    const range = [now - SPARK_WINDOWS * tier.seconds, now];
    const metric = [...new Set(rows.flatMap((row) => [...row.querySelectorAll("[data-metric]")].map((each) => each.dataset.metric)))];
    const asked = { sensor: rows.map((row) => row.dataset.sensor), tier: tier.window, limit: 10000, metric: metric.slice(0, 100) };
    const found = await get("aggregates", { ...asked, start: iso(range[0]), end: iso(range[1]) });
    const bySensor = Object.groupBy(found.aggregates, (record) => record.sensor_id);
    for (const row of rows) {
      const records = bySensor[row.dataset.sensor] ?? [];
      const windows = records.flatMap((record) => bounded([record], range, tier.seconds));
      for (const reading of row.querySelectorAll("[data-metric]")) {
        const line = steps(windows, reading.dataset.metric, statisticsOf(records, reading.dataset.metric).level);
        reading.querySelector("svg")?.remove();
        if (line.times.length) reading.append(spark(range, { lines: [line] }).picture);
      }
    }
  }

  return { watch: (row) => tier && observer.observe(row) };
}
