// What the pointer does in each mode. A tool hears press, drag, release and move in picture coordinates; what it holds
// is drawn by the pane, and an edit is made only when it is let go. An edit may not make an outline cross itself; one
// that does so already, as a simplified outline may, can still be put right.

import { say } from "./events.js";
import {
  edgeCrosses, fitsAsHole, heldInside, insertVertex, insideObject, moveObject, moveVertex, nearestEdge, nearestVertex,
  removeVertex, ringIsBad, vertexCrosses,
} from "./geometry.js";
import { slice } from "./slice.js";
import {
  edit, freshId, objectById, objectsNow, onlySelected, replaceObject, select, setCorner, setMode, toggleSelected, work,
} from "./work.js";

export const MODES = ["view", "edit", "add", "draw", "hole", "slice", "delete"];

/** What the tool in use holds: a changed object, a stroke, whether it could be let go as it is. */
export const inHand = { held: null, stroke: null, bad: false, closed: false };

let drag = null;

export function dropAll() {
  Object.assign(inHand, { held: null, stroke: null, bad: false, closed: false });
  drag = null;
  say("hand");
}

/** Takes back the last corner of a stroke, or all that is in hand; so when a press was the first finger of two. */
export function letGo() {
  if (inHand.stroke && !inHand.held && work.mode !== "slice") inHand.stroke = inHand.stroke.slice(0, -1);
  else dropAll();
  if (inHand.stroke?.length === 0) inHand.stroke = null;
  drag = null;
  say("hand");
}

const within = ([x, y]) => [
  Math.min(Math.max(x, 0), work.current.width),
  Math.min(Math.max(y, 0), work.current.height),
];

const rounded = ([x, y]) => [Math.round(x * 100) / 100, Math.round(y * 100) / 100];
const complain = (key) => say("notice", { key, kind: "warning" });

const pick = (object, event) => {
  if (event.more && object) toggleSelected(object.id);
  else select(object ? [object.id] : []);
};

const view = {
  click: (event) => pick(event.object, event),
};

const editing = {
  press(event) {
    const object = onlySelected();
    if (!object || event.more) return false;
    const near = nearestVertex(object, ...event.point);
    if (near.distance <= event.reach) {
      if (event.remove) return removeCorner(object, near) || true;
      setCorner({ ring: near.ring, index: near.index });
      drag = { object, ...near, crossed: vertexCrosses(object, near.ring, near.index) };
      return true;
    }
    if (!insideObject(object, ...event.point)) return false;
    drag = { object, from: event.point };
    return true;
  },
  drag(event) {
    const { object, from } = drag;
    if (from) {
      const [dx, dy] = [event.point[0] - from[0], event.point[1] - from[1]];
      inHand.held = moveObject(object, ...heldInside(object, dx, dy, work.current.width, work.current.height));
    } else {
      inHand.held = moveVertex(object, drag.ring, drag.index, rounded(within(event.point)));
      inHand.bad = !drag.crossed && vertexCrosses(inHand.held, drag.ring, drag.index);
    }
    say("hand");
  },
  release() {
    const { held, bad } = inHand;
    const { object, from } = drag;
    dropAll();
    if (bad) complain("notice.crosses");
    else if (held) edit(replaceObject(object, held), from ? "step.move" : "step.corner");
  },
  click(event) {
    drag = null;
    const object = onlySelected();
    if (event.remove) return;
    if (object && nearestVertex(object, ...event.point).distance <= event.reach) return;
    setCorner(null);
    pick(event.object, event);
  },
};

const adding = {
  click(event) {
    const object = onlySelected() ?? event.object;
    if (!object) return;
    if (!work.selected.has(object.id)) {
      select([object.id]);
      return;
    }
    const edge = nearestEdge(object, ...event.point);
    const added = insertVertex(object, edge.ring, edge.index, rounded(within(event.point)));
    if (!edgeCrosses(object, edge.ring, edge.index) && vertexCrosses(added, edge.ring, edge.index + 1)) {
      complain("notice.crosses");
      return;
    }
    edit(replaceObject(object, added), "step.add");
    setCorner({ ring: edge.ring, index: edge.index + 1 });
  },
};

/** Outlines are drawn corner by corner, or in one go with the button held. */
const drawing = {
  press(event) {
    const first = inHand.stroke?.[0];
    const home = first ? Math.hypot(first[0] - event.point[0], first[1] - event.point[1]) : Infinity;
    if (home < event.reach && inHand.stroke.length > 2) {
      closeStroke();
      return true;
    }
    inHand.stroke = [...(inHand.stroke ?? []), rounded(within(event.point))];
    drag = { free: false };
    say("hand");
    return true;
  },
  drag(event) {
    if (!inHand.stroke) return;
    const last = inHand.stroke[inHand.stroke.length - 1];
    if (Math.hypot(last[0] - event.point[0], last[1] - event.point[1]) < event.reach / 2) return;
    inHand.stroke.push(rounded(within(event.point)));
    drag.free = true;
    say("hand");
  },
  release() {
    const free = drag?.free && inHand.stroke.length > 8;
    drag = null;
    if (free) closeStroke();
  },
  double: () => closeStroke(),
};

/** Makes an object, or a hole, of the outline that was drawn. */
export function closeStroke() {
  if (!inHand.stroke) return;
  const apart = (a, b) => a[0] !== b[0] || a[1] !== b[1];
  const ring = inHand.stroke.filter((point, i, all) => i === 0 || apart(point, all[i - 1]));
  const [asHole, object] = [work.mode === "hole", onlySelected()];
  dropAll();
  if (ringIsBad(ring)) complain(ring.length < 3 ? "notice.three" : "notice.crosses");
  else if (!asHole) addObject({ id: freshId(), polygon: ring, holes: [], confidence: null });
  else if (!object) complain("notice.selectFirst");
  else if (!fitsAsHole(object, ring)) complain("notice.holeOutside");
  else edit(replaceObject(object, { ...object, holes: [...object.holes, ring] }), "step.hole");
}

function addObject(object) {
  edit([...objectsNow(), object], "step.draw");
  select([object.id]);
}

const slicing = {
  press(event) {
    drag = { from: event.point };
    return true;
  },
  drag(event) {
    inHand.stroke = [drag.from, event.point];
    say("hand");
  },
  release(event) {
    const { from } = drag;
    dropAll();
    cut(from, event.point);
  },
};

/** Cuts the selected objects along a stroke, or all that it crosses where none is selected. */
function cut(from, to) {
  let next = freshId();
  let parted = 0;
  const made = objectsNow().flatMap((object) => {
    if (work.selected.size > 0 && !work.selected.has(object.id)) return [object];
    const parts = slice(object, from, to);
    if (parts.length === 0) return [object];
    parted += 1;
    return parts.map((part, i) => ({ ...object, ...part, id: i === 0 ? object.id : next++ }));
  });
  if (parted === 0) complain("notice.cutNothing");
  else edit(made, "step.slice");
}

const deleting = {
  click(event) {
    if (event.object) edit(objectsNow().filter((object) => object !== event.object), "step.delete");
  },
};

const TOOLS = {
  view, edit: editing, add: adding, draw: drawing, hole: drawing, slice: slicing, delete: deleting,
};
export const toolNow = () => TOOLS[work.mode];

export function takeTool(mode) {
  dropAll();
  if (mode === "hole" && !onlySelected()) complain("notice.selectFirst");
  setMode(mode);
}

function removeCorner(object, { ring, index }) {
  const less = removeVertex(object, ring, index);
  if (less) edit(replaceObject(object, less), "step.removeCorner");
  else complain("notice.three");
}

/** Removes the corner that is held, or else the selected objects. */
export function removeChosen() {
  const object = onlySelected();
  if (work.corner && object) removeCorner(object, work.corner);
  else if (work.selected.size > 0) edit(objectsNow().filter(({ id }) => !work.selected.has(id)), "step.delete");
}

/** Moves the corner that is held, or else the selected object, by whole pixels; a key held down is one step. */
export function nudge(dx, dy, again) {
  const object = onlySelected();
  if (!object) return false;
  const { corner } = work;
  const { width, height } = work.current;
  if (!corner) {
    edit(replaceObject(object, moveObject(object, ...heldInside(object, dx, dy, width, height))), "step.move", again);
    return true;
  }
  const [x, y] = [object.polygon, ...object.holes][corner.ring][corner.index];
  const moved = moveVertex(object, corner.ring, corner.index, within([x + dx, y + dy]));
  const crossed = vertexCrosses(object, corner.ring, corner.index);
  if (!crossed && vertexCrosses(moved, corner.ring, corner.index)) complain("notice.crosses");
  else edit(replaceObject(object, moved), "step.corner", again);
  return true;
}

/** Goes to the next corner of the selected object, through all of its rings. */
export function stepCorner(by) {
  const object = onlySelected();
  if (!object) return;
  if (work.mode !== "edit") takeTool("edit");
  const all = [object.polygon, ...object.holes].flatMap((ring, at) => ring.map((_, index) => ({ ring: at, index })));
  const { corner } = work;
  const held = ({ ring, index }) => ring === corner.ring && index === corner.index;
  const at = corner ? all.findIndex(held) : by > 0 ? -1 : 0;
  setCorner(all[(at + by + all.length) % all.length]);
}

/** Puts a corner into the middle of the side that follows the one held. */
export function splitSide() {
  const object = onlySelected();
  if (!object || !work.corner) return;
  const { ring, index } = work.corner;
  const corners = [object.polygon, ...object.holes][ring];
  const [[ax, ay], [bx, by]] = [corners[index], corners[(index + 1) % corners.length]];
  edit(replaceObject(object, insertVertex(object, ring, index, [(ax + bx) / 2, (ay + by) / 2])), "step.add");
  setCorner({ ring, index: index + 1 });
}

/** Selects the next object in a given order. */
export function stepObject(order, by) {
  if (order.length === 0) return;
  const at = order.findIndex((id) => work.selected.has(id));
  const next = at < 0 ? (by > 0 ? 0 : order.length - 1) : (at + by + order.length) % order.length;
  if (objectById(order[next])) select([order[next]]);
}
