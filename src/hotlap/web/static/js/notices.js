// Short messages in a corner; screen readers hear them, and errors stay until they are closed.

import { byId, iconButton, make } from "./dom.js";
import { hear } from "./events.js";
import { onLanguage, word } from "./words.js";

const SHOWN_MS = 4000;
const MOST = 4;
const shown = new Map();

function notice({ key, values, kind = "info" }) {
  const box = byId("notices");
  const text = word(key, values);
  if ([...box.children].some((there) => there.textContent === text)) return;
  const role = kind === "error" ? "alert" : "status";
  const element = make("div", { class: `notice ${kind}`, role }, make("span", {}, text));
  const close = () => {
    element.remove();
    shown.delete(element);
  };
  element.append(iconButton("close", "notice.close", close));
  shown.set(element, { key, values });
  box.append(element);
  if (box.children.length > MOST) {
    shown.delete(box.firstChild);
    box.firstChild.remove();
  }
  if (kind !== "error") setTimeout(close, SHOWN_MS);
}

/** What nobody foresaw is told, too: a failure in silence is found too late. */
const unforeseen = (error) =>
  notice({ key: "notice.unforeseen", values: { why: String(error?.message ?? error) }, kind: "error" });

export function startNotices() {
  hear("notice", notice);
  addEventListener("error", (event) => unforeseen(event.error ?? event.message));
  addEventListener("unhandledrejection", (event) => unforeseen(event.reason));
  onLanguage(() => {
    for (const [element, { key, values }] of shown) element.firstChild.textContent = word(key, values);
  });
}
