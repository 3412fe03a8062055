// Pictures come in: dropped anywhere, picked, or pasted; folders are walked through.

import { byId } from "./dom.js";
import { say } from "./events.js";
import { enqueue } from "./queue.js";
import { addPicture, work } from "./work.js";

const KINDS = /\.(png|jpe?g|tiff?|bmp|webp|gif)$/i;

export function takeFiles(files) {
  if (files.length === 0) return;
  if (!work.model) {
    say("notice", { key: "notice.noModel", kind: "warning" });
    return;
  }
  for (const file of files) {
    const picture = addPicture(file.name || "pasted.png", file);
    say("added", picture);
    enqueue(picture, "main");
  }
}

async function walk(entry) {
  if (entry.isFile) return [await new Promise((found, lost) => entry.file(found, lost))];
  const reader = entry.createReader();
  const files = [];
  for (;;) {
    const some = await new Promise((found, lost) => reader.readEntries(found, lost));
    if (some.length === 0) return files.flat().filter((file) => KINDS.test(file.name));
    files.push(...(await Promise.all(some.map(walk))));
  }
}

async function dropped(event) {
  event.preventDefault();
  document.body.classList.remove("dropping");
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const files = entries.length ? (await Promise.all(entries.map(walk))).flat() : [...event.dataTransfer.files];
  takeFiles(files);
}

export function startIntake() {
  const input = byId("files");
  for (const button of document.querySelectorAll("[data-pick]")) button.addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    takeFiles([...input.files]);
    input.value = "";
  });
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) document.body.classList.remove("dropping");
  });
  addEventListener("drop", dropped);
  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length === 0) return;
    event.preventDefault();
    takeFiles(files);
  });
}
