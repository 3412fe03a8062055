// Work outlives the tab: pictures, their objects and edits are kept in the browser until they are removed.

import { afterQuiet, hear, say } from "./events.js";
import { History } from "./history.js";
import { enqueue } from "./queue.js";
import { addPicture, metricsOf, objectsOf, setOrigin, takeObjects, work } from "./work.js";

const QUIET_MS = 400;
const KEPT = ["name", "file", "width", "height", "classes", "model", "threshold", "umPerPx", "edited", "seconds"];

let base = null;
const changed = new Set();

const finished = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

async function openBase() {
  const request = indexedDB.open("hotlap", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("pictures", { keyPath: "key" });
  return finished(request);
}

const pictures = (mode) => base.transaction("pictures", mode).objectStore("pictures");

function record(picture) {
  const objects = objectsOf(picture).map((object) => ({ ...object, metrics: metricsOf(object) ?? null }));
  const facts = Object.fromEntries(KEPT.map((name) => [name, picture[name]]));
  return { key: picture.key, ...facts, objects: picture.history ? objects : null };
}

/** Says once that nothing can be kept, as in a private window or with a full disk. */
function giveUp(error) {
  base = null;
  say("notice", { key: "notice.notKept", values: { why: error.message }, kind: "warning" });
}

const keep = afterQuiet(QUIET_MS, async () => {
  if (!base) return;
  const some = [...changed].filter((picture) => work.pictures.includes(picture));
  changed.clear();
  try {
    for (const picture of some) await finished(pictures("readwrite").put(record(picture)));
    document.documentElement.dataset.kept = "";
  } catch (error) {
    giveUp(error);
  }
});

function touch(picture) {
  if (!picture) return;
  delete document.documentElement.dataset.kept;
  changed.add(picture);
  keep();
}

/** Puts back what was there when the page was left; what had no answer yet is sent again. */
function restore({ name, file, objects, ...facts }) {
  const { model, threshold, umPerPx, edited, classes } = facts;
  const history = objects ? new History(takeObjects(objects)) : null;
  if (history) setOrigin(history.objects, { model, threshold, umPerPx, edited, classes });
  const picture = addPicture(name, file, { ...facts, history, state: history ? "done" : "cancelled" });
  if (!history && work.model) enqueue(picture, "main");
}

export async function startKeeping() {
  try {
    base = await openBase();
    for (const kept of await finished(pictures("readonly").getAll())) restore(kept);
  } catch (error) {
    giveUp(error);
    return;
  }
  hear("added answered edited", touch);
  hear("measured", () => touch(work.current));
  hear("removed", (picture) => base && pictures("readwrite").delete(picture.key));
}
