// Positions of pixels on the screen and in space.

/** @typedef {{u: number, v: number}} Pixel */
/** @typedef {{width: number, height: number}} Size */
/** @typedef {[number, number, number]} Point3 */

// ---- the picture on the screen -------------------------------------------------------------------

/** The displayed part of the photo: `scale` screen pixels for a photo pixel, and (x, y), the
 *  position of the corner of the photo. @typedef {{scale: number, x: number, y: number}} View */

/** The whole photo, as large as fits. @param {Size} photo @param {Size} stage @returns {View} */
export function fitView(photo, stage) {
  const scale = Math.min(stage.width / photo.width, stage.height / photo.height);
  return { scale, x: (stage.width - scale * photo.width) / 2, y: (stage.height - scale * photo.height) / 2 };
}

/** Zoom around a point of the stage; never smaller than the whole photo.
 *  @param {View} view @param {number} factor @param {{x: number, y: number}} at @param {Size} photo
 *  @param {Size} stage */
export function zoomView(view, factor, at, photo, stage) {
  const fit = fitView(photo, stage);
  const scale = Math.min(Math.max(view.scale * factor, fit.scale), Math.max(40, 8 * fit.scale));
  if (scale <= fit.scale) return fit;
  const share = scale / view.scale;
  return holdView({ scale, x: at.x - (at.x - view.x) * share, y: at.y - (at.y - view.y) * share }, photo, stage);
}

/** @param {View} view @param {number} dx @param {number} dy @param {Size} photo @param {Size} stage */
export const panView = (view, dx, dy, photo, stage) =>
  holdView({ ...view, x: view.x + dx, y: view.y + dy }, photo, stage);

/** Keep the photo on the stage, with no wider gap at its sides than the whole photo has.
 *  @param {View} view @param {Size} photo @param {Size} stage @returns {View} */
export function holdView(view, photo, stage) {
  const fit = fitView(photo, stage);
  /** @param {number} at @param {number} size @param {number} space @param {number} gap */
  const hold = (at, size, space, gap) =>
    size <= space ? Math.min(space - size, Math.max(0, at)) : Math.min(gap, Math.max(space - size - gap, at));
  return {
    scale: view.scale, x: hold(view.x, view.scale * photo.width, stage.width, fit.x),
    y: hold(view.y, view.scale * photo.height, stage.height, fit.y),
  };
}

/** The centre of a pixel on the stage. @param {View} view @param {Pixel} pixel */
export const toStage = (view, { u, v }) => ({ x: view.x + (u + 0.5) * view.scale, y: view.y + (v + 0.5) * view.scale });

/** The pixel under a point of the stage; null outside the photo.
 *  @param {View} view @param {{x: number, y: number}} at @param {Size} photo @returns {Pixel | null} */
export function toPixel(view, at, photo) {
  const u = Math.floor((at.x - view.x) / view.scale), v = Math.floor((at.y - view.y) / view.scale);
  return u >= 0 && v >= 0 && u < photo.width && v < photo.height ? { u, v } : null;
}

/** The pixel of the photo that is nearest to a position. @param {Pixel} at @param {Size} photo @returns {Pixel} */
export function nearestInside({ u, v }, { width, height }) {
  return { u: Math.min(width - 1, Math.max(0, Math.round(u))), v: Math.min(height - 1, Math.max(0, Math.round(v))) };
}

/** The index of the nearest of some pixels within `reach` of a point of the stage; −1 if none is.
 *  @param {View} view @param {Pixel[]} pixels @param {{x: number, y: number}} at @param {number} reach */
export function nearestPixel(view, pixels, at, reach) {
  let best = -1, least = reach * reach;
  for (let i = 0; i < pixels.length; i++) {
    const dx = view.x + (pixels[i].u + 0.5) * view.scale - at.x, dy = view.y + (pixels[i].v + 0.5) * view.scale - at.y;
    const square = dx * dx + dy * dy;
    if (square <= least) [best, least] = [i, square];
  }
  return best;
}

// ---- space ---------------------------------------------------------------------------------------

/** Focal length in pixels. @param {Size} photo @param {number} fovDeg */
export const focalPixels = (photo, fovDeg) => photo.width / 2 / Math.tan((fovDeg * Math.PI) / 360);

/** The point that a pixel shows, in metres: x right, y down, z forward.
 *  @param {Size} photo @param {number} fovDeg @param {Pixel} pixel @param {number} depth @returns {Point3} */
export function pointOf(photo, fovDeg, { u, v }, depth) {
  const focal = focalPixels(photo, fovDeg);
  return [((u - (photo.width - 1) / 2) / focal) * depth, ((v - (photo.height - 1) / 2) / focal) * depth, depth];
}

/** Length of the ray of a pixel, one metre straight ahead. @param {Size} photo @param {number} fovDeg
 *  @param {Pixel} pixel */
export const rayLength = (photo, fovDeg, pixel) => Math.hypot(...pointOf(photo, fovDeg, pixel, 1));

/** The anchors of a project with their depth straight ahead, also where the distance along the slant was measured.
 *  @param {Pick<import("./state.js").Project, "work" | "settings" | "width" | "height">} project */
export function depthAnchors({ work, settings: { fov }, width, height }) {
  return work.anchors.map((a) => (
    a.slant && fov ? { ...a, depth_m: a.depth_m / rayLength({ width, height }, fov.deg, a) } : a
  ));
}
