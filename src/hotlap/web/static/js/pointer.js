// Mouse, pen and fingers on a pane: zoom, pan, pinch, and the tool of the mode.

import { inHand, letGo, toolNow } from "./tools.js";
import { hover, work } from "./work.js";
import { say } from "./events.js";

const STILL_PX = 4;
const REACH_PX = { mouse: 9, pen: 12, touch: 20 };

export class Pointer {
  /** `acts` is false where a pane only shows. */
  constructor(pane, acts) {
    this.pane = pane;
    this.acts = acts;
    this.fingers = new Map();
    this.press = null;
    this.space = false;
    this.place = null;
    const on = (name, work) => pane.canvas.addEventListener(name, work.bind(this));
    on("pointerdown", this.#down);
    on("pointermove", this.#move);
    on("pointerup", this.#up);
    on("pointercancel", this.#up);
    on("pointerleave", this.#leave);
    on("dblclick", this.#double);
    on("contextmenu", (event) => event.preventDefault());
    pane.canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
  }

  /** An event as tools know it. */
  #told(event) {
    const { left, top } = this.pane.canvas.getBoundingClientRect();
    const point = this.pane.camera.toPicture(event.clientX - left, event.clientY - top);
    return {
      point,
      object: this.pane.objectAt(point),
      reach: REACH_PX[event.pointerType] / this.pane.camera.scale,
      more: event.shiftKey || event.ctrlKey || event.metaKey,
      remove: event.altKey || event.button === 2,
    };
  }

  #down(event) {
    if (!work.current) return;
    this.pane.canvas.focus();
    this.pane.canvas.setPointerCapture(event.pointerId);
    this.fingers.set(event.pointerId, event);
    if (this.fingers.size > 1) {
      if (this.press?.taken) letGo();
      this.press = { pans: true };
      return;
    }
    const told = this.#told(event);
    const pans = event.button === 1 || this.space || !this.acts;
    const taken = !pans && work.current.history && toolNow().press?.(told);
    this.press = { x: event.clientX, y: event.clientY, pans, taken, moved: false };
  }

  #move(event) {
    const before = this.fingers.get(event.pointerId);
    if (before) this.fingers.set(event.pointerId, event);
    if (this.fingers.size > 1) {
      this.#pinch(event, before);
    } else if (before && this.press) {
      this.#dragged(event, before);
    } else {
      const told = this.#told(event);
      this.place = told.point;
      hover(told.object?.id ?? null);
      say("place", told.point);
      if (inHand.stroke) this.pane.redraw();
    }
  }

  #dragged(event, before) {
    const { press } = this;
    if (!press.moved && Math.hypot(event.clientX - press.x, event.clientY - press.y) < STILL_PX) return;
    press.moved = true;
    if (!press.taken) {
      this.pane.camera.pan(event.clientX - before.clientX, event.clientY - before.clientY);
      return;
    }
    const told = this.#told(event);
    this.place = told.point;
    say("place", told.point);
    toolNow().drag?.(told);
  }

  #pinch(event, before) {
    const other = [...this.fingers.values()].find(({ pointerId }) => pointerId !== event.pointerId);
    if (!before || !other) return;
    const { left, top } = this.pane.canvas.getBoundingClientRect();
    const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    const [x, y] = [(event.clientX + other.clientX) / 2 - left, (event.clientY + other.clientY) / 2 - top];
    this.pane.camera.zoom(apart(event) / Math.max(1, apart(before)), x, y);
    this.pane.camera.pan((event.clientX - before.clientX) / 2, (event.clientY - before.clientY) / 2);
  }

  #up(event) {
    this.fingers.delete(event.pointerId);
    const { press } = this;
    if (!press || this.fingers.size > 0) return;
    this.press = null;
    const told = this.#told(event);
    if (press.taken && (press.moved || !toolNow().click)) toolNow().release?.(told);
    else if (!press.moved && !press.pans && work.current?.history) toolNow().click?.(told);
  }

  #leave() {
    if (this.press) return;
    this.place = null;
    hover(null);
    say("place", null);
    this.pane.redraw();
  }

  #double(event) {
    if (this.acts && work.current?.history) toolNow().double?.(this.#told(event));
  }

  #wheel(event) {
    event.preventDefault();
    const { left, top } = this.pane.canvas.getBoundingClientRect();
    const lines = event.deltaMode === 1 ? 30 : 1;
    const speed = event.ctrlKey ? 0.01 : 0.0016;
    this.pane.camera.zoom(Math.exp(-event.deltaY * lines * speed), event.clientX - left, event.clientY - top);
  }
}
