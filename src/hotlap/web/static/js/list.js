// The pictures, each with where it is on its way.

import { byId, data, iconButton, make } from "./dom.js";
import { hear, oncePerFrame } from "./events.js";
import { loadThumb } from "./images.js";
import { enqueue, stop } from "./queue.js";
import { choosePicture, objectsOf, removePicture, work } from "./work.js";
import { fixed, onLanguage, word } from "./words.js";

const rows = new Map();
const BUSY = ["waiting", "sending", "running", "held"];

/** What is said of a picture below its name. */
function standing(picture) {
  const count = objectsOf(picture).length;
  if (picture.state === "sending") return word("state.sending", { percent: Math.round(100 * picture.sent) });
  if (picture.state !== "done") return word(`state.${picture.state}`);
  if (picture.classes) return word("state.classes", { count: picture.classes.length });
  return word(picture.edited ? "state.edited" : "state.done", { count });
}

/** The seconds that an answer took, whichever of its parts are told. */
const secondsOf = (seconds) =>
  typeof seconds === "number" ? seconds : (seconds?.all ?? Object.values(seconds ?? {}).reduce((a, b) => a + b, 0));

function build(picture) {
  const canvas = make("canvas", { class: "thumb", width: 48, height: 48, "aria-hidden": "true" });
  const state = make("span", { class: "state" });
  const why = data("", "span");
  why.className = "why";
  const bar = make("progress", { max: 1, value: 0 });
  const name = data(picture.name);
  name.className = "name";
  name.title = picture.name;
  const choose = make("button", { type: "button", class: "choose", onclick: () => choosePicture(picture) }, canvas,
    make("span", { class: "said" }, name, state, why));
  const actions = make("span", { class: "actions" });
  const element = make("li", {}, choose, actions, bar);
  loadThumb(picture.file).then((found) => found && drawThumb(canvas, picture, found));
  return { element, choose, state, why, bar, actions, shown: "" };
}

function drawThumb(canvas, picture, { thumb, width, height }) {
  if (!picture.width) Object.assign(picture, { width, height });
  const share = Math.max(48 / thumb.width, 48 / thumb.height);
  const [across, down] = [thumb.width * share, thumb.height * share];
  canvas.getContext("2d").drawImage(thumb, (48 - across) / 2, (48 - down) / 2, across, down);
  thumb.close();
}

function update(picture) {
  const row = rows.get(picture.key);
  row.choose.setAttribute("aria-current", String(picture === work.current));
  row.element.dataset.state = picture.edited && picture.state === "done" ? "edited" : picture.state;
  const took = picture.state === "done" ? secondsOf(picture.seconds) : 0;
  row.state.textContent = standing(picture) + (took ? ` · ${fixed(took, 2)} s` : "");
  row.why.textContent = picture.error;
  row.bar.hidden = !BUSY.includes(picture.state);
  if (picture.state === "running") row.bar.removeAttribute("value");
  else row.bar.value = picture.sent;
  row.bar.setAttribute("aria-label", word("list.progress", { name: picture.name }));
  const wanted = `${picture.state} ${document.documentElement.lang}`;
  if (row.shown === wanted) return;
  row.shown = wanted;
  row.actions.replaceChildren(...actionsOf(picture));
}

function actionsOf(picture) {
  const busy = BUSY.includes(picture.state);
  const again = picture.state === "failed" || picture.state === "cancelled";
  return [
    ...(again ? [iconButton("again", "list.retry", () => enqueue(picture, "main"))] : []),
    busy
      ? iconButton("stop", "list.cancel", () => stop(picture))
      : iconButton("close", "list.remove", () => removePicture(picture)),
  ];
}

const render = oncePerFrame(() => {
  const list = byId("pictures");
  const there = new Set(work.pictures.map((picture) => picture.key));
  for (const [key, row] of rows) {
    if (there.has(key)) continue;
    row.element.remove();
    rows.delete(key);
  }
  for (const picture of work.pictures) {
    if (!rows.has(picture.key)) {
      rows.set(picture.key, build(picture));
      list.append(rows.get(picture.key).element);
    }
    update(picture);
  }
  const busy = work.pictures.filter((picture) => BUSY.includes(picture.state)).length;
  const failed = work.pictures.filter((picture) => picture.state === "failed").length;
  byId("clear").hidden = work.pictures.length === 0;
  byId("tally").textContent = work.pictures.length === 0 ? "" : [
    word("list.tally", { count: work.pictures.length }),
    ...(busy ? [word("list.busy", { count: busy })] : []),
    ...(failed ? [word("list.failed", { count: failed })] : []),
  ].join(" · ");
});

/** Goes to the next picture. */
export function stepPicture(by) {
  if (work.pictures.length === 0) return;
  const at = work.pictures.indexOf(work.current);
  const picture = work.pictures[(at + by + work.pictures.length) % work.pictures.length];
  choosePicture(picture);
  rows.get(picture.key)?.element.scrollIntoView({ block: "nearest" });
}

function startClearing() {
  const dialog = byId("clearDialog");
  byId("clear").addEventListener("click", () => dialog.showModal());
  dialog.addEventListener("close", () => {
    if (dialog.returnValue === "ok") for (const picture of [...work.pictures]) removePicture(picture);
    dialog.returnValue = "";
  });
}

export function startList() {
  startClearing();
  hear("pictures picture", render);
  onLanguage(render);
  render();
}

