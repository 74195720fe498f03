// Tables whose rows stay while their contents change, so that a refresh keeps the focus; and ticks that compare rows.

const MOST_COMPARED = 6;

export function element(name, content = "", kind = "") {
  const found = document.createElement(name);
  found.append(content);
  if (kind) found.className = kind;
  return found;
}

export function linkTo(target, text, kind = "") {
  const link = element("a", text, kind);
  link.href = target;
  return link;
}

// A row of cells, each with its class and its content.
export function rowWith(cells) {
  const row = document.createElement("tr");
  row.append(...cells.map(([kind, content]) => element("td", content, kind)));
  return row;
}

// Draws a row for each record. The attribute data-… of this name has what tells records apart.
export function drawRows(body, name, records, keyOf, rowOf, fill) {
  const kept = new Map([...body.rows].map((row) => [row.dataset[name], row]));
  records.forEach((record, index) => {
    const key = keyOf(record);
    const row = kept.get(key) ?? rowOf(record);
    row.dataset[name] = key;
    fill(row, record);
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
  });
  while (body.rows.length > records.length) body.rows[records.length].remove();
}

// Ticks beside rows, and the link that compares what is ticked, of this kind, such as sensor.
export function comparing(main, kind, addressOf) {
  const compare = main.querySelector("[data-compare]");
  const most = main.querySelector("[data-most]");
  const chosen = new Set();
  main.querySelector("tbody").addEventListener("change", (event) => {
    const { value, checked } = event.target;
    const full = checked && chosen.size >= MOST_COMPARED;
    if (full) event.target.checked = false;
    else if (checked) chosen.add(value);
    else chosen.delete(value);
    most.textContent = full ? `A chart compares ${MOST_COMPARED} ${kind}s at most. Untick one first.` : "";
    show();
  });

  function show() {
    compare.hidden = chosen.size < 2;
    compare.href = addressOf([...chosen]);
    compare.textContent = `Compare ${chosen.size} ${kind}s`;
  }

  function tick(value, label) {
    const box = document.createElement("input");
    box.type = "checkbox";
    box.value = value;
    box.checked = chosen.has(value);
    box.setAttribute("aria-label", `Compare ${label}`);
    return box;
  }

  return { show, tick, clear: () => chosen.clear() };
}

// The reading of a metric as a link, for a row, under the metric's name for people.
export function reading(target, metric, title, value) {
  const item = linkTo(target, "", "reading");
  item.dataset.metric = metric;
  item.append(element("span", `${title} `, "name"), element("b", value));
  return item;
}
