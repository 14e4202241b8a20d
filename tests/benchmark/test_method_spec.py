import pytest

from scalefield.benchmark.method_spec import MethodSpec, parse_methods
from scalefield.errors import InputError
from scalefield.methods import METHODS
from scalefield.validation import import_object


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("median", MethodSpec("median", "median")),
        (
            "global(space=disparity)",
            MethodSpec("global(space=disparity)", "global", {"space": "disparity"}),
        ),
        ("my.module:recover", MethodSpec("my.module:recover", "my.module:recover")),
        ("Mine: mine:Best(k=3)", MethodSpec("Mine", "mine:Best", {"k": 3})),
        (
            "Basis K=8 @low,drop: basis(k=8, generator=runs/a-1, flag=True)",
            MethodSpec(
                "Basis K=8",
                "basis",
                {"k": 8, "generator": "runs/a-1", "flag": True},
                ("low", "drop"),
            ),
        ),
    ],
)
def test_method_spec_parse(text, expected) -> None:
    assert MethodSpec.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("global(disparity)", "options are written"),
        ("global(space=", "is not understood"),
        ("global(space=a=b)", "options are written"),
        ("two words", "is not understood"),
        ("A @many: median", "no condition 'many'; there are low, medium, high, drop"),
    ],
)
def test_method_spec_parse_names_the_problem(text, sentence) -> None:
    with pytest.raises(InputError, match=sentence):
        MethodSpec.parse(text)


def test_parse_methods_all_is_every_method_and_rows_must_differ(evaluation_of) -> None:
    assert [spec.method for spec in parse_methods(["all"])] == list(METHODS)
    with pytest.raises(InputError, match="two methods are called 'median' under low"):
        evaluation_of("all", "median")
    evaluation_of("A @low: median", "A @drop: global")  # one row, two methods: a model a regime
    with pytest.raises(InputError, match="no method applies"):
        evaluation_of("A @high: median")
    with pytest.raises(InputError, match="method global has no option 'nonsense'"):
        evaluation_of("global(nonsense=1)").methods[0].make()
    with pytest.raises(InputError, match=r"no\.such:thing cannot be imported"):
        import_object("no.such:thing")
