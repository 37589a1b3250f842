// The caption of the picture that is shown, and its reasons.

import { bar, byId, calm, complain, counted, make, origin, percent, plain, tell } from "./dom.js";
import { caption, state, whenShown } from "./state.js";

const FEW = 10;
// the words of recap.selection
const CHOICES = {
  consensus: "chosen as what the evidence agrees on",
  cosine: "chosen as the nearest to the picture",
  likely: "chosen as the likeliest sentence that fits the picture",
};

export function start() {
  whenShown("shown", showPicture);
  whenShown("busy", showBusy);
  whenShown("result", showResult);
  byId("restore").addEventListener("click", () => {
    state.current.excluded.clear();
    caption(state.current);
    byId("evidence-title").focus();
  });
  const image = byId("shown");
  image.addEventListener("error", () => preview(false));
  image.addEventListener("load", () => preview(true));
  for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button));
}

function preview(works) {
  byId("shown").hidden = !works;
  byId("blank").hidden = works;
}

function showPicture(picture) {
  byId("shown").src = picture.url;
  byId("shown").alt = "";
  byId("name").textContent = plain(picture.name);
  calm();
  showBusy(picture);
  showResult(picture, { quiet: true });
}

function showBusy(picture) {
  byId("result").setAttribute("aria-busy", picture.busy);
  if (picture.busy && !picture.result) byId("said").textContent = "Looking at it…";
}

function showResult(picture, { quiet = false } = {}) {
  const { result, error } = picture;
  showBusy(picture);
  if (error) complain(error, () => caption(picture));
  else if (!quiet) calm();
  byId("result").classList.toggle("problem", !result && Boolean(error));
  for (const part of document.querySelectorAll(".about > :not(.said, .was), .panel"))
    part.classList.toggle("later", !result);
  byId("was").hidden = true;
  byId("unsure").hidden = !result?.unsure;
  if (!result) {
    if (error) byId("said").textContent = "No caption";
    return;
  }
  byId("said").textContent = plain(result.caption);
  byId("shown").alt = plain(result.caption);
  byId("facts").replaceChildren(...facts(result));
  showChange(picture, quiet);
  showEvidence(picture);
  showLeftOut(picture);
  showCandidates(result);
}

function facts(result) {
  const parts = [];
  if (result.confidence !== null) {
    const level = result.unsure ? "low" : result.confidence >= 0.7 ? "high" : "middle";
    parts.push(make("span", { class: `chip ${level}` }, `${percent(result.confidence)} sure`));
  }
  const meaning = "cosine of caption and picture in caption space";
  parts.push(make("span", { class: "expert", title: meaning }, `aligned cosine ${result.score.toFixed(2)}`));
  if (result.candidates[0]?.origin === "lm") parts.push(make("span", {}, "written by the language model"));
  return parts;
}

function showChange({ result, before }, quiet) {
  const was = byId("was");
  const spoken = `${result.unsure ? "unsure: " : ""}${result.caption}`;
  if (quiet || !before) return void (quiet || tell(`Caption: ${spoken}`));
  const changed = before.caption !== result.caption;
  was.replaceChildren(
    ...(changed ? ["before: ", make("del", { dir: "auto" }, before.caption)] : ["The caption stays as it was."]),
  );
  was.hidden = false;
  tell(changed ? `The caption is now: ${spoken}` : "The caption stays as it was.");
}

function showEvidence(picture) {
  const { evidence } = picture.result;
  const list = byId("evidence");
  const focused = [...list.querySelectorAll("button")].indexOf(document.activeElement);
  const known = new Set(picture.before?.evidence.map((item) => item.text) ?? []);
  const best = evidence[0]?.similarity ?? 1;
  list.replaceChildren(
    ...evidence.map((item) => {
      const fresh = picture.before !== null && !known.has(item.text);
      const badges = [fresh && "new", item.text === picture.result.caption && "the caption"].filter(Boolean);
      const marks = badges.flatMap((words) => [make("small", { class: "badge" }, words), " "]);
      const text = make("span", {}, make("span", { dir: "auto" }, item.text), " ", ...marks, origin(item));
      return make(
        "li",
        { class: fresh ? "fresh" : null },
        bar(item.similarity, best),
        text,
        leaveOut(picture, item.text),
      );
    }),
  );
  if (focused >= 0)
    (list.querySelectorAll("button")[Math.min(focused, evidence.length - 1)] ?? byId("evidence-title")).focus();
}

function leaveOut(picture, text) {
  const click = () => {
    picture.excluded.add(text);
    caption(picture);
  };
  return make(
    "button",
    { type: "button", class: "x", "aria-label": `Leave out: ${text}`, title: "Leave it out", click },
    "×",
  );
}

function showLeftOut(picture) {
  const box = byId("left-out");
  box.hidden = picture.excluded.size === 0;
  const putBack = (text) => {
    const click = () => {
      picture.excluded.delete(text);
      caption(picture);
      byId("evidence-title").focus();
    };
    return make(
      "li",
      {},
      make("button", { type: "button", class: "chip-button", "aria-label": `Put back: ${text}`, click }, `${text} ↺`),
    );
  };
  box.querySelector("ul").replaceChildren(...[...picture.excluded].map(putBack));
}

function showCandidates({ candidates, selection }) {
  const list = byId("candidates").querySelector("ol");
  const best = Math.max(...candidates.map((item) => item.score));
  const row = (item) => {
    const from = item.origin === "lm" ? make("small", { class: "source" }, "language model") : null;
    return make("li", {}, bar(item.score, best), make("span", {}, make("span", { dir: "auto" }, item.text), " ", from));
  };
  byId("candidates-note").textContent =
    `${counted(candidates.length, "sentence", "sentences")}, ${CHOICES[selection] ?? `chosen by ${selection}`}`;
  list.replaceChildren(...candidates.slice(0, FEW).map(row));
  if (candidates.length <= FEW) return;
  const rest = candidates.slice(FEW);
  const more = () => {
    last.replaceWith(...rest.map(row));
    list.children[FEW].tabIndex = -1;
    list.children[FEW].focus();
  };
  const last = make(
    "li",
    { class: "more" },
    make("button", { type: "button", class: "plain", click: more }, `${rest.length} more`),
  );
  list.append(last);
}

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" };
const FORMS = {
  text: (result) => result.caption,
  alt: (result) => `alt="${result.caption.replace(/[&<>"']/g, (character) => ENTITIES[character])}"`,
  json: (result) => JSON.stringify(result, null, 2),
};

async function copy(button) {
  const text = FORMS[button.dataset.copy](state.current.result);
  const done = await navigator.clipboard?.writeText(text).then(
    () => true,
    () => false,
  );
  if (!done && !copyBySelection(text)) return complain(new Error("the browser does not let this page copy"));
  const label = button.textContent;
  button.classList.add("done");
  tell(`Copied: ${label}`);
  setTimeout(() => button.classList.remove("done"), 1200);
}

/** The old way, for pages that did not come over TLS. */
function copyBySelection(text) {
  const active = document.activeElement;
  const area = make("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  active?.focus();
  return done;
}
