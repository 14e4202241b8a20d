"""Tables of the pages that are made from records, and the arithmetic of the labelling benchmark."""

import pytest

from program_modules import ROOT, load_module


@pytest.fixture(scope="module")
def script():
    return load_module(ROOT / "scripts" / "label_costs.py")


@pytest.fixture(scope="module")
def benchmark():
    return load_module(ROOT / "benchmarks" / "labelling.py")


def test_label_costs_page_is_made_from_the_committed_record(script):
    page = script.DOCS.read_text()
    assert script.filled(page, script.read_record()) == page


def test_label_costs_of_a_record(script):
    rounds = [{"images_per_s": r, "first_s": 3.0, "mb_per_label": 1.5} for r in (1.0, 2.0, 9.0)]
    record = {
        "rounds": {"one process": rounds, "pool of 4 processes": rounds},
        "workers": 4,
        "images": 100,
        "shape": [480, 640],
        "anchors": 50,
        "cores": 4,
        "load_before": 0.1,
        "mde": "lite",
        "method": "field",
        "provenance": {"device": "x86_64", "commit": "0123456789"},
    }
    text = script.costs(record)
    assert "| one process | 2.00 | 2.00 | 3.0 s |" in text
    assert "| pool of 4 processes | 2.00 | 0.50 | 3.0 s |" in text
    assert "a million images take 5.8 days of one core and 1.50 TB" in text


def test_labelling_benchmark_rate_leaves_the_start_out(benchmark):
    clock = benchmark.Clock()
    clock.done = [50.0, 60.0, 61.0, 62.0, 63.0, 64.0]  # the second worker started late
    assert clock.figures(workers=2) == {"first_s": 50.0, "images_per_s": 1.0}


@pytest.mark.slow
def test_labelling_benchmark_measures_a_run(benchmark, tmp_path):
    benchmark.write_images(tmp_path / "source", images=3, anchors=20)
    jobs = benchmark.find_jobs(tmp_path / "source")[0]
    config = benchmark.LabelConfig("lite", "median")
    found = benchmark.measure(jobs, config, 1, "local")
    assert found["images_per_s"] > 0
    assert 0.05 < found["mb_per_label"] < 5


def test_choose_table_is_made_from_the_committed_records():
    script = load_module(ROOT / "scripts" / "choose_table.py")
    page = script.DOCS.read_text()
    assert script.filled(page) == page
    assert "| `field` | ." in page


@pytest.mark.slow
def test_draw_gallery_makes_the_pictures_of_the_page(tmp_path):
    pytest.importorskip("matplotlib")
    load_module(ROOT / "scripts" / "draw_gallery.py").main(tmp_path)
    page = (ROOT / "docs" / "gallery.md").read_text()
    for picture in tmp_path.glob("*.jpg"):
        assert f"gallery/{picture.name}" in page
        assert (ROOT / "docs" / "gallery" / picture.name).is_file()
    assert len(list(tmp_path.glob("*.jpg"))) == 2
