// Pictures as the browser shows them. Only the one that is looked at is kept whole; the others are thumbnails.

import { decodeTiff, isTiff } from "./tiff.js";

const THUMB_PX = 96;
const SMALL_PX = 2048;

/** The picture in a file, turned as its EXIF says; raises where the browser cannot read it. */
async function decode(file) {
  const head = new Uint8Array(await file.slice(0, 4).arrayBuffer());
  if (isTiff(head)) return createImageBitmap(await decodeTiff(await file.arrayBuffer()));
  return createImageBitmap(file);
}

const smaller = (image, longest) => {
  const share = longest / Math.max(image.width, image.height);
  const [width, height] = [image.width, image.height].map((size) => Math.max(1, Math.round(size * share)));
  return createImageBitmap(image, { resizeWidth: width, resizeHeight: height, resizeQuality: "medium" });
};

let line = Promise.resolve();

/** A small bitmap for the list, and the size of the whole; one after the other, since decoded pictures are large. */
export function loadThumb(file) {
  line = line.then(() => makeThumb(file));
  return line;
}

/** Null where the browser cannot show the file. */
async function makeThumb(file) {
  try {
    const image = await decode(file);
    const { width, height } = image;
    const thumb = Math.max(width, height) > THUMB_PX ? await smaller(image, THUMB_PX) : image;
    if (thumb !== image) image.close();
    return { thumb, width, height };
  } catch {
    // The service may read what the browser cannot; it says so if not.
    return null;
  }
}

/** The whole picture, with a smaller copy that is quick to draw from far away; null as above. */
export async function loadImage(file) {
  try {
    const image = await decode(file);
    const small = Math.max(image.width, image.height) > SMALL_PX * 1.5 ? await smaller(image, SMALL_PX) : null;
    return { image, small };
  } catch {
    return null;
  }
}
