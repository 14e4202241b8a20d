"""Figures that the paper reports, for comparison."""

from __future__ import annotations

# AbsRel and δ1 under low, medium and high anchors; None where the paper has a dash.
Figures = tuple[tuple[float, float] | None, ...]

ROWS = {
    **{name: name for name in ("Global", "Grid", "LWLR", "Piecewise", "Region")},
    "Basis K=8": "Basis",
    "Basis K=30": "Basis*",
    "Basis K=50": "Basis**",
}
"""The paper's name of each row."""

MAIN: dict[tuple[str, str], dict[str, Figures]] = {
    ("KITTI", "DA3"): {
        "Global": ((0.31, 0.53), (0.21, 0.65), (0.20, 0.69)),
        "Grid": ((0.24, 0.63), (0.17, 0.77), (0.16, 0.78)),
        "LWLR": ((0.26, 0.63), (0.19, 0.69), (0.19, 0.70)),
        "Piecewise": ((0.25, 0.66), (0.17, 0.76), (0.17, 0.77)),
        "Basis K=8": ((0.15, 0.81), (0.13, 0.85), (0.12, 0.85)),
        "Basis K=30": (None, (0.11, 0.87), (0.10, 0.88)),
        "Basis K=50": (None, (0.10, 0.88), (0.10, 0.88)),
    },
    ("KITTI", "MiDaS"): {
        "Global": ((0.17, 0.75), (0.16, 0.76), (0.16, 0.77)),
        "Grid": ((0.23, 0.72), (0.18, 0.79), (0.17, 0.80)),
        "LWLR": ((0.27, 0.56), (0.12, 0.82), (0.12, 0.84)),
        "Piecewise": ((0.25, 0.65), (0.16, 0.75), (0.16, 0.75)),
        "Basis K=8": ((0.13, 0.83), (0.12, 0.86), (0.11, 0.87)),
        "Basis K=30": (None, (0.10, 0.88), (0.09, 0.90)),
        "Basis K=50": (None, (0.09, 0.89), (0.09, 0.90)),
    },
    ("UrbanSyn + SUN RGB-D", "DA3"): {
        "Global": ((0.21, 0.74), (0.18, 0.77), (0.18, 0.78)),
        "Grid": ((0.29, 0.70), (0.22, 0.74), (0.22, 0.74)),
        "LWLR": ((0.19, 0.76), (0.12, 0.87), (0.12, 0.87)),
        "Piecewise": ((0.16, 0.83), (0.12, 0.86), (0.11, 0.88)),
        "Region": ((0.32, 0.74), (0.09, 0.91), (0.06, 0.95)),
        "Basis K=8": ((0.08, 0.92), (0.07, 0.95), (0.07, 0.95)),
        "Basis K=30": (None, (0.06, 0.95), (0.05, 0.96)),
        "Basis K=50": (None, (0.06, 0.95), (0.05, 0.96)),
    },
    ("UrbanSyn + SUN RGB-D", "MiDaS"): {
        "Global": ((0.17, 0.82), (0.15, 0.83), (0.13, 0.84)),
        "Grid": ((0.38, 0.68), (0.29, 0.73), (0.29, 0.74)),
        "LWLR": ((0.12, 0.85), (0.07, 0.92), (0.09, 0.91)),
        "Piecewise": ((0.23, 0.78), (0.12, 0.86), (0.12, 0.86)),
        "Region": ((0.22, 0.80), (0.09, 0.93), (0.06, 0.95)),
        "Basis K=8": ((0.14, 0.89), (0.10, 0.95), (0.11, 0.92)),
        "Basis K=30": (None, (0.10, 0.93), (0.09, 0.94)),
        "Basis K=50": (None, (0.10, 0.94), (0.09, 0.94)),
    },
}

ABLATION: dict[tuple[str, str], dict[int, tuple[float, float]]] = {
    ("DA3", "full"): {8: (0.0765, 0.931), 30: (0.0662, 0.939), 50: (0.064, 0.941)},
    ("MiDaS", "full"): {8: (0.100, 0.936), 30: (0.100, 0.926), 50: (0.095, 0.930)},
    ("DA3", "F = 0"): {8: (0.0941, 0.907), 30: (0.0944, 0.9018), 50: (0.0960, 0.897)},
    ("MiDaS", "F = 0"): {8: (0.107, 0.927), 30: (0.121, 0.898), 50: (0.118, 0.899)},
}
"""Medium anchors, over the three datasets, by K."""

DROP: dict[str, dict[int, tuple[float, float]]] = {
    "DA3": {1: (0.18, 0.74), 3: (0.11, 0.87), 5: (0.10, 0.89), 7: (0.10, 0.90), 9: (0.10, 0.91)},
    "MiDaS": {1: (0.16, 0.78), 3: (0.10, 0.89), 5: (0.09, 0.91), 7: (0.09, 0.92), 9: (0.09, 0.92)},
}
"""AbsRel and δ1 by the number of anchors left, K = 8, over the three datasets."""

SPECTRAL = {"η₁": "0.92–0.97", "|v₁ᵀg|": "0.985–0.991", "mean G₀": "≈ 0.21", "var G₀": "≈ 1e-4"}
"""Medians, K = 8, low anchors, DA3."""

DATASETS = {"KITTI": ("kitti",), "UrbanSyn + SUN RGB-D": ("urbansyn", "sunrgbd")}
"""Our names of the datasets that a column of the paper averages."""

MDES = {"DA3": "da3-base", "MiDaS": "midas-hybrid"}
"""The paper's estimators, by the name of `mde.MODELS`."""
