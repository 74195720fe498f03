// What a person sees is in the address: #/ lists sensors, #/chart?sensor=… draws them, #/alerts lists alerts,
// #/groups?rollup=… lists groups of sensors, #/chart?rollup=…&group=… draws them. Another path is no view.

export function read() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?", 2);
  const view = { "": "list", "/": "list", "/chart": "chart", "/alerts": "alerts", "/groups": "groups" }[path];
  return { view: view ?? "list", isKnown: view !== undefined, path, parameters: new URLSearchParams(query) };
}

let listed = "#/"; // the list as a person left it

export function rememberList() {
  listed = location.hash || "#/";
}

export const listAddress = () => listed;

export function address(view, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if ((each !== "" || name === "group") && each !== undefined && each !== null && each !== false) query.append(name, each);
    }
  }
  const text = query.toString();
  return `#/${view === "list" ? "" : view}${text ? `?${text}` : ""}`;
}

export function go(view, parameters, { replace = false } = {}) {
  const next = address(view, parameters);
  if (next === location.hash) return;
  if (replace) {
    history.replaceState(null, "", next);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = next;
  }
}
