import numpy as np
import pytest
import torch

from field.worlds import KERNEL, image_inputs, observe_pixels, random_pixels
from scalefield.field.blocks import Blocks
from scalefield.field.config import InferenceConfig
from scalefield.field.editor import FieldEditor, matches
from scalefield.field.kernel import ScaleFactors
from scalefield.field.outliers import detect_outliers
from scalefield.field.posterior import fit

SHAPE = (96, 128)
CONFIG = InferenceConfig(cell_px=(8, 8))


def anchors_of(image, n, seed=0):
    return observe_pixels(image, *random_pixels(SHAPE, n, seed=seed), seed=seed)


def select(observed, keep):
    inputs, y, noise, mask = observed
    return type(observed)(inputs[keep], y[keep], noise[keep], mask[keep])


def ordered(observed):
    """In the order of `Readings.merged`."""
    u, v = observed.inputs.position.numpy().T
    return select(observed, torch.from_numpy(np.lexsort((u, v))))


def edits(image, n):
    """Anchors as they are, with one more, one fewer, one moved, one of another depth, one rejected,
    one with other noise, and many fewer."""
    rng, every = np.random.default_rng(0), anchors_of(image, n + 1)
    yield select(every, torch.arange(n))
    yield every
    i = int(rng.integers(n))
    yield select(every, torch.arange(n + 1) != i)
    moved = anchors_of(image, n + 1, seed=1)
    swapped = torch.arange(n + 1) == i
    parts = [select(every, ~swapped), select(moved, swapped)]
    joined = parts[0].inputs.joined(parts[1].inputs)
    yield type(every)(
        joined, *(torch.cat(pair) for pair in zip(*(p[1:] for p in parts), strict=True))
    )
    yield every._replace(y=every.y + swapped)
    yield every._replace(mask=every.mask & ~swapped)
    yield every._replace(noise=every.noise * (1 + 9 * swapped))
    yield select(every, torch.arange(n // 2))


@pytest.mark.parametrize("n", [2, 12, 60, 400])
def test_field_editor_gives_the_maps_of_a_new_fit_after_every_edit(n):
    image, editor = image_inputs(SHAPE), FieldEditor(min_anchors=0)
    for observed in edits(image, n):
        fitted = fit(KERNEL, image, observed, CONFIG)
        found, wanted = editor.render(fitted), fitted.render()
        torch.testing.assert_close(found.mean, wanted.mean, rtol=0, atol=1e-3)
        torch.testing.assert_close(found.std, wanted.std, rtol=0, atol=1e-4)
        torch.testing.assert_close(found.support, wanted.support, rtol=0, atol=1e-4)


def nodes_solved(editor):
    return editor.maps[SHAPE].nodes_solved


def test_field_editor_solves_only_nodes_with_the_edited_anchor_among_their_neighbours():
    image, editor = image_inputs(SHAPE), FieldEditor()
    observed = anchors_of(image, 400)
    solved = []
    for last in (399, 400, 400, 399):
        fitted = fit(KERNEL, image, select(observed, torch.arange(last)), CONFIG)
        editor.render(fitted)
        solved.append(nodes_solved(editor))
    nodes = len(fitted.lattice.node_uv)
    assert solved[0] == nodes
    assert 0 < solved[1] < 0.1 * nodes
    assert solved[2] == 0
    assert 0 < solved[3] < 0.1 * nodes


def test_field_editor_keeps_the_maps_of_each_size_of_the_image():
    image, half, editor = image_inputs(SHAPE), image_inputs((48, 64)), FieldEditor()
    observed = anchors_of(image, 401)
    for last in (400, 401, 400):
        fitted = fit(KERNEL, image, select(observed, torch.arange(last)), CONFIG)
        for each in (fitted, fitted.over(half)):
            mean = editor.render(each).mean
            torch.testing.assert_close(mean, each.render().mean, rtol=0, atol=1e-3)
    assert list(editor.maps) == [SHAPE, (48, 64)]
    assert all(0 < kept.nodes_solved < 40 for kept in editor.maps.values())


def test_matches_finds_the_anchors_of_equal_position_and_target():
    image = image_inputs(SHAPE)
    before = anchors_of(image, 9)
    now = select(before, torch.tensor([8, 2, 3, 5]))
    now = now._replace(y=now.y + torch.tensor([0.0, 1.0, 0.0, 0.0]))
    assert matches(now, before).tolist() == [8, -1, 3, 5]


def test_field_editor_keeps_nothing_of_few_anchors():
    image, editor = image_inputs(SHAPE), FieldEditor(min_anchors=13)
    fitted = fit(KERNEL, image, anchors_of(image, 12), CONFIG)
    torch.testing.assert_close(editor.render(fitted).mean, fitted.render().mean)
    assert editor.nbytes == 0
    editor.render(fit(KERNEL, image, anchors_of(image, 13), CONFIG))
    assert editor.nbytes > 0


def counted(monkeypatch):
    """The numbers of blocks of each call of `Blocks.map` that computes something."""
    original, computed = Blocks.map, []

    def count(blocks, function, memo=None, *more, **options):
        if memo is None:
            computed.append(len(blocks.index))
        return original(blocks, function, memo, *more, **options)

    monkeypatch.setattr(Blocks, "map", count)
    return computed


def test_field_editor_searches_and_solves_only_the_blocks_that_an_edit_changes(monkeypatch):
    image, editor = image_inputs(SHAPE), FieldEditor()
    observed = ordered(anchors_of(image, 401))
    observed = observed._replace(y=observed.y + 2 * (torch.arange(401) % 9 == 4))
    computed, work = counted(monkeypatch), []
    for last in (400, 401, 401, 400):
        some = select(observed, torch.arange(last))
        blocks = Blocks.split(some, CONFIG)
        anchors = blocks.index[blocks.mask].sort().values
        assert torch.equal(anchors, torch.arange(last))
        computed.clear()
        found = detect_outliers(KERNEL, some, blocks, CONFIG.outliers, memo=editor.outliers)
        fitted = fit(KERNEL, image, some, CONFIG, blocks=blocks, memo=editor.solutions)
        work.append(list(computed))
        assert found.rejected.any()
        wanted = detect_outliers(KERNEL, some, blocks, CONFIG.outliers)
        torch.testing.assert_close(vars(found), vars(wanted))
        alone = fit(KERNEL, image, some, CONFIG, blocks=blocks)
        # Blocks of another size are padded to another one, and rounded in float32.
        for name in ("weights", "loo_std"):
            ours, theirs = (getattr(each.linear, name) for each in (fitted, alone))
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    number = len(blocks.index)
    assert work == [[number, number], [1, 1], [], [1, 1]]


def test_maps_and_blocks_are_computed_anew_when_the_kernel_changes():
    """As when an edit changes the scale of the estimator's errors."""
    image, editor = image_inputs(SHAPE), FieldEditor()
    observed = ordered(anchors_of(image, 401))
    blocks = Blocks.split(observed, CONFIG)
    for factor in (1.0, 0.25, 0.25, 1.0):
        kernel = KERNEL.scaled(ScaleFactors(*torch.tensor([factor, factor, 1.0]).double()))
        found = fit(kernel, image, observed, CONFIG, blocks=blocks, memo=editor.solutions)
        wanted = fit(kernel, image, observed, CONFIG, blocks=blocks)
        torch.testing.assert_close(found.linear.weights, wanted.linear.weights)
        mean = editor.render(found).mean
        torch.testing.assert_close(mean, wanted.render().mean, rtol=0, atol=1e-4)
