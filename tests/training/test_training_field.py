import numpy as np
import pytest
import torch

from scalefield.kernel import Kernel, Term
from scalefield.methods.basis import load_generator
from scalefield.training.data import prepare
from scalefield.training.field import (
    START,
    FieldTraining,
    LearnedKernel,
    frame_loss,
    standard_scores,
    table_points,
    train_field,
)
from training.world import BiasedMDE, World


@pytest.fixture(scope="module")
def generator():
    return load_generator("basis-depth-k8")


@pytest.fixture(scope="module")
def frames():
    return prepare(World(), "train", BiasedMDE(), ("low",))


def test_the_kernel_learns(frames, generator):
    config = FieldTraining(anchors=(3, 40), steps=100, batch=3, pixels=128)
    kernel, lines = train_field(frames, generator, config)
    assert [line["step"] for line in lines] == [50, 100]
    assert lines[-1]["absrel"] < 0.05
    assert kernel.noise == START.noise
    assert kernel.linear != START.linear

    def mean_loss(k: Kernel) -> float:
        points = [table_points(frame, generator) for frame in frames]
        pairs = zip(frames, points, strict=True)
        losses = [frame_loss(k, f, p, config, 999) for f, p in pairs]
        return float(np.mean([float(x["dense"] + 0.02 * x["likelihood"]) for x in losses]))

    assert mean_loss(kernel) < mean_loss(START)


def test_the_numbers_go_through_their_logarithms_unharmed():
    learned = LearnedKernel(START)
    kernel = learned.plain()
    assert kernel.linear == pytest.approx(START.linear)
    for mine, theirs in zip(kernel.terms, START.terms, strict=True):
        assert mine.shape == theirs.shape
        assert mine.position_length == pytest.approx(theirs.position_length)
    learned().terms[0].amplitude.backward()
    assert torch.count_nonzero(learned.logarithms.grad) == 1


def test_scores_of_a_field_from_the_kernel_itself_are_standard_normal(frames, generator):
    """If the truth is drawn from the process, errors over deviations have unit variance."""
    import dataclasses

    kernel = Kernel(1.0, 0.5, (Term(0.3, 0.3, 0.5, "gaussian"),), 0.01)
    rng = np.random.default_rng(0)
    made = []
    for frame in frames:
        points = table_points(frame, generator)
        covariance = kernel(points, points).numpy() + 1e-8 * np.eye(len(points))
        field = np.linalg.cholesky(covariance) @ rng.normal(size=len(points))
        truth = (frame.mde_log_depth + field).astype(np.float32)
        made.append(dataclasses.replace(frame, true_log_depth=truth))
    scores = standard_scores(kernel, made, generator, ("low",))["low"]
    assert 0.6 < float(np.std(scores)) < 1.6
