"""Other implementations of the same task, on the same inputs."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as nnf
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput


class DepthTools:
    """The global fit of depth-tools, on sparse ground truth as a map with a mask."""

    def __init__(self, output: MDEOutput, anchors: Anchors) -> None:
        from depth_tools import align_shift_scale

        self.align = align_shift_scale
        self.depth = output.mde_depth.cpu().numpy()
        self.known = np.zeros(self.depth.shape, dtype=bool)
        self.truth = np.zeros_like(self.depth)
        pixels = anchors.pixels(output.shape)
        self.known[pixels], self.truth[pixels] = True, anchors.depth_m

    def __call__(self) -> np.ndarray:
        """Aligned depth."""
        everywhere = np.ones_like(self.known)
        return self.align(
            pred_values=self.depth, gt_values=self.truth, mask=everywhere, control_mask=self.known
        )[0]


class SklearnRansac:
    """scikit-learn's RANSAC around a line, as alignment scripts use it."""

    def __init__(self, output: MDEOutput, anchors: Anchors) -> None:
        from sklearn.linear_model import RANSACRegressor

        self.model = RANSACRegressor(random_state=0)
        self.depth = output.mde_depth.cpu().numpy()
        self.x = self.depth[anchors.pixels(output.shape)][:, None]
        self.y = anchors.depth_m

    def __call__(self) -> np.ndarray:
        """Aligned depth."""
        self.model.fit(self.x, self.y)
        return self.model.predict(self.depth.reshape(-1, 1)).reshape(self.depth.shape)


class FormulaAtFullResolution:
    """The paper's formula as it is written: K maps of the image's size, sampled, solved, summed."""

    def __init__(self, output: MDEOutput, anchors: Anchors, basis_maps: Tensor) -> None:
        rows, columns = anchors.pixels(output.shape)
        device = basis_maps.device
        self.where = torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device)
        self.depth, self.maps = output.mde_depth, basis_maps
        depth_m = torch.tensor(anchors.depth_m, device=device, dtype=torch.float32)
        self.y = depth_m.log() - self.depth[self.where].log()

    @torch.no_grad()
    def __call__(self) -> Tensor:
        """D · exp(Eᵀw), w = (MᵀM + λI)⁻¹ Mᵀy."""
        size = self.depth.shape
        E = nnf.interpolate(self.maps, size=size, mode="bilinear", align_corners=False)[0]
        M = E[:, self.where[0], self.where[1]].T
        ridge = 1e-3 * torch.eye(M.shape[1], device=M.device)
        w = torch.linalg.solve(M.T @ M + ridge, M.T @ self.y)
        return self.depth * torch.einsum("khw,k->hw", E, w).exp()


class PublishedLWLR:
    """The published scheme: β = (XᵀWX + diag(0, 1))⁻¹ XᵀWy at every 32nd pixel, in float64,
    bilinear between. W is kept as a vector; the authors' own code has N² numbers for it."""

    stride = 32
    bandwidth_px = 50.0

    def __init__(self, output: MDEOutput, anchors: Anchors) -> None:
        self.depth = output.mde_depth.double()
        device = self.depth.device
        rows, columns = anchors.pixels(output.shape)
        self.where = torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device)
        self.y = torch.tensor(anchors.depth_m, device=device)
        self.b = self.bandwidth_px * output.shape[1] / 640

    @torch.no_grad()
    def __call__(self) -> Tensor:
        """Global first, then the local fits."""
        x = self.depth[self.where]
        X = torch.stack([x, torch.ones_like(x)], dim=1)
        s, t = torch.linalg.lstsq(X, self.y[:, None]).solution[:, 0]
        aligned = s * self.depth + t
        X = torch.stack([aligned[self.where], torch.ones_like(x)], dim=1)
        v, u = (torch.arange(self.stride // 2, n, self.stride) for n in aligned.shape)
        queries = torch.stack(torch.meshgrid(v, u, indexing="ij"), dim=-1).to(X)  # rows columns 2
        anchors = torch.stack(self.where, dim=1).to(X)
        squared = ((queries[:, :, None] - anchors) ** 2).sum(dim=-1)  # rows columns n
        XtW = X.T * torch.exp(-squared / (2 * self.b**2))[:, :, None]
        ridge = torch.diag(torch.tensor([1e-12, 1.0])).to(X)  # queries far from all have no scale
        beta = torch.linalg.solve(XtW @ X + ridge, XtW @ self.y)
        maps = nnf.interpolate(
            beta.permute(2, 0, 1)[None], size=aligned.shape, mode="bilinear", align_corners=False
        )[0]
        return maps[0] * aligned + maps[1]
