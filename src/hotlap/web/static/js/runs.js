// Runs of hotlap that lie in the service's folder, and their reports.

import { byId, data, make } from "./dom.js";
import { hear } from "./events.js";
import { ask, askJson, hasToken } from "./service.js";
import { clock, onLanguage, word } from "./words.js";

let runs = null;
let fault = "";

const when = (text) => {
  const date = new Date(text);
  return data(Number.isNaN(date.getTime()) ? (text ?? "") : clock(date));
};

const path = (run) => `api/v1/runs/${run.run.split("/").map(encodeURIComponent).join("/")}/report`;

/** Shows a report in a frame of its own, which can reach nothing of this page; one that is not there yet is drawn. */
async function open(run) {
  const frame = make("iframe", { sandbox: "allow-scripts", title: word("runs.frame", { name: run.run }) });
  if (hasToken()) frame.srcdoc = await (await ask(path(run))).text();
  else frame.src = path(run);
  byId("reportName").textContent = run.run;
  byId("reportTab").href = path(run);
  byId("reportTab").hidden = hasToken();
  byId("reportFrame").replaceChildren(frame);
  byId("report").showModal();
}

function row(run) {
  const button = make("button", { type: "button", onclick: () => open(run) }, word("runs.open"));
  const said = [run.run, run.tool, run.target, run.verdict].map((text) => data(text ?? ""));
  const cells = [when(run.when), ...said, button];
  return make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
}

function render() {
  byId("runRows").replaceChildren(...(runs ?? []).map(row));
  byId("runsTable").hidden = !runs?.length;
  byId("runsNone").hidden = runs?.length !== 0;
  byId("runsFault").hidden = !fault;
  byId("runsFault").textContent = fault && word("runs.fault", { why: fault });
}

async function load() {
  try {
    const answer = await askJson("api/v1/runs");
    runs = Array.isArray(answer) ? answer : answer.runs;
    fault = "";
  } catch (error) {
    fault = error.message;
  }
  render();
}

export function startRuns() {
  hear("tab", (tab) => tab === "runs" && load());
  onLanguage(render);
  byId("report").addEventListener("close", () => byId("reportFrame").replaceChildren());
}
