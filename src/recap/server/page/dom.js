// Elements are made here and only here. Texts become text nodes, never markup: captions and file names are not trusted.

const SVG = "http://www.w3.org/2000/svg";
// characters that would hide or turn around what follows them
const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

export const byId = (id) => document.getElementById(id);
export const plain = (text) => String(text).replace(CONTROL, "\ufffd");
export const percent = (share) => `${Math.round(100 * share)} %`;
export const counted = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

/** Make an element; functions are listeners, names with -- are custom properties, and null leaves out. */
export function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    // the security policy forbids style attributes, and allows this
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : plain(value));
  }
  element.append(
    ...children.filter((child) => child !== null).map((child) => (child instanceof Node ? child : plain(child))),
  );
  return element;
}

/** A number with a bar behind it, in relation to the best one. */
export function bar(value, best) {
  const share = best > 0 ? Math.min(1, Math.max(0, value / best)) : 0;
  return make("data", { value: value.toFixed(4), "--v": share.toFixed(3) }, value.toFixed(2));
}

/** Where a caption is from. */
export function origin({ source, synthetic }) {
  const text = `${source}${synthetic ? " (machine)" : ""}`.trim();
  return text ? make("small", { class: "source", dir: "auto" }, text) : null;
}

/** Tell those who do not see the page what has happened. */
export function tell(text) {
  byId("told").textContent = plain(text);
}

/** Show an error in the words of the service. */
export function complain(problem, again = null) {
  const box = byId("problem");
  box.replaceChildren(make("span", { dir: "auto" }, problem.message));
  if (again) box.append(" ", make("button", { type: "button", click: again }, "Try again"));
  box.hidden = false;
}

export function calm() {
  byId("problem").hidden = true;
}
