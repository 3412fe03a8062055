// Objects as files, in every format that the service knows.

import { byId, data, make, save } from "./dom.js";
import { say } from "./events.js";
import { askJson, post } from "./service.js";
import { metricsOf, objectsOf, work } from "./work.js";
import { hasWord, word } from "./words.js";

const DONE = (picture) => picture.state === "done" && !picture.classes;

/** What the service is told of a picture. */
const described = (picture) => ({
  file: picture.name,
  width: picture.width,
  height: picture.height,
  um_per_px: picture.umPerPx,
  model: picture.model,
  objects: objectsOf(picture).map((object) => ({ ...object, metrics: metricsOf(object) ?? null })),
});

/** The name in a Content-Disposition header. */
function nameIn(header, otherwise) {
  const wide = /filename\*=utf-8''([^;]+)/i.exec(header ?? "");
  if (wide) return decodeURIComponent(wide[1]);
  return /filename="?([^";]+)"?/i.exec(header ?? "")?.[1] ?? otherwise;
}

async function exportAs({ format, suffix }) {
  const all = byId("exportAll").checked;
  const pictures = (all ? work.pictures : [work.current]).filter((picture) => picture && DONE(picture));
  byId("exporting").hidden = false;
  try {
    const answer = await post(`api/v1/export/${encodeURIComponent(format)}`, { pictures: pictures.map(described) });
    const name = nameIn(answer.headers.get("Content-Disposition"), `hotlap-${format}${suffix ?? ""}`);
    save(await answer.blob(), name);
    say("notice", { key: "notice.exported", values: { name } });
    byId("export").close();
  } catch (error) {
    say("notice", { key: "notice.notExported", values: { why: error.message }, kind: "error" });
  } finally {
    byId("exporting").hidden = true;
  }
}

function button(format) {
  const key = `format.${format.format}`;
  const hint = hasWord(key) ? make("span", { class: "dim" }, word(key)) : "";
  const label = make("strong", { translate: "no" }, format.label ?? format.format);
  const suffix = data(format.suffix ?? "");
  suffix.className = "suffix";
  return make("button", { type: "button", class: "format", onclick: () => exportAs(format) }, label, suffix, hint);
}

export async function openExport() {
  const ready = work.pictures.filter(DONE).length;
  if (ready === 0) {
    say("notice", { key: "notice.nothingToExport", kind: "warning" });
    return;
  }
  byId("exportAll").checked = ready > 1 && byId("exportAll").checked;
  byId("exportAll").disabled = ready < 2;
  byId("exportCurrent").checked = !byId("exportAll").checked;
  if (work.formats.length === 0) {
    try {
      const answer = await askJson("api/v1/export");
      work.formats = Array.isArray(answer) ? answer : answer.formats;
    } catch (error) {
      say("notice", { key: "notice.notExported", values: { why: error.message }, kind: "error" });
      return;
    }
  }
  byId("formats").replaceChildren(...work.formats.map(button));
  byId("export").showModal();
}
