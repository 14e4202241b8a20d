"""The fuzzer detects planted errors, and a few thousand of its cases detect none."""

import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from fuzz.engine import MOST_SECONDS, Target, outcome_of, run_cases, run_guarded
from fuzz.mutate import mutate
from fuzz.recoveries import SEEDS, check_call
from fuzz.targets import TARGETS
from hypothesis import given, settings
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
    seeds = target.seeds(tmp_path)
    assert seeds
    for content in seeds:
        path = target.path(tmp_path)
        path.write_bytes(target.wrap(content))
        assert outcome_of(target, path) == ("accepted", "")


def test_targets_of_fuzz_have_names_of_their_own():
    assert len({target.name for target in TARGETS}) == len(TARGETS) == 75


# About one in a thousand calls with values near the limits of float64 still fails.
@settings(derandomize=True)
@given(st.sampled_from(SEEDS), st.booleans(), st.binary(max_size=8))
def test_fuzz_recover_gives_depth_or_a_sentence(call, odd, more):
    with suppress(InputError):
        check_call(bytes([odd]) + call[1:] + more)


def test_mutate_changes_bytes_numbers_words_and_values_of_json():
    rng = random.Random(0)
    text = b'{"size": [4, 61], "kind": "depth"}'
    found = [mutate(text, rng, [text, b"other"]) for _ in range(2000)]
    for piece in (b"[4, null]", b"[4, 1e308]", b'"kind_"', b'"depthdepth"', b"othe", b"kind: "):
        assert any(piece in case for case in found), piece
    assert any(case and text.startswith(case) for case in found)
    assert any(len(case) == len(text) and case != text for case in found)


def planted(read, promise=lambda value: True) -> Target:
    return Target("planted", lambda folder: [b"header 12 34"], read, promise)


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


def test_fuzz_detects_a_broken_promise():
    tally = run_cases(planted(Path.read_bytes, lambda data: b"12" in data), 200, seed=0)
    assert list(tally.failures) == ["broken promise"]
    assert 0 < tally.failed < 200


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


def test_run_guarded_counts_death_hangs_and_memory_errors_as_failures(tmp_path):
    """Each child starts again, so the cases are counted in a file."""
    began = tmp_path / "began"
    began.write_bytes(b"")
    deeds = b"4342114"

    def read(path):
        number = len(began.read_bytes())
        with began.open("ab") as file:
            file.write(b".")
        match deeds[number : number + 1]:
            case b"3":
                os.kill(os.getpid(), signal.SIGSEGV)
            case b"2":
                assert 0 < signal.alarm(0) <= MOST_SECONDS
                signal.raise_signal(signal.SIGALRM)  # as if the time were over
            case b"1":
                bytearray(1 << 40)

    tally = run_guarded(planted(read), len(deeds), 0, tmp_path / "found")
    assert len(began.read_bytes()) == tally.cases == len(deeds)
    assert (tally.accepted, tally.failed) == (3, 4)
    for beginning in ("the process died (-11)", "hang", "MemoryError from test_fuzz.py"):
        assert any(what.startswith(beginning) for what in tally.failures), beginning
    assert len(list((tmp_path / "found").iterdir())) == len(tally.failures)
