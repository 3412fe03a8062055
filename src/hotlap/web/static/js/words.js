// Every word on the page, in the language that was chosen. Tables are JSON files beside this folder.

export const LANGUAGES = {
  en: "English", cs: "Čeština", es: "Español", de: "Deutsch", fr: "Français", zh: "中文",
};
const KEPT = "hotlap.language";

let table = {};
let language = "en";
let plural = new Intl.PluralRules("en");
let numbers = new Intl.NumberFormat("en", { maximumSignificantDigits: 5 });
const listeners = [];

export const languageNow = () => language;
export const onLanguage = (listener) => listeners.push(listener);

/** The language asked for before, or the first of the browser's that there is a table for. */
export function preferredLanguage() {
  const kept = localStorage.getItem(KEPT);
  if (kept in LANGUAGES) return kept;
  const wanted = navigator.languages.map((tag) => tag.slice(0, 2).toLowerCase());
  return wanted.find((tag) => tag in LANGUAGES) ?? "en";
}

/** Loads a table and writes the page anew; the language stays as it is where the table cannot be had. */
export async function setLanguage(wanted) {
  const answer = await fetch(new URL(`../lang/${wanted}.json`, import.meta.url));
  if (!answer.ok) throw new Error(`lang/${wanted}.json: ${answer.status}`);
  table = await answer.json();
  language = wanted;
  plural = new Intl.PluralRules(wanted);
  numbers = new Intl.NumberFormat(wanted, { maximumSignificantDigits: 5 });
  document.documentElement.lang = wanted;
  translate(document);
  for (const listener of listeners) listener();
}

export const keepLanguage = () => localStorage.setItem(KEPT, language);

export const hasWord = (key) => key in table;

/** The words for a key, with {name} filled in; `count` chooses among plural forms. */
export function word(key, values = {}) {
  let text = table[key] ?? key;
  if (typeof text === "object") text = text[plural.select(values.count)] ?? text.other;
  return text.replace(/\{(\w+)\}/g, (_, name) => {
    const value = values[name];
    return typeof value === "number" ? number(value) : value;
  });
}

export const number = (value) => (Number.isFinite(value) ? numbers.format(value) : "–");

export const fixed = (value, digits) =>
  new Intl.NumberFormat(language, { minimumFractionDigits: digits, maximumFractionDigits: digits }).format(value);

export const clock = (when) =>
  new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" }).format(when);

const ATTRIBUTES = { "data-label": "aria-label", "data-tip": "title", "data-hint": "placeholder" };

/** Writes the words of every marked element below `root`. */
export function translate(root) {
  for (const element of root.querySelectorAll("[data-word]")) element.textContent = word(element.dataset.word);
  for (const [marked, attribute] of Object.entries(ATTRIBUTES)) {
    for (const element of root.querySelectorAll(`[${marked}]`)) {
      const key = attribute === "title" && element.dataset.key ? ` (${element.dataset.key})` : "";
      element.setAttribute(attribute, word(element.getAttribute(marked)) + key);
    }
  }
}
