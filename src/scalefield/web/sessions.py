"""Sessions: the state that the server keeps for each photograph, limited in number and bytes."""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Float64, Int64, UInt8
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.basis.generator import BasisMaps, Generator
from scalefield.basis.grids import geometric_cues, grid_log_depth
from scalefield.defaults import MDE_NAME
from scalefield.errors import InputError
from scalefield.field.condition import FieldPosterior
from scalefield.field.editor import FieldEditor
from scalefield.field.image_inputs import ImageInputs
from scalefield.geometry.survey import Survey
from scalefield.mde import MDEOutput, load_mde
from scalefield.methods.basis import Basis, basis_maps
from scalefield.methods.field import Field

State = Literal["waiting", "working", "ready", "failed"]

DISPLAY_SIDE = 800
"""Longer side, in pixels, of what the page shows; depth to download has the photograph's size."""
PREVIEW_SIDE = 240
"""Longer side, in pixels, of the first result of `field` after an edit."""


class Gone(LookupError):
    """The session does not exist, or was removed to free memory."""


@dataclass(frozen=True, eq=False)
class Relative:
    """A relative depth and what follows from it without anchors; replaced as a whole."""

    output: MDEOutput
    shown: MDEOutput
    """D_MDE at the displayed pixels; the same as `output` where all are displayed."""
    basis: tuple[Generator, BasisMaps]
    field: ImageInputs
    measurable: Bool[Tensor, "h w"]
    """Cells of the generator's grid where a measurement may be suggested."""
    revision: int
    """Counts the relative depths that the session has had."""
    editor: FieldEditor = dataclasses.field(default_factory=FieldEditor)
    """Fits and maps of `field`, from edit to edit."""
    latest: dict[bytes, FieldPosterior] = dataclasses.field(default_factory=dict)
    """The latest posterior, by its anchors."""

    @classmethod
    def of(cls, output: MDEOutput, shown: MDEOutput, revision: int) -> Relative:
        """Run the generators."""
        generator = Basis().load(output.prediction.device)
        return cls(
            output=output,
            shown=shown,
            basis=(generator, basis_maps(generator, output)),
            field=Field().load().image_inputs(output),
            measurable=measurable(output),
            revision=revision,
        )

    def posterior(self, anchors: Anchors, survey: Survey | None = None) -> FieldPosterior:
        """The posterior of `field` with its default options, at the photograph's size; that of the
        measurements of the last call is kept."""
        columns = (anchors.u, anchors.v, anchors.depth_m, anchors.sigma_m)
        key = b"|".join(b"" if column is None else column.tobytes() for column in columns)
        if survey is not None:
            key += repr((survey.measured, survey.camera)).encode()
        found = self.latest.get(key)
        if found is None:
            editor = self.editor if survey is None else None
            found = Field().condition(self.field, anchors, editor, survey)
            self.latest.clear()
            self.latest[key] = found
        return found

    @cached_property
    def shown_field(self) -> ImageInputs:
        """The inputs of `field` at the displayed pixels."""
        return self.field_at(DISPLAY_SIDE)

    @cached_property
    def preview_field(self) -> ImageInputs:
        """The inputs of `field` on a coarser grid than `shown_field`, for a quick first result;
        `shown_field` itself where that is small."""
        small = max(self.shown_field.shape) <= PREVIEW_SIDE
        return self.shown_field if small else self.field_at(PREVIEW_SIDE)

    def field_at(self, longer_side: int) -> ImageInputs:
        """The inputs of `field` at the middle pixels of blocks of the image."""
        if max(self.field.shape) <= longer_side:
            return self.field
        return self.field.sampled(*self._pixels(longer_side))

    def depth_at(self, image: ImageInputs) -> Float[Tensor, "r c"]:
        """The relative depth that the page has at the pixels of one of these images."""
        rows, columns = self._pixels(max(image.shape))
        return self.output.mde_depth[rows[:, None], columns]

    def _pixels(self, longer_side: int) -> tuple[Int64[Tensor, " r"], Int64[Tensor, " c"]]:
        rows, columns = middle_pixels(self.field.shape, longer_side)
        return torch.from_numpy(rows), torch.from_numpy(columns)

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes, without the photograph."""
        output, features = self.output, self.output.features
        held = [*self.basis[1], self.field.maps.maps, self.shown.prediction]
        held += [output.prediction, output.mde_depth, output.valid]
        held += [] if features is None else [features]
        return sum({t.data_ptr(): t.nbytes for t in held}.values()) + self.editor.nbytes


WAITING = "waiting for its turn"


@dataclass(eq=False)
class Session:
    """One photograph, its relative depth and its basis maps; anchors stay with the page."""

    name: str
    """File name for display and for the exported script; never a path on the server."""
    image: UInt8[np.ndarray, "h w 3"]
    fov_deg: float | None = None
    fov_source: str = ""
    sample: str = ""
    truth_m: Float64[np.ndarray, "h w"] | None = None
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    state: State = "waiting"
    step: str = WAITING
    progress: float = 0.0
    error: str = ""
    made: Relative | None = None
    own_depth: str = ""
    """Name of the client's depth file; empty if the estimator is used."""
    depth_key: str | None = None
    """Name of the array in the client's depth file, if it holds several."""
    client: str = ""
    """Identity of the owner, for fair eviction."""

    def prepare(
        self, brought: MDEOutput | None = None, name: str = "", key: str | None = None
    ) -> None:
        """Run the estimator (or use a given output) and the generators; `state` is the progress.

        The previous relative depth stays in use until the new one is complete.
        """
        try:
            output = brought
            if output is None:
                self._report("working", "loading the estimator", 0.1)
                estimator = load_mde(MDE_NAME)
                self._report("working", "estimating relative depth", 0.3)
                output = estimator(self.image)
            self._report("working", "making basis maps", 0.75)
            shown = output
            if max(self.shape) > DISPLAY_SIDE:
                relative = output.prediction if output.affine else output.mde_depth
                kind = output.kind if output.affine else "depth"
                values = torch.from_numpy(self.shown(relative))
                shown = MDEOutput(values, kind, affine=output.affine)
            self.made = Relative.of(output, shown, self.revision + 1)
            self.own_depth, self.depth_key = name, key
            if output.image is not None:
                self.image = output.image.numpy()  # one copy is enough
            self.error = ""
            self._report("ready", "ready", 1.0)
        except InputError as e:
            self.error = str(e)
            self._report("failed", "failed", 1.0)
        except BaseException:  # so that the page does not wait; the log has the traceback
            self.error = "the relative depth could not be computed; the server's log has the reason"
            self._report("failed", "failed", 1.0)
            raise

    def wait(self) -> None:
        """Report that `prepare` is queued."""
        self._report("waiting", WAITING, 0.0)

    def _report(self, state: State, step: str, progress: float) -> None:
        self.state, self.step, self.progress = state, step, progress

    @property
    def relative(self) -> Relative:
        """The relative depth, once there is one."""
        if self.made is None:
            raise InputError(self.error or "the relative depth is not ready yet; ask again soon")
        return self.made

    @property
    def revision(self) -> int:
        """Revision of the relative depth; 0 before there is one."""
        return 0 if self.made is None else self.made.revision

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the photograph."""
        return self.image.shape[0], self.image.shape[1]

    @cached_property
    def display(self) -> tuple[Int64[np.ndarray, " hd"], Int64[np.ndarray, " wd"]]:
        """Rows and columns of the photograph that the page shows: the middle of each block."""
        return middle_pixels(self.shape, DISPLAY_SIDE)

    def at_display_size(self, anchors: Anchors) -> tuple[MDEOutput, Anchors]:
        """The relative depth and the anchors on the displayed pixels, for a quick first result."""
        (rows, columns), (height, width) = self.display, self.shape
        output = self.relative.shown
        image = torch.from_numpy(self.image[rows[:, None], columns])
        u = np.clip((anchors.u + 0.5) * (len(columns) / width) - 0.5, -0.5, len(columns) - 0.51)
        v = np.clip((anchors.v + 0.5) * (len(rows) / height) - 0.5, -0.5, len(rows) - 0.51)
        return replace(output, image=image), anchors.moved(u, v)

    def shown(self, values: Tensor) -> np.ndarray:
        """The displayed pixels of a map of the photograph's size."""
        rows, columns = self.display
        return values[torch.from_numpy(rows)[:, None], torch.from_numpy(columns)].cpu().numpy()

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes."""
        total = self.image.nbytes + (0 if self.truth_m is None else self.truth_m.nbytes)
        return total + (0 if self.made is None else self.made.nbytes)

    def describe(self) -> dict[str, Any]:
        """The session as JSON values of the API."""
        (rows, columns), (height, width) = self.display, self.shape
        output = None if self.made is None else self.made.output
        return {
            "id": self.id,
            "name": self.name,
            "state": self.state,
            "step": self.step,
            "progress": self.progress,
            "error": self.error,
            "width": width,
            "height": height,
            "display_width": len(columns),
            "display_height": len(rows),
            "fov_deg": self.fov_deg,
            "fov_source": self.fov_source,
            "sample": self.sample,
            "relative_depth": self.own_depth or (output.model if output else MDE_NAME),
            "kind": output.kind if output else "",
            "revision": self.revision,
        }


def middle_pixels(
    shape: tuple[int, int], longer_side: int
) -> tuple[Int64[np.ndarray, " h"], Int64[np.ndarray, " w"]]:
    """Rows and columns of the middle pixels of equal blocks, at most `longer_side` along the longer
    side; all of them where the image is not larger."""
    shrink = min(1.0, longer_side / max(shape))
    counts = (max(1, round(side * shrink)) for side in shape)
    rows, columns = (
        np.floor((np.arange(count) + 0.5) * (side / count)).astype(np.int64)
        for count, side in zip(counts, shape, strict=True)
    )
    return rows, columns


def measurable(output: MDEOutput) -> Bool[Tensor, "h w"]:
    """Cells that can be measured: with depth, not at the image's border, not the steepest fifth."""
    log_depth = grid_log_depth(output.mde_depth[None].float())
    du, dv = geometric_cues(log_depth)[0, 1:3]
    steep = du.abs() + dv.abs()
    gentle = steep <= steep.flatten().kthvalue(-(-4 * steep.numel() // 5)).values
    size = steep.shape
    known = nnf.interpolate(output.valid[None, None].float(), size=size, mode="area")[0, 0]
    margin = max(1, round(0.03 * max(size)))
    inside = torch.zeros_like(gentle)
    inside[margin:-margin, margin:-margin] = True
    return (known > 0.999) & gentle & inside


class Sessions:
    """Sessions, limited in number and bytes; the client with most loses its least recently used."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most, self.most_bytes = most, most_bytes
        self._held: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Approximate memory of all sessions in bytes."""
        return sum(session.nbytes for session in self._held.values())

    def add(self, session: Session) -> None:
        """Add a session, and drop others until all fit."""
        self._held[session.id] = session
        self.trim()

    def trim(self, reserved_bytes: int = 0) -> None:
        """Drop sessions until all and what is reserved fit; the one used last stays in any case."""
        while len(self._held) > 1 and (
            len(self._held) > self.most or self.nbytes + reserved_bytes > self.most_bytes
        ):
            newest = next(reversed(self._held))
            del self._held[self._victim(newest)]

    def _victim(self, newest: str) -> str:
        """The session used longest ago of the client that holds most, but for the newest."""
        counts = Counter(session.client for session in self._held.values())
        most = max(counts[s.client] for s in self._held.values() if s.id != newest)
        return next(
            s.id for s in self._held.values() if s.id != newest and counts[s.client] == most
        )

    def get(self, key: str) -> Session:
        """The session of that id, which is now the one used last."""
        if key not in self._held:
            raise Gone("this session is no longer held; send the photograph again")
        self._held.move_to_end(key)
        return self._held[key]

    def drop(self, key: str) -> None:
        """Remove a session."""
        self.get(key)
        del self._held[key]
