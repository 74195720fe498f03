// Groups of sensors: how people read them, and where they are.

import { get } from "./api.js";
import { address } from "./state.js";

const MOST_LISTED = 200; // sensors of a group

// The values of a group's fields, from the text that names the group; the roll-up's name if it has one group.
export function labelOf({ rollup, by }, group) {
  if (!by.length) return rollup;
  try {
    return group.split("/").map(decodeURIComponent).join(" / ");
  } catch {
    return group; // shortened in the middle of a character
  }
}

export const groupsAddress = ({ rollup, by }) =>
  by.length ? address("groups", { rollup }) : address("chart", { rollup, group: "all" });

export function linkTo(target, text) {
  const link = document.createElement("a");
  link.href = target;
  link.textContent = text;
  return link;
}

// Lists the sensors of a group, in its last window before a time, as links.
export async function showSensorsOf(section, asked, signal) {
  const { sensors, more } = await get("rollups/sensors", { ...asked, limit: MOST_LISTED }, signal);
  const many = `${more ? "The first " : ""}${sensors.length} sensor${sensors.length === 1 ? "" : "s"}`;
  showLinks(section, many, sensors.map((sensor) => linkTo(address("chart", { sensor }), sensor)));
}

// Lists the groups of a sensor as links.
export async function showGroupsOf(section, sensor, rollups, signal) {
  const { groups } = rollups.length ? await get("rollups/of", { sensor }, signal) : { groups: [] };
  showLinks(section, "Groups", groups.map(({ rollup, group }) => {
    const described = rollups.find((each) => each.rollup === rollup);
    const label = described.by.length ? `${rollup}: ${labelOf(described, group)}` : rollup;
    return linkTo(address("chart", { rollup, group }), label);
  }));
}

export function showLinks(section, title, links) {
  section.hidden = !links.length;
  section.querySelector("h2").textContent = title;
  section.querySelector("ul").replaceChildren(...links.map((link) => {
    const item = document.createElement("li");
    item.append(link);
    return item;
  }));
}
