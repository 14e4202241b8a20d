import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalefield.datasets.kitti import Kitti, drive_categories
from scalefield.datasets.splits import (
    SPLITS,
    count_differences,
    proportions,
    read_list,
    split_drives,
    split_frames,
    write_list,
)
from scalefield.datasets.sunrgbd import SunRgbd
from scalefield.datasets.urbansyn import UrbanSyn
from scalefield.errors import InputError


@pytest.mark.parametrize(("dataset", "total"), [(UrbanSyn, 7539), (SunRgbd, 10335)])
def test_split_frames_full_datasets_get_the_papers_counts(dataset, total) -> None:
    splits = split_frames([f"frame{i}" for i in range(total)], dataset.split_counts)
    assert tuple(map(len, splits.values())) == dataset.split_counts
    assert len(set().union(*splits.values())) == total


def test_full_kitti_gets_the_papers_counts_by_drive_in_every_category() -> None:
    category = drive_categories()
    # The drives' lengths differ as on KITTI's website: from a few dozen frames to thousands.
    drives = {d: [f"{d}/{i:010d}" for i in range(80 + 37 * n)] for n, d in enumerate(category)}
    splits = split_drives(drives, category, Kitti.split_counts)
    assert tuple(len(splits[s]) for s in SPLITS) == (1009, 100, 289)
    seen = {s: {name.split("/")[0] for name in splits[s]} for s in SPLITS}
    assert not (
        seen["train"] & seen["val"] | seen["train"] & seen["test"] | seen["val"] & seen["test"]
    )
    for split in SPLITS:
        assert {category[d] for d in seen[split]} == {"City", "Residential", "Road", "Campus"}


def test_split_drives_moves_a_drive_only_to_a_split_without_one() -> None:
    """Campus' drives are longer than the share of val, which would get none of them."""
    drives = {f"d{i}": [f"d{i}/{j}" for j in range(50 + i)] for i in range(4)}
    splits = split_drives(drives, dict.fromkeys(drives, "Campus"), (800, 20, 200))
    owners = {s: {name.split("/")[0] for name in names} for s, names in splits.items()}
    assert sorted(map(len, owners.values())) == [1, 1, 2]
    assert owners["val"] == {min(drives, key=lambda d: len(drives[d]))} or len(owners["train"]) == 2
    two = {d: drives[d] for d in ("d0", "d1")}
    assert not split_drives(two, dict.fromkeys(two, "Campus"), (800, 20, 200))["val"]


def test_count_differences_names_the_parts_that_differ() -> None:
    whole = {"kv1": 2003, "kv2": 3784}
    assert count_differences(whole, whole, "images") == ""
    found = {"kv1": 2003, "extra": 1}
    assert count_differences(found, whole, "images") == (
        "2,004 images found, 5,787 expected (extra 1 of 0, kv2 0 of 3,784)"
    )


def test_kitti_has_as_many_drives_a_category_as_its_website_lists() -> None:
    categories = list(drive_categories().values())
    counts = {c: categories.count(c) for c in categories}
    assert counts == {"City": 28, "Residential": 21, "Road": 12, "Campus": 10}


@given(st.integers(0, 500), st.lists(st.integers(1, 900), min_size=3, max_size=3))
def test_proportions_sum_to_the_total_and_stay_within_one_of_the_ratio(total, counts) -> None:
    parts = proportions(total, counts)
    assert sum(parts) == total
    for part, count in zip(parts, counts, strict=True):
        assert abs(part - total * count / sum(counts)) < 1


@given(st.sets(st.text(min_size=1, max_size=6), max_size=60), st.randoms())
def test_split_frames_part_is_split_in_the_ratio_whatever_the_order_of_names(names, random) -> None:
    shuffled = sorted(names)
    random.shuffle(shuffled)
    splits = split_frames(sorted(names), (8, 1, 1))
    assert splits == split_frames(shuffled, (8, 1, 1))
    assert [len(splits[s]) for s in SPLITS] == proportions(min(len(names), 10), (8, 1, 1))


def test_write_list_lists_are_text_and_refuse_a_name_twice(tmp_path) -> None:
    write_list(tmp_path / "a.txt", ["x/1", "x/2"])
    assert (tmp_path / "a.txt").read_text() == "x/1\nx/2\n"
    assert read_list(tmp_path / "a.txt") == ["x/1", "x/2"]
    (tmp_path / "b.txt").write_text("x/1\nx/2\nx/1\n")
    with pytest.raises(InputError, match="lists x/1 twice"):
        read_list(tmp_path / "b.txt")
