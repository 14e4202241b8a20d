"""What an edit of the anchors costs: the small solve, and what it says about the anchors."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.errors import InputError
from scalefield.mde import MDEOutput
from scalefield.methods import METHODS, make_method
from scalefield.methods.basis import Basis, anchor_embeddings, anchor_weights, targets
from scalefield.recovery import recover_from
from scalefield.result import DEPTH_LIMITS, Recovery, Report
from scalefield.ridge import Ridge, Solution, solve
from scalefield.web.sessions import Relative, Session
from scalefield.web.uploads import Limits

MOST_CHECKED = 60
"""Leaving each of n anchors out costs n solves; with more anchors than this nobody reads them."""
LEAST_CHECKED = 4
"""Of three anchors that disagree, none can be blamed."""
SUSPECT_LOG = 0.5
"""An anchor is suspected when the others contradict it by more than a factor of 1.65 …"""
SUSPECT_RATIO = 2.5
"""… and, standardised, this many times more than they contradict one another in the median."""
MOST_SUSPECTS = 5
SUGGESTIONS = 3


@dataclass(frozen=True)
class Edit:
    """What the page asks for: these anchors, this method."""

    anchors: Anchors
    method: str


def parse_edit(body: Any, limits: Limits) -> Edit:
    """An edit from JSON: {"anchors": [{"u", "v", "depth_m"}, …], "method": name}."""
    if not isinstance(body, dict) or not isinstance(body.get("anchors"), list):
        raise InputError('wanted a JSON object with "anchors": [{"u", "v", "depth_m"}, …]')
    rows, method = body["anchors"], body.get("method", "basis")
    if len(rows) > limits.anchors:
        raise InputError(f"{len(rows)} anchors, and this server takes at most {limits.anchors}")
    # Options could name files of this machine, so a name is all that a client may say.
    if not isinstance(method, str) or method not in METHODS:
        raise InputError(f"no method {str(method)[:40]!r}; there are {', '.join(METHODS)}")
    columns: dict[str, list[float]] = {"u": [], "v": [], "depth_m": []}
    for i, row in enumerate(rows):
        for name, column in columns.items():
            value = row.get(name) if isinstance(row, dict) else None
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InputError(f"anchor #{i}: {name} must be a number")
            column.append(value)
    return Edit(Anchors(**columns), method)


def apply_edit(session: Session, edit: Edit) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the maps of the page's next picture.

    `basis` gives ℓ on the generator's grid, from which the page makes D·e^ℓ itself; the other
    methods give ℓ at the displayed pixels. Both are what `recover` gives, at those pixels.
    """
    start = time.perf_counter()
    relative = session.relative
    if edit.method == "basis":
        recovery = recover_from(relative.output, edit.anchors, SmallSolve(relative))
        log_scale = recovery.log_scale.cpu().numpy()
    else:
        recovery = recover_from(relative.output, edit.anchors, make_method(edit.method))
        log_scale = session.shown(recovery.log_scale)
    report = recovery.report
    header = {
        "method": edit.method,
        "revision": relative.revision,
        "limits_m": [
            DEPTH_LIMITS[0] * float(edit.anchors.depth_m.min()),
            DEPTH_LIMITS[1] * float(edit.anchors.depth_m.max()),
        ],
        "anchors": anchor_states(report),
        "weights": None if recovery.weights is None else recovery.weights.tolist(),
        "fallbacks": list(report.fallbacks),
        "warnings": list(report.warnings),
        **check_anchors(relative, edit.anchors),
        "milliseconds": round(1e3 * (time.perf_counter() - start), 2),
    }
    return header, {"log_scale": log_scale}


@dataclass(frozen=True, eq=False)
class SmallSolve:
    """`Basis.fit` without the maps of the image's size: log_scale stays on the generator's grid."""

    relative: Relative

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery:
        """The same weights as `Basis`; depth_m is left to whoever multiplies."""
        problem = Problem.of(self.relative, anchors)
        solution = problem.solve()
        fitted = problem.M @ solution.weights[0] + solution.offset[0]
        return Recovery(
            depth_m=None,
            log_scale=solution.log_scale(self.relative.maps.basis_maps)[0],
            weights=solution.weights[0].float(),
            report=Report(
                model=mde_output.model,
                kind=mde_output.kind,
                anchors_used=len(anchors),
                residuals_log=tuple((fitted - problem.y).tolist()),
            ),
        )


@dataclass(frozen=True, eq=False)
class Problem:
    """The ridge regression of one set of anchors, in float64."""

    M: Float64[Tensor, "n k"]
    y: Float64[Tensor, " n"]
    omega: Float64[Tensor, " n"]
    ridge: Ridge

    @classmethod
    def of(cls, relative: Relative, anchors: Anchors) -> Problem:
        """M, y and ω as `Basis` has them."""
        return cls(
            anchor_embeddings(relative.maps, relative.output, anchors).double(),
            torch.from_numpy(targets(relative.output, anchors)),
            torch.from_numpy(anchor_weights(anchors)),
            relative.generator.config.ridge,
        )

    def solve(self) -> Solution:
        """w* and the offset."""
        return solve(self.M[None], self.y[None], self.omega[None], self.ridge)

    @property
    def penalty(self) -> Float64[Tensor, "k k"]:
        """Λ, the ridge as a matrix."""
        penalty = torch.full((self.M.shape[1],), self.ridge.ridge, dtype=torch.float64)
        penalty[0] = self.ridge.ridge_global
        return torch.diag(penalty)

    def leave_one_out(self) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
        """What the other anchors say of each: log D̂₋ᵢ − log depthᵢ, and it standardised.

        One batch of n exact solves, in which anchor i has no weight in problem i. The second value
        is divided by √(1 + Eᵢᵀ(M₋ᵢᵀΩM₋ᵢ + Λ)⁻¹Eᵢ): far from the others, disagreement is expected.
        """
        n = len(self.y)
        omega = self.omega * (1 - torch.eye(n, dtype=torch.float64))
        M = self.M.expand(n, n, -1)
        solution = solve(M, self.y.expand(n, n), omega, self.ridge)
        residual = (self.M * solution.weights).sum(1) + solution.offset - self.y
        normal = (M * omega[..., None]).mT @ M + self.penalty
        spread = torch.cholesky_solve(self.M[..., None], torch.linalg.cholesky(normal))[..., 0]
        return residual, residual / (1 + (self.M * spread).sum(1)).sqrt()

    def only(self, which: Int64[np.ndarray, " m"]) -> Problem:
        """The same with these anchors alone."""
        return dataclasses.replace(self, M=self.M[which], y=self.y[which], omega=self.omega[which])

    def what_others_say(self) -> tuple[Float64[np.ndarray, " n"], list[int]]:
        """log D̂ − log depth at each anchor, by anchors that are trusted; and the suspects.

        The worst contradicted anchor is set aside, then the rest is judged again without it,
        because one wrong number makes its neighbours look wrong too.
        """
        trusted = np.arange(len(self.y))
        suspects: list[int] = []
        while True:
            rest = self.only(trusted)
            residual, standard = (np.abs(values.numpy()) for values in rest.leave_one_out())
            worst = int(standard.argmax())
            usual = float(np.median(np.delete(standard, worst)))
            clear = residual[worst] > SUSPECT_LOG and standard[worst] > SUSPECT_RATIO * usual
            if not clear or len(trusted) < LEAST_CHECKED or len(suspects) == MOST_SUSPECTS:
                break
            suspects.append(int(trusted[worst]))
            trusted = np.delete(trusted, worst)
        solution = rest.solve()
        said = (self.M @ solution.weights[0] + solution.offset[0] - self.y).numpy()
        said[trusted] = rest.leave_one_out()[0].numpy()
        return said, sorted(suspects)

    def where_next(
        self, E: Float[Tensor, "k h w"], allowed: Bool[Tensor, "h w"], count: int
    ) -> list[tuple[int, int]]:
        """Cells (row, column) whose measurement most shrinks the image's mean variance of ℓ.

        With Σ = (MᵀΩM + Λ)⁻¹, ℓ(x) has variance E(x)ᵀΣE(x), and measuring x takes
        E(x)ᵀΣGΣE(x) / (1 + E(x)ᵀΣE(x)) off its mean, where G is the mean of EEᵀ; each further
        spot supposes that the earlier ones were measured.
        """
        E, allowed = E[:, ::2, ::2], allowed[::2, ::2]  # nobody aims better, and it costs a quarter
        flat = E.double().flatten(1)  # (k, cells)
        second_moment = flat @ flat.T / flat.shape[1]
        normal = (self.M * self.omega[:, None]).T @ self.M + self.penalty
        picked: list[tuple[int, int]] = []
        for _ in range(count if bool(allowed.any()) else 0):
            spread = torch.cholesky_solve(flat, torch.linalg.cholesky(normal))  # ΣE
            gain = (spread * (second_moment @ spread)).sum(0) / (1 + (flat * spread).sum(0))
            best = int(torch.where(allowed.flatten(), gain, -torch.inf).argmax())
            row, column = divmod(best, E.shape[2])
            picked.append((2 * row, 2 * column))
            normal = normal + torch.outer(flat[:, best], flat[:, best])
        return picked


def anchor_states(report: Report) -> list[dict[str, Any]]:
    """For each anchor given: its residual (log), or why it was not used."""
    reasons = {r.anchor: r.reason for r in report.rejected}
    residuals = iter(report.residuals_log)
    return [
        {"reason": reasons[i]} if i in reasons else {"residual_log": next(residuals)}
        for i in range(report.anchors_given)
    ]


def check_anchors(relative: Relative, anchors: Anchors) -> dict[str, Any]:
    """What `basis` says about the anchors, whichever method draws the map.

    "others_m" is the depth that the remaining anchors give at each, "suspects" those that stand
    out, "suggestions" the pixels to measure next.
    """
    output, basis_maps = relative.output, relative.maps.basis_maps
    rows, columns = anchors.pixels(output.shape)
    usable = np.flatnonzero(output.valid[rows, columns].cpu().numpy())
    kept = anchors[usable]
    problem = Problem.of(relative, kept)
    others: list[float | None] = [None] * len(anchors)
    suspects: list[int] = []
    if 2 <= len(kept) <= MOST_CHECKED:
        said, found = problem.what_others_say()
        for i, depth_m in zip(usable, kept.depth_m * np.exp(said), strict=True):
            others[i] = float(depth_m)
        suspects = usable[found].tolist()
    cells = problem.where_next(basis_maps[0], relative.measurable, SUGGESTIONS)
    height, width = output.shape
    grid_height, grid_width = basis_maps.shape[2:]
    suggestions = [
        {
            "u": min(width - 1, int((column + 0.5) * width / grid_width)),
            "v": min(height - 1, int((row + 0.5) * height / grid_height)),
        }
        for row, column in cells
    ]
    return {"others_m": others, "suspects": suspects, "suggestions": suggestions}


def full_recovery(session: Session, edit: Edit) -> Recovery:
    """The recovery at the photograph's size, exactly as `scalefield.recover` gives it."""
    relative, method = session.relative, make_method(edit.method)
    if isinstance(method, Basis):
        basis = method

        def fit(mde_output: MDEOutput, anchors: Anchors) -> Recovery:
            return basis.fit(mde_output, anchors, relative.generator, relative.maps)

        method = fit
    recovery = recover_from(relative.output, edit.anchors, method)
    report = dataclasses.replace(recovery.report, method=edit.method)
    return dataclasses.replace(recovery, report=report).numpy()
