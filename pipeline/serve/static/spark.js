// Small charts without axes, as SVG.

const SVG = "http://www.w3.org/2000/svg";

// Returns a drawing of lines, each with times and values, where null is a gap; a band has two of them. It is as wide and
// high as its style makes it.
export function spark(range, { lines = [], band = null }) {
  const all = [...lines, ...(band ?? [])].flatMap(({ values }) => values).filter((value) => value !== null);
  const least = all.reduce((one, other) => Math.min(one, other), Infinity);
  const most = all.reduce((one, other) => Math.max(one, other), -Infinity);
  const x = (time) => (Math.min(Math.max((time - range[0]) / (range[1] - range[0]), 0), 1) * 100).toFixed(2);
  const y = (value) => (most > least ? 38 - ((value - least) / (most - least)) * 36 : 20).toFixed(2);
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("class", "spark");
  picture.setAttribute("viewBox", "0 0 100 40");
  picture.setAttribute("preserveAspectRatio", "none");
  picture.setAttribute("aria-hidden", "true");
  if (band) {
    const [low, high] = band.map(runs);
    const areas = low.map((run, index) => [...run, ...[...(high[index] ?? [])].reverse()]);
    picture.append(path("area", areas.map((area) => `M${area.map(([time, value]) => `${x(time)},${y(value)}`).join("L")}Z`)));
  }
  lines.forEach((line, index) => {
    picture.append(path(`line-${index}`, runs(line).map((run) => {
      const points = run.length > 1 ? run : [run[0], run[0]]; // a single reading is a dot
      return `M${points.map(([time, value]) => `${x(time)},${y(value)}`).join("L")}`;
    })));
  });
  return { picture, least, most };
}

function path(name, parts) {
  const drawn = document.createElementNS(SVG, "path");
  drawn.setAttribute("class", name);
  drawn.setAttribute("d", parts.join(""));
  return drawn;
}

// The parts of a line between gaps, as pairs.
function runs({ times, values }) {
  const found = [[]];
  times.forEach((time, index) => {
    if (values[index] === null) found.push([]);
    else found.at(-1).push([time, values[index]]);
  });
  return found.filter((run) => run.length);
}
