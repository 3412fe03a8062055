// Measurements of objects that were edited: the service makes them, so that they are those of every other door.

import { afterQuiet, hear, say } from "./events.js";
import { Away, post, Refused, untilBack } from "./service.js";
import { metricsOf, objectsOf, setMetrics, work } from "./work.js";

const QUIET_MS = 250;
let asking = false;
const tried = new WeakSet();

const unmeasured = (picture) => objectsOf(picture).filter((object) => !metricsOf(object) && !tried.has(object));

async function measure(picture) {
  const objects = unmeasured(picture);
  const body = { width: picture.width, height: picture.height, um_per_px: picture.umPerPx, objects };
  const answer = await (await post("api/v1/measure", body)).json();
  const byId = new Map((answer.objects ?? answer).map((object) => [object.id, object.metrics]));
  for (const object of objects) {
    if (byId.has(object.id)) setMetrics(object, byId.get(object.id));
    else tried.add(object);
  }
  say("measured");
}

/** Measures what is not, one picture at a time; an object that the service refuses is not asked for again. */
export async function measureAll() {
  if (asking) return;
  asking = true;
  try {
    for (;;) {
      const picture = work.pictures.find((one) => one.state === "done" && !one.classes && unmeasured(one).length > 0);
      if (!picture) return;
      const objects = unmeasured(picture);
      try {
        await measure(picture);
      } catch (error) {
        if (error instanceof Away) {
          await untilBack();
        } else if (error instanceof Refused) {
          for (const object of objects) tried.add(object);
          say("notice", { key: "notice.unmeasured", values: { why: error.message }, kind: "error" });
        } else {
          throw error;
        }
      }
    }
  } finally {
    asking = false;
  }
}

export function startMeasuring() {
  hear("edited answered", afterQuiet(QUIET_MS, measureAll));
}
