import dataclasses
import json

import numpy as np
import pytest
import torch
from recipes.train_weights import distorted_frame

from scalefield.field.error_scale import ERROR_SCALES
from scalefield.field.image_inputs import ChannelLayout
from scalefield.field.network import FieldNet, FieldNetConfig
from scalefield.field.shift import SHIFT_PRIOR, AffineMap
from scalefield.mde import MDEOutput
from scalefield.training.bank import make_banks
from scalefield.training.data import PIXELS, filled, prepare
from scalefield.training.distortion import (
    Distortion,
    DistortionConfig,
    UnknownShift,
    grid_positions,
)
from scalefield.training.field import (
    START,
    LearnedField,
    LearnedKernel,
    losses,
    train_field,
)
from scalefield.training.field_batches import (
    FieldTraining,
    draw_anchors,
    draw_batch,
)
from scalefield.training.field_validation import Outcome, calibrate, tune_on_validation
from training.world import BiasedMDE, World

NET = FieldNetConfig(layout=ChannelLayout(4, 3, 2), width=16, dilations=(1, 2))
CONFIG = FieldTraining(
    net=NET, anchors=(2, 40), steps=40, batch=4, pixels=128, warmup=5, validate=(1, "low")
)


@pytest.fixture(scope="module")
def frames():
    true = prepare(World(), "train", None)
    train = [*prepare(World(), "train", BiasedMDE()), *true]
    val = prepare(World(), "val", BiasedMDE(), CONFIG.validate)
    return [[dataclasses.replace(f, features=None) for f in some] for some in (train, val)]


def test_train_field_learns_and_records_its_scores(frames, tmp_path):
    train, val = map(make_banks, frames)
    short = dataclasses.replace(CONFIG, steps=1)
    train_field(short, train, val, tmp_path / "short", device="cpu", show_progress=False)
    model = train_field(CONFIG, train, val, tmp_path / "long", device="cpu", show_progress=False)
    lines = [
        json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])
        for name in ("short", "long")
    ]
    assert lines[1]["dense"] < 0.5 * lines[0]["dense"]
    assert lines[1]["absrel low"] < lines[0]["absrel low"]
    assert model.kernel.noise_std == START.noise_std
    assert model.kernel.slope_std != START.slope_std
    assert (tmp_path / "long" / "model" / "model.safetensors").is_file()


def test_the_loss_is_the_weighted_sum_of_its_parts(frames):
    weights = {"likelihood": 0.7, "restraint": 0.3, "level": 0.2}
    config = dataclasses.replace(CONFIG, **weights)
    (bank,) = make_banks(frames[0])[:1]
    torch.manual_seed(0)
    learned = LearnedField(NET)
    batch = draw_batch(bank, config, 6, torch.Generator().manual_seed(0))
    found = losses(learned, batch, config)
    wanted = found["dense"] + 0.7 * found["likelihood"] + 0.3 * found["mean"] + 0.2 * found["level"]
    torch.testing.assert_close(found["loss"], wanted)


def test_a_run_goes_on_where_it_was_cut_off(frames, tmp_path, monkeypatch):
    train, val = map(make_banks, frames)
    config = dataclasses.replace(CONFIG, steps=6)

    def run(name):
        where = tmp_path / name
        return train_field(
            config, train, val, where, device="cpu", validate_every=3, show_progress=False
        )

    whole = run("whole")
    with monkeypatch.context() as patch:
        from scalefield.training import field

        real = field.draw_batch

        def cut(*args):
            if (tmp_path / "cut" / "checkpoint.safetensors").exists():
                raise KeyboardInterrupt
            return real(*args)

        patch.setattr(field, "draw_batch", cut)
        with pytest.raises(KeyboardInterrupt):
            run("cut")
    again = run("cut")
    for name, value in whole.net.state_dict().items():
        assert torch.equal(value, again.net.state_dict()[name]), name


def test_filled_puts_the_sky_beyond_the_farthest_surface():
    world = World()
    frame = world.load(world.names("train")[0])
    sky = np.zeros(frame.mask.shape, bool)
    sky[:4] = True
    farthest = float(frame.depth_m[frame.mask & ~sky].max())
    depth_m = filled(dataclasses.replace(frame, sky=sky)).numpy()
    assert (depth_m[:4] >= farthest).all()
    assert (depth_m[:4] <= 10.01 * farthest).all()
    assert np.array_equal(depth_m[4:], filled(frame).numpy()[4:])


def test_the_numbers_go_through_their_logarithms_unharmed():
    learned = LearnedKernel(START)
    kernel = learned.plain()
    assert kernel.mode_std == pytest.approx(START.mode_std)
    for ours, theirs in zip(kernel.terms, START.terms, strict=True):
        assert ours.family == theirs.family
        assert ours.position_lengthscale == pytest.approx(theirs.position_lengthscale)
    learned().terms[0].amplitude.backward()
    assert torch.count_nonzero(learned.logarithms.grad) == 1


def test_make_banks_keeps_all_rows_of_large_tables(frames):
    """The protocol's anchors stand behind the random pixels, however many these are."""
    (frame, *_) = frames[1]
    many = np.arange(3 * PIXELS) % frame.drawn
    tables = {n: getattr(frame, n)[many] for n in ("pixels", "mde_log_depth", "true_log_depth")}
    large = dataclasses.replace(frame, **tables, drawn=len(many), anchors={1: many[-1:]})
    (bank,) = make_banks([large, frame])
    assert bank.pixels.y.shape == (2, 3 * PIXELS)
    same = bank.pixels.y[:, : frame.drawn]
    assert torch.equal(*same)


def test_anchors_lie_on_the_protocol_s_grid_and_no_pixel_twice(frames):
    (bank, *_) = make_banks(frames[0])
    table = bank.select([0, 1, 2, 3]).pixels
    rows = draw_anchors(table, 12, 0.0, torch.Generator().manual_seed(0))
    assert rows.shape == (4, 12)
    for i in range(4):
        assert len(rows[i].unique()) >= 11
        positions = table.positions[i][rows[i]]
        u = ((positions[:, 0] + 1) / 2 * 4).floor()  # 3 rows and 4 columns
        assert len(u.unique()) == 4


def test_a_distortion_treats_grid_and_pixels_alike_and_keeps_the_order_of_depths():
    rng = torch.Generator().manual_seed(3)
    distort = Distortion.draw(2, rng, torch.device("cpu"), torch.ones(2))
    d = torch.linspace(-3, 3, 50).expand(2, -1)
    where = torch.zeros(2, 50, 2)
    both = distort(d, where)
    for i in (0, 7, 49):
        torch.testing.assert_close(distort(d[:, i : i + 1], where[:, i : i + 1])[:, 0], both[:, i])
    plain = dataclasses.replace(distort, offsets=torch.zeros(2, 3))
    assert bool((plain(d, where).diff(dim=1) >= 0).all())  # without objects it is monotone
    none = Distortion.draw(2, rng, torch.device("cpu"), torch.zeros(2))
    torch.testing.assert_close(none(d, where), d)


def test_calibration_finds_the_factor_that_is_missing():
    """Deviations too small by three, which the anchors of all images but one show."""
    rng = np.random.default_rng(0)
    found = []
    for regime, n in (("low", 12), ("high", 500)):
        for group, factor in (("easy", 1.0), ("hard", 3.0)):
            for _ in range(5):
                scores = torch.from_numpy(rng.normal(size=400) * 2 * factor)
                total = torch.tensor(factor * n)
                found.append(Outcome(group, regime, n, scores, 0.1, total, 0.3))
    numbers = calibrate(found)
    assert numbers["std_scale"] == pytest.approx(2.0, rel=0.25)
    assert numbers["scale_prior_std"] == pytest.approx(0.3)
    assert numbers["prior_count"] <= 2  # the residuals of the anchors show the scale


def test_shrinkage_and_roughness_are_those_that_are_best_on_val(monkeypatch):
    def found(net, kernel, val, regimes, scales):
        smooth, rough = (float(kernel.terms[i].amplitude) for i in (0, 2))
        config = net.config
        wanted = {"a": (config.embedding_shrinkage, 0.45), "b": (config.amplitude_shrinkage, 1.0)}
        wanted |= {"c": (rough / START.terms[2].amplitude, 1.3), "d": (smooth, 0.15)}
        return {name: 1 + abs(value - best) for name, (value, best) in wanted.items()}

    monkeypatch.setattr("scalefield.training.field_validation.outcomes", found)
    monkeypatch.setattr("scalefield.training.field_validation.summary", lambda scores: scores)
    net = FieldNet(FieldNetConfig())
    before = net.config
    tuned, kernel = tune_on_validation(net, START, [], (), ERROR_SCALES)
    config = tuned.config
    assert (config.embedding_shrinkage, config.amplitude_shrinkage) == (0.45, 1.0)
    assert net.config is before
    assert kernel.terms[2].amplitude == pytest.approx(1.3 * START.terms[2].amplitude)
    assert kernel.terms[:2] == START.terms[:2]


def test_a_shrinkage_of_zero_leaves_no_embedding_and_unit_amplitudes():
    torch.manual_seed(0)
    net = FieldNet(FieldNetConfig()).eval()
    log_depth = torch.randn(1, 1, 12, 16)
    layout = net.config.layout
    full = net(log_depth)
    net.config = dataclasses.replace(net.config, embedding_shrinkage=0.0, amplitude_shrinkage=0.0)
    none = net(log_depth)
    torch.testing.assert_close(none.modes, full.modes)
    torch.testing.assert_close(none.mean, full.mean)
    _, embedding, amplitude, _ = none.maps.split(layout.sizes, dim=1)
    assert not embedding.any()
    assert (amplitude == 1).all()
    assert full.maps[:, layout.modes :].std() > 0


@pytest.mark.parametrize("space", ["disparity", "depth"])
def test_distortions_of_a_grid_are_those_of_its_pixels(space):
    """Segments, blurred edges and 8 bits, at the centres of cells."""
    torch.manual_seed(0)
    grid = torch.randn(3, 1, 12, 16).cumsum(dim=-1) * 0.1
    segments = torch.arange(3 * 12 * 16).reshape(3, 12, 16) // 24
    quantised = {"quantised_disparity": 0.0, "quantised_depth": 0.0, f"quantised_{space}": 1.0}
    config = DistortionConfig(blur=1.0, segment_share=1.0, **quantised)
    strength = torch.ones(3)
    rng = torch.Generator().manual_seed(1)
    plain = Distortion.draw(3, rng, torch.device("cpu"), strength, config)
    distort = plain.with_grid(grid, segments, rng, strength, config=config)
    cells = grid_positions(grid)
    whole = distort(grid.flatten(1), cells)
    for i in (0, 100, 191):
        one = distort(grid.flatten(1)[:, i : i + 1], cells[:, i : i + 1])
        torch.testing.assert_close(one[:, 0], whole[:, i])
    quantisation = distort.quantisation
    assert bool(quantisation.active.all())
    values = (whole if space == "depth" else -whole).exp()
    steps = (values - quantisation.low[:, None]) / quantisation.step[:, None]
    positive = values > 0.6 * quantisation.step[:, None]
    torch.testing.assert_close(steps[positive], steps[positive].round(), atol=2e-3, rtol=0)
    assert float(steps.max()) <= 255.01
    assert not torch.allclose(plain(grid.flatten(1), cells), whole, atol=1e-2)


def test_distortions_tilt_the_log_depth_by_a_plane_even_at_small_strengths():
    """Without any other error, what is added is linear in (u, v)."""
    none = {"slope": 0.0, "warp": 0.0, "shift": 0.0, "smooth": (0.0,), "boxes": 0.0}
    config = DistortionConfig(**none)
    rng = torch.Generator().manual_seed(0)
    distort = Distortion.draw(200, rng, torch.device("cpu"), torch.full((200,), 0.02), config)
    position = torch.rand(200, 30, 2, generator=rng) * 2 - 1
    added = distort(torch.zeros(200, 30), position)
    wanted = (position * distort.tilt[:, None]).sum(dim=-1)
    torch.testing.assert_close(added, wanted, atol=1e-5, rtol=0)
    tilted = distort.tilt.abs().sum(dim=1) > 0
    assert 0.5 < float(tilted.float().mean()) < 0.7
    assert 0.03 < float(distort.tilt[tilted].std()) < 0.15


def test_unknown_shift_matches_the_maps_of_inference():
    """The same log-depth and sensitivity as `AffineMap` has for a normalised map."""
    log_depth = torch.linspace(-1.2, 1.5, 1001)[None]
    config = DistortionConfig(affine=1.0)
    rng = torch.Generator().manual_seed(0)
    unknown = UnknownShift.draw(log_depth, rng, config=config, anchors=12)
    disparity = (-log_depth[0]).exp().reshape(1, -1)
    deviation = (disparity - disparity.median()).abs().mean()
    normalised = (disparity - disparity.median()) / deviation
    affine = AffineMap.of(MDEOutput(normalised, "disparity", affine=True))

    def around(t):
        return affine.log_depth(t)[0] - affine.median_log_depth(t)

    t, std = float(unknown.estimate), float(unknown.std)
    close = {"atol": 2e-2, "rtol": 0}  # the quantiles are those of a few pixels
    torch.testing.assert_close(unknown.seen(log_depth)[0], around(SHIFT_PRIOR.mean), **close)
    torch.testing.assert_close(unknown.estimated(log_depth)[0], around(t), **close)
    torch.testing.assert_close(
        unknown.sensitivity(log_depth)[0], std * affine.sensitivity(t)[0], **close
    )
    exact = dataclasses.replace(unknown, estimate=(unknown.low / unknown.unit).log())
    torch.testing.assert_close(exact.estimated(log_depth), log_depth - log_depth.median(), **close)


def test_unknown_shift_is_estimated_better_with_more_anchors_and_from_one_by_the_prior():
    grid = torch.randn(4000, 50, generator=torch.Generator().manual_seed(0)) * 0.5
    truth = None
    errors = []
    for n in (1, 3, 12, 104):
        rng = torch.Generator().manual_seed(1)
        unknown = UnknownShift.draw(grid, rng, config=DistortionConfig(), anchors=n)
        truth = (unknown.low / unknown.unit).log()
        errors.append(float((unknown.estimate - truth).std()))
        if n == 1:
            assert float(unknown.std[0]) == pytest.approx(SHIFT_PRIOR.std)
            assert bool((unknown.estimate == SHIFT_PRIOR.mean).all())
        else:
            assert errors[-1] < 1.3 * float(unknown.std[0])
    assert errors[1:] == sorted(errors[1:], reverse=True)
    assert 0.4 < float(unknown.affine.float().mean()) < 0.5
    known = ~unknown.affine
    torch.testing.assert_close(unknown.seen(grid)[known], grid[known])
    assert not unknown.sensitivity(grid)[known].any()


def test_draw_batch_gives_the_kernel_the_sensitivity_to_an_unknown_shift(frames):
    (bank, *_) = make_banks(frames[0])
    for share in (0.0, 1.0):
        config = dataclasses.replace(
            CONFIG, batch=8, distorted=0.0, distortion=DistortionConfig(affine=share)
        )
        batch = draw_batch(bank, config, 5, torch.Generator().manual_seed(0))
        assert batch.anchors.y.shape == (8, 5)
        assert batch.pixels.y.shape == (8, CONFIG.pixels)
        assert bool(batch.pixels.shift.any()) == bool(share)
        assert bool((batch.pixels.shift <= 0).all())
        assert bool(torch.isfinite(batch.log_depth).all())


def test_distorted_frame_is_reproducible_and_keeps_truth_and_pixels(frames):
    true = next(frame for frame in frames[0] if frame.true)
    config = DistortionConfig(least_strength=0.5)
    once, again, other = (
        distorted_frame(true, seed=seed, config=config, anchors=12) for seed in (4, 4, 5)
    )
    np.testing.assert_array_equal(once.mde_log_depth, again.mde_log_depth)
    assert torch.equal(once.log_depth, again.log_depth)
    assert not np.allclose(once.mde_log_depth, other.mde_log_depth, atol=1e-3)
    np.testing.assert_array_equal(once.true_log_depth, true.true_log_depth)
    assert not once.true
    assert float(once.log_depth.median()) == pytest.approx(0, abs=1e-6)


def test_train_field_with_a_time_limit_ends_and_records_its_steps(frames, tmp_path):
    train, val = map(make_banks, frames)
    config = dataclasses.replace(CONFIG, steps=10_000, time_limit_s=0.5)
    train_field(config, train, val, tmp_path, device="cpu", show_progress=False)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert 0 < json.loads(line)["step"] < 10_000
    assert json.loads((tmp_path / "clock.json").read_text())["elapsed_s"] >= 0.5
