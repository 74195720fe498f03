// What is drawn, as a CSV file with the values in full: a line for each time and metric of a sensor or group.

const KEPT_MS = 60000; // for the browser to save the file

export function download(name, records) {
  const columns = [...new Set(records.flatMap(Object.keys))];
  const lines = [columns, ...records.map((record) => columns.map((column) => record[column] ?? ""))];
  const text = lines.map((line) => `${line.map(field).join(",")}\r\n`).join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  link.download = `${name.replace(/[^\w.-]+/g, "_").slice(0, 100)}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
}

function field(value) {
  const text = String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
