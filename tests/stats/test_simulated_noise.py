"""The noise of the method's figure tells equal programs apart unless they are interleaved."""

from lib.stats import simulated_noise


def test_the_figure_of_the_method_shows_what_it_says():
    table = simulated_noise.on_a_drifting_machine()
    ratios = table.groupby("arrangement", sort=False)["ratio"].first()
    apart, turns = ratios["one after the other"], ratios["interleaved"]
    assert apart.low > 1.01  # two equal programs, told apart by the drift alone
    assert turns.low < 1 < turns.high
    assert table.groupby(["arrangement", "program"]).size().tolist() == [40] * 4
