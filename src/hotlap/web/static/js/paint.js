// Painting objects on a canvas. Objects never change, so what was made from one is kept for as long as it lives.

import { ringBox, rings } from "./geometry.js";

export const COLOURS = ["#4cc9f0", "#ffb703", "#80ed99", "#ff7096", "#b392f0", "#f4f1bb", "#ff9e00", "#2ec4b6"];
const MANY_POINTS = 60000;
const facts = new WeakMap();
const layers = new WeakMap();

/** Bounding box and number of corners of an object. */
export function factsOf(object) {
  let found = facts.get(object);
  if (!found) {
    const points = rings(object).reduce((sum, ring) => sum + ring.length, 0);
    found = { box: ringBox(object.polygon), points, paths: new Map() };
    facts.set(object, found);
  }
  return found;
}

export const colourOf = (object) => COLOURS[object.id % COLOURS.length];

/** How coarse outlines may be: corners closer than this many picture pixels cannot be told apart on the screen. */
const coarseness = (scale) => (scale >= 0.7 ? 0 : 2 ** Math.floor(Math.log2(0.7 / scale)));

function traceRing(path, ring, apart) {
  let [x, y] = ring[0];
  path.moveTo(x, y);
  const least = apart * apart;
  for (let i = 1; i < ring.length; i++) {
    const [px, py] = ring[i];
    if ((px - x) * (px - x) + (py - y) * (py - y) < least) continue;
    path.lineTo(px, py);
    [x, y] = [px, py];
  }
  path.closePath();
}

/** The object's outline and holes as one path. */
export function pathOf(object, scale = 1) {
  const apart = coarseness(scale);
  const { paths } = factsOf(object);
  if (!paths.has(apart)) {
    const path = new Path2D();
    for (const ring of rings(object)) traceRing(path, ring, apart);
    paths.set(apart, path);
  }
  return paths.get(apart);
}

/** All objects of one colour as one path: a few calls draw hundreds of objects. */
function layerOf(objects, without, scale) {
  let kept = layers.get(objects);
  if (!kept) layers.set(objects, (kept = new Map()));
  const key = `${coarseness(scale)} ${without}`;
  if (!kept.has(key)) {
    const grouped = new Map();
    for (const object of objects) {
      if (object.id === without) continue;
      const colour = colourOf(object);
      if (!grouped.has(colour)) grouped.set(colour, new Path2D());
      grouped.get(colour).addPath(pathOf(object, scale));
    }
    if (kept.size > 8) kept.clear();
    kept.set(key, grouped);
  }
  return kept.get(key);
}

function fillAndStroke(context, path, colour, scale, fill, line) {
  context.globalAlpha = fill;
  context.fillStyle = colour;
  context.fill(path, "evenodd");
  context.globalAlpha = 1;
  context.strokeStyle = colour;
  context.lineWidth = line / scale;
  context.stroke(path);
}

/** Paints all objects but one, in picture coordinates; `seen` is the part of the picture on the screen. */
export function paintObjects(context, objects, without, scale, seen) {
  const points = objects.reduce((sum, object) => sum + factsOf(object).points, 0);
  if (points <= MANY_POINTS) {
    for (const [colour, path] of layerOf(objects, without, scale)) {
      fillAndStroke(context, path, colour, scale, 0.16, 1.6);
    }
    return;
  }
  const [left, top, right, bottom] = seen;
  for (const object of objects) {
    const [l, t, r, b] = factsOf(object).box;
    if (object.id === without || r < left || l > right || b < top || t > bottom) continue;
    fillAndStroke(context, pathOf(object, scale), colourOf(object), scale, 0.16, 1.6);
  }
}

/** Paints one object so that it stands out. */
export function paintMarked(context, object, scale, colour, fill) {
  const path = pathOf(object, scale);
  context.strokeStyle = "rgba(0, 0, 0, .65)";
  context.lineWidth = 4.5 / scale;
  context.stroke(path);
  fillAndStroke(context, path, colour, scale, fill, 2.4);
}

/** Paints the corners of an object as handles of the same size at every zoom; `held` is {ring, index}. */
export function paintCorners(context, object, scale, held, seen) {
  const half = 3.5 / scale;
  const path = new Path2D();
  const [left, top, right, bottom] = seen;
  for (const ring of rings(object)) {
    for (const [x, y] of ring) {
      if (x >= left && x <= right && y >= top && y <= bottom) path.rect(x - half, y - half, 2 * half, 2 * half);
    }
  }
  context.fillStyle = "#fff";
  context.fill(path);
  context.strokeStyle = "#000";
  context.lineWidth = 1 / scale;
  context.stroke(path);
  const corner = held && rings(object)[held.ring]?.[held.index];
  if (!corner) return;
  context.fillStyle = "#ff2d78";
  context.beginPath();
  context.arc(corner[0], corner[1], 6 / scale, 0, 2 * Math.PI);
  context.fill();
  context.strokeStyle = "#fff";
  context.lineWidth = 1.5 / scale;
  context.stroke();
}

/** Paints the line of a tool that is being used: a cut, or an outline that is not closed yet. */
export function paintStroke(context, points, scale, closed) {
  if (points.length === 0) return;
  const path = new Path2D();
  points.forEach(([x, y], i) => (i === 0 ? path.moveTo(x, y) : path.lineTo(x, y)));
  if (closed) path.closePath();
  context.lineWidth = 3.5 / scale;
  context.strokeStyle = "rgba(0, 0, 0, .65)";
  context.stroke(path);
  context.lineWidth = 1.8 / scale;
  context.strokeStyle = "#ff2d78";
  context.setLineDash([6 / scale, 4 / scale]);
  context.stroke(path);
  context.setLineDash([]);
  context.fillStyle = "#ff2d78";
  for (const [x, y] of points.length < 200 ? points : [points[0]]) {
    context.beginPath();
    context.arc(x, y, 3.5 / scale, 0, 2 * Math.PI);
    context.fill();
  }
}
