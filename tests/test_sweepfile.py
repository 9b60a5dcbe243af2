"""A sweep file becomes kernels, or is refused in one line before anything runs."""

import pytest

from lib import notebook, sweepfile


@pytest.fixture
def load(tmp_path):
    def load(text):
        file = tmp_path / "sweep.yaml"
        file.write_text(text)
        return sweepfile.read(file)

    return load


def test_a_list_is_swept_a_scalar_fixed_and_the_rest_are_the_notebooks_defaults(load):
    (kernel,) = load("attention: {variant: [naive, sdpa], seq_len: 32, device: cpu}")
    defaults = notebook.parameters("attention")
    assert [case.variant for case in kernel.cases] == ["naive", "sdpa"]
    assert {case.seq_len for case in kernel.cases} == {32}
    assert {case.d_head for case in kernel.cases} == {defaults["d_head"]}
    assert kernel.parameters["samples"] == defaults["samples"]


def test_each_value_of_a_fresh_axis_and_each_round_gets_a_kernel_and_rounds_interleave(load):
    kernels = load("rounds: 2\nattention: {fresh: variant, variant: [naive, sdpa], seq_len: [8, 16], device: cpu}")
    assert [kernel.round for kernel in kernels] == [1, 1, 2, 2]
    for pair in (kernels[:2], kernels[2:]):
        assert {tuple({case.variant for case in kernel.cases}) for kernel in pair} == {("naive",), ("sdpa",)}
        assert [len(kernel.cases) for kernel in pair] == [2, 2]


@pytest.mark.parametrize("name", ["smoke", "quick", "gpu"])
def test_the_sweeps_of_the_repository_are_valid(name):
    assert sweepfile.load(name)


def test_the_gpu_sweep_is_the_assignments_grid_in_a_bearable_number_of_kernels():
    kernels = sweepfile.load("gpu")
    counts = {}
    for kernel in kernels:
        if kernel.round == 1:
            counts[kernel.experiment] = counts.get(kernel.experiment, 0) + len(kernel.cases)
    cold = [kernel for kernel in kernels if kernel.experiment == "warmup"]  # each case in a process of its own
    assert len(cold) == 3 * counts["warmup"] == 3 * 5 * 2
    assert len(kernels) - len(cold) < 120  # each costs seconds to start
    assert counts["step"] == 5 * 4 * 3 * (2 + 2)  # eager and compiled; forward alone with and without a graph
    assert counts["attention"] == 5 * 5 * 4 * 3 * 2
    assert counts["adam"] == 5 * 6 * 5 * 2 * 2 + 5 * 2
    assert counts["kernels"] == 2 * 3 * 3 * 2
    assert counts["memory"] == 2 * 4 * 2 * 4 + 8


BAD = [
    ("atention: {}", "experiment: 'atention'.*nearest is 'attention'"),
    ("attention: {varaint: naive}", "attention: 'varaint'.*nearest is 'variant'"),
    ("attention: {variant: navie}", r"attention.variant: 'navie'.*nearest is 'naive'"),
    ("attention: {seq_len: '64'}", "seq_len: '64' is str"),
    ("attention: {seq_len: 1e3}", "seq_len: '1e3' is str"),
    ("attention: {seq_len: 64.0}", "seq_len: 64.0 is float"),
    ("attention: {seq_len: true}", "seq_len: True is bool"),
    ("attention: {seq_len: -1}", "seq_len: -1 must be 1 or more"),
    ("attention: {seq_len: []}", r"seq_len: \[\] must be a value or a list"),
    ("attention: {seq_len: {a: 1}}", "seq_len: .* must be a value or a list"),
    ("attention: {seq_len: null}", "seq_len: None must be"),
    ("attention: {seq_len: [64, 64]}", "stands in the sweep twice"),
    ("attention: [{seq_len: 64}, {seq_len: 64}]", "stands in the sweep twice"),
    ("attention: naive", "must be a mapping"),
    ("attention: {causal: 1}", "causal: 1 is int, must be bool"),
    ("attention: {device: tpu}", "device: 'tpu'"),
    ("attention: {samples: 0}", "samples: 0 must be 1 or more"),
    ("attention: {samples: [1, 2]}", "samples: .* must be a whole number"),
    ("attention: {warmup: -1}", "warmup: -1 must be 0 or more"),
    ("attention: {round: 3}", "attention: 'round' is not one of"),
    ("attention: {fresh: samples}", "fresh: 'samples'"),
    ("rounds: 0\nattention: {}", "rounds: 0 must be 1 or more"),
    ("rounds: many\nattention: {}", "rounds: 'many' must be a whole number"),
    ("timeout: 1.5\nattention: {}", "timeout: 1.5 must be a whole number"),
    ("kernels: {trace: 1}", "kernels.trace: 1 must be true or false"),
    ("kernels: {recorded: 0}", "recorded: 0 must be 1 or more"),
    ("attention: {trace: true}", "attention: 'trace' is not one of"),
    ("step: {size: huge}", "size: 'huge'"),
    ("rounds: 2", "at least one experiment"),
    ("attention: {seq_len: 8}\nattention: {seq_len: 16}", "'attention' stands there twice"),
    ("attention: {seq_len: 8, seq_len: 16}", "'seq_len' stands there twice"),
    ("[1, 2]", "mapping of experiments"),
    ("attention: {", "not valid YAML"),
]


@pytest.mark.parametrize(("text", "said"), BAD)
def test_a_sweep_that_could_not_run_is_refused_in_one_line(load, text, said):
    with pytest.raises(ValueError, match=said) as raised:
        load(text)
    assert "\n" not in str(raised.value)
