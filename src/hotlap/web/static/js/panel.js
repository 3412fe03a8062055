// The service as it stands: devices, queues, cards, jobs; and whether it answers at all.

import { byId, data, iconButton, make } from "./dom.js";
import { hear, oncePerFrame, say } from "./events.js";
import { waitingCount } from "./queue.js";
import { ask, askJson, Away, isAway, Refused, tryNow } from "./service.js";
import { work } from "./work.js";
import { clock, fixed, number, onLanguage, word } from "./words.js";

const GIB = 2 ** 30;
const JOBS_MS = 2000;
const HISTORY = 60;
/** Of a device that there are words for. */
const STATES = ["loading", "ready", "restarting", "failed"];

const depths = [];
let jobs = [];
let backTimer = 0;

/** Rows that wait for all models together. */
const queued = () => Object.values(work.status?.models ?? {}).reduce((sum, model) => sum + model.queued_rows, 0);

/** Keeps the status, and what is drawn of its past. */
export function takeStatus(status) {
  const changed = work.status?.ready !== status.ready;
  work.status = status;
  if (changed) say("service");
  depths.push(queued());
  if (depths.length > HISTORY) depths.shift();
  render();
}

/** Whether the service answers: the dot above, and a line across the page while it does not. */
function renderConnection() {
  const gone = isAway();
  const line = byId("away");
  if (gone) {
    clearTimeout(backTimer);
    line.dataset.state = "away";
    line.hidden = false;
    byId("awayText").textContent = word("away.gone");
  } else if (line.dataset.state === "away") {
    line.dataset.state = "back";
    byId("awayText").textContent = word("away.back");
    backTimer = setTimeout(() => (line.hidden = true), 3000);
  }
  byId("tryNow").hidden = !gone;
  const { status } = work;
  const state = gone ? "away" : !status ? "asking" : status.draining ? "draining" : status.ready ? "ready" : "loading";
  byId("connection").dataset.state = state;
  const waiting = Math.max(queued(), waitingCount());
  const text = waiting > 0 && state === "ready" ? word("service.queued", { count: waiting }) : word(`service.${state}`);
  byId("connectionText").textContent = text;
}

const row = (...cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));

function renderModels(models) {
  const body = Object.entries(models).map(([name, model]) =>
    row(data(name), data(model.arm ?? "–"), fixed(model.queued_rows, 0),
      `${number(model.mean_batch_rows ?? NaN)} / ${number(model.batch_rows ?? NaN)}`,
      data(Number.isFinite(model.mean_request_s) ? `${number(1000 * model.mean_request_s)} ms` : "–"),
      fixed(model.requests, 0), fixed(model.shed, 0)));
  byId("modelRows").replaceChildren(...body);
}

function renderDevices(status) {
  const workers = status.workers.map(({ device, state }) => {
    const [kind, ...why] = state.split(": ");
    const said = STATES.includes(kind) ? word(`service.${kind}`, { why: why.join(": ") }) : data(state);
    return make("li", { class: kind === "ready" ? "good" : "poor" }, data(device), " ", said);
  });
  const cards = (status.gpus ?? []).map((gpu) => {
    const used = `${number(gpu.memory_used_bytes / GIB)} / ${number(gpu.memory_bytes / GIB)} GiB`;
    const label = word("service.memory", { name: gpu.name });
    const [most, high] = [gpu.memory_bytes, 0.9 * gpu.memory_bytes];
    const meter = make("meter", { min: 0, max: most, value: gpu.memory_used_bytes, high, "aria-label": label });
    return make("li", {}, data(gpu.name), meter, data(used));
  });
  byId("devices").replaceChildren(...workers, ...cards);
  if (cards.length === 0) byId("devices").append(make("li", { class: "dim" }, word("service.noCards")));
}

/** The length of the queue over the last minute. */
function renderDepths() {
  const canvas = byId("depths");
  const ratio = devicePixelRatio;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!width) return;
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const style = getComputedStyle(canvas);
  const most = Math.max(4, ...depths);
  context.fillStyle = style.color;
  depths.forEach((depth, i) => {
    const bar = Math.max(1, (depth / most) * (height - 2));
    context.fillRect(width - (depths.length - i) * (width / HISTORY), height - bar, width / HISTORY - 1, bar);
  });
  const said = { count: depths.at(-1) ?? 0, most: Math.max(0, ...depths) };
  canvas.setAttribute("aria-label", word("service.depths", said));
}

function renderJobs() {
  byId("jobsBox").hidden = jobs.length === 0;
  const rows = jobs.slice(0, 50).map((job) => {
    const label = word("jobs.progress", { name: job.id });
    const bar = make("progress", { max: job.total, value: job.done + job.failed, "aria-label": label });
    const running = job.state === "running";
    const unfinished = !running && (job.failed > 0 || job.state === "cancelled");
    return row(data(job.id.slice(0, 8)), data(job.model), data(clock(new Date(job.created * 1000))), bar,
      word(`jobs.${job.state}`, { done: job.done, total: job.total, failed: job.failed }),
      make("span", { class: "actions" },
        running ? iconButton("stop", "jobs.cancel", () => act(job, "cancel")) : "",
        unfinished ? iconButton("again", "jobs.retry", () => act(job, "retry")) : ""));
  });
  byId("jobRows").replaceChildren(...rows);
}

async function act(job, verb) {
  await ask(`api/v1/jobs/${job.id}/${verb}`, { method: "POST" });
  await loadJobs();
}

/** The jobs of the service; a service without a store for them has none. */
async function loadJobs() {
  try {
    jobs = (await askJson("api/v1/jobs")).jobs;
  } catch (error) {
    if (!(error instanceof Away || error instanceof Refused)) throw error;
  }
  render();
}

const render = oncePerFrame(() => {
  renderConnection();
  if (!work.status || byId("servicePanel").hidden) return;
  renderModels(work.status.models);
  renderDevices(work.status);
  renderDepths();
  renderJobs();
});

export function startPanel() {
  hear("service pictures tab theme", render);
  onLanguage(render);
  byId("tryNow").addEventListener("click", tryNow);
  hear("tab", (tab) => tab === "service" && loadJobs());
  setInterval(() => !byId("servicePanel").hidden && !document.hidden && !isAway() && loadJobs(), JOBS_MS);
}
