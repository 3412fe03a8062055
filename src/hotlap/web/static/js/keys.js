// Keys and what they do. The list that "?" shows is made from this table, so it cannot say anything else.

import { byId, data, make } from "./dom.js";
import { openExport } from "./exporting.js";
import { say } from "./events.js";
import { stepPicture } from "./list.js";
import { fit, panBy, setSpace, showObject, zoomBy } from "./stage.js";
import { sortedIds } from "./table.js";
import {
  closeStroke, dropAll, inHand, letGo, nudge, removeChosen, splitSide, stepCorner, stepObject, takeTool,
} from "./tools.js";
import { choose, objectsNow, select, stepHistory, work } from "./work.js";
import { word } from "./words.js";

const mode = (name) => () => takeTool(name);

function history(direction) {
  if (direction === "undo" && inHand.stroke) {
    letGo();
    return;
  }
  const label = stepHistory(direction);
  if (label) say("notice", { key: `notice.${direction}`, values: { step: word(label) } });
}

function arrow(dx, dy) {
  return (event) => {
    const far = event.shiftKey ? 10 : 1;
    if (["edit", "add"].includes(work.mode) && nudge(dx * far, dy * far, event.repeat)) return;
    panBy(-dx * 40, -dy * 40);
  };
}

function escape() {
  if (inHand.stroke || inHand.held) dropAll();
  else if (work.mode !== "view") takeTool("view");
  else select([]);
}

const toggleShown = () => {
  work.shown = !work.shown;
  byId("outlines").setAttribute("aria-pressed", String(work.shown));
  say("hand");
};

/** [group, keys shown, keys as events name them, what it is called, what it does]; Ctrl is Cmd on a Mac. */
const KEYS = [
  ["tools", "V", ["v"], "tool.view", mode("view")],
  ["tools", "E", ["e"], "tool.edit", mode("edit")],
  ["tools", "A", ["a"], "tool.add", mode("add")],
  ["tools", "N", ["n"], "tool.draw", mode("draw")],
  ["tools", "O", ["o"], "tool.hole", mode("hole")],
  ["tools", "S", ["s"], "tool.slice", mode("slice")],
  ["tools", "D", ["d"], "tool.delete", mode("delete")],
  ["edit", "Ctrl Z", ["ctrl+z"], "key.undo", () => history("undo")],
  ["edit", "Ctrl Y", ["ctrl+y", "ctrl+shift+z"], "key.redo", () => history("redo")],
  ["edit", "Del", ["delete", "backspace"], "key.remove", removeChosen],
  ["edit", "← ↑ ↓ →", ["arrowleft"], "key.nudge", arrow(-1, 0)],
  ["edit", "", ["arrowright"], "", arrow(1, 0)],
  ["edit", "", ["arrowup"], "", arrow(0, -1)],
  ["edit", "", ["arrowdown"], "", arrow(0, 1)],
  ["edit", "[ ]", ["["], "key.corner", () => stepCorner(-1)],
  ["edit", "", ["]"], "", () => stepCorner(1)],
  ["edit", "I", ["i"], "key.split", splitSide],
  ["edit", "Enter", ["enter"], "key.close", closeStroke],
  ["edit", "Esc", ["escape"], "key.escape", escape],
  ["look", "J K", ["j"], "key.object", () => stepObject(sortedIds(), 1)],
  ["look", "", ["k"], "", () => stepObject(sortedIds(), -1)],
  ["look", "F", ["f"], "key.show", () => showObject([...work.selected].at(-1))],
  ["look", "Ctrl A", ["ctrl+a"], "key.all", () => select(objectsNow().map(({ id }) => id))],
  ["look", "+ −", ["+", "="], "key.zoom", () => zoomBy(1.25)],
  ["look", "", ["-"], "", () => zoomBy(0.8)],
  ["look", "0", ["0", "r"], "key.fit", fit],
  ["look", "H", ["h"], "key.hide", toggleShown],
  ["look", "PgUp PgDn", ["pageup"], "key.picture", () => stepPicture(-1)],
  ["look", "", ["pagedown"], "", () => stepPicture(1)],
  ["page", "Ctrl O", ["ctrl+o"], "key.open", () => byId("files").click()],
  ["page", "Ctrl V", [], "key.paste", null],
  ["page", "C", ["c"], "key.compare", () => choose("comparing", !work.comparing)],
  ["page", "Ctrl S", ["ctrl+s"], "key.export", openExport],
  ["page", "?", ["?"], "key.help", () => openHelp()],
];
const ACTIONS = new Map(KEYS.flatMap(([, , names, , act]) => names.map((name) => [name, act])));

const named = (event) => {
  const ctrl = event.ctrlKey || event.metaKey;
  const letter = event.key.toLowerCase();
  return `${ctrl ? "ctrl+" : ""}${ctrl && event.shiftKey ? "shift+" : ""}${letter}`;
};

/** Whether an element uses keys itself. */
const types = (element) =>
  element.closest("dialog[open]") !== null || ["TEXTAREA", "SELECT"].includes(element.tagName)
  || (element.tagName === "INPUT" && !["checkbox", "range"].includes(element.type));

function pressed(event) {
  if (types(event.target)) return;
  const name = named(event);
  const onButton = event.target.closest("button, a, [role=tab], [role=separator], summary") !== null;
  if (onButton && ["enter", " ", "arrowleft", "arrowright", "arrowup", "arrowdown"].includes(name)) return;
  if (event.target.type === "range" && /^(arrow|page|home|end)/.test(name)) return;
  if (name === " ") {
    setSpace(true);
    event.preventDefault();
    return;
  }
  const act = ACTIONS.get(name);
  if (!act) return;
  event.preventDefault();
  act(event);
}

export function openHelp() {
  const groups = ["tools", "edit", "look", "page"].map((group) => {
    const rows = KEYS.filter(([of, shown]) => of === group && shown).map(([, shown, , key]) => {
      const caps = shown.split(" ").map((cap) => data(cap, "kbd"));
      return make("tr", {}, make("td", {}, ...caps), make("td", {}, word(key)));
    });
    return make("section", {}, make("h3", {}, word(`keys.${group}`)), make("table", {}, make("tbody", {}, ...rows)));
  });
  byId("keys").replaceChildren(...groups);
  byId("help").showModal();
}

export function startKeys() {
  addEventListener("keydown", pressed);
  addEventListener("keyup", (event) => event.key === " " && setSpace(false));
  byId("undo").addEventListener("click", () => history("undo"));
  byId("redo").addEventListener("click", () => history("redo"));
  byId("outlines").addEventListener("click", toggleShown);
  byId("helpButton").addEventListener("click", openHelp);
}
