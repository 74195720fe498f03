// Windows and events as lines: pure functions on what the API answers.

const LEVELS = ["avg", "time_weighted_mean", "p50", "last", "first"];
const JUST = 0.001; // seconds between two points that are drawn above each other
const isQuantile = (name) => /^p[0-9.]+$/.test(name);
const finite = (value) => (typeof value === "number" ? value : null); // a sum that overflowed is text

const WITHOUT_UNIT = ["count", "coverage", "first_time", "last_time"];

// The name of a metric for people.
export const titleOf = ({ labels }, metric) => (Object.hasOwn(labels, metric) ? labels[metric] : metric);

// A metric in a file: its name, its label and its unit, as far as the schema declares them.
export const inFile = ({ labels, units }, metric) => ({
  metric,
  ...(Object.hasOwn(labels, metric) ? { label: labels[metric] } : {}),
  ...(Object.hasOwn(units, metric) ? { unit: units[metric] } : {}),
});

// The unit of a metric's readings, or of one of their statistics, if the schema declares it.
export function unitOf({ units }, metric, statistic) {
  if (!Object.hasOwn(units, metric) || WITHOUT_UNIT.includes(statistic)) return "";
  return statistic === "rate" ? `${units[metric]}/s` : units[metric];
}

// The windows that overlap the range, with their ends: where the next one starts, or a usual length later.
export function bounded(records, range, length) {
  const starts = records.map((record) => Date.parse(record.window_start) / 1000);
  return records
    .map((record, index) => ({ record, start: starts[index], end: starts[index + 1] ?? starts[index] + length }))
    .filter(({ start, end }) => end > range[0] && start < range[1]);
}

// The statistics that records contain of a metric: lines, the two that bound a band, and the one that stands for all.
export function statisticsOf(records, metric) {
  const names = [...new Set(records.flatMap((record) => Object.keys(record.metrics[metric] ?? {})))];
  const quantiles = names.filter(isQuantile).sort((one, other) => Number(one.slice(1)) - Number(other.slice(1)));
  const extremes = names.includes("min") && names.includes("max") ? ["min", "max"] : null;
  const outer = quantiles.length > 1 ? [quantiles[0], quantiles.at(-1)] : null;
  const lines = [
    ...names.filter((name) => LEVELS.includes(name) && !isQuantile(name)), ...quantiles,
    ...["increase", "rate", ...(extremes ? [] : ["min", "max"])].filter((name) => names.includes(name)),
  ];
  return { lines, band: extremes ?? outer, level: LEVELS.find((name) => names.includes(name)) ?? lines[0] };
}

// A line of steps, each as wide as its window. It ends where a window has no value.
export function steps(windows, metric, statistic) {
  const [times, values] = [[], []];
  windows.forEach(({ record, start, end }, index) => {
    const value = finite(record.metrics[metric]?.[statistic]);
    if (value === null) return;
    times.push(start, end - JUST);
    values.push(value, value);
    const next = windows[index + 1];
    if (next?.start === end && finite(next.record.metrics[metric]?.[statistic]) !== null) return;
    times.push(end);
    values.push(null);
  });
  return { times, values };
}

// Two lines of steps, where windows have both values.
export function bandOf(windows, metric, names) {
  const both = windows.filter(({ record }) => names.every((name) => finite(record.metrics[metric]?.[name]) !== null));
  return names.map((name) => steps(both, metric, name));
}

// A line through readings, given as pairs. It must not cross a time without them: five times the usual distance is a gap.
export function through(points) {
  const distances = points.slice(1).map(([time], index) => time - points[index][0]).sort((a, b) => a - b);
  const usual = distances[Math.floor(distances.length / 2)] ?? 0;
  const [times, values] = [[], []];
  points.forEach(([time, value], index) => {
    if (index && time - points[index - 1][0] > 5 * usual && usual > 0) {
      times.push(points[index - 1][0] + JUST, time - JUST);
      values.push(null, null);
    }
    times.push(time);
    values.push(value);
  });
  return { times, values };
}
