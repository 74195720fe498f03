// Times as people read them, and the range of a chart.

const UNITS = { s: 1, m: 60, h: 3600, d: 86400 };

export function seconds(duration) {
  const [, number, unit] = /^-?(\d+(?:\.\d+)?)([smhd])$/.exec(duration) ?? [];
  return number === undefined ? NaN : Number(number) * UNITS[unit];
}

export function ago(ageSeconds) {
  const age = Math.max(ageSeconds, 0);
  for (const [name, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (age >= size) {
      const count = Math.floor(age / size);
      return `${count} ${name}${count === 1 ? "" : "s"} ago`;
    }
  }
  return `${Math.floor(age)} s ago`;
}

// The moment in seconds since the epoch: now, a duration before now like -1d, or ISO 8601, in UTC unless it says.
export function moment(text, now) {
  const trimmed = text.trim();
  if (trimmed === "now") return now;
  if (trimmed.startsWith("-") && !Number.isNaN(seconds(trimmed))) return now - seconds(trimmed);
  const zoned = /(Z|[+-]\d\d:?\d\d)$/.test(trimmed) || !trimmed.includes("T");
  return Date.parse(zoned ? trimmed : `${trimmed}Z`) / 1000;
}

export const iso = (time) => new Date(time * 1000).toISOString().replace(".000Z", "Z");

export function zoneIsKnown(zone) {
  try {
    new Intl.DateTimeFormat("en", { timeZone: zone });
    return true;
  } catch {
    return false;
  }
}

export function formatter(zone) {
  const format = new Intl.DateTimeFormat("sv-SE", { timeZone: zone, dateStyle: "short", timeStyle: "medium" });
  return (time) => format.format(time * 1000);
}

export const number = (value) =>
  typeof value === "number" ? String(Number(value.toPrecision(6))) : (value ?? "–");
