// How pictures come in, and the strip of those that have.

import * as api from "./api.js";
import { byId, complain, make } from "./dom.js";
import { add, news, show, state } from "./state.js";

export async function start() {
  byId("files").addEventListener("change", ({ target }) => {
    take(target.files);
    target.value = "";
  });
  takeDrops();
  document.addEventListener("paste", (event) => {
    const { files, types } = event.clipboardData;
    // a text from an office program comes with a picture of itself
    const typing = event.target.matches?.("input, textarea") && types.includes("text/plain");
    if (!files.length || typing) return;
    event.preventDefault();
    take(files);
  });
  news.addEventListener("strip", showStrip);
  showSamples(await api.samples().catch(() => []));
}

// Adds pictures; where their caption will stand far down, behind what a search found or on a phone, it is brought up.
export function take(files) {
  add(files);
  const result = byId("result");
  const { top } = result.getBoundingClientRect();
  if (top < 0 || top > window.innerHeight / 2) result.scrollIntoView();
}

function takeDrops() {
  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  let depth = 0; // how many elements the pointer is inside of, with files
  const mark = (by) => {
    depth = Math.max(0, depth + by);
    document.body.classList.toggle("dropping", depth > 0);
  };
  document.addEventListener("dragenter", (event) => carriesFiles(event) && mark(1));
  document.addEventListener("dragleave", (event) => carriesFiles(event) && mark(-1));
  document.addEventListener("dragover", (event) => carriesFiles(event) && event.preventDefault());
  document.addEventListener("drop", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    mark(-depth);
    take(event.dataTransfer.files);
  });
}

function showSamples(names) {
  const items = names.map((name) => {
    const label = name.replace(/\.\w+$/, "");
    const picture = make("img", { src: `static/samples/${encodeURIComponent(name)}`, alt: "", loading: "lazy" });
    const click = () => api.sample(name).then((file) => take([file]), complain);
    return make(
      "li",
      {},
      make("button", { type: "button", "aria-label": `Sample: ${label}`, title: label, click }, picture),
    );
  });
  byId("samples")
    .querySelector("ul")
    .replaceChildren(...items);
  byId("samples").hidden = items.length === 0;
}

function showStrip() {
  byId("how").hidden = state.pictures.length > 0;
  byId("bench").hidden = state.pictures.length === 0;
  const strip = byId("strip");
  strip.hidden = state.pictures.length < 2;
  const focused = [...strip.querySelectorAll("button")].indexOf(document.activeElement);
  strip.querySelector("ul").replaceChildren(...state.pictures.map((picture) => make("li", {}, thumbnail(picture))));
  strip.querySelectorAll("button")[focused]?.focus();
}

function thumbnail(picture) {
  const said = picture.result?.caption ?? picture.error?.message ?? "waiting";
  const image = make("img", { src: picture.url, alt: "", error: () => image.classList.add("broken") });
  const attributes = {
    type: "button",
    title: said,
    "aria-label": `${picture.name}: ${said}`,
    "aria-current": picture === state.current ? "true" : null,
    class: picture.error ? "bad" : null,
    click: () => show(picture),
  };
  return make("button", attributes, image);
}
