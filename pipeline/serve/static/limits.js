// The limits of rules of alerts in a chart, and the list of what fires.

import { Problem, get } from "./api.js";
import { element } from "./rows.js";
import { formatter, number, withUnit } from "./times.js";

const NEAR = 0.5; // of the range of values: so far beyond it, a limit is drawn as a line
const MOST_LETTERS = 24; // of a rule's name in the chart; the legend has all

// The rules that watch any of these sensors, with the alerts that fire; and why, if they can't be read.
export async function watch(sensors, metadataOf, signal) {
  try {
    const [rules, alerts] = await Promise.all(["rules", "alerts"].map((path) => (
      Promise.all(sensors.map(async (sensor) => (await get(path, { sensor }, signal))[path])))));
    const fits = (rule, index) => (
      Object.entries(rule.metadata).every(([name, text]) => metadataOf.get(sensors[index])?.[name] === text));
    const watching = rules.flatMap((each, index) => each.filter((rule) => fits(rule, index)));
    return { rules: [...new Map(watching.map((rule) => [rule.rule, rule])).values()], alerts: alerts.flat(), all: rules.flat() };
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return { rules: [], alerts: [], all: [], problem: error.message };
  }
}

// The limits that a chart of a metric marks: of rules on readings, and of those on windows and statistics that it shows.
// A limit of a change is none of the values.
export function limitsOf(rules, metric, tier, statistics) {
  return rules
    .filter((rule) => rule.metric === metric && rule.low !== null && rule.per_s === null)
    .filter((rule) => rule.of === null || (rule.tier === tier && statistics.includes(rule.of)))
    .map((rule) => ({ ...rule, values: [...new Set([rule.low, rule.high])] }));
}

export const textOf = ({ kind, values, unit, of }) => (
  `${of ? `${of === "avg" ? "mean" : of} ` : ""}${kind} ${[...values.slice(0, -1).map(number), withUnit(values.at(-1), unit)].join(" to ")}`);

export function showFiring(list, { alerts, all, problem }, several, zone) {
  list.hidden = !alerts.length && !problem;
  list.replaceChildren(...alerts.map((alert) => {
    const item = element("li", element("b", alert.rule));
    const condition = all.find(({ rule }) => rule === alert.rule)?.condition;
    const value = alert.value === null ? "" : `: ${[alert.label, withUnit(alert.value, alert.unit)].filter(Boolean).join(" ")}`;
    const since = `since ${formatter(zone)(Date.parse(alert.since) / 1000)}`;
    item.append(` fires${several ? ` for ${alert.sensor_id}` : ""} ${since}${value}${condition ? `, ${condition}` : ""}`);
    return item;
  }), ...(problem ? [element("li", `Rules and alerts can't be read: ${problem}`)] : []));
}

// The range of values of a chart whose data has this range, so that limits nearby can be seen.
export function rangeWith(limits, least, most) {
  if (least === null) return [null, null];
  const far = NEAR * (most - least || Math.abs(most) || 1);
  const near = limits.flatMap(({ values }) => values).filter((value) => least - far <= value && value <= most + far);
  return uPlot.rangeNum(Math.min(least, ...near), Math.max(most, ...near), 0.1, true);
}

// Draws a dashed line at each limit, with the rule's name; beyond the range of the chart, a mark at the edge, with the value.
export function drawLimits(plot, limits, colour) {
  const { ctx, bbox: { left, top, width, height } } = plot;
  const scale = uPlot.pxRatio;
  const { min, max } = plot.scales.y;
  if (min === null) return; // there is no value
  const [row, taken] = [14 * scale, []];
  ctx.save();
  Object.assign(ctx, { strokeStyle: colour, fillStyle: colour, lineWidth: scale });
  Object.assign(ctx, { font: `${12 * scale}px system-ui, sans-serif`, textAlign: "left", textBaseline: "alphabetic" });
  ctx.setLineDash([6 * scale, 4 * scale]);
  for (const limit of limits) {
    const name = limit.rule.length > MOST_LETTERS ? `${limit.rule.slice(0, MOST_LETTERS - 1)}…` : limit.rule;
    for (const value of limit.values) {
      const [above, below] = [value > max, value < min];
      const y = above ? top : below ? top + height : plot.valToPos(value, "y", true);
      const text = above || below ? `${above ? "▲" : "▼"} ${name} ${withUnit(value, limit.unit)}` : name;
      if (!above && !below) {
        ctx.beginPath();
        ctx.moveTo(left, y);
        ctx.lineTo(left + width, y);
        ctx.stroke();
      }
      const baseline = y - row < top ? y + row : y - 4 * scale;
      const beside = taken.filter((each) => Math.abs(each.baseline - baseline) < row).reduce((sum, each) => sum + each.width, 0);
      ctx.fillText(text, left + 4 * scale + beside, baseline);
      taken.push({ baseline, width: ctx.measureText(text).width + 12 * scale });
    }
  }
  ctx.restore();
}
