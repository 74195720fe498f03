// Requests to the API. A token, if the server needs one, is kept until the tab is closed.

export class Problem extends Error {}

const TOKEN = "tidetable-token";
export const PAUSE = 20; // times as long as its answers took: a page keeps the server busy for a twentieth of the time at most
export const spent = { ms: 0 }; // in which the server answered what a view waits for
let asking = null;
let released = null; // while a button or a finger is down: until it is up
let release = null;

// What an answer draws may move or replace what a person is about to click: a click is lost if it ends on another node
// than it began on. So answers wait for its end, which comes in a task before the timer's.
for (const kind of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) {
  addEventListener(kind, ({ buttons, target }) => {
    const isDown = buttons === 1 && !target.closest?.("select"); // whose own list may take the end of the click
    if (isDown) {
      released ??= new Promise((resolve) => (release = resolve));
    } else if (released) {
      setTimeout(release);
      released = null;
    }
  }, { capture: true });
}

export async function get(path, parameters, signal) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if ((each !== "" || name === "group") && each !== undefined && each !== null) query.append(name, each);
    }
  }
  return follow(`/api/v1/${path}?${query}`, signal);
}

export async function follow(address, signal) {
  const token = sessionStorage.getItem(TOKEN);
  const begun = performance.now();
  let answer;
  try {
    answer = await fetch(address, { headers: token ? { Authorization: `Bearer ${token}` } : {}, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer. This page tries again.");
  }
  if (answer.status === 401) {
    await signIn(token !== null);
    return follow(address, signal);
  }
  const content = await answer.json().catch(() => ({}));
  if (signal) spent.ms += performance.now() - begun;
  while (released) await released;
  signal?.throwIfAborted(); // while it was read
  if (!answer.ok) throw new Problem(content.error ?? `The server answered with ${answer.status}.`);
  return content;
}

function signIn(wasRefused) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("sign-in");
    dialog.querySelector("[role=alert]").textContent = wasRefused ? "The server refused this token." : "";
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(TOKEN, dialog.querySelector("input").value);
      dialog.querySelector("input").value = "";
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}
