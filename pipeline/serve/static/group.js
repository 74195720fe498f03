// Groups of sensors: how people read them, and where they are.

import { Problem, get } from "./api.js";
import { element, linkTo } from "./rows.js";
import { address } from "./state.js";

const MOST_LISTED = 200; // sensors of a group
const SHORTENED = /^(.{180})\+[0-9a-f]{16}$/;

// The roll-up that the address names; null if it names none.
export function rollupOf({ rollups }, parameters) {
  const name = parameters.get("rollup");
  const found = rollups.find((each) => each.rollup === name) ?? null;
  if (name && !found) {
    const known = rollups.map((each) => each.rollup).join(", ");
    throw new Problem(`The table has no roll-up ${name}; its roll-ups: ${known || "none"}`);
  }
  return found;
}

// The values of a group's fields, from the text that names the group; the roll-up's name if it has one group.
export function labelOf({ rollup, by }, group) {
  return by.length ? joined(valuesOf(group)) : rollup;
}

const joined = (values) => values.map((value) => (value.trim() ? value : `'${value}'`)).join(" / ");

function valuesOf(group) {
  const shortened = SHORTENED.exec(group);
  if (!shortened) return decoded(group) ?? [group];
  let text = shortened[1].replace(/%.?$/, "");
  while (!decoded(text)) text = text.slice(0, -3); // it ends within a character
  return `${text}…`.split("/").map(decodeURIComponent);
}

function decoded(text) {
  try {
    return text.split("/").map(decodeURIComponent);
  } catch {
    return null;
  }
}

export const groupsAddress = ({ rollup, by }) =>
  by.length ? address("groups", { rollup }) : address("chart", { rollup, group: "all" });

// Lists the sensors of a group, in its last window before a time, as links.
export async function showSensorsOf(section, asked, signal) {
  const { sensors, more } = await get("rollups/sensors", { ...asked, limit: MOST_LISTED }, signal);
  const many = `${more ? "The first " : ""}${sensors.length} sensor${sensors.length === 1 ? "" : "s"}`;
  showLinks(section, many, sensors.map((sensor) => linkTo(address("chart", { sensor }), sensor)));
}

// Lists the groups of a sensor as links.
export async function showGroupsOf(section, sensor, rollups, signal) {
  const { groups } = rollups.length ? await get("rollups/of", { sensor }, signal) : { groups: [] };
  showLinks(section, "Groups", groups.map(({ rollup, group, fields }) => {
    const by = Object.keys(fields);
    const label = labelOf({ rollup, by }, group);
    return linkTo(address("chart", { rollup, group }), by.length ? `${rollup}: ${label}` : label);
  }));
}

export function showLinks(section, title, links) {
  section.hidden = !links.length;
  section.querySelector("h2").textContent = title;
  section.querySelector("ul").replaceChildren(...links.map((link) => element("li", link)));
}
