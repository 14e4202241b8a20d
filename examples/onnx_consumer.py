"""Metric depth with onnxruntime and numpy alone.

    scalefield export basis-depth-k8 --out basis.onnx
    python onnx_consumer.py basis.onnx relative_depth.npy anchors.csv metric_depth.npy

relative_depth.npy grows with distance; anchors.csv has columns u, v and depth in metres.
"""

import sys

import numpy as np
import onnxruntime


def resampling(old: int, new: int, average: bool) -> np.ndarray:
    """The matrix (new, old) that averages over cells, or interpolates linearly."""
    i = np.arange(new)
    if average:
        start, end = i * old // new, -(-(i + 1) * old // new)
        at = np.arange(old)
        inside = (at >= start[:, None]) & (at < end[:, None])
        return inside / inside.sum(axis=1, keepdims=True)
    x = np.clip((i + 0.5) * old / new - 0.5, 0, old - 1)
    return np.maximum(0, 1 - np.abs(x[:, None] - np.arange(old)))


def recover(session, mde_depth, u, v, depth_m, *, features=None):
    """D̂ = D · exp(ℓ): basis maps from the network, their weights from the anchors."""
    prefix = "scalefield:"
    metadata = {
        k.removeprefix(prefix): x for k, x in session.get_modelmeta().custom_metadata_map.items()
    }
    h, w = mde_depth.shape
    scale = min(1, int(metadata["cells"]) / max(h, w))
    hg, wg = max(1, round(h * scale)), max(1, round(w * scale))
    log_depth = resampling(h, hg, True) @ np.log(mde_depth) @ resampling(w, wg, True).T
    centre, limit = (
        np.sort(log_depth, axis=None)[(hg * wg - 1) // 2],
        float(metadata["log_depth_limit"]),
    )
    inputs = {"log_depth": np.clip(log_depth - centre, -limit, limit)[None, None]}
    if int(metadata["feature_channels"]):
        average = features.shape[1] >= hg and features.shape[2] >= wg
        inputs["features"] = features[None]
        inputs["rows"] = resampling(features.shape[1], hg, average)
        inputs["columns"] = resampling(features.shape[2], wg, average)
    inputs = {name: x.astype(np.float32) for name, x in inputs.items()}
    basis_maps = session.run(["basis_maps"], inputs)[0][0].astype(np.float64)
    up_v, up_u = resampling(hg, h, False), resampling(wg, w, False)
    M = np.einsum("ni,kij,nj->nk", up_v[v], basis_maps, up_u[u], optimize=True)
    y = np.log(depth_m) - np.log(mde_depth[v, u])
    offset = np.median(y) if metadata["centre"] == "median" else 0.0
    ridge = np.diag(
        [float(metadata["ridge_global"])] + [float(metadata["ridge"])] * (len(basis_maps) - 1)
    )
    weights = np.linalg.solve(M.T @ M + ridge, M.T @ (y - offset))
    log_scale = offset + up_v @ np.tensordot(weights, basis_maps, axes=1) @ up_u.T
    return mde_depth * np.exp(log_scale)


if __name__ == "__main__":
    model, relative, anchors, out = sys.argv[1:]
    u, v, depth_m = np.loadtxt(anchors, delimiter=",", skiprows=1, usecols=(0, 1, 2), unpack=True)
    u, v = (np.floor(c + 0.5).astype(int) for c in (u, v))
    session = onnxruntime.InferenceSession(model)
    np.save(out, recover(session, np.load(relative).astype(np.float64), u, v, depth_m))
