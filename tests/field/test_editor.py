import numpy as np
import pytest
import torch

from field.worlds import KERNEL, image_inputs, observe_pixels, random_pixels
from scalefield.field import editor
from scalefield.field.blocks import Blocks, BlockSolutions
from scalefield.field.config import InferenceConfig
from scalefield.field.editor import BlockMemory, FieldEditor, same_anchors
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
    """In the order of `infer`."""
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
    image, maps = image_inputs(SHAPE), FieldEditor(min_anchors=0)
    for observed in edits(image, n):
        fitted = fit(KERNEL, image, observed, CONFIG)
        found, wanted = maps.render(fitted), fitted.render()
        torch.testing.assert_close(found.mean, wanted.mean, rtol=0, atol=1e-3)
        torch.testing.assert_close(found.std, wanted.std, rtol=0, atol=1e-4)
        torch.testing.assert_close(found.support, wanted.support, rtol=0, atol=1e-4)


def test_field_editor_solves_only_nodes_with_the_edited_anchor_among_their_neighbours():
    image, maps = image_inputs(SHAPE), FieldEditor()
    observed = anchors_of(image, 400)
    solved = []
    for last in (399, 400, 400, 399):
        fitted = fit(KERNEL, image, select(observed, torch.arange(last)), CONFIG)
        maps.render(fitted)
        solved.append(maps.nodes_solved)
    nodes = len(fitted.lattice.node_uv)
    assert solved[0] == nodes
    assert 0 < solved[1] < 0.1 * nodes
    assert solved[2] == 0
    assert 0 < solved[3] < 0.1 * nodes


def test_same_anchors_finds_those_of_equal_position_depth_and_noise():
    image = image_inputs(SHAPE)
    before = anchors_of(image, 9)
    now = select(before, torch.tensor([8, 2, 3, 5]))
    now = now._replace(
        y=now.y + torch.tensor([0.0, 1.0, 0.0, 0.0]),
        noise=now.noise * torch.tensor([1.0, 1.0, 2.0, 1 + 1e-6]),
    )
    assert same_anchors(now, before).tolist() == [8, -1, -1, 5]


def test_field_editor_keeps_nothing_of_few_anchors():
    image, maps = image_inputs(SHAPE), FieldEditor(min_anchors=13)
    fitted = fit(KERNEL, image, anchors_of(image, 12), CONFIG)
    torch.testing.assert_close(maps.render(fitted).mean, fitted.render().mean)
    assert maps.nbytes == 0
    maps.render(fit(KERNEL, image, anchors_of(image, 13), CONFIG))
    assert maps.nbytes > 0


def test_block_memory_searches_only_the_blocks_that_an_edit_changes(monkeypatch):
    image, memory = image_inputs(SHAPE), BlockMemory()
    observed = ordered(anchors_of(image, 401))
    observed = observed._replace(y=observed.y + 2 * (torch.arange(401) % 9 == 4))
    searched = []

    def detect(kernel, observations, blocks, settings):
        searched.append(len(blocks.index))
        return detect_outliers(kernel, observations, blocks, settings)

    monkeypatch.setattr(editor, "detect_outliers", detect)
    config = InferenceConfig()
    for last in (400, 401, 401, 400):
        blocks, found = memory.search(KERNEL, select(observed, torch.arange(last)), config)
        anchors = blocks.index[blocks.mask].sort().values
        assert torch.equal(anchors, torch.arange(last))
        wanted = detect_outliers(
            KERNEL, select(observed, torch.arange(last)), blocks, config.outliers
        )
        assert found.rejected.any()
        torch.testing.assert_close(vars(found), vars(wanted))
    assert searched == [len(blocks.index), 1, 1]


def test_block_memory_splits_anew_when_a_block_has_grown_too_large():
    image, memory = image_inputs(SHAPE), BlockMemory(max_growth=1.1)
    observed = anchors_of(image, 900)
    near = (observed.inputs.position - observed.inputs.position[0]).norm(dim=1).argsort()
    few = select(observed, near[300:].sort().values)
    first, _ = memory.search(KERNEL, few, InferenceConfig())
    second, _ = memory.search(KERNEL, observed, InferenceConfig())
    fresh = Blocks.split(observed, InferenceConfig())
    size = fresh.index.shape[1]
    assert torch.equal(second.index[:, :size], fresh.index)
    assert not second.mask[:, size:].any()
    assert second.index.shape != first.index.shape


def test_block_memory_solves_only_the_blocks_that_an_edit_changes():
    image, memory, solved = image_inputs(SHAPE), BlockMemory(), []
    observed = ordered(anchors_of(image, 401))

    def solve(kernel, observations, features, H, blocks):
        solutions = memory.solve(kernel, observations, features, H, blocks)
        wanted = BlockSolutions.of(kernel, observations, features, H, blocks)
        torch.testing.assert_close(solutions, wanted)
        return solutions

    def count(blocks, function):
        solved.append(len(blocks.index))
        return original(blocks, function)

    original = Blocks.map
    for last in (400, 401, 401, 400):
        some = select(observed, torch.arange(last))
        blocks, _ = memory.search(KERNEL, some, CONFIG)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Blocks, "map", count)
            fit(KERNEL, image, some, CONFIG, blocks=blocks, solve=solve)
    number = len(blocks.index)
    assert solved == [number, number, 1, number, number, 1, number]


def test_maps_and_blocks_are_computed_anew_when_the_kernel_changes():
    """As when an edit changes the scale of the estimator's errors."""
    image, memory, edited = image_inputs(SHAPE), BlockMemory(), FieldEditor()
    observed = ordered(anchors_of(image, 401))
    blocks, _ = memory.search(KERNEL, observed, CONFIG)
    for factor in (1.0, 0.25, 0.25, 1.0):
        kernel = KERNEL.scaled(ScaleFactors(*torch.tensor([factor, factor, 1.0]).double()))
        found = fit(kernel, image, observed, CONFIG, blocks=blocks, solve=memory.solve)
        wanted = fit(kernel, image, observed, CONFIG, blocks=blocks)
        torch.testing.assert_close(found.linear.weights, wanted.linear.weights)
        mean = edited.render(found).mean
        torch.testing.assert_close(mean, wanted.render().mean, rtol=0, atol=1e-4)
