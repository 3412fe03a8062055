// Making elements.

import { word } from "./words.js";

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children; texts that are data, not words of the page, are marked by `data()`. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** A text that comes from outside and is the same in every language, such as a file's name. */
export const data = (text, tag = "span") => make(tag, { translate: "no" }, String(text));

const SVG = "http://www.w3.org/2000/svg";

export function icon(name) {
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("class", "icon");
  picture.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `static/icons.svg#${name}`);
  picture.append(use);
  return picture;
}

/** A button that shows a sign and is named by words. */
export function iconButton(name, key, onclick, attributes = {}) {
  const label = word(key);
  const named = { type: "button", class: "quiet", "aria-label": label, title: label, onclick, ...attributes };
  return make("button", named, icon(name));
}

/** Gives a file to the user. */
export function save(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
