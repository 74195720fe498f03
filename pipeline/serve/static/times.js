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

export const ownZone = () => Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC";

// The moment in seconds since the epoch: now, today, yesterday, a duration before now like -1d, or ISO 8601. What has no
// offset is in the time zone.
export function moment(text, now, zone) {
  const word = text.trim().toLowerCase();
  if (word === "now") return now;
  if (word === "today") return fromLocal(localDate(now, zone), zone);
  if (word === "yesterday") return fromLocal(localDate(fromLocal(localDate(now, zone), zone) - 1, zone), zone);
  if (word.startsWith("-") && !Number.isNaN(seconds(word))) return now - seconds(word);
  const iso = text.trim().replace(" ", "T").replace(/T\d\d$/, "$&:00");
  return OFFSET.test(iso) ? Date.parse(iso) / 1000 : fromLocal(iso, zone);
}

const OFFSET = /[T ].*(Z|[+-]\d\d(:?\d\d)?)$/i;

// The text of a moment, in the time zone if it has an offset.
export function inZone(text, zone) {
  const time = OFFSET.test(text) ? moment(text, 0, zone) : NaN;
  return Number.isNaN(time) ? text : typed(time, zone);
}

const localDate = (time, zone) => formatter(zone)(time).slice(0, 10);

// A time without an offset, as the clocks of the zone showed it; the first, if they showed it twice.
function fromLocal(text, zone) {
  const asUtc = Date.parse(text.includes("T") ? `${text}Z` : text) / 1000;
  if (Number.isNaN(asUtc)) return NaN;
  const ahead = (time) => Date.parse(`${formatter(zone)(time).replace(" ", "T")}Z`) / 1000 - Math.floor(time);
  const found = [ahead(asUtc - 86400), ahead(asUtc + 86400)].map((offset) => asUtc - offset);
  return found.find((time) => time + ahead(time) === asUtc) ?? Math.max(...found);
}

// A time as a person would type it: by the clocks of the zone, if they showed it once.
export function typed(time, zone) {
  const text = formatter(zone)(time).replace(" ", "T").replace(/:00$/, "");
  return fromLocal(text, zone) === time ? text : iso(time);
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

const formats = new Map();

export function formatter(zone) {
  if (!formats.has(zone)) {
    formats.set(zone, new Intl.DateTimeFormat("sv-SE", { timeZone: zone, dateStyle: "short", timeStyle: "medium" }));
  }
  return (time) => formats.get(zone).format(time * 1000);
}

// The time from one moment to another, without what both have in common, and without seconds where they say nothing.
export function span(from, to, zone) {
  const needless = to - from >= 6 * 3600 ? /:\d\d$/ : /:00$/;
  const [first, last] = [from, to].map((time) => formatter(zone)(time).replace(needless, ""));
  return first.slice(0, 10) === last.slice(0, 10) ? `${first} to ${last.slice(11)}` : `${first} to ${last}`;
}

export const number = (value) =>
  typeof value === "number" ? String(Number(value.toPrecision(6))) : (value ?? "–");

export const withUnit = (value, unit) => `${number(value)}${unit && typeof value === "number" ? ` ${unit}` : ""}`;
