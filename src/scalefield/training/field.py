"""Learning `field`: the network and the kernel's numbers, end to end through the Cholesky solve."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Int64
from torch import Tensor, nn
from tqdm import tqdm

from scalefield.cues import LOG_DEPTH_LIMIT, sample_at
from scalefield.embedding import FieldMaps, FieldNet, FieldNetConfig
from scalefield.kernel import Kernel, Points, Term
from scalefield.methods.field import FieldModel, strangeness, tempered
from scalefield.posterior import Posterior
from scalefield.sampling import grid_shape
from scalefield.training.data import PIXELS, TrainingFrame
from scalefield.training.distortion import Distortion
from scalefield.training.loop import (
    Clock,
    Ema,
    RunFolder,
    cosine_rate,
    load_checkpoint,
    pick_device,
    save_checkpoint,
    step_generator,
)

START = Kernel(
    constant=2.0,
    linear=1.0,
    terms=(
        Term(0.15, 0.5, 0.6, "gaussian"),
        Term(0.15, 1.0, 0.4, "gaussian"),
        Term(0.2, 0.3, 0.6, "exponential"),
    ),
    noise=0.01,
    slope=0.2,
    doubt=0.5,
)
"""Where training begins. The constant stays, because the global scale is free, and so does the
noise: anchors drawn from the true depth have none, and those of a user are good to a percent."""


@dataclass(frozen=True)
class FieldTraining:
    """Hyper-parameters, chosen on val."""

    net: FieldNetConfig = field(default_factory=FieldNetConfig)
    anchors: tuple[int, int] = (1, 530)
    """Least and largest number of anchors; drawn log-uniformly for every step."""
    anchor_jitter: float = 1.0
    """Shift of the anchor grid's candidates, as a share of a grid cell."""
    steps: int = 2000
    batch: int = 16
    rate: float = 1e-3
    kernel_rate: float = 1e-2
    """Learning rate of the kernel's numbers, which are logarithms."""
    weight_decay: float = 0.05
    warmup: int = 50
    ema: float = 0.998
    pixels: int = 1024
    """Known pixels an image that the losses look at in a step."""
    beta: float = 0.1
    """Where SmoothL1 turns from square to absolute, in log-depth."""
    likelihood: float = 0.02
    """Weight of the negative log-likelihood, which makes the deviation honest."""
    restraint: float = 0.05
    """Weight of mean μ²: the mean function says only what many places and MDEs agree on."""
    level: float = 0.05
    """Weight of the expected level's error, for images without anchors."""
    distorted: float = 0.5
    """Share of an MDE's frames that are distorted further; true depth always is."""
    imageless: float = 0.3
    """Share of frames whose image is withheld: it is optional."""
    featureless: float = 0.3
    """The same for F."""
    validate: tuple[str | int, ...] = (1, "low", "medium", "high")
    seed: int = 0


MOST_DRAWN = 1024
"""A frame's table begins with up to so many pixels that the protocol draws as anchors."""


class LearnedKernel(nn.Module):
    """The kernel's positive numbers by their logarithms."""

    def __init__(self, start: Kernel) -> None:
        super().__init__()
        self.start = start
        numbers = [start.linear, start.slope, start.doubt]
        for term in start.terms:
            numbers += [term.amplitude, term.position_length, term.depth_length]
        self.logarithms = nn.Parameter(torch.tensor(numbers, dtype=torch.float64).log())

    def forward(self) -> Kernel:
        """The kernel as it stands, differentiable."""
        return self.built(list(self.logarithms.exp()))

    def plain(self) -> Kernel:
        """The kernel in plain numbers."""
        return self.built([round(float(x), 5) for x in self.logarithms.detach().exp()])

    def built(self, numbers: Sequence[float | Tensor]) -> Kernel:
        """A kernel with these numbers in place of those learned."""
        linear, slope, doubt, *rest = numbers
        terms = tuple(
            Term(rest[3 * i], rest[3 * i + 1], rest[3 * i + 2], term.shape)
            for i, term in enumerate(self.start.terms)
        )
        return Kernel(self.start.constant, linear, terms, self.start.noise, slope, doubt)


class LearnedField(nn.Module):
    """Everything that training changes."""

    def __init__(self, config: FieldNetConfig, start: Kernel = START) -> None:
        super().__init__()
        self.net = FieldNet(config)
        self.kernel = LearnedKernel(start)


@dataclass(frozen=True, eq=False)
class Bank:
    """Frames of one grid shape, stacked on the device."""

    log_depth: Float[Tensor, "f 1 h w"]
    image: Float[Tensor, "f 3 h w"]
    features: Float[Tensor, "f c hf wf"] | None
    positions: Float[Tensor, "f p 2"]
    """(u, v) of known pixels in −1 … 1."""
    units: Float[Tensor, "f 2"]
    """Half the image's width and height in units of its area's square root."""
    mde_log_depth: Float[Tensor, "f p"]
    """log D_MDE there, around the same median as `log_depth`."""
    true_log_depth: Float[Tensor, "f p"]
    anchors: dict[str | int, list[Int64[np.ndarray, " _"]]]
    chance: Float[Tensor, " f"]
    """How often each frame is drawn, on the CPU."""
    truth: Float[Tensor, " f"]
    """1 where D_MDE is the true depth and must be distorted."""
    groups: tuple[str, ...]


def make_banks(frames: Sequence[TrainingFrame], balance: float = 0.5) -> list[Bank]:
    """All frames by grid shape; a source with n frames is drawn in proportion to n^(1 − balance).

    Features are kept where every frame of a bank has them.
    """
    counts = Counter(frame.group for frame in frames)
    buckets: dict[tuple[int, ...], list[TrainingFrame]] = defaultdict(list)
    for frame in frames:
        buckets[frame.bucket].append(frame)
    return [
        make_bank(members, torch.tensor([counts[f.group] ** -balance for f in members]))
        for members in buckets.values()
    ]


def make_bank(frames: Sequence[TrainingFrame], chance: Float[Tensor, " f"]) -> Bank:
    """Frames of one grid shape; one with few known pixels repeats them."""
    device = frames[0].log_depth.device

    def table(values: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(values)).float().to(device)

    rows = [np.arange(PIXELS + MOST_DRAWN) % len(f.pixels) for f in frames]
    sizes = np.array([[f.shape[1], f.shape[0]] for f in frames], np.float32)
    triples = list(zip(frames, rows, sizes, strict=True))
    features = [f.features for f in frames if f.features is not None]
    return Bank(
        log_depth=torch.stack([f.log_depth for f in frames]),
        image=torch.stack([f.image for f in frames]),
        features=torch.stack(features) if len(features) == len(frames) else None,
        positions=table([(f.pixels[r] + 0.5) * 2 / size - 1 for f, r, size in triples]),
        units=table([0.5 * size / np.sqrt(size.prod()) for size in sizes]),
        mde_log_depth=table([f.mde_log_depth[r] - f.level for f, r, _ in triples]),
        true_log_depth=table([f.true_log_depth[r] for f, r, _ in triples]),
        anchors={regime: [f.anchors[regime] for f in frames] for regime in frames[0].anchors},
        chance=chance,
        truth=torch.tensor([float(f.true) for f in frames], device=device),
        groups=tuple(f.group for f in frames),
    )


@dataclass(frozen=True, eq=False)
class FieldBatch:
    """Some frames, as one step sees them."""

    log_depth: Float[Tensor, "b 1 h w"]
    image: Float[Tensor, "b 3 h w"]
    features: Float[Tensor, "b c hf wf"] | None
    positions: Float[Tensor, "b p 2"]
    units: Float[Tensor, "b 2"]
    mde_log_depth: Float[Tensor, "b p"]
    true_log_depth: Float[Tensor, "b p"]

    def points(self, maps: FieldMaps, rows: Int64[Tensor, "b m"]) -> Points:
        """What the kernel sees at some of the known pixels."""
        positions = self.positions.gather(1, rows[..., None].expand(-1, -1, 2))
        values = sample_at(maps.maps, positions)
        log_depth = self.mde_log_depth.gather(1, rows)
        return maps.layout.points(positions * self.units[:, None], log_depth, values)

    def target(self, rows: Int64[Tensor, "b m"]) -> Float[Tensor, "b m"]:
        """y there, up to the image's level."""
        return (self.true_log_depth - self.mde_log_depth).gather(1, rows).double()


def draw_batch(bank: Bank, config: FieldTraining, rng: torch.Generator) -> FieldBatch:
    """Frames drawn by their chance, mirrored, recoloured and distorted at random."""
    chosen = torch.multinomial(bank.chance, config.batch, replacement=True, generator=rng)
    device = bank.log_depth.device
    chosen = chosen.to(device)

    def flags(share: float) -> Tensor:
        return (torch.rand(config.batch, generator=rng) < share).to(device)

    mirror = flags(0.5)
    turn = torch.stack([1 - 2.0 * mirror, torch.ones_like(mirror, dtype=torch.float32)], dim=1)

    def turned(maps: Tensor) -> Tensor:
        maps = maps[chosen].float()
        return torch.where(mirror[:, None, None, None], maps.flip(-1), maps)

    log_depth, image = turned(bank.log_depth), recolour(turned(bank.image), rng)
    image = torch.where(flags(config.imageless)[:, None, None, None], torch.nan, image)
    features = None
    if bank.features is not None:
        features = turned(bank.features) * ~flags(config.featureless)[:, None, None, None]
    positions = bank.positions[chosen] * turn[:, None]
    mde_log_depth = bank.mde_log_depth[chosen]

    rare = flags(config.distorted).float() * torch.rand(config.batch, generator=rng).to(device)
    strength = torch.maximum(rare, 1.3 * bank.truth[chosen])
    distort = Distortion.draw(config.batch, rng, device, strength)
    height, width = log_depth.shape[2:]
    u = (2 * torch.arange(width, device=device) + 1) / width - 1
    v = (2 * torch.arange(height, device=device) + 1) / height - 1
    cells = torch.stack(torch.meshgrid(u, v, indexing="xy"), dim=-1).flatten(0, 1)
    grid = distort(log_depth.flatten(1), cells.expand(config.batch, -1, 2))
    level = grid.median(dim=1, keepdim=True).values
    grid = (grid - level).clamp(-LOG_DEPTH_LIMIT, LOG_DEPTH_LIMIT)
    return FieldBatch(
        log_depth=grid.reshape(log_depth.shape),
        image=image,
        features=features,
        positions=positions,
        units=bank.units[chosen],
        mde_log_depth=distort(mde_log_depth, positions) - level,
        true_log_depth=bank.true_log_depth[chosen],
    )


def recolour(image: Float[Tensor, "b 3 h w"], rng: torch.Generator) -> Float[Tensor, "b 3 h w"]:
    """Random gamma, white balance, contrast and saturation."""
    batch = image.shape[0]

    def draw(channels: int) -> Tensor:
        return (torch.rand(batch, channels, 1, 1, generator=rng) - 0.5).to(image.device)

    x = ((image + 1) / 2).clamp(1e-3, 1) ** (1.6 * draw(1)).exp()
    x = x * (1 + 0.5 * draw(1)) * (1 + 0.3 * draw(3))
    grey = x.mean(dim=1, keepdim=True)
    x = grey + (x - grey) * (1 + 1.6 * draw(1))
    return x * 2 - 1


def draw_anchors(
    batch: FieldBatch, n: int, jitter: float, rng: torch.Generator
) -> Int64[Tensor, "b n"]:
    """Rows of n anchors an image: the protocol's grid, shifted by up to `jitter` of a cell, each
    candidate moved to the nearest known pixel, one met twice replaced by chance."""
    count, known = batch.mde_log_depth.shape
    shape = batch.units[0] * 1000  # only its proportions matter
    rows, columns = grid_shape(n, (round(float(shape[1])), round(float(shape[0]))))
    cell = torch.rand(count, rows * columns, generator=rng).argsort(dim=1)[:, :n]
    shift = (torch.rand(count, n, 2, generator=rng) - 0.5) * jitter
    u = (cell % columns + 0.5 + shift[..., 0]) * 2 / columns - 1
    v = (cell // columns + 0.5 + shift[..., 1]) * 2 / rows - 1
    wanted = torch.stack([u, v], dim=-1).to(batch.units.device) * batch.units[:, None]
    spare = torch.randint(known, (count, n), generator=rng).to(batch.units.device)
    nearest = torch.cdist(wanted, batch.positions * batch.units[:, None]).argmin(dim=-1)
    ordered, order = nearest.sort(dim=1)
    again = nnf.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
    ordered = torch.where(again, spare, ordered)
    return torch.empty_like(nearest).scatter(1, order, ordered)


def see(net: FieldNet, batch: FieldBatch) -> FieldMaps:
    """The network's maps, in float32."""
    on_gpu = batch.log_depth.device.type == "cuda"
    with torch.autocast(batch.log_depth.device.type, torch.bfloat16, enabled=on_gpu):
        maps = net(batch.log_depth, batch.image, batch.features)
    return FieldMaps(maps.maps.float(), maps.level.float(), maps.layout)


def solve(
    kernel: Kernel, batch: FieldBatch, maps: FieldMaps, rows: Int64[Tensor, "b n"]
) -> Posterior:
    """The posterior given the anchors in `rows`."""
    y = batch.target(rows)
    noise = torch.full_like(y, float(kernel.noise))
    return Posterior.fit(kernel, batch.points(maps, rows), y, noise)


def losses(
    learned: LearnedField,
    batch: FieldBatch,
    rows: Int64[Tensor, "b n"],
    pixels: Int64[Tensor, "b m"],
    config: FieldTraining,
) -> dict[str, Tensor]:
    """The losses' parts, AbsRel at `pixels`, and the weighted sum `loss`."""
    maps = see(learned.net, batch)
    posterior = solve(learned.kernel(), batch, maps, rows)
    points, truth = batch.points(maps, pixels), batch.target(pixels)
    mean = posterior.mean(points)
    variance = posterior.variance(points) + posterior.kernel.noise**2
    error = truth - mean
    # Heavy tails: a wrong pixel or two shall not set the deviation of all.
    likelihood = 0.5 * (error.square() / variance).clamp(max=25) + 0.5 * variance.log()
    expected = (truth - points.mean).median(dim=1).values
    parts = {
        "dense": nnf.smooth_l1_loss(mean, truth, beta=config.beta),
        "likelihood": likelihood.mean(),
        "mean": maps.mean.square().mean(),
        "level": nnf.smooth_l1_loss(maps.level.double(), expected, beta=config.beta),
        "absrel": (-error).expm1().abs().mean(),
    }
    total = (
        parts["dense"]
        + config.likelihood * parts["likelihood"]
        + config.restraint * parts["mean"]
        + config.level * parts["level"]
    )
    return parts | {"loss": total}


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the field said of one frame with one set of anchors."""

    group: str
    regime: str | int
    n: int
    scores: Float[Tensor, " m"]
    """Errors over deviations at known pixels."""
    absrel: float
    strangeness: float
    """Σ |z| √(π/2) over the anchors' leave-one-out residuals z; see `methods.field.tempered`."""
    level: float
    """Error of the expected level."""


@torch.no_grad()
def outcomes(
    net: FieldNet, kernel: Kernel, val: Sequence[Bank], regimes: Sequence[str | int]
) -> list[Outcome]:
    """The field on frames with the protocol's anchors."""
    found = []
    for bank in val:
        everywhere = torch.arange(MOST_DRAWN, PIXELS, 4, device=bank.positions.device)[None]
        for i, group in enumerate(bank.groups):
            one = slice(i, i + 1)
            batch = FieldBatch(
                log_depth=bank.log_depth[one].float(),
                image=bank.image[one].float(),
                features=None if bank.features is None else bank.features[one].float(),
                positions=bank.positions[one],
                units=bank.units[one],
                mde_log_depth=bank.mde_log_depth[one],
                true_log_depth=bank.true_log_depth[one],
            )
            maps = see(net, batch)
            points, truth = batch.points(maps, everywhere), batch.target(everywhere)
            for regime in regimes:
                rows = torch.from_numpy(bank.anchors[regime][i])[None].to(batch.units.device)
                posterior = solve(kernel, batch, maps, rows)
                error = (truth - posterior.mean(points))[0]
                residual, deviation = posterior[0].leave_one_out()
                found.append(
                    Outcome(
                        group=group,
                        regime=regime,
                        n=rows.shape[1],
                        scores=(error / posterior.variance(points)[0].sqrt()).cpu(),
                        absrel=float((-error).expm1().abs().mean()),
                        strangeness=strangeness(residual, deviation),
                        level=float((truth - points.mean).median() - maps.level),
                    )
                )
    return found


def summary(found: Sequence[Outcome]) -> dict[str, float]:
    """AbsRel by regime, mean over groups."""
    table: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for outcome in found:
        table[f"absrel {outcome.regime}"][outcome.group].append(outcome.absrel)
    return {
        regime: float(np.mean([np.mean(values) for values in groups.values()]))
        for regime, groups in table.items()
    }


TRUSTS = (0.3, 0.45, 0.7, 1.0)
ROUGHNESS = (1.0, 1.3, 1.6, 2.0)


def settle(
    net: FieldNet, kernel: Kernel, val: Sequence[Bank], regimes: Sequence[str | int]
) -> Kernel:
    """Make the network's and the kernel's beliefs what is best on val.

    In training, embeddings and amplitudes fit its few places ever better, and others worse; the
    field comes out too smooth for those. One after another the trust in φ, the trust in a, and a
    factor on the rough terms are chosen by the product of AbsRel over the regimes. The trusts
    become the network's; the kernel is the value.
    """

    def score(settings: tuple[FieldNetConfig, Kernel]) -> float:
        net.config = settings[0]
        return math.prod(summary(outcomes(net, settings[1], val, regimes)).values())

    config = net.config
    config, _ = min(((replace(config, embedding_trust=t), kernel) for t in TRUSTS), key=score)
    config, _ = min(((replace(config, amplitude_trust=t), kernel) for t in TRUSTS), key=score)
    config, kernel = min(((config, roughened(kernel, factor)) for factor in ROUGHNESS), key=score)
    net.config = config
    return kernel


def roughened(kernel: Kernel, factor: float) -> Kernel:
    """The kernel with stronger exponential terms."""
    factors = {"gaussian": 1.0, "exponential": factor}
    terms = (replace(t, amplitude=t.amplitude * factors[t.shape]) for t in kernel.terms)
    return replace(kernel, terms=tuple(terms))


def calibrate(found: Sequence[Outcome], coverage: float = 0.9) -> dict[str, float]:
    """`FieldModel`'s numbers that make intervals cover what they promise, group by group.

    The deviation's factor is calibration · n^−decay · temper; of a small grid of patience and
    decay those are taken whose coverage is nearest to the promise over groups and regimes, each
    with the calibration that is right in the mean.
    """
    half = math.sqrt(2) * float(torch.erfinv(torch.tensor(coverage)))
    cells: dict[tuple[str, str | int], list[Outcome]] = defaultdict(list)
    for outcome in found:
        cells[outcome.group, outcome.regime].append(outcome)
    best, chosen = math.inf, {}
    for patience in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        for decay in (0.0, 0.03, 0.06, 0.09, 0.12, 0.15):
            scaled = []
            for members in cells.values():
                values = [
                    o.scores.abs() / (tempered(o.strangeness, o.n, patience) * o.n**-decay)
                    for o in members
                ]
                scaled.append(torch.cat(values))
            # Every cell speaks with the same weight, however many pixels it has.
            quantiles = torch.stack(
                [torch.quantile(v[:: max(1, len(v) // 5000)], coverage) for v in scaled]
            )
            factor = float(quantiles.log().mean().exp()) / half
            covered = torch.stack([(v < half * factor).double().mean() for v in scaled])
            cost = float((covered - coverage).abs().mean())
            if cost < best:
                best = cost
                chosen = {"calibration": round(factor, 4), "patience": patience, "decay": decay}
    errors = np.array([outcome.level for outcome in found if outcome.regime == found[0].regime])
    return chosen | {"level_std": round(float(np.sqrt(np.mean(errors**2))), 3)}


def train_field(
    config: FieldTraining,
    train: Sequence[Bank],
    val: Sequence[Bank],
    out: Path,
    *,
    device: str = "auto",
    start: Kernel = START,
    estimators: Sequence[str] | None = None,
    validate_every: int = 1000,
    show_progress: bool = True,
) -> FieldModel:
    """Train, choose trust and calibrate on val, and write `out`/model.

    `estimators` names those whose outputs the frames are; see `FieldModel.estimators`.
    """
    where = pick_device(device)
    run = RunFolder(out, config)
    torch.manual_seed(config.seed)
    learned = LearnedField(config.net, start).to(where)
    ema = Ema(learned, config.ema)
    best: LearnedField = ema.model  # type: ignore[assignment]
    optimiser = torch.optim.AdamW(
        [
            {"params": list(learned.net.parameters()), "lr": config.rate},
            {
                "params": list(learned.kernel.parameters()),
                "lr": config.kernel_rate,
                "weight_decay": 0,
            },
        ],
        weight_decay=config.weight_decay,
    )
    rates = [group["lr"] for group in optimiser.param_groups]
    first = 0
    if run.checkpoint.exists():
        first, _ = load_checkpoint(run.checkpoint, learned, ema, optimiser)
    chance = torch.stack([bank.chance.sum() for bank in train])
    least, most = config.anchors
    clock = Clock(where)
    progress = tqdm(
        range(first, config.steps), initial=first, total=config.steps, desc=out.name,
        disable=not show_progress,
    )  # fmt: skip
    for step in progress:
        rng = step_generator(config.seed, step)
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * cosine_rate(step, config.steps, config.warmup)
        with clock.waiting(step):
            bank = train[int(torch.multinomial(chance, 1, generator=rng))]
            batch = draw_batch(bank, config, rng)
            fraction = float(torch.rand((), generator=rng))
            n = round(math.exp(math.log(least) + fraction * math.log((most + 0.5) / least)))
            rows = draw_anchors(batch, n, config.anchor_jitter, rng)
            known = batch.mde_log_depth.shape[1]
            pixels = torch.randint(known, (config.batch, config.pixels), generator=rng).to(where)
        with clock.working(step):
            parts = losses(learned, batch, rows, pixels, config)
            optimiser.zero_grad(set_to_none=True)
            parts["loss"].backward()
            nn.utils.clip_grad_norm_(learned.parameters(), 1.0)
            optimiser.step()
            ema.update(learned, step)
        if (step + 1) % validate_every == 0 or step + 1 == config.steps:
            found = outcomes(best.net, best.kernel.plain(), val, config.validate)
            scores = summary(found)
            run.log(step + 1, clock, **{k: float(v.detach()) for k, v in parts.items()}, **scores)
            save_checkpoint(run.checkpoint, learned, ema, optimiser, step=step + 1, best=math.inf)
            progress.set_postfix({k: f"{v:.4f}" for k, v in scores.items()})
    kernel = settle(best.net, best.kernel.plain(), val, config.validate)
    numbers: dict[str, Any] = {**calibrate(outcomes(best.net, kernel, val, config.validate))}
    if estimators is not None:
        numbers["estimators"] = tuple(estimators)
    model = FieldModel(kernel, best.net, **numbers)
    model.save(out / "model")
    return model
