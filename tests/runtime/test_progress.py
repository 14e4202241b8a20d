"""Progress lines for log files."""

import sys

import pytest

from scalefield.runtime import progress as module
from scalefield.runtime.progress import LineProgress, duration, progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_line_progress_writes_a_line_at_most_every_interval(capsys):
    clock = Clock()
    bar = LineProgress(10, unit="image", every_s=30.0, clock=clock)
    for second in range(1, 11):
        clock.now = 12.0 * second
        bar.update()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "scalefield: 3 of 10 images, 36 s, about 84 s left",
        "scalefield: 6 of 10 images, 72 s, about 48 s left",
        "scalefield: 9 of 10 images, 2 min, about 12 s left",
    ]


def test_line_progress_does_not_count_what_was_done_before_in_the_rate():
    clock = Clock()
    bar = LineProgress(100, unit="image", initial=90, clock=clock)
    clock.now = 10.0
    bar.update()
    assert bar.line(10.0) == "91 of 100 images, 10 s, about 90 s left"
    clock.now = 0.0
    counted = LineProgress(100, unit="image", clock=clock)
    counted.update(90)
    clock.now = 10.0
    counted.update()
    assert counted.line(10.0) == bar.line(10.0)


def test_line_progress_without_a_total_and_with_named_steps():
    assert LineProgress(unit="frame").line(7.0) == "0 frames, 7 s"
    steps = LineProgress(4, desc="reading")
    steps.set_description_str("recovering")
    assert steps.line(130.0) == "recovering, 2 min"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (99, "99 s"), (100, "2 min"), (4200, "1 h 10 min")]
)
def test_duration(seconds, text):
    assert duration(float(seconds)) == text


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch):
    assert isinstance(progress(3, unit="image", leave=False), LineProgress)
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True, raising=False)
    with progress(3, unit="image", leave=False, file=sys.stdout) as bar:
        assert type(bar).__name__ == "tqdm"
