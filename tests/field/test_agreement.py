"""Every entry point of `field` gives the same field for the same measurements.

`recover` is compared with the first frame of a `Stream`, `LiveField`, the page, an editor that has
seen other edits before, and the deviation that `suggest` states. Where two of them may differ, the
tolerance has its reason beside it.
"""

import numpy as np
import pytest
import torch

from scalefield.anchors import Anchors
from scalefield.api import recover_from
from scalefield.field.editor import FieldEditor
from scalefield.field.kalman import FieldFilter
from scalefield.field.placement import suggest_from
from scalefield.field.realtime import LiveField
from scalefield.mde.output import MDEOutput
from scalefield.methods.field import Field
from scalefield.web.edits import Edit, apply_edit
from scalefield.web.sessions import Session

SHAPE = (72, 96)


def scene(kind="depth"):
    """Relative depth of steps on a slope, and the true depth, which deviates from it smoothly."""
    v, u = np.indices(SHAPE)
    relative = 2 + np.sin(u / 17) + v / 60 + 1.0 * (u > 50)
    truth = 2.5 * relative * np.exp(0.15 * np.sin(u / 30) - 0.1 * v / 72)
    prediction = relative if kind == "depth" else 1 / relative
    return prediction, truth


def drawn(truth, n, seed=0):
    rng = np.random.default_rng(seed)
    chosen = rng.choice(truth.size, n, replace=False)
    v, u = np.divmod(chosen, SHAPE[1])
    return Anchors(u, v, truth[v, u] * np.exp(0.01 * rng.standard_normal(n)))


def join(*parts):
    columns = (np.concatenate([getattr(p, name) for p in parts]) for name in ("u", "v", "depth_m"))
    return Anchors(*columns)


def case(name):
    """An estimator's output and anchors."""
    prediction, truth = scene()
    anchors, options = drawn(truth, 6), {}
    match name:
        case "one":
            anchors = anchors[:1]
        case "none":
            anchors = anchors[:0]
        case "repeated pixel":
            again = Anchors(anchors.u[:1], anchors.v[:1], 1.12 * anchors.depth_m[:1])
            anchors = join(anchors, again)
        case "repeated rows":
            anchors = join(anchors, anchors, anchors[2:4])
        case "perfect map":
            prediction = truth
        case "affine map" | "8-bit map":
            prediction, truth = scene("disparity")
            options = {"affine": True}
            prediction = 3 * prediction - 0.4
            if name == "8-bit map":
                low, high = prediction.min(), prediction.max()
                prediction = np.round(255 * (prediction - low) / (high - low))
            anchors = drawn(truth, 12)
        case "outlier":
            anchors = drawn(truth, 12)
            wrong = np.where(np.arange(12) == 3, 10, 1)
            anchors = Anchors(anchors.u, anchors.v, wrong * anchors.depth_m)
        case "holes":
            prediction = prediction.copy()
            prediction[:20, :30] = np.nan
            anchors = join(anchors, Anchors([5.0], [5.0], [4.0]))
        case "NaN sigma":
            sigma_m = np.where(np.arange(6) % 2 == 0, np.nan, 0.3)
            anchors = Anchors(anchors.u, anchors.v, anchors.depth_m, sigma_m)
        case "500":
            anchors = drawn(truth, 500)
    kind = "disparity" if options else "depth"
    image = torch.from_numpy(np.stack([np.indices(SHAPE)[0]] * 3, axis=-1).astype(np.uint8))
    return MDEOutput(torch.from_numpy(prediction).float(), kind, image=image, **options), anchors


CASES = (
    "six", "one", "none", "repeated pixel", "repeated rows", "perfect map", "affine map",
    "8-bit map", "outlier", "holes", "NaN sigma", "500",
)  # fmt: skip


@pytest.fixture(params=CASES)
def name(request):
    return request.param


def compare(found, wanted, atol=1e-5):
    """Depth and its deviation, and which pixels have them."""
    depth_m, std_log = (torch.as_tensor(x).double() for x in found)
    wanted_m, wanted_std = wanted.depth_m.double(), wanted.std_log.double()
    assert torch.equal(depth_m.isnan(), wanted_m.isnan())
    known = ~depth_m.isnan()
    assert float((depth_m / wanted_m).log()[known].abs().max()) <= atol
    assert float((std_log / wanted_std).log()[known].abs().max()) <= 10 * atol


def test_the_first_frame_of_a_stream_is_recover(name):
    output, anchors = case(name)
    first = FieldFilter()(output, anchors)
    wanted = recover_from(output, anchors, Field())
    compare((first.depth_m, first.std_log), wanted, atol=0.0)
    rejected = [[(r.anchor, r.code) for r in x.report.rejected] for x in (first, wanted)]
    assert sorted(rejected[0]) == sorted(rejected[1])


@pytest.mark.parametrize("static", [False, True])
def test_live_field_is_recover(name, static):
    """`static` is what a CUDA graph does, with room for more anchors."""
    output, anchors = case(name)
    live = LiveField(SHAPE, kind=output.kind, affine=output.affine, max_anchors=600)
    live.static = static
    tensors = (torch.tensor(x).float() for x in (anchors.depth_m, anchors.sigma_m) if x is not None)
    depth_m, *sigma_m = tensors
    pixels = torch.from_numpy(np.stack([anchors.u, anchors.v], axis=1)).float()
    found = live(
        output.prediction, pixels, depth_m, image=output.image,
        sigma_m=sigma_m[0] if sigma_m else None,
    )  # fmt: skip
    if name == "none":  # a camera without measurements has no depth in metres
        assert bool(found.depth_m.isnan().all())
        return
    wanted = recover_from(output, anchors, Field())
    if not static:
        compare(found, wanted, atol=2e-4)  # buffers are float32
        return
    # The lattice of a graph is that of 600 anchors, and its blocks are strips. Its deviation is
    # interpolated between nodes also for few anchors, which is off at single pixels.
    known = ~wanted.depth_m.isnan()
    assert torch.equal(known, ~found.depth_m.isnan())
    assert torch.equal(known, ~found.std_log.isnan())
    depth, std = (
        (x / y).log()[known].abs()
        for x, y in ((found.depth_m, wanted.depth_m), (found.std_log, wanted.std_log))
    )
    assert float(depth.quantile(0.9)) < 0.03
    assert float(std.median()) < 0.25


def test_an_edit_of_the_page_is_recover(name):
    output, anchors = case(name)
    if name == "none":
        pytest.skip("the page asks for no recovery without measurements")
    session = Session("made.png", output.image.numpy())
    session.prepare(output)
    _, maps = apply_edit(session, Edit(anchors, "field"))
    wanted = recover_from(output, anchors, Field())
    known = ~wanted.depth_m.isnan()
    expected = (wanted.depth_m / output.mde_depth).log()
    found = torch.from_numpy(maps["log_scale"])
    assert float((found - expected)[known].abs().max()) < 1e-4


def test_an_editor_with_a_history_is_recover(name):
    output, anchors = case(name)
    if name == "none":
        pytest.skip("nothing to edit")
    field, editor = Field(), FieldEditor(min_anchors=0)
    valid = output.valid[anchors.pixels(SHAPE)].numpy()
    image, kept = field.load().image_inputs(output), anchors[valid]
    extra = drawn(scene()[1], 9, seed=3)
    for edited in (join(kept, extra), kept[: len(kept) // 2], kept):
        if len(edited):
            posterior = field.condition(image, edited, editor)
            rendered = editor.render(posterior.fit)
    wanted = recover_from(output, anchors, field)
    found = posterior.image.mde_depth * rendered.mean.exp()
    # Sums over anchors in another order, kept in float32.
    holes = ~output.valid
    compare(
        (found.masked_fill(holes, np.nan), rendered.std.masked_fill(holes, np.nan)),
        wanted,
        atol=2e-3,
    )


def test_suggest_states_the_deviation_of_recover(name):
    output, anchors = case(name)
    first = suggest_from(output, anchors, 1)[0]
    wanted = float(recover_from(output, anchors, Field()).std_log[first.v, first.u])
    if name == "none":
        assert first.std_log == pytest.approx(wanted, rel=0.1)  # computed on a coarse grid
        return
    field, valid = Field(), output.valid[anchors.pixels(SHAPE)].numpy()
    posterior = field.condition(field.load().image_inputs(output), anchors[valid])
    _, std = posterior.at(torch.tensor([first.v]), torch.tensor([first.u]))
    # With many anchors `suggest` uses all of them, and a pixel its dozen nearest ones.
    assert first.std_log == pytest.approx(float(std), rel=0.1 if name == "500" else 1e-3)
    # Beyond a dozen anchors the map is interpolated between nodes, which is off at single pixels.
    assert first.std_log == pytest.approx(wanted, rel=0.5 if name == "500" else 5e-3)
