// All metrics of a sensor, of several, or of groups, at a glance: a small chart of each, which leads to the large one.

import { element, linkTo } from "./rows.js";
import { spark } from "./spark.js";
import { address } from "./state.js";
import { number, withUnit } from "./times.js";
import { bandOf, statisticsOf, steps, through, titleOf, unitOf } from "./windows.js";

const MOST = 60;

// Draws the metrics. windows and events have a list for each sensor or group; without windows, the readings of the events answer.
export function drawGlance(place, { metrics, windows, events, range, shown, schema }) {
  place.replaceChildren(...metrics.slice(0, MOST).map((metric) => {
    const { lines, band, level } = drawn(metric, windows, events);
    const unit = unitOf(schema, metric, level);
    const { picture, least, most } = spark(range, { lines, band });
    const link = linkTo(address("chart", { ...shown, metric }), "", "small");
    link.dataset.metric = metric;
    const last = lines.length === 1 ? lines[0].values.findLast((value) => value !== null) : undefined;
    const extent = most >= least ? `${number(least)} to ${withUnit(most, unit)}` : "no readings in this range";
    link.append(element("span", titleOf(schema, metric), "name"), ...(last === undefined ? [] : [element("b", withUnit(last, unit))]), picture, element("small", extent));
    return element("li", link);
  }));
  if (metrics.length > MOST) place.append(element("li", `and ${metrics.length - MOST} more: choose a metric above`));
}

function drawn(metric, windows, events) {
  const points = events.map((each) => each
    .filter((event) => metric in event.readings)
    .map((event) => [Date.parse(event.event_time) / 1000, event.readings[metric]]));
  if (points.some((each) => each.length)) return { lines: points.map(through), band: null };
  const { band, level } = statisticsOf(windows.flat().map(({ record }) => record), metric);
  return {
    level,
    lines: windows.map((each) => steps(each, metric, level)),
    band: band && windows.length === 1 ? bandOf(windows[0], metric, band) : null,
  };
}
