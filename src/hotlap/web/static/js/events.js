// How parts of the page hear of one another.

const listeners = new Map();

/** Calls `listener` whenever one of the named things has happened. */
export function hear(names, listener) {
  for (const name of names.split(" ")) {
    if (!listeners.has(name)) listeners.set(name, []);
    listeners.get(name).push(listener);
  }
}

export function say(name, detail) {
  for (const listener of listeners.get(name) ?? []) listener(detail);
}

/** A function that runs once, at the next frame, however often it was called before it. */
export function oncePerFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}

/** A function that runs when it was not called for a while. */
export function afterQuiet(ms, work) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, ms);
  };
}
