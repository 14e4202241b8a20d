"""`Scene`: depth of all views of a scene in one scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from scalefield.anchors import AnchorsLike, require_anchors
from scalefield.checks import input_warnings
from scalefield.defaults import MDE_NAME
from scalefield.errors import InputError
from scalefield.field.condition import FieldPosterior, condition, expected_recovery
from scalefield.field.kalman import rejections
from scalefield.field.model import FieldModel, load_field
from scalefield.field.observations import Readings
from scalefield.field.posterior import fit
from scalefield.geometry.camera import Camera
from scalefield.inputs import load_image
from scalefield.io import read_npz, write_npz
from scalefield.mde import MDE
from scalefield.mde.cache import MDECache
from scalefield.mde.output import MDEOutput
from scalefield.mde.own_maps import RelativeDepth
from scalefield.recovery import Recovery
from scalefield.runtime.workers import map_frames
from scalefield.scene.stereo import Matches, StereoConfig, match
from scalefield.scene.ties import JointSystem, TieConfig, TiedPixels, Ties, find_level, find_ties
from scalefield.scene.view import Estimate, View, neighbours
from scalefield.seeding import seeded_rng
from scalefield.validation import require

POSTERIORS_KEPT = 32
"""Posteriors of views that a process keeps from step to step."""


@dataclass(frozen=True)
class SceneConfig:
    """Settings of the joint recovery of a scene."""

    stereo: StereoConfig | None = field(default_factory=StereoConfig)
    """Matching along epipolar lines; None for views that are not matched."""
    ties: TieConfig | None = field(default_factory=TieConfig)
    """Ties between views; None for none."""
    rounds: int = 2
    """How often ties are looked for: in the depth that they have changed they are other ones."""
    feedback: int = 80
    """Pixels at which a view's field is given the joint solution."""
    feedback_std: float = 0.05
    """Noise of the readings that give it."""
    most_change: float = 1.0
    """Largest change of a log-depth by the joint solution."""
    most_worse: float = 1.0
    """Matches of a view are used only if the error of its anchors, each predicted without itself,
    becomes at most this many times as large."""


@dataclass
class Scene:
    """Depth of all views of a scene in one scale, from their poses.

    Each view is recovered from its own anchors; matches with its neighbours along the epipolar
    lines become further anchors; then the fields of all views are solved together, tied where views
    see one surface. Views without anchors take part. Poses, anchors and the result have one unit.

        scene = sf.Scene()
        for image, anchors, camera, pose in frames:
            scene.add(image, anchors, camera=camera, camera_to_world=pose)
        recoveries = scene.recover()           # by name
    """

    mde: str | MDE = MDE_NAME
    """The estimator, or `OwnMaps`."""
    model: str | FieldModel = "field"
    """The model, as in `Field`."""
    robust: bool = True
    """Reject or down-weight outliers among the anchors of a view, as in `Field`."""
    metres: bool = True
    """Whether anchors and poses are in metres; then a view without anchors begins with the depth
    that is expected of such an image."""
    config: SceneConfig = field(default_factory=SceneConfig)
    folder: Path | None = None
    """Keeps what is known of each view, so that a run can continue another and the memory is
    bounded; None keeps it in memory."""
    workers: int = 1
    """Processes; more than one need a folder."""
    views: dict[str, View] = field(default_factory=dict)
    """The views by name."""

    def __post_init__(self) -> None:
        if self.workers > 1 and self.folder is None:
            raise InputError("several workers need a folder in which they find the views' states")
        require(self.config.rounds >= 1, "rounds", "1 or more", self.config.rounds)
        self._memory: dict[tuple[str, str], dict[str, np.ndarray]] = {}
        self._output = lru_cache(POSTERIORS_KEPT)(self._estimate)
        self._posterior = lru_cache(POSTERIORS_KEPT)(self._condition)

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def add(
        self,
        image: Any,
        anchors: AnchorsLike = None,
        *,
        camera: Camera,
        camera_to_world: np.ndarray,
        name: str | None = None,
    ) -> str:
        """Add a view and return its name, by default its number.

        `camera_to_world` is 4×4 with the camera's axes x right, y down, z forward. A file given as
        a path is read when it is needed.
        """
        name = f"{len(self.views):06d}" if name is None else name
        if name in self.views:
            raise InputError(f"there are two views called {name!r}")
        if name.startswith("/") or ".." in Path(name).parts:
            raise InputError(f"{name!r}: a view's name must not leave the folder of its states")
        image = Path(image) if isinstance(image, (str, Path)) else load_image(image)
        pose = np.asarray(camera_to_world, np.float64)
        if pose.shape != (4, 4):
            raise InputError(f"{name}: a pose is a 4×4 matrix, found {pose.shape}")
        self.views[name] = View(name, image, camera, pose, require_anchors("anchors", anchors))
        self._memory.clear()  # neighbours change what is known of a view
        self._posterior.cache_clear()
        return name

    def recover(self, progress: Callable[[str], object] = lambda step: None) -> dict[str, Recovery]:
        """The recoveries by name; `progress` is called with the name of a step for each view."""
        return dict(self.each(progress))

    def each(
        self,
        progress: Callable[[str], object] = lambda step: None,
        work: Callable[[str, Recovery[Tensor], View], Any] | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """The views' names with their recoveries, or with the results of `work` on them."""
        self.solve(progress)
        for name, result in map_frames(partial(self._result, work), list(self.views), self.workers):
            progress("writing")
            yield name, result

    def solve(self, progress: Callable[[str], object] = lambda step: None) -> None:
        """Find the state of every view; states that exist are kept."""
        if not self.views:
            raise InputError("the scene has no view")
        if not any(len(view.anchors) for view in self.views.values()) and not self.metres:
            raise InputError("no view of the scene has an anchor")
        self._map(self._alone, "alone", progress)
        self._level(progress)
        self._map(self._match, "matched", progress)
        for i in range(self.config.rounds if self.config.ties else 0):
            self._join(i, progress)

    def estimate(self, name: str) -> Estimate:
        """The last recovered depth of a view and its deviation."""
        last = f"joint{self.config.rounds - 1}" if self.config.ties else "matched"
        state = self._get(last, name)
        return Estimate(state["log_depth"], state["std"])

    # ---- steps ----------------------------------------------------------------------------------

    def _map(
        self, step: Callable[[str], Any], state: str, progress: Callable[[str], object]
    ) -> None:
        missing = [name for name in self.views if not self._has(state, name)]
        for _ in map_frames(step, missing, self.workers):
            progress(state)

    def _alone(self, name: str) -> None:
        try:
            posterior = self._posterior(name, False)
        except InputError as e:
            raise InputError(f"{name}: {e}") from None
        self._put("alone", name, **self._rendered(posterior))

    def _level(self, progress: Callable[[str], object]) -> None:
        """Give views without anchors the scale of their neighbours, from view to view.

        The state of a view for which no scale stands out is what it was, without a reading.
        """
        config = self.config.ties
        waiting = [name for name, view in self.views.items() if not len(view.anchors)]
        if config is None or all(self._has("level", name) for name in waiting):
            return
        known = {name: self._state("alone", name) for name in self.views if name not in waiting}
        found = True
        while found:
            found = False
            for name in list(waiting):
                estimate = self._state("alone", name)
                near = neighbours(name, self.views, estimate, 2 * config.views)
                others = {other: (self.views[other], known[other]) for other in near
                          if other in known}  # fmt: skip
                rng = seeded_rng(0, name)
                change = find_level(self.views[name], estimate, others, config, rng)
                if change is None:
                    continue
                level = Estimate(estimate.log_depth + np.float32(change), estimate.std)
                row, column, log_depth, _ = self._expected_table(name)[0]
                table = np.array([[row, column, log_depth + change, config.level_std]])
                self._put("level", name, log_depth=level.log_depth, std=level.std, matches=table)
                progress("level")
                known[name], found = level, True
                waiting.remove(name)
        for name in waiting:
            state = self._get("alone", name)
            self._put("level", name, **state, matches=np.zeros((0, 4)))
        self._posterior.cache_clear()

    def _reliable(self, name: str) -> bool:
        """Whether a view has anchors, the scale of its neighbours, or matches."""
        anchors = len(self.views[name].anchors) > 0
        return anchors or any(len(self._get(s, name)["matches"]) for s in ("level", "matched"))

    def _match(self, name: str) -> None:
        level = self.config.ties is not None and not len(self.views[name].anchors)
        estimate = self._state("level" if level else "alone", name)
        found = Matches.none()
        if (config := self.config.stereo) is not None:
            near = neighbours(name, self.views, estimate, config.views)
            others = {other: (self.views[other], self._grey(other)) for other in near}
            found = match(self.views[name], self._grey(name), estimate, others, config)
        rendered = {"log_depth": estimate.log_depth, "std": estimate.std}
        if len(found.rows):
            posterior = self._condition(name, True, found)
            if self._helps(name, posterior):
                rendered = self._rendered(posterior)
            else:
                found = Matches.none()
        self._put("matched", name, matches=found.table(), **rendered)

    def _helps(self, name: str, matched: FieldPosterior) -> bool:
        """Whether the anchors are predicted no worse with the matches than without."""
        count = len(self.views[name].anchors)
        alone = self._posterior(name, False)
        if count < 2:
            return True
        before, after = (
            np.abs(posterior.leave_one_out()[0][:count]).mean() for posterior in (alone, matched)
        )
        return bool(after <= self.config.most_worse * before)

    def _join(self, index: int, progress: Callable[[str], object]) -> None:
        """Ties, their joint solution, and the fields that agree with it."""
        state = f"joint{index}"
        if all(self._has(state, name) for name in self.views):
            return
        before = f"joint{index - 1}" if index else "matched"
        names, workers = list(self.views), self.workers
        ties = dict(map_frames(partial(self._ties, before, index), names, workers))
        if not any(len(each.other) for each in ties.values()):
            for name in names:
                self._put(state, name, **self._get(before, name))
            return
        widths = {name: self._state(before, name).shape[1] for name in names}
        system = JointSystem.of(ties, widths)
        work = partial(self._tied_pixels, before, system.pixels)
        pixels = dict(map_frames(work, names, workers))
        assert self.config.ties is not None
        solved = system.solve(pixels, self.config.ties.std)
        self._map(partial(self._update, state, pixels, solved), state, progress)

    def _ties(self, before: str, index: int, name: str) -> Ties:
        config, estimate = self.config.ties, self._state(before, name)
        assert config is not None
        near = neighbours(name, self.views, estimate, config.views)
        near = [other for other in near if self._reliable(name) and self._reliable(other)]
        others = {other: (self.views[other], self._state(before, other)) for other in near}
        rng = seeded_rng(index, name)
        return find_ties(self.views[name], estimate, others, config, rng)

    def _tied_pixels(
        self, before: str, pixels: dict[str, tuple[np.ndarray, np.ndarray]], name: str
    ) -> TiedPixels:
        rows, columns = pixels[name]
        posterior = self._posterior(name, True)
        joint = posterior.joint(torch.from_numpy(rows), torch.from_numpy(columns))
        own = self._get("matched", name)["log_depth"][rows, columns].astype(np.float64)
        now = self._get(before, name)["log_depth"][rows, columns].astype(np.float64)
        return TiedPixels(rows, columns, joint.covariance.double().numpy(), now - own)

    def _update(
        self,
        state: str,
        pixels: dict[str, TiedPixels],
        solved: dict[str, tuple[np.ndarray, float]],
        name: str,
    ) -> None:
        tied, (delta, factor) = pixels[name], solved[name]
        own = self._get("matched", name)
        if not len(delta):
            self._put(state, name, log_depth=own["log_depth"], std=own["std"])
            return
        config = self.config
        chosen = seeded_rng(0, name).permutation(len(delta))[: config.feedback]
        S, delta = tied.covariance[np.ix_(chosen, chosen)], delta[chosen]
        # Readings y of noise ρ² whose conditional mean S (S + ρ²)⁻¹ y is δ.
        ridge = S + 1e-4 * np.trace(S) / len(chosen) * np.eye(len(chosen))
        target = delta + config.feedback_std**2 * np.linalg.solve(ridge, delta)
        target = target.clip(-config.most_change, config.most_change)
        rows, columns = tied.rows[chosen], tied.columns[chosen]
        expected = own["log_depth"][rows, columns].astype(np.float64)
        noise = np.full(len(chosen), config.feedback_std)
        posterior = conditioned(
            self._posterior(name, True), readings(rows, columns, expected + target, noise)
        )
        rendered = self._rendered(posterior)
        # Neighbouring ties share errors: beside a view's own anchors they add no certainty.
        std = own["std"] if len(self.views[name].anchors) else factor * own["std"]
        self._put(state, name, log_depth=rendered["log_depth"], std=std)

    # ---- one view -------------------------------------------------------------------------------

    def _estimate(self, name: str) -> MDEOutput:
        self.mde = mde = RelativeDepth(self.mde).load().mde
        if self.folder is not None and not isinstance(mde, str) and hasattr(mde, "revision"):
            mde = MDECache(self.folder / "mde", mde)
        return RelativeDepth(mde)(self.image(name), name)

    def _condition(self, name: str, matched: bool, found: Matches | None = None) -> FieldPosterior:
        """The posterior of a view given its anchors and, if `matched`, its matches."""
        model, view, output = self._field, self.views[name], self._output(name)
        image = model.image_inputs(output)
        given = Readings.of(view.anchors, image.shape, float(model.kernel.noise_std), image.device)
        given = given._replace(mask=given.mask & output.valid[given.rows, given.columns])
        if matched:
            found = found or Matches.of(self._get("matched", name)["matches"])
            more = readings(found.rows, found.columns, found.log_depth, found.sigma)
            more = more._replace(mask=more.mask & output.valid[more.rows, more.columns])
            given = Readings(*map(torch.cat, zip(given, more, strict=True)))
        if not bool(given.mask.any()):
            table = self._expected_table(name)
            if self._has("level", name) and len(level := self._get("level", name)["matches"]):
                table = level
            expected = Matches.of(table)
            given = readings(expected.rows, expected.columns, expected.log_depth, expected.sigma)
        return condition(model, image, given, robust=self.robust)

    def _expected_table(self, name: str) -> np.ndarray:
        """The depth that is expected of such an image, as a reading at its median pixel: row,
        column, log-depth, deviation. In a scene of another unit, that of the other anchors."""
        output = self._output(name)
        image = self._field.image_inputs(output)
        recovery = expected_recovery(self._field, output, image)
        assert recovery.std_log is not None
        level = torch.where(output.valid, image.log_depth.abs(), torch.inf)
        row, column = divmod(int(level.argmin()), output.shape[1])
        log_depth = float(recovery.depth_m[row, column].log())
        std = float(recovery.std_log[row, column])
        if not self.metres:
            depths = np.concatenate([view.anchors.depth_m for view in self.views.values()])
            log_depth, std = float(np.median(np.log(depths))), max(std, float(np.log(depths).std()))
        return np.array([[row, column, log_depth, std]])

    @property
    def _field(self) -> FieldModel:
        if not isinstance(self.model, FieldModel):
            self.model = load_field(self.model)
        return self.model

    def _rendered(self, posterior: FieldPosterior) -> dict[str, np.ndarray]:
        field_ = posterior.render()
        log_depth = posterior.image.mde_depth.double().log() + field_.mean.double()
        return {"log_depth": log_depth.float().numpy(), "std": field_.std.float().numpy()}

    def _result(self, work: Callable[[str, Recovery[Tensor], View], Any] | None, name: str) -> Any:
        view, output, estimate = self.views[name], self._output(name), self.estimate(name)
        posterior = self._posterior(name, True)
        valid = output.valid[view.anchors.pixels(output.shape)]
        holes = rejections(view.anchors, ~valid, "no_relative_depth", "no relative depth here")
        rejected, warnings = posterior.report(view.anchors)
        log_depth = posterior.image.mde_depth.double().log()
        recovery = Recovery.from_log_scale(
            posterior.image.as_output(output),
            view.anchors,
            torch.from_numpy(estimate.log_depth).double() - log_depth,
            kind=output.kind,
            shift=posterior.image.shift_interval(posterior.shift),
            rejected=holes + rejected,
            warnings=warnings,
            leave_one_out_log=posterior.leave_one_out_log(len(view.anchors)),
            std_log=torch.from_numpy(estimate.std),
        )
        report = dataclasses.replace(
            recovery.report,
            method="scene",
            anchors_given=len(view.anchors),
            warnings=(
                *input_warnings(
                    output,
                    view.anchors,
                    view.anchors.pixels(output.shape),
                    recovery.report.shift,
                ),
                *recovery.report.warnings,
            ),
        )
        image = self.image(name)
        recovery = dataclasses.replace(recovery, report=report, anchors=view.anchors, image=image)
        return recovery.numpy() if work is None else work(name, recovery, view)

    def image(self, name: str) -> UInt8[np.ndarray, "h w 3"]:
        """The pixels of a view."""
        return load_image(self.views[name].image)

    def _grey(self, name: str) -> Float32[np.ndarray, "h w"]:
        return self.image(name).astype(np.float32).mean(axis=2)

    # ---- states ---------------------------------------------------------------------------------

    def _state(self, state: str, name: str) -> Estimate:
        values = self._get(state, name)
        return Estimate(values["log_depth"], values["std"])

    def _path(self, state: str, name: str) -> Path | None:
        return None if self.folder is None else self.folder / state / f"{name}.npz"

    def _has(self, state: str, name: str) -> bool:
        path = self._path(state, name)
        return (state, name) in self._memory if path is None else path.is_file()

    def _put(self, state: str, name: str, **values: np.ndarray) -> None:
        path = self._path(state, name)
        if path is None:
            self._memory[state, name] = values
        else:
            write_npz(path, **values)

    def _get(self, state: str, name: str) -> dict[str, np.ndarray]:
        path = self._path(state, name)
        if path is None:
            return self._memory[state, name]
        return read_npz(path, required=("log_depth", "std"), optional=("matches",))


def readings(
    rows: np.ndarray, columns: np.ndarray, log_depth: np.ndarray, noise: np.ndarray
) -> Readings:
    """Readings of log-depth at pixels."""
    row, column, value, sigma = map(torch.from_numpy, (rows, columns, log_depth, noise))
    return Readings(row, column, value, sigma, torch.ones_like(row, dtype=torch.bool))


def conditioned(posterior: FieldPosterior, more: Readings) -> FieldPosterior:
    """A posterior given further readings, with the same kernel, shift, outliers and calibration."""
    fitted = posterior.fit
    merged, _ = posterior.readings.merged()
    before = merged._replace(noise=fitted.observations.noise, mask=fitted.observations.mask)
    together = Readings(*map(torch.cat, zip(before, more, strict=True)))
    observed = fitted.image.observe(together)
    again = fit(fitted.kernel, fitted.image, observed, fitted.config)
    again = dataclasses.replace(again, calibration=fitted.calibration)
    return dataclasses.replace(posterior, fit=again)
