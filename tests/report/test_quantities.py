"""Numbers carry the name of their quantity, wherever they stand in a text."""

from lib.report.quantities import Quantity, case, marked, name
from lib.stats.intervals import Interval

RATIO = Interval(0.5, 0.4, 0.6, 8, 3)


def test_a_case_is_named_by_its_values_without_what_is_off():
    fields = {"size": "small", "compiled": False, "cold": True, "context_length": 128}
    assert case("box", "step", fields) == "box/step/small-cold-128"
    assert name("box", "step", fields, "total_ms/naive") == "box/step/small-cold-128/total_ms/naive"


def test_numbers_are_marked_in_their_order_and_the_text_around_them_escaped():
    first, second = Quantity("a", RATIO, "2× (1.7 to 2.5)", "faster"), Quantity("b", Interval(2, 2, 2, 1, 1), "2")
    assert marked("<x> is 2× (1.7 to 2.5) faster, 2 ms", (first, second)) == (
        '&lt;x&gt; is <data data-q="a" value="0.5 0.4 0.6" data-verdict="faster">2× (1.7 to 2.5)</data> faster, '
        '<data data-q="b" value="2">2</data> ms'
    )


def test_a_number_without_an_interval_has_its_value_alone_and_a_missing_one_is_left_out():
    alone = Quantity("a", Interval(3.0, float("nan"), float("nan"), 1, 1), "3")
    assert marked("3 & 4", (alone, Quantity("b", RATIO, "5"))) == '<data data-q="a" value="3">3</data> &amp; 4'
