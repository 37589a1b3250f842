// What the parts of the page share: the pictures, which one is shown, the settings that differ from the pack's, and
// an edition of the datastore that counts its changes.
//
// Events on `news`: "shown" (another picture), "busy", "result" (a caption has come, or an error), "strip" (the list
// of pictures), "store" (the datastore has changed).

import * as api from "./api.js";

export const news = new EventTarget();
export const state = { served: null, pack: null, pictures: [], current: null, changed: {}, edition: 0 };
const AT_ONCE = 2;

const report = (what, picture) => news.dispatchEvent(new CustomEvent(what, { detail: picture }));

/** Call a function when something happens to the picture that is shown. */
export function whenShown(what, react) {
  news.addEventListener(what, ({ detail }) => {
    if (detail === state.current) react(detail);
  });
}

export function add(files) {
  const fresh = [...files].map((file, place) => ({
    file,
    name: file.name || `picture ${state.pictures.length + place + 1}`,
    url: URL.createObjectURL(file),
    waiting: true,
    busy: false,
    stale: false,
    request: null,
    result: null,
    before: null,
    error: null,
    excluded: new Set(),
    tried: [],
  }));
  if (!fresh.length) return;
  state.pictures.push(...fresh);
  show(fresh[0]);
  for (let worker = 0; worker < AT_ONCE; worker++) work();
}

async function work() {
  let picture;
  while ((picture = state.pictures.find((one) => one.waiting))) await caption(picture);
}

export function show(picture) {
  state.current = picture;
  report("strip");
  report("shown", picture);
  if (picture.waiting || picture.stale) caption(picture);
}

/** Caption a picture with the present settings; a request for it that is under way is given up. */
export async function caption(picture) {
  picture.request?.abort();
  const request = new AbortController();
  Object.assign(picture, { request, busy: true, waiting: false, stale: false });
  report("busy", picture);
  try {
    const result = await api.caption(picture, { ...state.changed, exclude: [...picture.excluded] }, request.signal);
    Object.assign(picture, { before: picture.result, result, error: null });
  } catch (error) {
    if (error.name === "AbortError") return;
    picture.error = error;
  }
  Object.assign(picture, { request: null, busy: false });
  report("strip");
  report("result", picture);
}

/** How many captions are evidence now. */
export const evidenceCount = () => state.changed.k ?? state.pack.settings.k;

/** What all pictures depend on has changed: the one that is shown is captioned anew, the others when they are shown. */
export async function renew() {
  for (const picture of state.pictures) picture.stale = !picture.waiting;
  if (state.current) await caption(state.current);
}

export async function storeChanged(size) {
  state.pack.captions = size;
  state.edition += 1;
  await renew();
  report("store", state.current);
}
