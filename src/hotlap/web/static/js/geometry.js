// Plane geometry of objects. An object is {polygon: [[x, y], ...], holes: [ring, ...]}; rings are not closed, and
// nothing here changes what it is given: every edit returns a new object that shares what stayed the same.

export const rings = (object) => [object.polygon, ...(object.holes ?? [])];

/** The object with ring number `at` replaced; 0 is the outside, the others are holes. */
export function withRing(object, at, ring) {
  if (at === 0) return { ...object, polygon: ring };
  return { ...object, holes: object.holes.map((hole, i) => (i === at - 1 ? ring : hole)) };
}

/** Twice-signed area halved: above 0 where the ring runs clockwise on a screen, whose y points down. */
export function ringArea(ring) {
  let sum = 0;
  for (let i = 0, j = ring.length - 1; i < ring.length; j = i++) {
    sum += ring[j][0] * ring[i][1] - ring[i][0] * ring[j][1];
  }
  return sum / 2;
}

/** Area of the object, its holes apart. */
export const objectArea = (object) =>
  Math.abs(ringArea(object.polygon)) - (object.holes ?? []).reduce((sum, hole) => sum + Math.abs(ringArea(hole)), 0);

/** [left, top, right, bottom] of a ring. */
export function ringBox(ring) {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const [x, y] of ring) {
    if (x < left) left = x;
    if (x > right) right = x;
    if (y < top) top = y;
    if (y > bottom) bottom = y;
  }
  return [left, top, right, bottom];
}

/** Whether a point lies inside a ring, by the parity of crossings to its right. */
export function insideRing(ring, x, y) {
  let inside = false;
  for (let i = 0, j = ring.length - 1; i < ring.length; j = i++) {
    const [ax, ay] = ring[i];
    const [bx, by] = ring[j];
    if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) inside = !inside;
  }
  return inside;
}

/** Whether a point lies on the object itself: inside its outline and in none of its holes. */
export const insideObject = (object, x, y) =>
  insideRing(object.polygon, x, y) && !(object.holes ?? []).some((hole) => insideRing(hole, x, y));

/** The corner nearest to a point: {ring, index, distance}. */
export function nearestVertex(object, x, y) {
  let best = { ring: 0, index: 0, distance: Infinity };
  rings(object).forEach((ring, at) => {
    ring.forEach(([px, py], index) => {
      const distance = Math.hypot(px - x, py - y);
      if (distance < best.distance) best = { ring: at, index, distance };
    });
  });
  return best;
}

/** The point of a segment nearest to another point. */
function nearestOnSegment([ax, ay], [bx, by], x, y) {
  const [dx, dy] = [bx - ax, by - ay];
  const length = dx * dx + dy * dy;
  const t = length === 0 ? 0 : Math.min(1, Math.max(0, ((x - ax) * dx + (y - ay) * dy) / length));
  return [ax + t * dx, ay + t * dy];
}

/** The side nearest to a point: {ring, index, point, distance}; it runs from corner `index` to the next one. */
export function nearestEdge(object, x, y) {
  let best = { ring: 0, index: 0, point: [x, y], distance: Infinity };
  rings(object).forEach((ring, at) => {
    ring.forEach((from, index) => {
      const point = nearestOnSegment(from, ring[(index + 1) % ring.length], x, y);
      const distance = Math.hypot(point[0] - x, point[1] - y);
      if (distance < best.distance) best = { ring: at, index, point, distance };
    });
  });
  return best;
}

/** The object with a new corner after corner `index` of a ring. */
export function insertVertex(object, ring, index, point) {
  const before = rings(object)[ring];
  return withRing(object, ring, [...before.slice(0, index + 1), point, ...before.slice(index + 1)]);
}

/** The object with one corner elsewhere. */
export function moveVertex(object, ring, index, point) {
  return withRing(object, ring, rings(object)[ring].map((old, i) => (i === index ? point : old)));
}

/** The object without one corner; a hole of three corners goes altogether, an outline of three stays: null. */
export function removeVertex(object, ring, index) {
  const before = rings(object)[ring];
  if (before.length > 3) return withRing(object, ring, before.filter((_, i) => i !== index));
  return ring === 0 ? null : removeHole(object, ring);
}

export const removeHole = (object, ring) => ({ ...object, holes: object.holes.filter((_, i) => i !== ring - 1) });

export const moveObject = (object, dx, dy) => {
  const moved = (ring) => ring.map(([x, y]) => [x + dx, y + dy]);
  return { ...object, polygon: moved(object.polygon), holes: (object.holes ?? []).map(moved) };
};

/** How far a move may go so that the object stays inside a picture. */
export function heldInside(object, dx, dy, width, height) {
  const [left, top, right, bottom] = ringBox(object.polygon);
  return [Math.min(Math.max(dx, -left), width - right), Math.min(Math.max(dy, -top), height - bottom)];
}

const side = ([ax, ay], [bx, by], [px, py]) => (bx - ax) * (py - ay) - (by - ay) * (px - ax);

/** Whether two segments cross. Touching is not crossing: outlines of pixels may meet themselves in a corner. */
export const segmentsCross = (a, b, c, d) => side(c, d, a) * side(c, d, b) < 0 && side(a, b, c) * side(a, b, d) < 0;

/** Whether side `index` of ring `at` crosses any side of the object that is not its neighbour. */
export function edgeCrosses(object, at, index) {
  const all = rings(object);
  const [from, to] = [all[at][index], all[at][(index + 1) % all[at].length]];
  return all.some((ring, other) =>
    ring.some((start, i) => {
      const count = ring.length;
      if (other === at && (i === index || (i + 1) % count === index || (index + 1) % count === i)) return false;
      return segmentsCross(from, to, start, ring[(i + 1) % count]);
    }),
  );
}

/** Whether the two sides that meet in a corner cross any other side. */
export function vertexCrosses(object, at, index) {
  const count = rings(object)[at].length;
  return edgeCrosses(object, at, index) || edgeCrosses(object, at, (index + count - 1) % count);
}

/** Whether a ring crosses itself, or is too small to be one. */
export function ringIsBad(ring) {
  const alone = { polygon: ring, holes: [] };
  return ring.length < 3 || Math.abs(ringArea(ring)) < 1e-9 || ring.some((_, index) => edgeCrosses(alone, 0, index));
}

/** Whether a ring lies inside the object, apart from its holes, so that it can become one of them. */
export function fitsAsHole(object, ring) {
  const whole = { polygon: object.polygon, holes: [...(object.holes ?? []), ring] };
  const at = whole.holes.length;
  return (
    ring.every(([x, y]) => insideObject(object, x, y)) &&
    !(object.holes ?? []).some((hole) => insideRing(ring, hole[0][0], hole[0][1])) &&
    !ring.some((_, index) => edgeCrosses(whole, at, index))
  );
}
