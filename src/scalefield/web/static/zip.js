// Zip archives: stored entries are written, stored and deflated ones are read (PKWARE's APPNOTE, 4.3 and 4.4).

const LOCAL = 0x04034b50, CENTRAL = 0x02014b50, END = 0x06054b50;
const LOCAL_BYTES = 30, CENTRAL_BYTES = 46, END_BYTES = 22;
const MOST_COMMENT_BYTES = 65535;
const VERSION = 20, UTF8_NAMES = 1 << 11, STORED = 0, DEFLATED = 8;

const CRC_OF_BYTE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? 0xedb88320 ^ (crc >>> 1) : crc >>> 1;
  return crc;
});

/** @param {Uint8Array} bytes */
export function crc32(bytes) {
  let crc = -1;
  for (let i = 0; i < bytes.length; i++) crc = CRC_OF_BYTE[(crc ^ bytes[i]) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}

/** A zip of stored entries. @param {{name: string, bytes: Uint8Array}[]} entries @param {Date} [time] */
export function writeZip(entries, time = new Date()) {
  const dosTime = (time.getHours() << 11) | (time.getMinutes() << 5) | (time.getSeconds() >> 1);
  const dosDate = ((time.getFullYear() - 1980) << 9) | ((time.getMonth() + 1) << 5) | time.getDate();
  /** @type {Uint8Array[]} */
  const files = [];
  /** @type {Uint8Array[]} */
  const directory = [];
  let offset = 0;
  for (const { name, bytes } of entries) {
    const path = new TextEncoder().encode(name);
    const about = [
      ...uint16(VERSION, UTF8_NAMES, STORED, dosTime, dosDate), ...uint32(crc32(bytes), bytes.length, bytes.length),
      ...uint16(path.length, 0),
    ];
    files.push(Uint8Array.from([...uint32(LOCAL), ...about]), path, bytes);
    // After `about`: length of the comment, disk, two kinds of attributes.
    const after = [...uint16(0, 0, 0), ...uint32(0, offset)];
    directory.push(Uint8Array.from([...uint32(CENTRAL), ...uint16(VERSION), ...about, ...after]), path);
    offset += LOCAL_BYTES + path.length + bytes.length;
  }
  const directoryBytes = directory.reduce((sum, part) => sum + part.length, 0);
  const end = [
    ...uint32(END), ...uint16(0, 0, entries.length, entries.length), ...uint32(directoryBytes, offset), ...uint16(0),
  ];
  return new Blob(/** @type {BlobPart[]} */ ([...files, ...directory, Uint8Array.from(end)]), {
    type: "application/zip",
  });
}

/** The bytes of the wanted entries by name. Throws where they are damaged, or larger together than `mostBytes`.
 *  @param {Uint8Array} bytes @param {(name: string) => boolean} wanted @param {number} mostBytes
 *  @returns {Promise<Map<string, Uint8Array>>} */
export async function readZip(bytes, wanted, mostBytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const end = endOfDirectory(view);
  const count = view.getUint16(end + 10, true);
  const entries = new Map();
  let at = view.getUint32(end + 16, true), total = 0;
  for (let i = 0; i < count; i++) {
    if (view.getUint32(at, true) !== CENTRAL) throw new Error("the directory is damaged");
    const method = view.getUint16(at + 10, true);
    const [crc, packed, size, offset] = [16, 20, 24, 42].map((field) => view.getUint32(at + field, true));
    const [nameBytes, extraBytes, commentBytes] = [28, 30, 32].map((field) => view.getUint16(at + field, true));
    const name = new TextDecoder().decode(bytes.subarray(at + CENTRAL_BYTES, at + CENTRAL_BYTES + nameBytes));
    at += CENTRAL_BYTES + nameBytes + extraBytes + commentBytes;
    if (!wanted(name)) continue;
    total += size;
    if (total > mostBytes) throw new Error("the entries are too large");
    const start = offset + LOCAL_BYTES + view.getUint16(offset + 26, true) + view.getUint16(offset + 28, true);
    const data = bytes.subarray(start, start + packed);
    if (method !== STORED && method !== DEFLATED) throw new Error("the method of compression is not known");
    const content = method === STORED ? data : await inflated(data, size);
    if (content.length !== size || crc32(content) !== crc) throw new Error("an entry is damaged");
    entries.set(name, content);
  }
  return entries;
}

/** Where the end record starts: at the end of the file, before a comment. @param {DataView} view */
function endOfDirectory(view) {
  const last = view.byteLength - END_BYTES;
  for (let at = last; at >= Math.max(0, last - MOST_COMMENT_BYTES); at--) {
    if (view.getUint32(at, true) === END) return at;
  }
  throw new Error("there is no directory");
}

/** Inflated bytes; throws as soon as they are more than `size`. @param {Uint8Array} data @param {number} size */
async function inflated(data, size) {
  const stream = new Blob([/** @type {BlobPart} */ (data)])
    .stream()
    .pipeThrough(new DecompressionStream("deflate-raw"));
  const reader = stream.getReader(),
    content = new Uint8Array(size);
  let filled = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return content.subarray(0, filled);
    content.set(value, filled); // a RangeError beyond the end
    filled += value.length;
  }
}

/** Little-endian bytes. @param {number[]} values */
const uint16 = (...values) => values.flatMap((value) => [value & 255, (value >> 8) & 255]);

/** Little-endian bytes. @param {number[]} values */
const uint32 = (...values) => values.flatMap((value) => uint16(value & 65535, value >>> 16));
