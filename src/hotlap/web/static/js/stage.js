// The middle of the page: the picture with its objects, and beside it the same picture as another model sees it.

import { agreement } from "./agreement.js";
import { byId, make } from "./dom.js";
import { afterQuiet, hear, oncePerFrame } from "./events.js";
import { loadImage } from "./images.js";
import { factsOf } from "./paint.js";
import { Camera, Pane } from "./pane.js";
import { Pointer } from "./pointer.js";
import { enqueue } from "./queue.js";
import { inHand } from "./tools.js";
import { metricsOf, objectById, objectsNow, takeAnswer, work } from "./work.js";
import { fixed, number, onLanguage, word } from "./words.js";

const EDITS_CORNERS = ["edit", "add"];
const NOTHING = new Set();
const NONE = [];
const TOOLS_PX = 48;
const narrow = matchMedia("(max-width: 760px)");

export const camera = new Camera();
let main;
let other;
let mainPointer;
let loaded = null;
let alone = [NOTHING, NOTHING];

export const setSpace = (held) => (mainPointer.space = held);

/** Shows all of the picture, beside the tools: they stand on the left, or above on a small screen. */
export function fit() {
  const { width, height } = work.current ?? {};
  if (!width) return;
  const [left, top] = narrow.matches ? [0, TOOLS_PX] : [TOOLS_PX, 0];
  camera.show([0, 0, width, height], main.width - left, main.height - top, 14, 8);
  camera.pan(left, top);
}

export const zoomBy = (factor) => camera.zoom(factor, main.width / 2, main.height / 2);
export const panBy = (dx, dy) => camera.pan(dx, dy);

/** Brings an object into the middle. */
export function showObject(id) {
  const object = objectById(id);
  if (object) camera.show(factsOf(object).box, main.width, main.height, 80, 12);
}

/** The stroke in hand, up to where the pointer is. */
function stroke() {
  if (!inHand.stroke || work.mode === "slice") return inHand.stroke;
  return mainPointer?.place ? [...inHand.stroke, mainPointer.place] : inHand.stroke;
}

const backdrop = () => {
  const { width, height } = work.current;
  const own = loaded?.picture === work.current ? loaded : null;
  return { image: own?.image, small: own?.small, width, height, shown: work.shown };
};

function mainScene() {
  if (!work.current?.width) return null;
  return {
    ...backdrop(), objects: objectsNow(), selected: work.selected, hovered: work.hovered, held: inHand.held,
    bad: inHand.bad, corners: EDITS_CORNERS.includes(work.mode) && work.selected.size === 1, corner: work.corner,
    stroke: stroke(), alone: work.comparing ? alone[0] : NOTHING,
  };
}

function otherScene() {
  if (!work.current?.width || !work.comparing) return null;
  const objects = work.current.other?.objects ?? NONE;
  return { ...backdrop(), objects, selected: NOTHING, hovered: null, alone: alone[1] };
}

/** Loads the picture that is looked at, and lets go of the one before. */
async function load() {
  const picture = work.current;
  if (!picture || loaded?.picture === picture) return;
  loaded?.image?.close();
  loaded?.small?.close();
  loaded = { picture };
  let fitted = fitWhenKnown(picture);
  const found = await loadImage(picture.file);
  if (loaded.picture !== picture) {
    found?.image.close();
    return;
  }
  picture.unseen = found === null;
  Object.assign(loaded, found ?? {});
  if (found && !picture.width) Object.assign(picture, { width: found.image.width, height: found.image.height });
  fitted ||= fitWhenKnown(picture);
  loaded.fitted = fitted;
  draw();
  tell();
}

function fitWhenKnown(picture) {
  if (picture.width) fit();
  return picture.width > 0;
}

const draw = oncePerFrame(() => {
  main.draw();
  if (work.comparing) other.draw();
});

/** What is told in words below and above the picture. */
const tell = oncePerFrame(() => {
  const picture = work.current;
  byId("empty").hidden = picture !== null;
  byId("stage").hidden = picture === null;
  if (!picture) return;
  const busy = ["waiting", "sending", "running", "held"].includes(picture.state);
  const said = picture.state === "done"
    ? word("stage.from", { model: picture.model, threshold: fixed(picture.threshold, 2), count: objectsNow().length })
    : word(`stage.${picture.state}`);
  byId("said").textContent = picture.classes ? word("stage.classes", { model: picture.model }) : said;
  byId("spinner").hidden = !busy;
  byId("fault").hidden = picture.state !== "failed";
  byId("faultText").textContent = picture.error;
  byId("unseen").hidden = !picture.unseen || picture.state === "failed";
  tellClasses(picture);
  tellOther(picture);
});

function tellClasses(picture) {
  byId("classes").hidden = !picture.classes;
  const buttons = (picture.classes ?? []).map((found) => {
    const share = `${fixed(100 * (found.share ?? NaN), 1)} %`;
    const label = word("stage.class", { name: String(found.class), share });
    return make("button", { type: "button", onclick: () => enqueue(picture, "main", found.class) }, label);
  });
  byId("classes").replaceChildren(...buttons);
}

const PANES = { waiting: "stage.waiting", held: "stage.held", sending: "stage.sending", running: "stage.running" };

function tellOther(picture) {
  if (!work.comparing) return;
  const { other: found } = picture;
  alone = [NOTHING, NOTHING];
  byId("takeOther").disabled = found?.state !== "done";
  if (!found || found.state !== "done") {
    byId("otherSaid").textContent = found?.error || (found && PANES[found.state] ? word(PANES[found.state]) : "");
    byId("agreed").textContent = "";
    return;
  }
  const said = { model: found.model, threshold: fixed(found.threshold, 2), count: found.objects.length };
  byId("otherSaid").textContent = word("stage.from", said);
  judge();
}

const judge = afterQuiet(120, () => {
  const picture = work.current;
  if (!picture?.other?.objects || !work.comparing || !picture.width) return;
  const told = agreement(objectsNow(), picture.other.objects, picture.width, picture.height);
  const iou = told.meanIou === null ? "–" : fixed(told.meanIou, 2);
  byId("agreed").textContent = word("compare.agreed", { ...told, iou });
  alone = told.alone.map((ids) => new Set(ids));
  draw();
});

/** Where the pointer is, and what is there. */
function tellPlace(point) {
  const inside = point && work.current && point[0] >= 0 && point[1] >= 0
    && point[0] < work.current.width && point[1] < work.current.height;
  const object = work.hovered === null ? null : objectById(work.hovered);
  const area = object && metricsOf(object)?.area;
  byId("place").textContent = [
    inside ? `${Math.floor(point[0])}, ${Math.floor(point[1])}` : "",
    object ? `#${object.id}` : "",
    object && Number.isFinite(object.confidence) ? `${word("column.confidence")} ${fixed(object.confidence, 2)}` : "",
    area ? `${word("column.area")} ${number(area)}` : "",
    `${Math.round(camera.scale * 100)}%`,
  ].filter(Boolean).join("  ·  ");
}

/** Makes the other model's objects those of the picture. */
function takeOther() {
  const { other: found } = work.current;
  if (found?.state !== "done") return;
  const { umPerPx } = work.current;
  // An object that was measured in another scale is measured again when it is another object.
  const objects = found.umPerPx === umPerPx ? found.objects : found.objects.map((object) => ({ ...object }));
  takeAnswer(objects, { model: found.model, threshold: found.threshold, umPerPx });
}

/** Sends the current picture to the model that it is compared with, where its answer is not there yet. One that was
 *  refused is sent again when another choice is made, and not by itself. */
function compareCurrent(choice) {
  const panes = byId("panes");
  if (panes.classList.contains("comparing") !== work.comparing) {
    panes.classList.toggle("comparing", work.comparing);
    byId("otherPane").hidden = !work.comparing;
    main.measure();
    fit();
  }
  const picture = work.current;
  if (!work.comparing || !picture || !work.otherModel) return;
  const { other: found } = picture;
  const fresh = found?.model === work.otherModel && (found.state !== "failed" || choice === undefined)
    && (found.threshold ?? work.threshold) === work.threshold;
  if (!fresh) enqueue(picture, "other");
  draw();
  tell();
}

export function startStage() {
  main = new Pane(byId("canvas"), camera, mainScene);
  other = new Pane(byId("otherCanvas"), camera, otherScene);
  mainPointer = new Pointer(main, true);
  new Pointer(other, false);
  camera.onchange = () => tellPlace(mainPointer.place);
  main.onsize = ([width]) => (width ? camera.pan((main.width - width) / 2, 0) : fit());
  byId("takeOther").addEventListener("click", takeOther);
  hear("picture", () => {
    load();
    if (loaded?.picture === work.current && !loaded?.fitted && work.current?.width) {
      loaded.fitted = true;
      fit();
    }
    draw();
    tell();
  });
  hear("picture choices", compareCurrent);
  hear("objects selection hover corner mode hand", draw);
  hear("objects pictures other", tell);
  hear("other", draw);
  hear("place", tellPlace);
  hear("hover", () => tellPlace(mainPointer.place));
  hear("showObject", showObject);
  hear("theme", () => [main, other].forEach((pane) => pane.measure()));
  onLanguage(tell);
  tell();
}

