// The chart of one metric of up to six sensors: windows when there are many readings, the readings when there are few.

import { get } from "./api.js";
import { drawPlot } from "./plot.js";
import { go } from "./state.js";
import { formatter, iso, moment, number, seconds, zoneIsKnown } from "./times.js";

const PIXELS_A_READING = 4; // with fewer, windows are drawn without their readings
const MOST_SENSORS = 6;
const MOST_ROWS = 500; // of the table below the chart
const LEVELS = ["avg", "first", "last", "time_weighted_mean"];

export function showChart(main, schema) {
  const form = main.querySelector("form");
  const title = main.querySelector("h1");
  const status = main.querySelector("[data-status]");
  const metadata = main.querySelector("[data-metadata]");
  const places = main.querySelector("[data-places]");
  const lines = main.querySelector("[data-statistics]");
  const plot = drawPlot(main, (from, to) => change({ from: iso(from), to: iso(to) }));
  let shown = null;
  let range = [0, 0];
  let placeOf = new Map(); // sensor to the metadata that finds its events, if row keys contain any

  const change = (changes) => go("chart", { ...shown, ...changes });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    changeRange();
  });
  form.metric.addEventListener("change", () => change({ metric: form.metric.value }));
  form.tier.addEventListener("change", () => change({ tier: form.tier.value }));
  form.place.addEventListener("change", () => change({ metadata: form.place.value.split("\n") }));
  form.last.addEventListener("change", () => form.last.value && change({ from: form.last.value, to: "now" }));
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
    if (next) change({ from: iso(Math.round(next[0])), to: iso(Math.round(next[1])) });
  });

  function changeRange() {
    const now = Date.now() / 1000;
    const [from, to] = [moment(form.from.value, now), moment(form.to.value, now)];
    const help = "Write a time like 2026-02-17T10:30, now, or -1d.";
    form.from.setCustomValidity(Number.isNaN(from) ? help : "");
    form.to.setCustomValidity(Number.isNaN(to) ? help : from >= to ? "The range ends before it starts." : "");
    if (form.reportValidity()) change({ from: form.from.value.trim(), to: form.to.value.trim() });
  }

  async function update(parameters, signal) {
    const sensors = parameters.getAll("sensor").slice(0, MOST_SENSORS);
    const zone = parameters.get("zone") ?? "UTC";
    const next = {
      sensor: sensors,
      metric: parameters.get("metric") ?? "",
      from: parameters.get("from") ?? "-1d",
      to: parameters.get("to") ?? "now",
      tier: parameters.get("tier") ?? "",
      zone: zoneIsKnown(zone) ? zone : "UTC",
      line: parameters.getAll("line"),
      metadata: parameters.getAll("metadata"),
    };
    if (!next.line.length) next.line = ["band", "avg"];
    const others = [sensors, next.metadata].join() !== [shown?.sensor, shown?.metadata].join();
    shown = next;
    title.textContent = sensors.join(", ");
    document.title = `${sensors.join(", ")} – Tidetable`;
    if (others) await showSensors(signal);
    fillForm();
    await refresh(signal);
  }

  // The sensors' metrics, and the metadata of a single one: of its newest event.
  async function showSensors(signal) {
    const located = await Promise.all(shown.sensor.map((sensor) => locate(sensor, signal)));
    placeOf = new Map(located.map(({ sensor, place }) => [sensor, place]));
    const newest = located.flatMap(({ event }) => event ?? []);
    const named = await Promise.all(
      located.map(({ sensor, place }) => (place ? get("metrics", { sensor, metadata: place }, signal) : { metrics: [] })),
    );
    showPlaces(located);
    const metrics = [...new Set(named.flatMap((each) => each.metrics))].sort();
    form.metric.replaceChildren(...metrics.map((metric) => new Option(metric)));
    const tiers = schema.tiers.map((tier) => new Option(tier.window));
    form.tier.replaceChildren(new Option("automatic", ""), ...tiers, new Option("readings", "raw"));
    const zones = ["UTC", Intl.DateTimeFormat().resolvedOptions().timeZone, ...schema.tiers.map((tier) => tier.zone)];
    document.getElementById("zones").replaceChildren(...[...new Set(zones)].map((zone) => new Option(zone)));
    const fields = newest.length === 1 ? Object.entries(newest[0].metadata) : [];
    metadata.hidden = !fields.length;
    metadata.querySelector("dl").replaceChildren(...fields.flatMap(([name, text]) => [element("dt", name), element("dd", text)]));
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
    if (!shown.metric || ![...form.metric.options].some((option) => option.value === shown.metric)) {
      if (shown.metric) form.metric.add(new Option(shown.metric));
      else shown.metric = form.metric.value;
    }
    form.metric.value = shown.metric;
    for (const name of ["from", "to", "tier", "zone"]) {
      if (document.activeElement !== form[name]) form[name].value = shown[name];
    }
    form.last.value = shown.to === "now" ? shown.from : "";
  }

  async function refresh(signal) {
    const now = Date.now() / 1000;
    range = [moment(shown.from, now), moment(shown.to, now)];
    if (!shown.metric || !(range[0] < range[1])) {
      status.textContent = shown.metric ? "The range ends before it starts." : "There are no readings.";
      plot.clear();
      return;
    }
    const tier = chosenTier();
    const pages = tier ? await windows(tier, signal) : [];
    const records = pages.map((page) => page.aggregates);
    const count = records.flat().reduce((sum, record) => sum + (record.metrics[shown.metric]?.count ?? 0), 0);
    const few = count * PIXELS_A_READING <= plot.width() * shown.sensor.length;
    const points = !tier || few || pages.some((page) => page.incomplete_before) ? await readings(signal) : null;
    offerLines(records);
    plot.draw({ range, zone: shown.zone, series: series(records, points, tier), name: shown.metric });
    status.textContent = described(records, points, tier) + lost(points ?? pages);
    showValues(records, points);
  }

  // The finest tier with no more windows than pixels; null if only readings can answer.
  function chosenTier() {
    if (shown.tier === "raw") return null;
    const named = schema.tiers.find((tier) => tier.window === shown.tier);
    const fine = schema.tiers.find((tier) => (range[1] - range[0]) / tier.seconds <= plot.width());
    return named ?? fine ?? schema.tiers.at(-1) ?? null;
  }

  async function windows(tier, signal) {
    const first = Math.floor(range[0] / tier.seconds) * tier.seconds; // the window that contains the start
    const asked = { start: iso(first), end: iso(range[1]), tier: tier.window, metric: shown.metric };
    const each = shown.sensor.map((sensor) =>
      get("aggregates", { ...asked, sensor, fill: "null", fresh: "true", limit: 10000 }, signal));
    return Promise.all(each);
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

  // The statistics that the rows contain; one sensor may have a band, several have a line each.
  function offerLines(found) {
    const names = new Set(found.flat().flatMap((record) => Object.keys(record.metrics[shown.metric] ?? {})));
    const levels = [...names].filter((name) => LEVELS.includes(name) || /^p[0-9.]+$/.test(name) || name === "increase" || name === "rate");
    const band = shown.sensor.length === 1 && names.has("min") && names.has("max");
    const offered = [...(band ? ["band"] : []), ...levels];
    if (lines.dataset.offered === offered.join() + shown.line.join()) return;
    lines.dataset.offered = offered.join() + shown.line.join();
    const labels = offered.map((name) => {
      const label = document.createElement("label");
      const box = document.createElement("input");
      box.type = "checkbox";
      box.value = name;
      box.checked = shown.line.includes(name);
      label.append(box, name === "band" ? "min to max" : name === "avg" ? "mean" : name);
      return label;
    });
    lines.replaceChildren(lines.querySelector("legend"), ...labels);
    lines.hidden = !offered.length;
  }

  function series(found, points, tier) {
    const drawn = [];
    const several = shown.sensor.length > 1;
    const levels = shown.line.filter((name) => name !== "band");
    shown.sensor.forEach((sensor, index) => {
      const records = found[index] ?? [];
      const times = records.map((record) => Date.parse(record.window_start) / 1000);
      // Windows are drawn as steps, and the last one needs an end.
      if (records.length) times.push(times.at(-1) + tier.seconds);
      const values = (name) => [...records, ...records.slice(-1)].map((record) => finite(record.metrics[shown.metric]?.[name]));
      for (const name of several && points ? [] : shown.line) {
        const of = values(name === "band" ? "max" : name);
        if (of.every((value) => value === null)) continue;
        const label = name === "band" ? "min to max" : name === "avg" ? "mean" : name;
        if (name === "band") {
          if (!several) drawn.push({ band: [values("min"), of], times, label, colour: 0, steps: true });
        } else {
          const colour = several ? index : levels.indexOf(name);
          drawn.push({ values: of, times, label: several ? `${sensor} ${label}` : label, colour, steps: true });
        }
      }
      if (points) {
        const [at, of] = withGaps(points[index].points.map((point) => [Date.parse(point.time) / 1000, point.value]));
        drawn.push({ values: of, times: at, label: several ? sensor : "readings", colour: several ? index : 5, solid: !several });
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

  function showValues(found, points) {
    const table = main.querySelector("[data-values]");
    const shownTime = formatter(shown.zone);
    const names = shown.line.flatMap((name) => (name === "band" ? ["min", "max"] : [name]));
    const known = found.flat().filter((record) => !record.filled);
    const rows = known.length
      ? known.map((record) => [record.sensor_id, shownTime(Date.parse(record.window_start) / 1000), ...names.map((name) => number(record.metrics[shown.metric]?.[name]))])
      : (points ?? []).flatMap((each) => each.points.map((point) => [each.sensor_id, shownTime(Date.parse(point.time) / 1000), number(point.value)]));
    const head = ["Sensor", `Time (${shown.zone})`, ...(known.length ? names : [shown.metric])];
    table.tHead.rows[0].replaceChildren(...head.map((text) => {
      const cell = element("th", text);
      cell.scope = "col";
      return cell;
    }));
    table.tBodies[0].replaceChildren(...rows.slice(-MOST_ROWS).reverse().map((row) => {
      const line = document.createElement("tr");
      line.append(...row.map((text) => element("td", text)));
      return line;
    }));
  }

  return { update, refresh: async (signal) => (shown.to === "now" ? refresh(signal) : undefined) };
}

const finite = (value) => (typeof value === "number" ? value : null); // a sum that overflowed is text

// A line must not cross a time without readings: five times the usual distance is a gap.
function withGaps(points) {
  const distances = points.slice(1).map(([time], index) => time - points[index][0]).sort((a, b) => a - b);
  const usual = distances[Math.floor(distances.length / 2)] ?? 0;
  const [times, values] = [[], []];
  points.forEach(([time, value], index) => {
    if (index && time - points[index - 1][0] > 5 * usual && usual > 0) {
      times.push(points[index - 1][0] + 0.001, time - 0.001);
      values.push(null, null);
    }
    times.push(time);
    values.push(value);
  });
  return [times, values];
}

function element(name, text) {
  const found = document.createElement(name);
  found.textContent = text;
  return found;
}
