// The measurements of all objects, linked with the picture both ways. Only rows in sight are in the document, so that
// thousands of objects cost what thirty do.

import { byId, data, icon, make } from "./dom.js";
import { hear, oncePerFrame, say } from "./events.js";
import { colourOf } from "./paint.js";
import { hover, metricsOf, objectsNow, select, toggleSelected, work } from "./work.js";
import { hasWord, number, onLanguage, word } from "./words.js";

const ROW_PX = 28;
const SPARE = 8;
const NOT_COLUMNS = ["label", "unit", "confidence", "id"];
const LENGTHS = /^(perimeter|equivalent_diameter|feret_(max|min|orthogonal)|major_axis|minor_axis)/;

let sorted = [];
let columns = [];
let by = "id";
let down = false;

const valueOf = (object, column) =>
  column === "id" || column === "confidence" ? object[column] : metricsOf(object)?.[column];

/** The name of a column; one that the tables do not know keeps the service's name. */
function title(column) {
  const key = `column.${column}`;
  const name = hasWord(key) ? make("span", {}, word(key)) : data(column);
  const unit = unitOf(column);
  if (unit) name.append(make("span", { class: "unit", translate: "no" }, ` ${unit}`));
  return name;
}

function unitOf(column) {
  const unit = work.current?.umPerPx ? "µm" : "px";
  if (column.startsWith("area")) return `${unit}²`;
  if (LENGTHS.test(column)) return unit;
  if (column.endsWith("_px")) return "px";
  return column.endsWith("_deg") ? "°" : "";
}

function order() {
  const objects = objectsNow();
  const found = new Set();
  for (const object of objects) for (const name in metricsOf(object) ?? {}) found.add(name);
  const measured = [...found].filter((name) => !NOT_COLUMNS.includes(name));
  const isPlace = (name) => name.endsWith("_px");
  columns = ["id", "confidence", ...measured.filter((name) => !isPlace(name)), ...measured.filter(isPlace)];
  if (!columns.includes(by)) by = "id";
  const worth = (object) => valueOf(object, by) ?? (down ? -Infinity : Infinity);
  sorted = [...objects].sort((a, b) => (worth(a) - worth(b)) * (down ? -1 : 1) || a.id - b.id);
}

export const sortedIds = () => sorted.map((object) => object.id);

function sortBy(column) {
  if (by === column) down = !down;
  else [by, down] = [column, column !== "id"];
  renderAll();
  byId("head").querySelector('[aria-sort]:not([aria-sort="none"]) button')?.focus();
}

function renderHead() {
  const cells = columns.map((column) => {
    const sort = by !== column ? "none" : down ? "descending" : "ascending";
    const button = make("button", { type: "button", onclick: () => sortBy(column) }, title(column),
      ...(by === column ? [icon(down ? "down" : "up")] : []));
    return make("th", { scope: "col", "aria-sort": sort }, button);
  });
  byId("head").replaceChildren(make("tr", {}, ...cells));
}

function renderFoot() {
  const means = columns.map((column) => {
    if (column === "id") return make("td", {}, word("table.mean"));
    const values = sorted.map((object) => valueOf(object, column)).filter(Number.isFinite);
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    return make("td", {}, values.length ? number(mean) : "");
  });
  byId("foot").replaceChildren(...(sorted.length ? [make("tr", {}, ...means)] : []));
}

function renderRow(object, at) {
  const known = metricsOf(object) !== undefined;
  const cells = columns.map((column) => {
    const value = valueOf(object, column);
    const missing = known || column === "confidence" ? "–" : "…";
    const text = typeof value === "number" ? number(value) : (value ?? missing);
    if (column !== "id") return make("td", {}, String(text));
    const dot = make("span", { class: "dot" });
    dot.style.background = colourOf(object);
    return make("td", {}, dot, String(text));
  });
  const row = make("tr", { "data-id": object.id, "aria-rowindex": at + 2 }, ...cells);
  mark(row);
  return row;
}

function mark(row) {
  const id = Number(row.dataset.id);
  row.setAttribute("aria-selected", String(work.selected.has(id)));
  row.classList.toggle("hovered", id === work.hovered);
}

const spacer = () =>
  make("tr", { class: "spacer", "aria-hidden": "true" }, make("td", { colspan: columns.length }));

const renderRows = oncePerFrame(() => {
  const box = byId("tableBox");
  const first = Math.max(0, Math.floor(box.scrollTop / ROW_PX) - SPARE);
  const count = Math.ceil(box.clientHeight / ROW_PX) + 2 * SPARE;
  const last = Math.min(sorted.length, first + count);
  const above = spacer();
  const below = spacer();
  above.firstChild.style.height = `${first * ROW_PX}px`;
  below.firstChild.style.height = `${(sorted.length - last) * ROW_PX}px`;
  const rows = sorted.slice(first, last).map((object, i) => renderRow(object, first + i));
  byId("rows").replaceChildren(...(first ? [above] : []), ...rows, ...(last < sorted.length ? [below] : []));
  byId("table").setAttribute("aria-rowcount", sorted.length + 1);
});

const renderAll = oncePerFrame(() => {
  order();
  renderHead();
  renderFoot();
  renderRows();
  byId("table").hidden = sorted.length === 0;
  byId("noObjects").hidden = sorted.length > 0;
  say("sorted");
});

function markAll() {
  for (const row of byId("rows").querySelectorAll("[data-id]")) mark(row);
}

/** Scrolls the row of the object that was selected last into sight. */
function showSelected() {
  markAll();
  const id = [...work.selected].at(-1);
  const at = sorted.findIndex((object) => object.id === id);
  const box = byId("tableBox");
  if (at < 0 || box.matches(":hover")) return;
  const [top, room] = [at * ROW_PX, box.clientHeight - 3 * ROW_PX];
  if (top < box.scrollTop || top > box.scrollTop + room) box.scrollTop = Math.max(0, top - room / 2);
}

const rowId = (event) => {
  const row = event.target.closest("[data-id]");
  return row ? Number(row.dataset.id) : null;
};

export function startTable() {
  const [box, rows] = [byId("tableBox"), byId("rows")];
  box.addEventListener("scroll", renderRows);
  new ResizeObserver(renderRows).observe(box);
  rows.addEventListener("pointerover", (event) => hover(rowId(event)));
  rows.addEventListener("pointerleave", () => hover(null));
  rows.addEventListener("click", (event) => {
    const id = rowId(event);
    if (id === null) return;
    if (event.ctrlKey || event.metaKey || event.shiftKey) toggleSelected(id);
    else select([id]);
  });
  rows.addEventListener("dblclick", (event) => say("showObject", rowId(event)));
  hear("objects picture measured", renderAll);
  hear("selection", showSelected);
  hear("hover", markAll);
  onLanguage(renderAll);
}
