// How far two lists of objects agree: which of them are the same, by the share of pixels that two have in common.

import { factsOf } from "./paint.js";
import { rings } from "./geometry.js";

const MOST_CELLS = 2 ** 20;
const SAME = 0.5;

/** A grid over the picture in which each cell holds the place in `objects` of the one that covers it, plus 1. */
function labelGrid(objects, width, height, scale) {
  const [across, down] = [Math.max(1, Math.ceil(width * scale)), Math.max(1, Math.ceil(height * scale))];
  const grid = new Int32Array(across * down);
  objects.forEach((object, at) => {
    const [, top, , bottom] = factsOf(object).box;
    for (let row = Math.max(0, Math.floor(top * scale)); row < Math.min(down, Math.ceil(bottom * scale)); row++) {
      const cuts = crossings(object, (row + 0.5) / scale);
      for (let i = 0; i + 1 < cuts.length; i += 2) {
        const from = Math.max(0, Math.ceil(cuts[i] * scale - 0.5));
        const to = Math.min(across, Math.ceil(cuts[i + 1] * scale - 0.5));
        grid.fill(at + 1, row * across + from, row * across + Math.max(from, to));
      }
    }
  });
  return grid;
}

function crossings(object, y) {
  const found = [];
  for (const ring of rings(object)) {
    for (let i = 0, j = ring.length - 1; i < ring.length; j = i++) {
      const [[ax, ay], [bx, by]] = [ring[i], ring[j]];
      if (ay > y !== by > y) found.push(((bx - ax) * (y - ay)) / (by - ay) + ax);
    }
  }
  return found.sort((a, b) => a - b);
}

/** {same, onlyFirst, onlySecond, meanIou, alone}: two objects are the same where they overlap by more than half;
 *  `alone` has the ids of those without a partner, in each list. */
export function agreement(first, second, width, height) {
  const scale = Math.min(1, Math.sqrt(MOST_CELLS / Math.max(1, width * height)));
  const [one, two] = [first, second].map((objects) => labelGrid(objects, width, height, scale));
  const areas = [new Float64Array(first.length + 1), new Float64Array(second.length + 1)];
  const shared = new Map();
  for (let i = 0; i < one.length; i++) {
    areas[0][one[i]]++;
    areas[1][two[i]]++;
    if (one[i] && two[i]) {
      const pair = one[i] * (second.length + 1) + two[i];
      shared.set(pair, (shared.get(pair) ?? 0) + 1);
    }
  }
  const ious = [];
  const partners = [new Set(), new Set()];
  for (const [pair, both] of shared) {
    const [a, b] = [Math.floor(pair / (second.length + 1)), pair % (second.length + 1)];
    const iou = both / (areas[0][a] + areas[1][b] - both);
    if (iou <= SAME) continue;
    ious.push(iou);
    partners[0].add(first[a - 1].id);
    partners[1].add(second[b - 1].id);
  }
  const same = ious.length;
  const meanIou = same ? ious.reduce((sum, iou) => sum + iou, 0) / same : null;
  const alone = [first, second].map((objects, i) =>
    objects.map(({ id }) => id).filter((id) => !partners[i].has(id)));
  return { same, onlyFirst: first.length - same, onlySecond: second.length - same, meanIou, alone };
}
