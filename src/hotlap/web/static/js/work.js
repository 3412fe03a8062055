// What the page works on: pictures, their objects, what is chosen. Everything that changes it is here, and says so.

import { say } from "./events.js";
import { History } from "./history.js";

export const work = {
  pictures: [],
  current: null,
  selected: new Set(),
  hovered: null,
  corner: null,
  mode: "view",
  shown: true,
  model: "",
  otherModel: "",
  comparing: false,
  threshold: 0.5,
  umPerPx: null,
  models: [],
  formats: [],
  status: null,
};

const NONE = [];
const metrics = new WeakMap();
const origins = new WeakMap();
let nextKey = 1;

/** Measurements of an object as it is now; undefined while they are not known. An edited object is another object. */
export const metricsOf = (object) => metrics.get(object);
export const setMetrics = (object, found) => metrics.set(object, found);

/** The objects of an answer as the page keeps them: plain geometry, measurements aside. */
export function takeObjects(answered) {
  return answered.map(({ id, polygon, holes, confidence, metrics: found }) => {
    const object = { id, polygon, holes: holes ?? [], confidence };
    if (found) metrics.set(object, found);
    return object;
  });
}

/** The objects of a picture; none before its answer. */
export const objectsOf = (picture) => picture?.history?.objects ?? NONE;
export const objectsNow = () => objectsOf(work.current);
export const objectById = (id) => objectsNow().find((object) => object.id === id);
export const onlySelected = () => (work.selected.size === 1 ? objectById([...work.selected][0]) : undefined);

export function addPicture(name, file, known = {}) {
  const picture = {
    // Tabs keep their pictures in one place: the time tells their keys apart.
    key: Math.max(nextKey, Date.now()), name, file, state: "waiting", sent: 0, error: "", width: 0, height: 0, history: null,
    classes: null, model: "", threshold: 0, umPerPx: null, edited: false, seconds: null, other: null, ...known,
  };
  nextKey = Math.max(nextKey, picture.key) + 1;
  work.pictures.push(picture);
  say("pictures");
  if (!work.current) choosePicture(picture);
  return picture;
}

export function removePicture(picture) {
  const at = work.pictures.indexOf(picture);
  if (at < 0) return;
  work.pictures.splice(at, 1);
  picture.state = "removed";
  say("pictures");
  say("removed", picture);
  if (work.current === picture) choosePicture(work.pictures[Math.min(at, work.pictures.length - 1)] ?? null);
}

export function choosePicture(picture) {
  if (work.current === picture) return;
  work.current = picture;
  work.selected = new Set();
  work.hovered = null;
  work.corner = null;
  say("picture");
  say("objects");
  say("selection");
}

export const pictureChanged = (picture) => {
  say("pictures");
  if (picture === work.current) say("picture");
};

/** Says where a list of objects comes from: {model, threshold, umPerPx, edited}, and which classes were found in its
 *  place. It travels with undo and redo. */
export const setOrigin = (objects, origin) => origins.set(objects, { edited: false, classes: null, ...origin });

const tellOrigin = (picture) => Object.assign(picture, origins.get(picture.history.objects));

/** Puts an answer into its place; what was there before, edits too, can be had back with undo. */
export function setAnswer(picture, answer) {
  const objects = takeObjects(answer.objects ?? []);
  const classes = answer.objects ? null : (answer.classes ?? []);
  setOrigin(objects, { model: answer.model, threshold: answer.threshold, umPerPx: answer.um_per_px ?? null, classes });
  if (picture.history) picture.history.push(objects, "step.run");
  else picture.history = new History(objects);
  Object.assign(picture, {
    state: "done", error: "", seconds: answer.seconds,
    width: answer.width ?? picture.width, height: answer.height ?? picture.height,
  });
  tellOrigin(picture);
  pictureChanged(picture);
  if (picture === work.current) objectsChanged();
}

/** Makes the objects of another answer those of the current picture. */
export function takeAnswer(objects, origin) {
  const taken = [...objects];
  setOrigin(taken, origin);
  work.current.history.push(taken, "step.take");
  stepped();
}

/** What follows from another state of a picture's objects. */
function stepped(picture = work.current) {
  tellOrigin(picture);
  if (picture === work.current) objectsChanged();
  say("edited", picture);
  say("pictures");
}

/** Gives a picture another scale: the same objects, to be measured again. */
export function rescale(picture, umPerPx) {
  const { history } = picture;
  const objects = history.objects.map((object) => ({ ...object }));
  origins.set(objects, { ...origins.get(history.objects), umPerPx });
  history.push(objects, "step.scale");
  stepped(picture);
}

function objectsChanged() {
  const there = new Set(objectsNow().map((object) => object.id));
  work.selected = new Set([...work.selected].filter((id) => there.has(id)));
  if (!there.has(work.hovered)) work.hovered = null;
  work.corner = null;
  say("objects");
  say("selection");
}

/** Makes an edit of the current picture that can be undone; a joined one is undone with the one before it. */
export function edit(objects, label, joined = false) {
  const { history } = work.current;
  origins.set(objects, { ...origins.get(history.objects), edited: true });
  history.push(objects, label, joined);
  const corner = work.corner;
  stepped();
  const ring = corner && [onlySelected()?.polygon, ...(onlySelected()?.holes ?? [])][corner.ring];
  if (ring && corner.index < ring.length) setCorner(corner);
}

export const replaceObject = (before, after) => objectsNow().map((object) => (object === before ? after : object));

export const freshId = () => objectsNow().reduce((most, object) => Math.max(most, object.id), 0) + 1;

/** Steps back or forth; what was undone or done again, or null. */
export function stepHistory(direction) {
  const label = work.current?.history?.[direction]() ?? null;
  if (label !== null) stepped();
  return label;
}

export function select(ids) {
  work.selected = new Set(ids);
  work.corner = null;
  say("selection");
}

export function toggleSelected(id) {
  const ids = new Set(work.selected);
  if (!ids.delete(id)) ids.add(id);
  select(ids);
}

export function hover(id) {
  if (work.hovered === id) return;
  work.hovered = id;
  say("hover");
}

export function setMode(mode) {
  work.mode = mode;
  work.corner = null;
  say("mode");
}

export function setCorner(corner) {
  work.corner = corner;
  say("corner");
}

/** Changes a choice that others show, such as the model. */
export function choose(name, value) {
  if (work[name] === value) return;
  work[name] = value;
  say("choices", name);
}
