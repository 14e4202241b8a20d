"""The fuzzer detects planted errors, and a few thousand of its cases detect none."""

import os
import signal
from contextlib import suppress

import pytest
from fuzz.engine import MOST_SECONDS, Target, outcome_of, overdue, run_cases, run_guarded
from fuzz.recoveries import check_call
from fuzz.targets import TARGETS
from hypothesis import given
from hypothesis import strategies as st

from scalefield.errors import InputError

CASES = 3000
MOST_CASES = 100
"""Of one target: here, where annotations are checked, `recover` costs ten times as much."""
SEED = 1


def cases_of(target: Target) -> int:
    wanted = max(1, round(CASES * target.share / sum(t.share for t in TARGETS)))
    return min(wanted, MOST_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=[t.name for t in TARGETS])
def test_fuzz_raises_input_errors_only(target, tmp_path):
    tally = run_cases(target, cases_of(target), SEED, save=tmp_path)
    assert tally.failures == {}
    assert tally.accepted + tally.refused == cases_of(target)


@pytest.mark.parametrize("target", TARGETS, ids=[t.name for t in TARGETS])
def test_fuzz_targets_accept_undamaged_files(target, tmp_path):
    """Cases made from a seed that is refused would test nothing."""
    contents = target.seeds(tmp_path)
    assert contents
    for content in contents:
        path = tmp_path / (target.file or target.name)
        path.write_bytes(target.wrap(content))
        target.read(path)


def test_fuzz_overdue_is_measured_in_seconds():
    assert not overdue(MOST_SECONDS)
    assert overdue(MOST_SECONDS + 1)


@given(st.binary(max_size=250))
def test_fuzz_recover_gives_depth_or_a_sentence(data):
    with suppress(InputError):
        check_call(data)


def planted(read, *seeds: bytes) -> Target:
    return Target("planted", lambda folder: seeds or (b"header 12 34",), read)


def test_fuzz_detects_and_saves_a_planted_error(tmp_path):
    def read(path):
        if b"nan" in path.read_bytes():
            raise KeyError("planted")

    target = planted(read)
    tally = run_cases(target, 500, seed=0, save=tmp_path)
    (what,) = tally.failures
    assert what.startswith("KeyError from test_fuzz.py:")
    assert tally.failed >= 1
    assert tally.accepted + tally.failed == tally.cases == 500
    (saved,) = tmp_path.iterdir()
    assert outcome_of(target, saved).kind == what


def test_fuzz_same_seed_gives_the_same_cases(tmp_path):
    seen: list[bytes] = []
    target = planted(lambda path: seen.append(path.read_bytes()))
    runs = []
    for seed in (3, 3, 4):
        seen.clear()
        run_cases(target, 50, seed)
        runs.append(list(seen))
    assert runs[0] == runs[1] != runs[2]


def test_fuzz_refusal_must_be_one_sentence(tmp_path):
    (tmp_path / "file").write_bytes(b"")

    def say(text):
        def read(path):
            raise InputError(text)

        return outcome_of(planted(read), tmp_path / "file").kind

    assert say("three numbers wanted, two found") == "refused"
    for text in ("", "two\nlines", 5000 * "long"):
        assert say(text).startswith("no sentence")


def test_run_guarded_counts_death_hangs_and_memory_errors_as_failures(tmp_path, monkeypatch):
    """Each child starts again, so the cases are counted in a file.

    A case that hangs writes a file, so that the test does not depend on running times.
    """
    began, hanging = tmp_path / "began", tmp_path / "hanging"
    began.write_bytes(b"")
    deeds = b"4342114"

    def read(path):
        number = len(began.read_bytes())
        if path.read_bytes() == b"seed" or number == len(deeds):
            return
        with began.open("ab") as file:
            file.write(b".")
        match deeds[number : number + 1]:
            case b"3":
                os.kill(os.getpid(), signal.SIGSEGV)
            case b"2":
                hanging.touch()
                signal.pause()
            case b"1":
                bytearray(1 << 40)

    monkeypatch.setattr("fuzz.engine.mutate", lambda *_: b"case")

    def hangs(seconds: float) -> bool:
        try:
            hanging.unlink()
        except FileNotFoundError:
            return False
        return True

    tally = run_guarded(planted(read, b"seed"), len(deeds), 0, tmp_path / "found", hangs)
    assert len(began.read_bytes()) == tally.cases == len(deeds)
    assert tally.failed == 4
    for beginning in ("the process died (-11)", "hang", "MemoryError from test_fuzz.py"):
        assert any(what.startswith(beginning) for what in tally.failures), beginning
