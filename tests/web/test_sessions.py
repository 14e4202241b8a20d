import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalefield.anchors import Anchors
from scalefield.errors import InputError
from scalefield.web.sessions import DISPLAY_SIDE, Gone, Session, Sessions


def held(megabytes: float = 0) -> Session:
    return Session("s", np.zeros((1, max(1, round(megabytes * 1e6 / 3)), 3), np.uint8))


def test_sessions_drop_the_least_recently_used() -> None:
    sessions = Sessions(most=2, most_bytes=10**9)
    first, second, third = held(), held(), held()
    sessions.add(first)
    sessions.add(second)
    sessions.get(first.id)
    sessions.add(third)
    assert sessions.get(first.id) is first
    assert sessions.get(third.id) is third
    with pytest.raises(Gone, match="send the photograph again"):
        sessions.get(second.id)


def test_sessions_limit_memory_and_keep_the_newest() -> None:
    sessions = Sessions(most=100, most_bytes=10_000_000)
    for _ in range(5):
        sessions.add(held(4))
    assert len(sessions) == 2
    sessions.add(held(40))
    assert len(sessions) == 1


def test_session_ids_are_random() -> None:
    ids = {held().id for _ in range(50)}
    assert len(ids) == 50
    assert min(map(len, ids)) >= 20


@given(st.integers(1, 5000), st.integers(1, 3000))
def test_session_display_has_pixels_of_the_photo_in_order(width: int, height: int) -> None:
    session = Session("s", np.broadcast_to(np.uint8(0), (height, width, 3)))
    rows, columns = session.display
    assert max(len(rows), len(columns)) <= DISPLAY_SIDE
    for shown, side in ((rows, height), (columns, width)):
        assert (np.diff(shown) >= 1).all()
        assert shown[0] >= 0
        assert shown[-1] < side
        # The middle of each block: as much is left out before the first as after the last.
        assert abs(shown[0] - (side - 1 - shown[-1])) <= 1
    if max(width, height) <= DISPLAY_SIDE:
        assert (rows == np.arange(height)).all()


def test_session_prepare_ends_ready(prepared) -> None:
    session = prepared(64, 48)
    told = session.describe()
    assert (told["state"], told["progress"], told["revision"]) == ("ready", 1.0, 1)
    assert told["relative_depth"] == "lite"
    assert session.nbytes > 64 * 48 * 7  # at least its pixels and its depth


@pytest.mark.parametrize(
    ("error", "told"), [(InputError("no depth today"), "no depth today"), (MemoryError(), "log")]
)
def test_session_prepare_reports_a_failure(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("scalefield.web.sessions.load_mde", fail)
    session = Session("s", np.zeros((8, 8, 3), np.uint8))
    if isinstance(error, InputError):
        session.prepare()
    else:  # what nobody foresaw goes on to the log
        with pytest.raises(MemoryError):
            session.prepare()
    assert session.state == "failed"
    assert told in session.error
    with pytest.raises(InputError, match=told):
        session.relative


def test_measurable_cells_are_off_the_border_and_off_holes(prepared) -> None:
    from scalefield.inputs import from_array
    from scalefield.web.sessions import measurable

    depth = np.linspace(1, 2, 320 * 240).reshape(240, 320)
    depth[:, :100] = np.nan
    cells = measurable(from_array(depth, "depth", np.zeros((240, 320, 3), np.uint8)))
    assert cells.shape == (120, 160)
    assert cells.any()
    assert not cells[:, :50].any()
    assert not cells[[0, -1]].any()
    assert not cells[:, -1].any()
    assert cells.dtype == torch.bool


def test_sessions_of_a_client_are_kept_while_another_uploads() -> None:
    sessions = Sessions(most=4, most_bytes=10**9)
    first = held()
    first.client = "one"
    sessions.add(first)
    for _ in range(12):
        other = held()
        other.client = "two"
        sessions.add(other)
    assert sessions.get(first.id) is first
    assert len(sessions) == 4


def test_session_at_display_size_keeps_the_positions_of_anchors(prepared) -> None:
    session = prepared(1600, 1000)
    output, anchors = session.at_display_size(Anchors([0, 1599, 801], [0, 999, 501], [1, 2, 3]))
    assert output.shape == (500, 800)
    rows, columns = anchors.pixels(output.shape)
    assert rows.tolist() == [0, 499, 250]
    assert columns.tolist() == [0, 799, 400]
