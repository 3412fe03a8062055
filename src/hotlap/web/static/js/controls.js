// The choices above the picture: model, threshold, scale, comparing; and the tools beside it.

import { byId, make } from "./dom.js";
import { afterQuiet, hear, say } from "./events.js";
import { openExport } from "./exporting.js";
import { enqueue } from "./queue.js";
import { askJson, Away, Refused } from "./service.js";
import { fit, zoomBy } from "./stage.js";
import { MODES, takeTool } from "./tools.js";
import { choose, rescale, work } from "./work.js";
import { fixed, onLanguage, word } from "./words.js";

const TYPED_MS = 350;
/** Models that take a picture and say something about it. */
const FOR_PICTURES = ["objects", "classes"];

const usable = (model) => FOR_PICTURES.includes(model.answers ?? "classes");

export async function loadModels() {
  try {
    work.models = (await askJson("api/v1/models")).models.filter(usable);
  } catch (error) {
    if (error instanceof Away || error instanceof Refused) return;
    throw error;
  }
  const names = work.models.map(({ name }) => name);
  const first = work.models.find(({ answers }) => answers === "objects") ?? work.models[0];
  if (!names.includes(work.model)) {
    choose("model", first?.name ?? "");
    const usual = first?.threshold ?? first?.default_threshold;
    if (Number.isFinite(usual)) choose("threshold", usual);
  }
  if (!names.includes(work.otherModel)) choose("otherModel", names.find((name) => name !== work.model) ?? work.model);
  render();
}

function fill(select, chosen) {
  const options = work.models.map(({ name }) => make("option", { value: name, selected: name === chosen }, name));
  select.replaceChildren(...options);
  select.value = chosen;
}

function render() {
  fill(byId("model"), work.model);
  fill(byId("otherModel"), work.otherModel);
  byId("noModels").hidden = work.models.length > 0;
  byId("threshold").value = work.threshold;
  byId("thresholdText").textContent = fixed(work.threshold, 2);
  byId("compare").setAttribute("aria-pressed", String(work.comparing));
  byId("otherBox").hidden = !work.comparing;
  renderState();
}

function renderState() {
  const picture = work.current;
  const { history } = picture ?? {};
  byId("undo").disabled = !history?.past.length;
  byId("redo").disabled = !history?.future.length;
  const differs = history && (picture.model !== work.model || Math.abs(picture.threshold - work.threshold) > 1e-9
    || (picture.umPerPx ?? null) !== work.umPerPx);
  byId("run").disabled = !picture || !work.model;
  byId("run").classList.toggle("wanted", Boolean(differs));
  byId("runAll").disabled = work.pictures.length < 2 || !work.model;
  for (const mode of MODES) {
    const button = byId(`mode-${mode}`);
    button.setAttribute("aria-pressed", String(mode === work.mode));
    button.disabled = !history && mode !== "view";
  }
  byId("modeHint").textContent = word(`hint.${work.mode}`);
  byId("canvas").dataset.mode = work.mode;
  const count = picture?.history?.objects.length ?? 0;
  byId("objectCount").textContent = count ? fixed(count, 0) : "";
}

/** Runs the picture again by itself where nothing that was edited would go. */
const runIfPlain = afterQuiet(TYPED_MS, () => {
  const picture = work.current;
  if (!picture || !work.model) return;
  if (picture.state === "done" && (picture.edited || picture.history.past.length > 200)) {
    say("notice", { key: "notice.keptEdits" });
    return;
  }
  enqueue(picture, "main");
});

/** Runs every picture again but those with edits, which would go. */
function runAll() {
  const edited = work.pictures.filter((picture) => picture.edited);
  for (const picture of work.pictures) if (!picture.edited) enqueue(picture, "main");
  if (edited.length > 0) say("notice", { key: "notice.keptSome", values: { count: edited.length } });
}

function setScale(text) {
  const value = Number(text.replace(",", "."));
  const good = text === "" || (Number.isFinite(value) && value > 0);
  byId("scale").setAttribute("aria-invalid", String(!good));
  if (!good) {
    say("notice", { key: "notice.badScale", values: { value: text }, kind: "warning" });
    return;
  }
  choose("umPerPx", text === "" ? null : value);
  for (const picture of work.pictures) {
    if (picture.state === "done" && !picture.classes) rescale(picture, work.umPerPx);
  }
}

export function startControls() {
  const on = (id, event, act) => byId(id).addEventListener(event, act);
  on("model", "change", (event) => {
    choose("model", event.target.value);
    runIfPlain();
  });
  on("otherModel", "change", (event) => choose("otherModel", event.target.value));
  on("threshold", "input", (event) => {
    choose("threshold", Number(event.target.value));
    runIfPlain();
  });
  on("scale", "change", (event) => setScale(event.target.value.trim()));
  on("run", "click", () => work.current && enqueue(work.current, "main"));
  on("runAll", "click", runAll);
  on("compare", "click", () => choose("comparing", !work.comparing));
  on("exportButton", "click", openExport);
  on("zoomIn", "click", () => zoomBy(1.25));
  on("zoomOut", "click", () => zoomBy(0.8));
  on("fit", "click", fit);
  on("retry", "click", () => enqueue(work.current, "main"));
  for (const mode of MODES) on(`mode-${mode}`, "click", () => takeTool(mode));
  hear("choices", render);
  hear("picture pictures objects mode edited", renderState);
  onLanguage(render);
}
