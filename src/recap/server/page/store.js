// The datastore, changed while it is used.

import * as api from "./api.js";
import { bar, byId, calm, complain, counted, make, origin } from "./dom.js";
import { news, state, storeChanged } from "./state.js";

export function start() {
  const { editable } = state.served;
  byId("open-store").hidden = !editable;
  byId("closed").hidden = editable;
  showSize();
  news.addEventListener("store", showSize);
  if (!editable) return;
  byId("add").addEventListener("submit", (event) => {
    event.preventDefault();
    put({ text: byId("add-text").value, source: byId("add-source").value }).then(() => byId("add-text").select());
  });
  byId("find").addEventListener("submit", (event) => {
    event.preventDefault();
    find();
  });
  byId("find-near").addEventListener("change", find);
  byId("store").addEventListener("toggle", find);
}

function showSize() {
  const { captions, sources } = state.pack;
  const many = Object.keys(sources).length;
  byId("store-note").textContent =
    `${counted(captions, "caption", "captions")}${many > 1 ? ` of ${many} sources` : ""}`;
}

async function put(caption) {
  await edit(async () => {
    const change = await api.add(caption);
    const [id] = change.ids;
    return { change, done: "Added", text: caption.text, undo: () => drop({ ...caption, id }) };
  });
}

async function drop({ id, text, source, synthetic = false, image_id = "" }) {
  await edit(async () => {
    const change = await api.remove(id);
    return { change, done: "Removed", text, undo: () => put({ text, source, synthetic, image_id }) };
  });
}

/** Change the datastore, caption the picture anew, and say what came of it. */
async function edit(action) {
  try {
    const before = state.current.result?.caption;
    const { change, done, text, undo } = await action();
    calm();
    await storeChanged(change.size);
    showEffect(done, text, before, change.saved, undo);
    await find();
  } catch (error) {
    complain(error);
  }
}

function showEffect(done, text, before, saved, undo) {
  const { result, error } = state.current;
  const place = result?.evidence.findIndex((item) => item.text === text.trim().replace(/\s+/g, " ")) ?? -1;
  const among =
    place >= 0 ? ` It is number ${place + 1} of this picture's evidence.` : " It is not among this picture's evidence.";
  const quoted = (words) => make("q", { dir: "auto" }, words);
  const caption = [];
  if (!error && result && before !== undefined)
    caption.push(
      ...(result.caption === before
        ? ["The caption stays ", quoted(before)]
        : ["The caption was ", quoted(before), " and is now ", quoted(result.caption)]),
    );
  const box = byId("effect");
  const focused = box.contains(document.activeElement);
  const button = make("button", { type: "button", class: "plain", click: undo }, "undo");
  box.replaceChildren(
    `${done}${saved ? " and saved" : ""}.`,
    done === "Added" ? among : "",
    " ",
    ...caption,
    " ",
    button,
  );
  box.hidden = false;
  if (focused) button.focus();
}

async function find() {
  if (!byId("store").open) return;
  const text = byId("find-text").value.trim();
  const near = byId("find-near").checked && text !== "";
  try {
    const { captions, total } = near ? await api.search(text) : await api.list(text);
    showFound(
      captions,
      near
        ? `The ${captions.length} nearest.`
        : `${counted(total, "caption", "captions")}${total > captions.length ? `, the first ${captions.length} here.` : "."}`,
    );
  } catch (error) {
    complain(error);
  }
}

function showFound(captions, note) {
  byId("found-note").textContent = note;
  const best = captions[0]?.similarity ?? 1;
  const row = (item) => {
    const value = item.similarity === undefined ? make("span", { class: "id" }, item.id) : bar(item.similarity, best);
    const click = () => drop(item).then(() => byId("find-text").focus());
    const button = make(
      "button",
      {
        type: "button",
        class: "x",
        "aria-label": `Remove from the datastore: ${item.text}`,
        title: "Remove from the datastore",
        click,
      },
      "×",
    );
    return make("li", {}, value, make("span", {}, make("span", { dir: "auto" }, item.text), " ", origin(item)), button);
  };
  byId("found").replaceChildren(...captions.map(row));
}
