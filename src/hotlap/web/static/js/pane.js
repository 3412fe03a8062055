// One view of a picture and its objects. Panes that stand side by side share a camera, so they show the same place.

import { oncePerFrame } from "./events.js";
import { insideObject, objectArea } from "./geometry.js";
import { factsOf, paintCorners, paintMarked, paintObjects, paintStroke } from "./paint.js";

const LEAST_SCALE = 0.02;
const MOST_SCALE = 40;

/** Where the picture lies: a point p of it is at p * scale + (x, y) on the screen. */
export class Camera {
  constructor() {
    this.scale = 1;
    this.x = 0;
    this.y = 0;
    this.panes = [];
    this.onchange = () => {};
  }

  changed() {
    for (const pane of this.panes) pane.redraw();
    this.onchange();
  }

  /** Zooms by a factor around a point of the screen. */
  zoom(factor, x, y) {
    const scale = Math.min(MOST_SCALE, Math.max(LEAST_SCALE, this.scale * factor));
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.changed();
  }

  pan(dx, dy) {
    this.x += dx;
    this.y += dy;
    this.changed();
  }

  /** Shows a part of the picture, [left, top, right, bottom], as large as it fits. */
  show([left, top, right, bottom], width, height, margin, most) {
    const [across, down] = [Math.max(1, right - left), Math.max(1, bottom - top)];
    const room = Math.min((width - 2 * margin) / across, (height - 2 * margin) / down, most);
    this.scale = Math.max(LEAST_SCALE, room);
    this.x = width / 2 - ((left + right) / 2) * this.scale;
    this.y = height / 2 - ((top + bottom) / 2) * this.scale;
    this.changed();
  }

  toPicture(x, y) {
    return [(x - this.x) / this.scale, (y - this.y) / this.scale];
  }
}

export class Pane {
  /** `scene()` says what to show: image, size, objects, selected, hovered, and what a tool holds. */
  constructor(canvas, camera, scene) {
    this.canvas = canvas;
    this.camera = camera;
    this.scene = scene;
    this.context = canvas.getContext("2d", { alpha: false });
    this.redraw = oncePerFrame(() => this.draw());
    this.onsize = () => {};
    camera.panes.push(this);
    new ResizeObserver(() => this.measure()).observe(canvas);
    this.measure();
  }

  measure() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const before = [this.width, this.height];
    [this.width, this.height, this.ratio] = [width, height, devicePixelRatio];
    this.canvas.width = Math.max(1, Math.round(width * this.ratio));
    this.canvas.height = Math.max(1, Math.round(height * this.ratio));
    this.paper = getComputedStyle(this.canvas).backgroundColor;
    [this.copy, this.copyKey, this.lastKey] = [null, null, null];
    this.draw();
    if (width > 0) this.onsize(before);
  }

  /** The part of the picture that is on the screen. */
  seen() {
    return [...this.camera.toPicture(0, 0), ...this.camera.toPicture(this.width, this.height)];
  }

  draw() {
    if (!this.width) return;
    const { context } = this;
    const scene = this.scene();
    this.#drawBase(scene);
    if (!scene) return;
    this.#place(context);
    if (scene.shown) this.#drawMarked(scene);
    if (scene.stroke) paintStroke(context, scene.stroke, this.camera.scale, false);
  }

  /** Makes picture coordinates those of a canvas. */
  #place(context) {
    const { camera, ratio } = this;
    const scale = camera.scale * ratio;
    context.setTransform(scale, 0, 0, scale, camera.x * ratio, camera.y * ratio);
    context.lineJoin = "round";
  }

  /** Draws the picture and all objects. Where only what is marked changes, as while a corner is dragged, they are
   *  drawn once into a copy, and the copy is shown. */
  #drawBase(scene) {
    const { context, camera } = this;
    const key = scene && [camera.scale, camera.x, camera.y, scene.image, scene.width, scene.height, scene.objects,
      scene.shown, scene.held?.id];
    const same = (other) => key && other && key.every((value, i) => value === other[i]);
    context.setTransform(1, 0, 0, 1, 0, 0);
    if (same(this.lastKey) && !same(this.copyKey)) {
      this.copy ??= new OffscreenCanvas(this.canvas.width, this.canvas.height);
      this.#paintBase(this.copy.getContext("2d", { alpha: false }), scene);
      this.copyKey = key;
    }
    if (same(this.copyKey)) context.drawImage(this.copy, 0, 0);
    else this.#paintBase(context, scene);
    this.lastKey = key;
  }

  #paintBase(context, scene) {
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = this.paper;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    if (!scene) return;
    this.#place(context);
    this.#paintPicture(context, scene, this.camera.scale * this.ratio);
    if (scene.shown) paintObjects(context, scene.objects, scene.held?.id ?? null, this.camera.scale, this.seen());
  }

  #paintPicture(context, scene, scale) {
    context.fillStyle = "#000";
    context.fillRect(0, 0, scene.width, scene.height);
    if (!scene.image) return;
    const small = scene.small && scale * scene.width <= scene.small.width * 1.2;
    context.imageSmoothingEnabled = scale < 2.5;
    context.drawImage(small ? scene.small : scene.image, 0, 0, scene.width, scene.height);
  }

  #drawMarked(scene) {
    const { context, camera } = this;
    const held = scene.held;
    for (const object of scene.objects) {
      if (object.id === held?.id) continue;
      if (scene.alone?.has(object.id)) paintMarked(context, object, camera.scale, "#ff4d3d", 0.12);
      if (scene.selected.has(object.id)) paintMarked(context, object, camera.scale, "#fff", 0.12);
      else if (object.id === scene.hovered) paintMarked(context, object, camera.scale, "#fff", 0.1);
    }
    if (held) paintMarked(context, held, camera.scale, scene.bad ? "#ff3b30" : "#fff", 0.12);
    const cornered = scene.corners && (held ?? scene.objects.find((object) => scene.selected.has(object.id)));
    if (cornered) paintCorners(context, cornered, camera.scale, scene.corner, this.seen());
  }

  /** The object at a point of the picture: the smallest of those that hold it, so that none is out of reach. */
  objectAt([x, y]) {
    let best = null;
    let least = Infinity;
    for (const object of this.scene()?.objects ?? []) {
      const [left, top, right, bottom] = factsOf(object).box;
      if (x < left || x > right || y < top || y > bottom || !insideObject(object, x, y)) continue;
      const area = objectArea(object);
      if (area < least) [best, least] = [object, area];
    }
    return best;
  }
}
