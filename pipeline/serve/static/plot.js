// Draws lines and a band with uPlot, which is loaded as a global.

import { drawLimits, rangeWith, textOf } from "./limits.js";
import { element } from "./rows.js";
import { formatter, number, span, withUnit } from "./times.js";

const HEIGHT = 380;
const DATE = "\n{YYYY}-{MM}-{DD}";
// The unit from which a format serves, the format, and what is added where a year, a day or a minute begins.
const TIMES = [
  [86400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
  [60, "{HH}:{mm}", DATE, null, DATE, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", DATE, null, DATE, null, null, null, 1],
  [0.001, ":{ss}.{fff}", DATE, null, DATE, null, "\n{HH}:{mm}", null, 1],
];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [1, 5]];

export function drawPlot(main, zoom) {
  const place = main.querySelector("[data-chart]");
  const legend = main.querySelector("[data-legend]");
  let plot = null;

  const width = () => Math.max(place.clientWidth, 200);
  new ResizeObserver(() => {
    if (plot && Math.abs(plot.width - width()) > 1) plot.setSize({ width: width(), height: HEIGHT });
  }).observe(place);

  function clear() {
    plot?.destroy();
    plot = null;
    legend.replaceChildren();
    place.hidden = legend.hidden = true;
  }

  function draw(chart) {
    clear();
    place.hidden = legend.hidden = false;
    const style = getComputedStyle(document.documentElement);
    const colour = (index) => style.getPropertyValue(`--line-${index % 6}`).trim();
    const flat = chart.series.flatMap((each) => (each.band
      ? each.band.map((values) => ({ ...each, values, edge: true }))
      : [each]));
    const data = flat.length ? joined(flat) : [[]];
    const edges = flat.flatMap((each, index) => (each.edge ? [index + 1] : []));
    const axis = { stroke: style.getPropertyValue("--faint").trim(), grid: { stroke: style.getPropertyValue("--edge").trim(), width: 1 }, ticks: { show: false } };
    const units = [...new Set(chart.series.map((each) => each.unit).filter(Boolean))];
    const labelled = units.length ? { label: units.join(", "), labelSize: 20, labelFont: "14px system-ui, sans-serif" } : {};
    plot = new uPlot({
      width: width(),
      height: HEIGHT,
      tzDate: (time) => uPlot.tzDate(new Date(time * 1000), chart.zone),
      scales: { x: { time: true, range: chart.range }, y: { range: (_, least, most) => rangeWith(chart.limits, least, most) } },
      axes: [{ ...axis, values: TIMES, space: 80 }, { ...axis, ...labelled, size: 70, values: (_, values) => values.map(number) }],
      cursor: { y: false, drag: { x: true, y: false, setScale: false } },
      legend: { show: false },
      series: [{}, ...flat.map((each) => ({
        label: each.label,
        stroke: each.edge ? "transparent" : colour(each.colour),
        width: 1.5,
        dash: dashOf(each),
        points: { show: !each.steps && each.values.length < width(), size: 4 },
      }))],
      bands: edges.length ? [{ series: [edges[1], edges[0]], fill: style.getPropertyValue("--band").trim() }] : [],
      hooks: { draw: [(drawn) => drawLimits(drawn, chart.limits, style.getPropertyValue("--silent").trim())], setSelect: [select], setCursor: [(drawn) => point(drawn, chart, flat)] },
    }, data, place);
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", spoken(chart, flat, units));
    const times = element("li", "", "times");
    legend.replaceChildren(times, ...chart.series.map((each) => {
      const sample = element("span", "", each.band ? "line band" : "line");
      sample.style.borderTopColor = each.band ? style.getPropertyValue("--band").trim() : colour(each.colour);
      sample.style.borderTopStyle = !each.band && dashOf(each).length ? "dashed" : "solid";
      const item = element("li", sample);
      item.append(`${each.label} `, element("b"));
      return item;
    }), ...chart.limits.map((limit) => {
      const item = element("li", element("span", "", "line limit"));
      item.append(`${limit.rule}: ${textOf(limit)}`);
      return item;
    }));
    point(plot, chart, flat);
  }

  // Shows the time and the values at the cursor beside the names of the lines; without a cursor, the range.
  function point(drawn, chart, flat) {
    const at = drawn.cursor.left >= 0 ? drawn.posToVal(drawn.cursor.left, "x") : null;
    const [times, ...items] = legend.children;
    const window = chart.windows.find(({ start, end }) => start <= at && at < end);
    times.textContent = at === null
      ? `${span(...chart.range, chart.zone)}, ${chart.zone}`
      : window ? span(window.start, window.end, chart.zone) : formatter(chart.zone)(at);
    items.slice(0, chart.series.length).forEach((item, index) => {
      const of = flat.filter((each) => each.label === chart.series[index].label);
      const found = at === null ? [] : of.map((each) => nearest(each, at));
      const time = found.length && !of[0].steps && found[0].value !== null ? ` at ${formatter(chart.zone)(found[0].time).slice(11)}` : "";
      const values = found.map(({ value }) => value);
      const last = withUnit(values.pop(), chart.series[index].unit);
      item.lastChild.textContent = found.length ? [...values.map(number), last].join(" to ") + time : "";
    });
  }

  function select(drawn) {
    const { left, width: selected } = drawn.select;
    if (selected < 5) return;
    zoom(Math.round(drawn.posToVal(left, "x")), Math.round(drawn.posToVal(left + selected, "x")));
  }

  function spoken(chart, flat, units) {
    const time = formatter(chart.zone);
    const values = flat.flatMap((each) => each.values).filter((value) => value !== null);
    const extent = values.length ? `between ${number(Math.min(...values.slice(0, 1e5)))} and ${withUnit(Math.max(...values.slice(0, 1e5)), units.join(", "))}` : "no values";
    const limits = chart.limits.map((limit) => `; ${limit.rule} fires ${textOf(limit)}`).join("");
    return `${chart.name} from ${time(chart.range[0])} to ${time(chart.range[1])}, ${extent}${limits}. A table of the values follows.`;
  }

  return { draw, clear, width };
}

// One column of times for all lines. A gap of one line stays a gap at the times of the others.
function joined(flat) {
  const [times, ...lines] = uPlot.join(flat.map((each) => [each.times, each.values]), flat.map(() => [0, 1]));
  for (const values of lines) {
    let gap = false;
    values.forEach((value, index) => {
      if (value !== undefined) gap = value === null;
      else if (gap) values[index] = null;
    });
  }
  return [times, ...lines];
}

const dashOf = (each) => (each.solid ? [] : DASHES[each.colour % DASHES.length]);

// The step, or the reading next to the time.
function nearest({ times, values, steps }, time) {
  let index = times.findLastIndex((each) => each <= time);
  if (!steps && index + 1 < times.length && (index < 0 || times[index + 1] - time < time - times[index])) index += 1;
  return { time: times[index], value: values[index] ?? null };
}
