// The metrics of up to six sensors, or groups of sensors: all of them small, or one large. Windows when there are many
// readings, the readings when there are few; of groups, always windows.

import { get } from "./api.js";
import { download } from "./download.js";
import { drawGlance } from "./glance.js";
import { groupsAddress, labelOf, rollupOf, showGroupsOf, showLinks, showSensorsOf } from "./group.js";
import { limitsOf, showFiring, watch } from "./limits.js";
import { drawPlot } from "./plot.js";
import { element, linkTo, rowWith } from "./rows.js";
import { address, go, listAddress } from "./state.js";
import { formatter, inZone, iso, moment, number, ownZone, span, typed, zoneIsKnown } from "./times.js";
import { bandOf, bounded, inFile, statisticsOf, steps, through, titleOf, unitOf } from "./windows.js";

const PIXELS_A_READING = 4; // with fewer, windows are drawn without their readings
const MOST_SENSORS = 6;
const MOST_ROWS = 500; // of the table below the chart
const FEW_EVENTS = 100; // so many are drawn in a small chart

export function showChart(main, schema) {
  const form = main.querySelector("form");
  const title = main.querySelector("h1");
  const trail = main.querySelector("[data-trail]");
  const firing = main.querySelector("[data-firing]");
  const glance = main.querySelector("[data-glance]");
  const large = main.querySelector("[data-large]");
  const status = main.querySelector("[data-status]");
  const metadata = main.querySelector("[data-metadata]");
  const related = main.querySelector("[data-related]");
  const places = main.querySelector("[data-places]");
  const lines = main.querySelector("[data-statistics]");
  const file = main.querySelector("[data-download]");
  const plot = drawPlot(main, (from, to) => move(from, to));
  let shown = null;
  let known = null; // of what the metrics, places and links are known
  let range = [0, 0];
  let metrics = [];
  let drawn = () => []; // the records that are drawn
  let rollup = null; // of the groups that are shown; null for sensors
  let names = []; // of the sensors or groups
  let metadataOf = new Map(); // sensor to the metadata of its newest event
  let placeOf = new Map(); // sensor to the metadata that finds its events, if row keys contain any

  const change = (changes) => go("chart", { ...shown, ...changes });
  const move = (...ends) => {
    const [from, to] = ends.map((time) => typed(Math.round(time), shown.zone));
    change({ from, to });
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    changeRange();
  });
  form.metric.addEventListener("change", () => change({ metric: form.metric.value }));
  form.tier.addEventListener("change", () => {
    const tier = form.tier.value;
    change({ tier, zone: zoneOf(tier) ?? shown.zone });
  });
  form.place.addEventListener("change", () => change({ metadata: form.place.value.split("\n") }));
  form.last.addEventListener("change", () => {
    const from = form.last.value;
    if (from) change({ from, to: from === "yesterday" ? "today" : "now" });
  });
  form.from.addEventListener("change", changeRange);
  form.to.addEventListener("change", changeRange);
  form.zone.addEventListener("change", () => {
    const known = zoneIsKnown(form.zone.value);
    form.zone.setCustomValidity(known ? "" : "There is no such time zone.");
    if (form.zone.reportValidity()) change({ zone: form.zone.value });
  });
  lines.addEventListener("change", () => {
    change({ line: [...lines.querySelectorAll("input:checked")].map((box) => box.value) });
  });
  main.querySelector(".buttons").addEventListener("click", (event) => {
    const [from, to] = range;
    const width = to - from;
    const moves = {
      earlier: [from - width / 2, to - width / 2],
      later: [from + width / 2, to + width / 2],
      in: [from + width / 4, to - width / 4],
      out: [from - width / 2, to + width / 2],
    };
    const next = moves[event.target.dataset.move];
    if (next) move(...next);
  });

  file.addEventListener("click", () => {
    download([...names, shown.metric, shown.from, shown.to].filter(Boolean).join(" "), drawn());
  });

  function changeRange() {
    const now = Date.now() / 1000;
    const [from, to] = [form.from, form.to].map((field) => moment(field.value, now, shown.zone));
    const help = "Write a time like 2026-02-17T10:30, now, today, yesterday, or -1d.";
    form.from.setCustomValidity(Number.isNaN(from) ? help : "");
    form.to.setCustomValidity(Number.isNaN(to) ? help : from >= to ? "The range ends before it starts." : "");
    if (form.reportValidity()) change({ from: form.from.value.trim(), to: form.to.value.trim() });
  }

  async function update(parameters, signal) {
    rollup = rollupOf(schema, parameters);
    const [sensors, groups] = ["sensor", "group"].map((name) => parameters.getAll(name).slice(0, MOST_SENSORS));
    if (rollup && !groups.length) {
      go("groups", { rollup: rollup.rollup }, { replace: true });
      return;
    }
    const zone = parameters.get("zone") ?? zoneOf(parameters.get("tier") ?? "") ?? ownZone();
    const next = {
      ...(rollup ? { rollup: rollup.rollup, group: groups } : { sensor: sensors }),
      metric: parameters.get("metric") ?? "",
      from: parameters.get("from") ?? "-1d",
      to: parameters.get("to") ?? "now",
      tier: parameters.get("tier") ?? "",
      zone: zoneIsKnown(zone) ? zone : ownZone(),
      line: parameters.getAll("line"),
      metadata: parameters.getAll("metadata"),
      min_coverage: parameters.get("min_coverage") ?? "",
      min_count: parameters.get("min_count") ?? "",
    };
    const subject = JSON.stringify(rollup ? [next.rollup, groups, next.from, next.to] : [sensors, next.metadata]);
    shown = next;
    names = rollup ? groups.map((group) => labelOf(rollup, group)) : sensors;
    if (subject !== known) {
      known = null; // until all answers are there
      await (rollup ? showGroups(signal) : showSensors(signal));
      known = subject;
    }
    fillForm();
    showTitle();
    await refresh(signal);
  }

  // The way back: to the list as it was, and to all metrics.
  function showTitle() {
    const all = names.join(", ");
    const up = [["Sensors", listAddress()]];
    if (rollup?.by.length) up.push([rollup.rollup, groupsAddress(rollup)]);
    const above = shown.metric && metrics.length > 1;
    if (above) up.push([all, address("chart", { ...shown, metric: "" })]);
    trail.replaceChildren(...up.flatMap(([text, target], index) => {
      const link = linkTo(target, text);
      return index ? [" › ", link] : [link];
    }));
    const metric = titleOf(schema, shown.metric);
    title.textContent = above ? metric : all;
    document.title = `${[metric, all].filter(Boolean).join(", ")} – Tidetable`;
  }

  // The sensors' metrics, and the metadata of a single one: of its newest event.
  async function showSensors(signal) {
    const located = await Promise.all(shown.sensor.map((sensor) => locate(sensor, signal)));
    placeOf = new Map(located.map(({ sensor, place }) => [sensor, place]));
    metadataOf = new Map(located.map(({ sensor, event }) => [sensor, event?.metadata ?? {}]));
    const newest = located.flatMap(({ event }) => event ?? []);
    const named = await Promise.all(
      located.map(({ sensor, place }) => (place ? get("metrics", { sensor, metadata: place }, signal) : { metrics: [] })),
    );
    showPlaces(located);
    offer(named.flatMap((each) => each.metrics), [new Option("readings", "raw")]);
    showLinks(related, "", []);
    if (shown.sensor.length === 1) await showGroupsOf(related, shown.sensor[0], schema.rollups, signal);
    const fields = newest.length === 1 ? Object.entries(newest[0].metadata) : [];
    metadata.hidden = !fields.length;
    metadata.querySelector("dl").replaceChildren(...fields.flatMap(([name, text]) => [element("dt", name), element("dd", text)]));
  }

  // The groups' metrics in the range, and the sensors of a single group in its last window.
  async function showGroups(signal) {
    const now = Date.now() / 1000;
    range = [shown.from, shown.to].map((text) => moment(text, now, shown.zone));
    const longest = tiersShown().at(-1);
    const pages = range[0] < range[1] ? await windows(longest, "", signal) : [];
    const records = pages.flatMap((page) => page.aggregates);
    metadata.hidden = places.hidden = true;
    offer(records.flatMap((record) => Object.keys(record.metrics)), []);
    showLinks(related, "", []);
    if (shown.group.length !== 1) return;
    await showSensorsOf(related, { rollup: shown.rollup, group: shown.group[0], before: iso(range[1]) }, signal);
  }

  const tiersShown = () => (rollup ? schema.tiers.filter((tier) => rollup.tiers.includes(tier.window)) : schema.tiers);

  // The time zone of a tier's days, weeks or months, if the tier has one.
  const zoneOf = (tier) => tier.split("@")[1];

  // What can be chosen: metrics, windows, time zones.
  function offer(known, more) {
    metrics = [...new Set(known)].sort();
    form.metric.replaceChildren(new Option("all at a glance", ""), ...metrics.map((metric) => new Option(titleOf(schema, metric), metric)));
    const tiers = tiersShown().map((tier) => new Option(tier.window));
    form.tier.replaceChildren(new Option("automatic", ""), ...tiers, ...more);
    const zones = ["UTC", ownZone(), ...schema.tiers.map((tier) => tier.zone)];
    document.getElementById("zones").replaceChildren(...[...new Set(zones)].map((zone) => new Option(zone)));
  }

  // The newest event of a sensor, and where it is, of all places that the sensor has been at; null without readings.
  async function locate(sensor, signal) {
    const needed = schema.metadata_in_keys.length;
    const answer = needed ? await get("places", { sensor }, signal) : { places: [{}] };
    const all = answer.places.map((place) => Object.entries(place).map(([name, text]) => `${name}=${text}`));
    const asked = { sensor, start: "2000-01-01", limit: 1 };
    const chosen = shown.metadata.length ? [shown.metadata] : all;
    const pages = await Promise.all(chosen.map((place) => get("range", { ...asked, metadata: place }, signal)));
    const each = pages.map((page, index) => ({ sensor, place: chosen[index], event: page.events[0], all }));
    const time = ({ event }) => (event ? Date.parse(event.event_time) : 0);
    return each.sort((one, other) => time(other) - time(one))[0] ?? { sensor, place: null, event: null, all };
  }

  function showPlaces(located) {
    const several = located.length === 1 && located[0].all.length > 1;
    places.hidden = !several;
    if (!several) return;
    form.place.replaceChildren(...located[0].all.map((place) => new Option(place.join(", "), place.join("\n"))));
    form.place.value = located[0].place.join("\n");
  }

  function fillForm() {
    if (!shown.metric && metrics.length === 1) [shown.metric] = metrics;
    if (![...form.metric.options].some((option) => option.value === shown.metric)) form.metric.add(new Option(titleOf(schema, shown.metric), shown.metric));
    form.metric.value = shown.metric;
    for (const name of ["from", "to", "tier", "zone"]) {
      if (document.activeElement !== form[name]) form[name].value = inZone(shown[name], shown.zone);
    }
    const known = [...form.last.options].some((option) => option.value === shown.from);
    form.last.value = known && shown.to === (shown.from === "yesterday" ? "today" : "now") ? shown.from : "";
  }

  async function refresh(signal) {
    const now = Date.now() / 1000;
    range = [shown.from, shown.to].map((text) => moment(text, now, shown.zone));
    if (!shown.metric && !metrics.length && !rollup || !(range[0] < range[1])) {
      status.textContent = range[0] < range[1] ? "There are no readings." : "The range ends before it starts.";
      plot.clear();
      glance.hidden = large.hidden = file.hidden = firing.hidden = true;
      return;
    }
    file.hidden = false;
    const watched = await watch(rollup ? [] : shown.sensor, metadataOf, signal);
    glance.hidden = Boolean(shown.metric);
    large.hidden = !shown.metric;
    if (shown.metric) await drawLarge(watched, signal);
    else await drawAll(signal);
    showFiring(firing, watched, names.length > 1, shown.zone);
  }

  async function drawLarge({ rules }, signal) {
    glance.replaceChildren();
    const tier = chosenTier();
    const pages = tier ? await windows(tier, shown.metric, signal) : [];
    const found = pages.map((page) => bounded(page.aggregates, range, tier.seconds));
    const records = found.map((each) => each.map(({ record }) => record));
    const count = records.flat().reduce((sum, record) => sum + (record.metrics[shown.metric]?.count ?? record.reading_count), 0);
    const few = count * PIXELS_A_READING <= plot.width() * names.length || pages.some((page) => page.incomplete_before);
    const points = !rollup && (!tier || (few && !leavesOut())) ? await readings(signal) : null;
    const statistics = statisticsOf(records.flat(), shown.metric);
    offerLines(statistics);
    const charted = series(found, points, statistics);
    const hovered = charted.some((each) => each.steps) ? found[0] : [];
    const levels = chosenLines(statistics).filter((name) => name && name !== "band");
    const columns = names.length > 1 ? levels : columnsOf(statistics); // several sensors have no band
    drawn = () => [
      ...(names.length > 1 && points ? [] : windowRecords(found, shown.metric, columns)),
      ...readingRecords((points ?? []).map((each) => each.points), shown.metric),
    ];
    const limits = limitsOf(rules, shown.metric, tier?.window, names.length > 1 && points ? [] : columns);
    plot.draw({ range, zone: shown.zone, series: charted, name: titleOf(schema, shown.metric), windows: hovered, limits });
    status.textContent = described(records, points, tier) + lost(points ?? pages);
    showValues(found, points, statistics);
  }

  async function drawAll(signal) {
    const tier = chosenTier();
    plot.clear();
    lines.hidden = true;
    lines.dataset.offered = "";
    const pages = tier ? await windows(tier, "", signal) : [];
    const found = pages.map((page) => bounded(page.aggregates, range, tier.seconds));
    const records = found.flat().map(({ record }) => record);
    const few = records.reduce((sum, record) => sum + record.reading_count, 0) <= FEW_EVENTS * names.length;
    const events = few && !rollup && !(tier && leavesOut()) ? await eventsOf(signal) : [];
    const all = [...new Set([...metrics, ...records.flatMap((record) => Object.keys(record.metrics))])].sort();
    drawn = () => all.flatMap((metric) => {
      const readings = events.map((each) => each
        .filter((event) => metric in event.readings)
        .map((event) => ({ time: event.event_time, value: event.readings[metric] })));
      const { band, level } = statisticsOf(records, metric);
      return readings.some((each) => each.length)
        ? readingRecords(readings, metric)
        : windowRecords(found, metric, [...(band ?? []), ...(level ? [level] : [])]);
    });
    drawGlance(glance, { metrics: all, windows: found, events, range, shown, schema });
    const what = events.flat().length ? "readings" : tier ? `windows of ${tier.window}` : "readings";
    status.textContent = `${all.length} metrics, ${what} from ${span(...range, shown.zone)}, ${shown.zone}${lost(pages)}`;
  }

  const subject = (index) => (
    rollup ? { rollup: shown.rollup, group: shown.group[index] } : { sensor_id: shown.sensor[index] });

  const windowRecords = (found, metric, columns) => found.flatMap((each, index) => each
    .filter(({ record }) => !record.filled && metric in record.metrics)
    .map(({ record: { window_start: time, window, metrics: known } }) => ({
      ...subject(index), ...inFile(schema, metric), time, window, ...Object.fromEntries(columns.map((name) => [name, known[metric][name]])),
    })));

  const readingRecords = (readings, metric) => readings.flatMap((each, index) => (
    each.map(({ time, value }) => ({ ...subject(index), ...inFile(schema, metric), time, value }))));

  async function eventsOf(signal) {
    const asked = { start: iso(range[0]), end: iso(range[1]), limit: 10 * FEW_EVENTS };
    return Promise.all(shown.sensor.map(async (sensor) => {
      const place = placeOf.get(sensor);
      return place ? (await get("range", { ...asked, sensor, metadata: place }, signal)).events.reverse() : [];
    }));
  }

  // The finest tier with no more windows than pixels; null if only readings can answer.
  function chosenTier() {
    if (shown.tier === "raw" && !rollup) return null;
    const tiers = tiersShown();
    const named = tiers.find((tier) => tier.window === shown.tier);
    const fine = tiers.find((tier) => (range[1] - range[0]) / tier.seconds <= plot.width());
    return named ?? fine ?? tiers.at(-1) ?? null;
  }

  // Whether the address asks for windows with enough data alone: readings would show what they leave out.
  const leavesOut = () => Boolean(shown.min_coverage || shown.min_count);

  // All windows that overlap the range, and one more, where the last one ends. Calendars' windows may be a tenth longer.
  async function windows(tier, metric, signal) {
    const longest = 1.1 * tier.seconds;
    const [start, end] = [range[0] - longest, range[1] + longest].map(iso);
    const asked = { start, end, tier: tier.window, metric, fill: "null", limit: 10000 };
    if (!rollup) {
      const more = { fresh: "true", min_coverage: shown.min_coverage, min_count: shown.min_count };
      return Promise.all(shown.sensor.map((sensor) => get("aggregates", { ...asked, sensor, ...more }, signal)));
    }
    return Promise.all(shown.group.map(async (group) => {
      const page = await get("rollups/windows", { ...asked, rollup: shown.rollup, group }, signal);
      return { ...page, aggregates: page.windows };
    }));
  }

  async function readings(signal) {
    const asked = { start: iso(range[0]), end: iso(range[1]), metric: shown.metric };
    const most = Math.min(4 * Math.ceil(plot.width()), 20000);
    return Promise.all(shown.sensor.map((sensor) => {
      const place = placeOf.get(sensor);
      if (!place) return { points: [], exact: true, source: "raw" };
      return get("points", { ...asked, sensor, metadata: place, max_points: most }, signal);
    }));
  }

  const chosenLines = ({ level }) => (shown.line.length ? shown.line : ["band", level]);
  const columnsOf = (statistics) => (
    chosenLines(statistics).flatMap((name) => (name === "band" ? (statistics.band ?? []) : (name ?? []))));
  const named = (name, { band }) => (name === "band" ? band.join(" to ") : name === "avg" ? "mean" : name);

  // The statistics that the rows contain; one sensor may have a band, several have a line each.
  function offerLines(statistics) {
    const offered = [...(statistics.band && names.length === 1 ? ["band"] : []), ...statistics.lines];
    const checked = chosenLines(statistics);
    if (lines.dataset.offered === [...offered, "", ...checked].join()) return;
    lines.dataset.offered = [...offered, "", ...checked].join();
    const labels = offered.map((name) => {
      const label = element("label");
      const box = document.createElement("input");
      box.type = "checkbox";
      box.value = name;
      box.checked = checked.includes(name);
      label.append(box, named(name, statistics));
      return label;
    });
    lines.replaceChildren(lines.querySelector("legend"), ...labels);
    lines.hidden = !offered.length;
  }

  function series(found, points, statistics) {
    const drawn = [];
    const several = names.length > 1;
    const chosen = chosenLines(statistics);
    const levels = chosen.filter((name) => name !== "band");
    const unit = (name) => unitOf(schema, shown.metric, name);
    names.forEach((subject, index) => {
      const line = (name) => steps(found[index] ?? [], shown.metric, name);
      if (chosen.includes("band") && statistics.band && !several) {
        const [{ times, values: low }, { values: high }] = bandOf(found[index] ?? [], shown.metric, statistics.band);
        if (times.length) drawn.push({ band: [low, high], times, label: named("band", statistics), colour: 0, steps: true, unit: unit() });
      }
      for (const name of several && points ? [] : levels) {
        const { times, values } = line(name);
        const label = several ? `${subject} ${named(name, statistics)}` : named(name, statistics);
        if (times.length) drawn.push({ values, times, label, colour: several ? index : levels.indexOf(name), steps: true, unit: unit(name) });
      }
      if (points) {
        const { times, values } = through(points[index].points.map((point) => [Date.parse(point.time) / 1000, point.value]));
        drawn.push({ values, times, label: several ? subject : "readings", colour: several ? index : 5, solid: !several, unit: unit() });
      }
    });
    return drawn;
  }

  function described(found, points, tier) {
    const count = points?.reduce((sum, each) => sum + each.points.length, 0) ?? 0;
    const known = found.flat().filter((record) => !record.filled).length;
    if (!count && !known) return "No readings in this range.";
    const parts = [];
    if (known) parts.push(`${known} window${known === 1 ? "" : "s"} of ${tier.window}`);
    const from = points?.[0].source === "raw" ? "readings" : `windows of ${points?.[0].source}`;
    if (count) parts.push(points.every((each) => each.exact) ? `${count} point${count === 1 ? "" : "s"} from ${from}` : `about ${count} points`);
    return parts.join(", ");
  }

  function lost(answers) {
    const [first] = answers.map((each) => each.incomplete_before).filter(Boolean).sort().reverse();
    return first ? `; before ${formatter(shown.zone)(Date.parse(first) / 1000)}, some may be missing` : "";
  }

  function showValues(found, points, statistics) {
    const table = main.querySelector("[data-values]");
    const shownTime = formatter(shown.zone);
    const columns = columnsOf(statistics);
    const value = (record, name) => number(record.metrics[shown.metric]?.[name]);
    const windowRows = found.flatMap((each, index) => each
      .filter(({ record }) => !record.filled)
      .map(({ record, start }) => [names[index], shownTime(start), ...columns.map((name) => value(record, name))]));
    const rows = windowRows.length
      ? windowRows
      : (points ?? []).flatMap((each) => each.points.map((point) => [each.sensor_id, shownTime(Date.parse(point.time) / 1000), number(point.value)]));
    const headed = (name, unit) => (unit ? `${name} (${unit})` : name);
    const units = (name) => unitOf(schema, shown.metric, name);
    const valuesHead = windowRows.length ? columns.map((name) => headed(name, units(name))) : [headed(titleOf(schema, shown.metric), units())];
    const head = [rollup ? "Group" : "Sensor", `Time (${shown.zone})`, ...valuesHead];
    table.tHead.rows[0].replaceChildren(...head.map((text) => {
      const cell = element("th", text);
      cell.scope = "col";
      return cell;
    }));
    table.tBodies[0].replaceChildren(...rows.slice(-MOST_ROWS).reverse().map((row) => rowWith(row.map((text) => ["", text]))));
  }

  return { update, refresh: async (signal) => (shown.to === "now" ? refresh(signal) : undefined) };
}
