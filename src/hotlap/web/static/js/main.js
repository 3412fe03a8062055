// Where the page begins.

import { loadModels, startControls } from "./controls.js";
import { byId } from "./dom.js";
import { hear } from "./events.js";
import { startIntake } from "./intake.js";
import { startKeeping } from "./keeping.js";
import { startKeys } from "./keys.js";
import { startList } from "./list.js";
import { showTab, startLooks } from "./looks.js";
import { startMeasuring } from "./measure.js";
import { startNotices } from "./notices.js";
import { startPanel, takeStatus } from "./panel.js";
import { startRuns } from "./runs.js";
import { isAway, poll } from "./service.js";
import { startStage } from "./stage.js";
import { startTable } from "./table.js";
import { startToken } from "./token.js";
import { preferredLanguage, setLanguage } from "./words.js";

async function start() {
  await setLanguage(preferredLanguage());
  startNotices();
  startToken();
  startLooks();
  startStage();
  startTable();
  startList();
  startControls();
  startPanel();
  startRuns();
  startMeasuring();
  startIntake();
  startKeys();
  showTab("objects");
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
  // A service that comes back may be another one, with other models; and what one answers is known once it is loaded.
  hear("service", () => !isAway() && loadModels());
  poll(takeStatus);
  await loadModels();
  await startKeeping();
  byId("app").dataset.ready = "";
}

start();
