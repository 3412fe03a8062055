// TIFF files as browsers do not show them: grey or colour, 8, 16 or 32 bits, in strips or tiles, plain, Deflate, LZW
// or PackBits. What is shown is stretched between the 1st and 99.8th percentile; the file itself is sent as it is.

export const isTiff = (head) => ["73,73,42,0", "77,77,0,42"].includes([...head.slice(0, 4)].join());

const SIZES = { 1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 11: 4, 12: 8 };
const MOST_PIXELS = 2 ** 26;

/** The numbers of every tag of the first page. */
function readTags(view, little) {
  const tags = new Map();
  const at = view.getUint32(4, little);
  for (let i = 0; i < view.getUint16(at, little); i++) {
    const entry = at + 2 + 12 * i;
    const [kind, count] = [view.getUint16(entry + 2, little), view.getUint32(entry + 4, little)];
    const size = SIZES[kind] ?? 1;
    const start = size * count <= 4 ? entry + 8 : view.getUint32(entry + 8, little);
    const get = { 1: "getUint8", 3: "getUint16", 4: "getUint32" }[kind];
    if (!get) continue;
    const values = Array.from({ length: count }, (_, n) => view[get](start + n * size, little));
    tags.set(view.getUint16(entry, little), values);
  }
  return tags;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function unpackBits(bytes, length) {
  const out = new Uint8Array(length);
  for (let from = 0, to = 0; from < bytes.length && to < length; ) {
    const count = (bytes[from++] << 24) >> 24;
    if (count >= 0) {
      out.set(bytes.subarray(from, Math.min(from + count + 1, from + length - to)), to);
      from += count + 1;
      to += count + 1;
    } else if (count > -128) {
      out.fill(bytes[from++], to, (to += 1 - count));
    }
  }
  return out;
}

function unpackLzw(bytes, length) {
  const out = new Uint8Array(length);
  let [to, bits, held, from, width, last] = [0, 0, 0, 0, 9, null];
  let table = [];
  while (to < length) {
    while (bits < width && from < bytes.length) {
      held = ((held << 8) | bytes[from++]) & 0xffffff;
      bits += 8;
    }
    if (bits < width) break;
    const code = (held >> (bits - width)) & ((1 << width) - 1);
    bits -= width;
    if (code === 257) break;
    if (code === 256) {
      [table, width, last] = [[], 9, null];
      continue;
    }
    const known = code < 256 ? Uint8Array.of(code) : table[code - 258];
    const entry = known ?? Uint8Array.of(...last, last[0]);
    out.set(entry.subarray(0, length - to), to);
    to += entry.length;
    if (last) {
      const grown = new Uint8Array(last.length + 1);
      grown.set(last);
      grown[last.length] = entry[0];
      table.push(grown);
    }
    last = entry;
    const next = table.length + 258;
    width = next >= 2047 ? 12 : next >= 1023 ? 11 : next >= 511 ? 10 : 9;
  }
  return out;
}

async function unpack(bytes, how, length) {
  if (how === 1) return bytes;
  if (how === 8 || how === 32946) return inflate(bytes);
  if (how === 5) return unpackLzw(bytes, length);
  if (how === 32773) return unpackBits(bytes, length);
  throw new Error(`TIFF compression ${how}`);
}

/** One strip or tile as numbers. */
function samplesOf(bytes, layout, little) {
  const { bits, format, samples, predictor } = layout;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const count = Math.floor(bytes.byteLength / (bits / 8));
  const out = format === 3 ? new Float32Array(count) : new Uint32Array(count);
  const get = format === 3 ? "getFloat32" : { 8: "getUint8", 16: "getUint16", 32: "getUint32" }[bits];
  for (let i = 0; i < count; i++) out[i] = view[get]((i * bits) / 8, little);
  if (predictor !== 2) return out;
  const [row, mask] = [layout.across * samples, bits === 32 ? 0xffffffff : 2 ** bits - 1];
  for (let i = 0; i < count; i++) if (i % row >= samples) out[i] = (out[i] + out[i - samples]) & mask;
  return out;
}

function layoutOf(tags) {
  const one = (tag, otherwise) => tags.get(tag)?.[0] ?? otherwise;
  const [width, height] = [one(256), one(257)];
  const layout = {
    width, height, bits: one(258, 1), how: one(259, 1), white: one(262, 1) === 0, samples: one(277, 1),
    predictor: one(317, 1), format: one(339, 1), across: one(322, width), down: one(323, one(278, height)),
    starts: tags.get(324) ?? tags.get(273), lengths: tags.get(325) ?? tags.get(279),
  };
  const plain = [1, 3, 4].includes(layout.samples) && (layout.format === 1 ? [8, 16, 32] : [32]).includes(layout.bits);
  const known = [1, 3].includes(layout.format) && one(284, 1) === 1 && one(262, 1) <= 2;
  if (!plain || !known || width * height > MOST_PIXELS) {
    throw new Error("a TIFF of a kind that is not shown");
  }
  return layout;
}

/** The lowest and highest number to tell apart. */
function stretch(values) {
  const step = Math.max(1, Math.floor(values.length / 200000));
  const some = values.filter((value, i) => i % step === 0 && Number.isFinite(value)).sort();
  return [some[Math.floor(0.01 * some.length)] ?? 0, some[Math.floor(0.998 * some.length)] ?? 1];
}

/** The first page of a TIFF as ImageData. */
export async function decodeTiff(buffer) {
  const view = new DataView(buffer);
  const little = view.getUint8(0) === 0x49;
  const layout = layoutOf(readTags(view, little));
  const { width, height, samples, across, down } = layout;
  const values = new (layout.format === 3 ? Float32Array : Uint32Array)(width * height * samples);
  const columns = Math.ceil(width / across);
  for (let n = 0; n < layout.starts.length; n++) {
    const packed = new Uint8Array(buffer, layout.starts[n], layout.lengths[n]);
    const bytes = await unpack(packed, layout.how, (across * down * samples * layout.bits) / 8);
    const block = samplesOf(bytes, layout, little);
    const [left, top] = [(n % columns) * across, Math.floor(n / columns) * down];
    for (let y = 0; y < Math.min(down, height - top); y++) {
      const from = y * across * samples;
      const some = block.subarray(from, from + Math.min(across, width - left) * samples);
      values.set(some, ((top + y) * width + left) * samples);
    }
  }
  return toImage(values, layout);
}

function toImage(values, { width, height, samples, bits, white }) {
  const [low, high] = bits === 8 ? [0, 255] : stretch(values);
  const image = new ImageData(width, height);
  const scale = 255 / Math.max(high - low, 1e-12);
  for (let i = 0; i < width * height; i++) {
    for (let channel = 0; channel < 3; channel++) {
      const value = (values[i * samples + (samples === 1 ? 0 : channel)] - low) * scale;
      image.data[4 * i + channel] = white ? 255 - value : value;
    }
    image.data[4 * i + 3] = 255;
  }
  return image;
}
