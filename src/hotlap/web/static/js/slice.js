// Cutting an object along a stroke.

import { insideRing, ringArea, rings } from "./geometry.js";

const signed = ([ax, ay], [bx, by], [px, py]) => (bx - ax) * (py - ay) - (by - ay) * (px - ax);

/** A ring as linked nodes, with the stuff of the object always on the same hand; crossings of the line are doubled. */
function linkRing(ring, outside, from, to, crossings) {
  const ordered = ringArea(ring) > 0 === outside ? ring : [...ring].reverse();
  const nodes = [];
  ordered.forEach((point, i) => {
    const next = ordered[(i + 1) % ordered.length];
    nodes.push({ point });
    const [here, there] = [signed(from, to, point), signed(from, to, next)];
    // A corner on the line counts as being on one side, always the same, so that crossings come in pairs.
    if (here >= 0 === there >= 0) return;
    const share = here / (here - there);
    const cut = [point[0] + share * (next[0] - point[0]), point[1] + share * (next[1] - point[1])];
    const [arriving, leaving] = [{ point: cut }, { point: cut }];
    nodes.push(arriving, leaving);
    crossings.push({ arriving, leaving, along: along(from, to, cut) });
  });
  nodes.forEach((node, i) => (node.next = nodes[(i + 1) % nodes.length]));
  return nodes;
}

function along([ax, ay], [bx, by], [px, py]) {
  const [dx, dy] = [bx - ax, by - ay];
  return ((px - ax) * dx + (py - ay) * dy) / (dx * dx + dy * dy);
}

/** Every closed way through the nodes, with which way a node lies on. */
function ways(nodes) {
  const way = new Map();
  const found = [];
  for (const start of nodes) {
    if (way.has(start)) continue;
    const ring = [];
    for (let node = start; !way.has(node); node = node.next) {
      way.set(node, found.length);
      ring.push(node.point);
    }
    found.push(ring);
  }
  return { way, found };
}

const same = (a, b) => Math.abs(a[0] - b[0]) < 1e-9 && Math.abs(a[1] - b[1]) < 1e-9;
const tidy = (ring) => ring.filter((point, i) => !same(point, ring[(i + 1) % ring.length]));

/** Joins both sides of each cut; a cut that parts nothing, as from the outside into a hole, is left out. */
function cutAlong(object, from, to) {
  let left = new Set();
  for (;;) {
    const crossings = [];
    const nodes = rings(object).flatMap((ring, i) => linkRing(ring, i === 0, from, to, crossings));
    crossings.sort((a, b) => a.along - b.along);
    const cuts = [];
    for (let i = 0; i + 1 < crossings.length; i += 2) {
      const [a, b] = [crossings[i], crossings[i + 1]];
      if (a.along >= 0 && b.along <= 1 && !left.has(i)) cuts.push({ a, b, i });
    }
    for (const { a, b } of cuts) {
      a.arriving.next = b.leaving;
      b.arriving.next = a.leaving;
    }
    const { way, found } = ways(nodes);
    const slits = cuts.filter(({ a, b }) => way.get(a.arriving) === way.get(b.arriving));
    if (slits.length === 0) return found.map(tidy).filter((ring) => ring.length >= 3 && ringArea(ring) !== 0);
    left = new Set([...left, ...slits.map(({ i }) => i)]);
  }
}

/** The parts of an object cut along the stroke between two points, largest first; [] if the stroke parts nothing. */
export function slice(object, from, to) {
  if (same(from, to)) return [];
  const found = cutAlong(object, ...besideCorners(object, from, to));
  const parts = found.filter((ring) => ringArea(ring) > 0).map((polygon) => ({ polygon, holes: [] }));
  if (parts.length < 2) return [];
  for (const hole of found.filter((ring) => ringArea(ring) < 0)) {
    const owner = parts.find((part) => insideRing(part.polygon, ...inner(hole)));
    if (owner) owner.holes.push(hole);
  }
  return parts.sort((a, b) => ringArea(b.polygon) - ringArea(a.polygon));
}

/** The stroke, moved by a hundredth of a pixel where it runs through a corner: a cut along a side has no inside. */
function besideCorners(object, from, to) {
  const length = Math.hypot(to[0] - from[0], to[1] - from[1]);
  const touches = rings(object).some((ring) => ring.some((p) => Math.abs(signed(from, to, p)) < 1e-6 * length));
  if (!touches) return [from, to];
  const [dx, dy] = [(-0.01 * (to[1] - from[1])) / length, (0.01 * (to[0] - from[0])) / length];
  return [[from[0] + dx, from[1] + dy], [to[0] + dx, to[1] + dy]];
}

/** A point inside a hole, close to its first corner. */
function inner(ring) {
  const [a, b, c] = [ring[ring.length - 1], ring[0], ring[1]];
  const middle = [(a[0] + b[0] + c[0]) / 3, (a[1] + b[1] + c[1]) / 3];
  return insideRing(ring, ...middle) ? middle : b;
}
