// The part of fflate 0.8.3 (MIT, see fflate.LICENSE) that the page uses.
export function strToU8(text: string): Uint8Array;
export function strFromU8(bytes: Uint8Array): string;
export function zipSync(entries: Record<string, [Uint8Array, { level: 0 | 6 }]>): Uint8Array;
export function unzipSync(bytes: Uint8Array, options: { filter: (file: { name: string; originalSize: number }) => boolean }): Record<string, Uint8Array>;
