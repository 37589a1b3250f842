// The service, as docs/serve.md describes it.

const KEY = "recap-key";
const FOUND = 24; // pictures of a search
const SHOWN = 12; // captions of the datastore at a time
let key = sessionStorage.getItem(KEY) ?? "";

/** What the service says when it cannot do what was asked. */
export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export function useKey(value) {
  key = value;
  sessionStorage.setItem(KEY, value);
}

async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(key ? { "X-API-Key": key } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "the service does not answer; is it still running?");
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Problem(response.status, body?.detail ?? `the service answered ${response.status}`);
  return body;
}

function form(picture, fields) {
  const data = new FormData();
  data.append("image", picture.file, picture.name);
  for (const [name, value] of Object.entries(fields)) for (const item of [value].flat()) data.append(name, item);
  return data;
}

const send = (path, picture, fields, signal) => ask(path, { method: "POST", body: form(picture, fields), signal });

export const packs = () => ask("v1/packs");
export const samples = () => ask("static/samples.json");
export const caption = async (picture, fields, signal) =>
  (await send("v1/caption", picture, fields, signal)).results[0].result;
export const retrieve = (picture, fields, signal) => send("v1/retrieve", picture, fields, signal);
export const score = (picture, fields) => send("v1/score", picture, fields);
export const map = (picture, fields, signal) => send("v1/map", picture, fields, signal);
export const tags = (picture) => send("v1/tags", picture, {});
export const find = (text) =>
  ask("v1/search", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ text, k: FOUND }),
  });
export const list = (contains) => ask(`v1/datastore?${new URLSearchParams({ contains, limit: SHOWN })}`);
export const search = (text) => ask(`v1/datastore/search?${new URLSearchParams({ text, k: SHOWN })}`);
export const remove = (id) => ask(`v1/datastore/${id}`, { method: "DELETE" });
export const add = (caption) =>
  ask("v1/datastore", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ captions: [caption] }),
  });

export async function found(id) {
  const response = await fetch(`v1/search/${id}`, { headers: key ? { "X-API-Key": key } : {} });
  if (!response.ok) throw new Problem(response.status, `picture ${id} is not there any more`);
  return response.blob();
}

export async function sample(name) {
  const response = await fetch(`static/samples/${encodeURIComponent(name)}`);
  if (!response.ok) throw new Problem(response.status, `the sample ${name} is not there`);
  return new File([await response.blob()], name);
}
