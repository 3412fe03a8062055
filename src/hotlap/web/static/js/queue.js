// Pictures on their way through the service: a few at a time, again when it is full or away, never lost in silence.

import { hear, say } from "./events.js";
import { Away, Refused, untilBack, upload } from "./service.js";
import { pictureChanged, setAnswer, takeObjects, work } from "./work.js";

const AT_ONCE = 6;
const tasks = [];

export const waitingCount = () => tasks.length;

/** Sends a picture to a model; `kind` is "main", or "other" for the model that it is compared with.
 *  A model that tells classes gives the objects of one of them where `oneClass` names it. */
export function enqueue(picture, kind, oneClass = null) {
  cancel(picture, kind);
  const { threshold, umPerPx } = work;
  const model = kind === "main" ? work.model : work.otherModel;
  const task = { picture, kind, model, threshold, umPerPx, oneClass, controller: new AbortController(), busy: false };
  tasks.push(task);
  show(task, { state: "waiting", sent: 0, error: "" });
  pump();
}

/** Lets go of what a picture still waits for; a late answer to it is dropped. */
export function cancel(picture, kind) {
  for (const task of tasks.filter((task) => task.picture === picture && (!kind || task.kind === kind))) {
    tasks.splice(tasks.indexOf(task), 1);
    task.controller.abort();
  }
}

/** Cancels a picture that has no answer yet; one that has keeps it. */
export function stop(picture) {
  cancel(picture);
  picture.state = picture.history ? "done" : "cancelled";
  pictureChanged(picture);
  pump();
}

function show(task, facts) {
  if (task.kind === "main") Object.assign(task.picture, facts);
  else task.picture.other = { ...(task.picture.other ?? { objects: [] }), ...facts, model: task.model };
  pictureChanged(task.picture);
  if (task.kind === "other") say("other", task.picture);
}

function pump() {
  const idle = tasks.filter((task) => !task.busy);
  idle.sort((a, b) => (b.picture === work.current) - (a.picture === work.current));
  const room = AT_ONCE - tasks.filter((task) => task.busy).length;
  for (const task of idle.slice(0, Math.max(0, room))) {
    task.busy = true;
    run(task).finally(() => {
      const at = tasks.indexOf(task);
      if (at >= 0) tasks.splice(at, 1);
      say("pictures");
      pump();
    });
  }
}

async function run(task) {
  for (;;) {
    try {
      finish(task, await sendOnce(task));
      return;
    } catch (error) {
      if (task.controller.signal.aborted) return;
      if (error instanceof Away) {
        show(task, { state: "waiting", sent: 0, error: "" });
        await untilBack();
      } else if (error instanceof Refused && (error.status === 429 || error.status === 503)) {
        show(task, { state: "held", sent: 0, error: error.message });
        await new Promise((wake) => setTimeout(wake, 1000 * Math.max(1, error.retryAfterS)));
      } else {
        // A picture that has an answer keeps it, with its edits, when another run fails.
        const kept = task.kind === "main" && task.picture.history;
        show(task, { state: kept ? "done" : "failed", error: error.message });
        say("notice", { key: "notice.failed", values: { name: task.picture.name, why: error.message }, kind: "error" });
        return;
      }
      if (task.controller.signal.aborted) return;
    }
  }
}

function sendOnce(task) {
  const form = new FormData();
  form.append("file", task.picture.file, task.picture.name);
  form.append("model", task.model);
  form.append("threshold", String(task.threshold));
  if (task.umPerPx) form.append("um_per_px", String(task.umPerPx));
  if (task.oneClass !== null) form.append("class", String(task.oneClass));
  show(task, { state: "sending", sent: 0, error: "" });
  const onSent = (share) => show(task, share < 1 ? { state: "sending", sent: share } : { state: "running", sent: 1 });
  return upload("api/v1/segment", form, onSent, task.controller.signal);
}

function finish(task, answer) {
  const { picture } = task;
  const told = { ...answer, model: answer.model ?? task.model, threshold: answer.threshold ?? task.threshold };
  if (task.kind === "main") {
    setAnswer(picture, told);
    say("answered", picture);
  } else {
    const { threshold, umPerPx } = task;
    show(task, { state: "done", objects: takeObjects(answer.objects ?? []), threshold, umPerPx });
  }
}

hear("removed", (picture) => cancel(picture));
