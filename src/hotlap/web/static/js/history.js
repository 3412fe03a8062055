// What can be undone: whole lists of objects, which share everything that an edit left alone.

const MOST = 500;

export class History {
  constructor(objects) {
    this.past = [];
    this.future = [];
    this.objects = objects;
  }

  /** Makes `objects` the present; what it is called is shown with undo. A held key makes one step: `joined`. */
  push(objects, label, joined = false) {
    if (!joined || this.past.at(-1)?.label !== label) this.past.push({ objects: this.objects, label });
    if (this.past.length > MOST) this.past.shift();
    this.future = [];
    this.objects = objects;
  }

  /** Goes one step back; what was undone, or null. */
  undo() {
    return this.#step(this.past, this.future);
  }

  redo() {
    return this.#step(this.future, this.past);
  }

  #step(from, onto) {
    const step = from.pop();
    if (!step) return null;
    onto.push({ objects: this.objects, label: step.label });
    this.objects = step.objects;
    return step.label;
  }
}
