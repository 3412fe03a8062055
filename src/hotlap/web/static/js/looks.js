// Language, light and dark, the panels below the picture, and how high they stand.

import { byId, make } from "./dom.js";
import { say } from "./events.js";
import { keepLanguage, LANGUAGES, languageNow, onLanguage, setLanguage, word } from "./words.js";

const THEME = "hotlap.theme";
const HEIGHT = "hotlap.height";
const THEMES = ["auto", "light", "dark"];
const TABS = ["objects", "service", "runs"];
const LEAST_PX = 90;

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem(THEME, theme);
  nameTheme();
  requestAnimationFrame(() => say("theme"));
}

const themeNow = () => document.documentElement.dataset.theme;

function nameTheme() {
  const label = word(`theme.${themeNow()}`);
  byId("theme").setAttribute("aria-label", label);
  byId("theme").title = label;
}

function startTheme() {
  const kept = localStorage.getItem(THEME);
  setTheme(THEMES.includes(kept) ? kept : "auto");
  byId("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(themeNow()) + 1) % THEMES.length]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => say("theme"));
  onLanguage(nameTheme);
}

function startLanguages() {
  const select = byId("language");
  const options = Object.entries(LANGUAGES).map(([tag, name]) =>
    make("option", { value: tag, lang: tag, translate: "no", selected: tag === languageNow() }, name));
  select.replaceChildren(...options);
  select.addEventListener("change", async () => {
    try {
      await setLanguage(select.value);
      keepLanguage();
    } catch {
      select.value = languageNow();
      say("notice", { key: "notice.noLanguage", kind: "error" });
    }
  });
}

export function showTab(wanted) {
  for (const tab of TABS) {
    const button = byId(`tab-${tab}`);
    button.setAttribute("aria-selected", String(tab === wanted));
    button.tabIndex = tab === wanted ? 0 : -1;
    byId(`${tab}Panel`).hidden = tab !== wanted;
  }
  say("tab", wanted);
}

function startTabs() {
  for (const tab of TABS) byId(`tab-${tab}`).addEventListener("click", () => showTab(tab));
  byId("tabs").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const at = TABS.findIndex((tab) => byId(`tab-${tab}`).getAttribute("aria-selected") === "true");
    const next = TABS[(at + by + TABS.length) % TABS.length];
    showTab(next);
    byId(`tab-${next}`).focus();
  });
  byId("connection").addEventListener("click", () => showTab("service"));
}

function setHeight(px) {
  const height = Math.round(Math.min(Math.max(px, LEAST_PX), innerHeight * 0.7));
  byId("dock").style.height = `${height}px`;
  byId("divider").setAttribute("aria-valuenow", height);
  localStorage.setItem(HEIGHT, height);
}

function startDivider() {
  const divider = byId("divider");
  const kept = Number(localStorage.getItem(HEIGHT));
  if (kept) setHeight(kept);
  divider.addEventListener("pointerdown", (event) => {
    divider.setPointerCapture(event.pointerId);
    const [from, height] = [event.clientY, byId("dock").offsetHeight];
    const move = (moved) => setHeight(height + from - moved.clientY);
    divider.addEventListener("pointermove", move);
    divider.addEventListener("pointerup", () => divider.removeEventListener("pointermove", move), { once: true });
  });
  divider.addEventListener("keydown", (event) => {
    const by = { ArrowUp: 24, ArrowDown: -24 }[event.key];
    if (by) setHeight(byId("dock").offsetHeight + by);
  });
}

export function startLooks() {
  startTheme();
  startLanguages();
  startTabs();
  startDivider();
}
