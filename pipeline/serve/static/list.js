// The list of sensors: what each says now, and how long ago.

import { PAUSE, Problem, follow, get, spent } from "./api.js";
import { download } from "./download.js";
import { groupsAddress } from "./group.js";
import { comparing, drawRows, element, linkTo, reading, rowWith } from "./rows.js";
import { spark } from "./spark.js";
import { address, go, rememberList } from "./state.js";
import { ago, formatter, iso, ownZone, seconds, withUnit } from "./times.js";
import { bounded, inFile, statisticsOf, steps, titleOf, unitOf } from "./windows.js";

const PAGE = 200;
const MOST_READINGS = 8;
const SPARK_WINDOWS = 24; // in the small chart of a reading
const MOST_LISTED = 10000; // that one request asks for
const MOST_SEARCHES = 5; // requests for sensors whose ids contain a text, until a person asks for more
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
  const file = main.querySelector("[data-download]");
  const sparks = sparksOf(schema);
  const chosen = comparing(main, "sensor", (sensor) => address("chart", { sensor }));
  let shown = {};
  let pages = 1;
  let typing = null;
  let listed = []; // the sensors that are drawn
  let drawn = null; // the search that they answer
  let alerting = new Map(); // the alerts that fire, by sensor
  let silent = {}; // the number of silent sensors of a list that is not complete

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

  file.addEventListener("click", () => download("sensors", listed.flatMap((sensor) => (
    Object.entries(sensor.readings).map(([metric, value]) => (
      { sensor_id: sensor.sensor_id, ...inFile(schema, metric), time: sensor.times[metric], value }))))));

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

  // Draws the rows first. What else the list says comes after them, and not in their way.
  async function refresh(signal) {
    const key = [shown.search, shown.only].join("\n");
    const sensors = [];
    let state = {};
    for await (state of found(signal)) {
      sensors.push(...state.sensors);
      if (state.ends || key !== drawn || sensors.length > body.rows.length) draw(sensors, state);
    }
    drawn = key;
    alerting = await firing(signal);
    for (const row of body.rows) mark(row, alerting.get(row.dataset.sensor) ?? []);
    if (!state.more || shown.only || !schema.latest) return; // without rows of newest readings, it would cost a read for each
    await countSilent(signal);
    status.replaceChildren(...described(state));
  }

  // Yields what is listed, page by page; of a search first the sensors whose ids begin with the text, then the others.
  async function* found(signal) {
    const { search, only, silent: silence } = shown;
    const wanted = PAGE * pages;
    if (only) {
      const page = await get("latest", { search, silent_for: silence, limit: Math.min(wanted, MOST_LISTED) }, signal);
      yield { ...page, ends: true };
      return;
    }
    let count = 0;
    for (const asked of search ? [{ prefix: search }, { search }] : [{}]) {
      let page = await get("latest", { ...asked, limit: PAGE }, signal);
      for (let searches = 1; ; searches++) {
        const others = page.sensors.filter(({ sensor_id: id }) => !id.startsWith(search));
        const sensors = asked.search ? others : page.sensors;
        count += sensors.length;
        const more = Boolean(page.next) || asked.prefix !== undefined;
        const ends = !more || count >= wanted || (asked.search !== undefined && searches >= MOST_SEARCHES * pages);
        yield { sensors, more, ends, searchedTo: page.searched_to };
        if (ends) return;
        if (!page.next) break;
        page = await follow(page.next, signal);
      }
    }
  }

  // Returns the rules whose alerts fire, by sensor, and tells how many alerts fire.
  async function firing(signal) {
    const found = await get("alerts", { limit: MOST_LISTED }, signal);
    const text = found.count === 1 ? "1 alert fires" : `${found.count} alerts fire`;
    alerts.hidden = !found.count;
    if (alerts.textContent !== text) alerts.replaceChildren(linkTo(address("alerts", {}), text));
    return Map.groupBy(found.alerts, (alert) => alert.sensor_id);
  }

  // Counts the silent ones of all sensors, of which the list shows only the first, if it is time to.
  async function countSilent(signal) {
    const key = silentKey();
    const begun = performance.now();
    if (silent.key === key && begun < silent.until) return;
    const counted = { key };
    try {
      Object.assign(counted, await get("latest", { search: shown.search, silent_for: shown.silent, limit: 1 }, signal));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      counted.problem = error.message;
    }
    const cost = performance.now() - begun;
    spent.ms -= cost; // the count has a pause of its own
    const pause = Math.max(counted.problem ? 0 : RENEWED_MS, PAUSE * cost);
    silent = { ...counted, at: Date.now() / 1000, until: begun + cost + pause };
  }

  const silentKey = () => [shown.search, shown.silent].join("\n");
  const isSilent = (sensor) => sensor.age_s > seconds(shown.silent);

  function described(state) {
    const count = listed.length;
    if (!count && !state.more) return [shown.search || shown.only ? "No sensor matches." : "The table has no sensors yet."];
    const many = (number, kind = "") => `${number || "No"} ${kind}sensor${number === 1 || !number ? "" : "s"}`;
    const longest = form.silent.selectedOptions[0].textContent;
    if (shown.only) return [`${state.more ? `The first ${count} of ` : ""}${many(state.count, "silent ")}, the longest silent first`];
    const isPart = state.more && state.ends && !state.searchedTo;
    const first = `${isPart ? "The first " : ""}${many(count)}${state.ends ? "" : " so far"}`;
    const parts = [state.searchedTo ? `${first}; searched as far as ${state.searchedTo}` : first];
    const counted = state.more ? (silent.key === silentKey() ? silent : {}) : { count: listed.filter(isSilent).length };
    if (counted.problem) parts.push(`; the silent ones are not counted: ${counted.problem}`);
    if (!counted.count) return parts;
    const link = linkTo(address("list", { ...shown, only: "1" }), `${counted.count} silent`);
    const asOf = state.more ? `, counted at ${formatter(ownZone())(counted.at).slice(11)}` : "";
    return [...parts, `; ${state.more ? "of all, " : ""}`, link, ` for ${longest} or longer${asOf}`];
  }

  function draw(sensors, state) {
    listed = sensors;
    more.hidden = !state.more || !state.ends;
    more.textContent = state.searchedTo ? "Search on" : "Show more";
    file.hidden = !sensors.length;
    status.replaceChildren(...described(state));
    drawRows(body, "sensor", sensors, (sensor) => sensor.sensor_id, rowOf, (row, sensor) => {
      fill(row, sensor, isSilent(sensor), schema);
      mark(row, alerting.get(sensor.sensor_id) ?? []);
      sparks.watch(row);
    });
    chosen.show();
  }

  function rowOf({ sensor_id: id }) {
    const link = linkTo(address("chart", { sensor: id }), id);
    return rowWith([["", chosen.tick(id, id)], ["sensor", link], ["age", ""], ["readings", document.createElement("div")]]);
  }

  return { update, refresh };
}

function fill(row, sensor, isSilent, schema) {
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
    const target = address("chart", { sensor: sensor.sensor_id, metric });
    const item = reading(target, metric, titleOf(schema, metric), withUnit(value, unitOf(schema, metric)));
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
