"""A sweep file becomes kernels, or is refused in one line before anything runs."""

import json
import re
from pathlib import Path

import pytest

from lib import notebooks
from lib.experiments import cases
from lib.sweep import __main__, sweep_file


@pytest.fixture
def load(tmp_path):
    def load(text):
        file = tmp_path / "sweep.yaml"
        file.write_text(text)
        return sweep_file.read(file)

    return load


def test_a_list_is_swept_a_scalar_fixed_and_the_rest_are_the_notebooks_defaults(load):
    (kernel,) = load("attention: {variant: [naive, sdpa], seq_len: 32, device: cpu}")
    defaults = notebooks.parameters("attention")
    assert [case.variant for case in kernel.cases] == ["naive", "sdpa"]
    assert {case.seq_len for case in kernel.cases} == {32}
    assert {case.d_head for case in kernel.cases} == {defaults["d_head"]}
    assert kernel.parameters["samples"] == defaults["samples"]


def test_numbers_are_those_of_yaml_1_2(load):
    (kernel,) = load("attention: {seq_len: [010, 0x10, 1_000], device: cpu, target_percent: 1e-3}")
    assert {case.seq_len for case in kernel.cases} == {10, 16, 1000}
    assert kernel.parameters["target_percent"] == 0.001


def test_each_value_of_a_fresh_axis_and_each_round_gets_a_kernel_and_rounds_interleave(load):
    kernels = load("rounds: 2\nattention: {fresh: variant, variant: [naive, sdpa], seq_len: [8, 16], device: cpu}")
    assert [kernel.round for kernel in kernels] == [1, 1, 2, 2]
    assert [kernel.last for kernel in kernels] == [False, False, True, True]
    for pair in (kernels[:2], kernels[2:]):
        assert {tuple({case.variant for case in kernel.cases}) for kernel in pair} == {("naive",), ("sdpa",)}
        assert [len(kernel.cases) for kernel in pair] == [2, 2]


def test_rounds_follow_each_other_and_entries_the_file(load):
    kernels = load("step:\n  - {size: tiny, rounds: 2}\n  - {size: small}\nadam: {rounds: 2}\n")
    expected = [(1, "step", "tiny"), (1, "step", "small"), (1, "adam", None), (2, "step", "tiny"), (2, "adam", None)]
    assert [(k.round, k.experiment, getattr(k.cases[0], "size", None)) for k in kernels] == expected


@pytest.mark.parametrize("name", ["smoke", "quick", "quick-gpu", "cpu", "gpu", "peers"])
def test_the_sweeps_of_the_repository_are_valid(name):
    assert sweep_file.load(name)


def test_the_gpu_sweep_is_the_assignments_grid_in_a_bearable_number_of_kernels():
    kernels = sweep_file.load("gpu")
    counts = {}
    for kernel in kernels:
        if kernel.round == 1:
            counts[kernel.experiment] = counts.get(kernel.experiment, 0) + len(kernel.cases)
    cold = [kernel for kernel in kernels if kernel.experiment == "warmup"]  # each case in a process of its own
    assert len(cold) == 3 * counts["warmup"] == 3 * 5 * 2
    assert len(kernels) - len(cold) <= 12 * len(counts)  # each costs seconds to start
    # eager and compiled; forward alone with and without a graph; the tiny one that the ladder starts from
    assert counts["step"] == 5 * 4 * 3 * (2 + 2) + 4
    assert counts["attention"] == 5 * 5 * 4 * 3 * 2 + 7 * 3 * 2  # and in bf16 without autocast
    ladder = [case for kernel in kernels for case in kernel.cases if case.experiment == "ladder"]
    rungs = {(case.precision, case.attention) for case in ladder}
    assert rungs >= {("fp32", "naive"), ("tf32", "naive"), ("bf16", "sdpa_flash"), ("bf16", "sdpa_cudnn")}
    assert counts["flash"] == 9 * 10 * 4 * 2 + 9  # 80 cells and the leaderboard's case, by each variant for a GPU
    assert counts["adam"] == 5 * 6 * 5 * 2 * 2 + 5 * 2
    assert counts["kernels"] == 2 * 3 * 3 * 2
    assert counts["memory"] == 2 * 4 * 2 * 4 + 8


def test_the_first_tier_of_the_gpu_sweep_has_three_rounds_of_whatever_varies():
    rounds = {}
    for kernel in (kernel for kernel in sweep_file.load("gpu") if kernel.tier == 1):
        for case in kernel.cases:
            rounds[case] = max(kernel.round, rounds.get(case, 0))
    once = {case.experiment for case, last in rounds.items() if last != 3 and getattr(case, "operation", "") != "call"}
    assert once == {"kernels", "memory"}  # one profile, one timeline


def test_what_make_report_measures_is_part_of_the_gpu_sweep_in_the_same_words():
    grid = {case: kernel.parameters for kernel in sweep_file.load("gpu") for case in kernel.cases}
    quick = {case: kernel.parameters for kernel in sweep_file.load("quick-gpu") for case in kernel.cases}
    assert {case.experiment for case in quick.keys() - grid.keys()} <= {"precision"}  # one that is left out anyway
    for case, parameters in quick.items():
        settings = notebooks.settings(case.experiment).keys() - {"round"}
        assert {name: parameters[name] for name in settings} == {
            name: grid.get(case, parameters)[name] for name in settings
        }


def test_the_report_has_a_sweep_for_each_device_and_every_chapter_its_experiment(monkeypatch):
    for kind, sweep in (("cpu", "quick"), ("mps", "quick"), ("cuda", "quick-gpu")):
        monkeypatch.setattr(sweep_file.device, "named", lambda kind=kind: kind)
        assert sweep_file.picked("report") == sweep
        assert sweep_file.picked("gpu") == "gpu"
    measured = [{kernel.experiment for kernel in sweep_file.load(name)} for name in ("quick", "quick-gpu")]
    assert measured[0] - measured[1] == {"allocator"}  # of the C library, which holds no memory of a GPU


def test_a_tier_is_of_a_block_or_of_the_whole_sweep(load):
    kernels = load("tier: 2\nadam: [{num_params: 1}, {num_params: 2, tier: 3}]")
    assert [(kernel.cases[0].num_params, kernel.tier) for kernel in kernels] == [(1, 2), (2, 3)]


BAD = [
    # names
    ("atention: {}", r"experiment: got 'atention'.*nearest: attention"),
    ("round: 2\nattention: {}", r"experiment: got 'round'.*nearest: rounds"),
    ("1: {}", r"experiment: got 1, expected one of"),
    ("attention: {varaint: naive}", r"attention: got 'varaint'.*nearest: variant"),
    ("attention: {round: 3}", r"attention: got 'round'.*nearest: rounds"),
    ("attention: {fresh: samples}", r"attention.fresh: got 'samples', expected one of"),
    ("attention: {fresh: null}", r"attention.fresh: got 'None', expected one of"),
    ("attention: {fresh: [variant, variant]}", r"attention.fresh: duplicate 'variant'"),
    # values of choice; wrong texts of every field are in the test of code as a value
    ("attention: {variant: navie}", r"attention.variant: got 'navie'.*nearest: naive"),
    ("attention: {device: cuda:1}", r"attention.device: got 'cuda:1'.*nearest: cuda"),
    ("attention: {variant: [naive, null]}", r"attention.variant: got None \(NoneType\), expected str"),
    # types of numbers and of yes or no
    ("attention: {seq_len: 1e3}", r"attention.seq_len: got 1000.0 \(float\), expected int"),
    ("attention: {seq_len: true}", r"attention.seq_len: got True \(bool\), expected int"),
    ("attention: {seq_len: 1:30}", r"attention.seq_len: got '1:30' \(str\), expected int"),
    ("attention: {seq_len: 2026-01-01}", r"attention.seq_len: got '2026-01-01' \(str\), expected int"),
    ("attention: {seq_len: [[64]]}", r"attention.seq_len: got \[64\] \(list\), expected int"),
    ("attention: {causal: 1}", r"attention.causal: got 1 \(int\), expected bool"),
    ("kernels: {trace: 1}", r"kernels.trace: got 1, expected true or false"),
    # sizes and shapes
    ("attention: {seq_len: -1}", r"attention.seq_len: got -1, expected at least 1"),
    (f"attention: {{seq_len: {'9' * 90}}}", r"attention.seq_len: got 9+\.\.\.9+, expected at most 1000000000"),
    ("step: {context_length: 0}", r"step.context_length: got 0, expected at least 2"),
    ("memory: {checkpoint: -1}", r"memory.checkpoint: got -1, expected at least 0"),
    ("attention_module: {d_model: 30, num_heads: 4}", r"attention_module.d_model: got 30, expected a multiple of .* 4"),
    ("attention_module: {d_model: 12, num_heads: 4}", r"attention_module.d_model: got a head size of 3"),
    ("compile: {model: tiny, d_head: 64}", r"compile.d_head: got 64, expected 32 for model tiny"),
    ("attention_module: {context_length: 1}", r"attention_module.context_length: got 1, expected at least 2"),
    ("compile: {model: tiny, d_head: 32, seq_len: 1}", r"compile.seq_len: got 1, expected at least 2"),
    ("adam: {num_params: 0}", r"adam.num_params: got 0, expected at least 1"),
    ("adam: {num_params: 1000000}", r"adam.num_params: got 1000000, expected at most 100000"),
    ("adam: {shapes: tiny, num_params: 2, param_size: 0}", r"adam.num_params: got 2, expected 0 for shapes tiny"),
    ("ceilings: {operation: call, rows: 2, columns: 1}", r"ceilings.rows: got 2, expected 1 for operation call"),
    ("ceilings: {operation: call, rows: 1, columns: 2}", r"ceilings.columns: got 2, expected 1 for operation call"),
    ("adam: {num_params: -1}", r"adam.num_params: got -1, expected at least 0"),
    ("adam: {shapes: tiny, num_params: 0, param_size: 2}", r"adam.param_size: got 2, expected 0 for shapes tiny"),
    # axes that hold nothing, or the same twice
    ("attention: {seq_len: []}", r"attention.seq_len: got \[\], expected a value or a list of values"),
    ("attention: {seq_len: null}", r"attention.seq_len: got None, expected a value or a list of values"),
    ("attention: {seq_len: [64, 64]}", r"attention: duplicate case .*seq_len=64"),
    ("attention: [{seq_len: 64}, {seq_len: 64}]", r"attention: duplicate case .*seq_len=64"),
    ("attention: {device: [auto, auto]}", r"attention: duplicate case"),
    ("attention: {seq_len: 8}\nattention: {seq_len: 16}", r'line 2: found duplicate key "attention"'),
    ("attention: []", r"attention: got \[\], expected a mapping"),
    ("attention: [[{}]]", r"attention: got \[{}\], expected a mapping"),
    # options and settings
    ("rounds: 0\nattention: {}", r"attention.rounds: got 0, expected at least 1"),
    ("rounds: many\nattention: {}", r"attention.rounds: got 'many', expected a whole number"),
    ("attention: {tier: 0}", r"attention.tier: got 0, expected at least 1"),
    ("attention: {tier: 4}", r"attention.tier: got 4, expected at most 3"),
    ("needs: gpu\nattention: {}", r"attention\.needs: got 'gpu', expected one of cuda, bf16, emulated_bf16"),
    ("timeout: 1.5\nattention: {}", r"attention.timeout: got 1.5, expected a whole number"),
    (f"timeout: {10**20}\nattention: {{}}", r"attention.timeout: got 1(0+), expected at most 1000000000"),
    ("attention: {samples: 0}", r"attention.samples: got 0, expected at least 1"),
    ("attention: {pairs: true}", r"attention.pairs: got True, expected a whole number"),
    ("attention: {seconds: .nan}", r"attention.seconds: got nan, expected a finite number"),
    ("attention: {target_percent: -0.5}", r"attention.target_percent: got -0.5, expected at least 0"),
    # the file as a whole
    ("rounds: 2", r"at least one experiment"),
    ("", r"mapping of experiments"),
    ("attention: {}\n---\nattention: {}", r"not valid YAML"),
    ("attention: {}\n\tseq_len: 8", r"not valid YAML"),
    ("? [attention]\n: {}", r"experiment: got \('attention',\), expected one of"),
    ("attention: {<<: {seq_len: 8}}", r"line 1: got a merge, <<, expected its fields"),
]


@pytest.mark.faults(12, "a bad configuration")
@pytest.mark.parametrize(("text", "said"), BAD, ids=[text or "nothing" for text, _ in BAD])
def test_a_sweep_that_could_not_run_is_refused_in_one_line_before_any_process_starts(planted, capsys, text, said):
    planted("planted", text)
    assert __main__.main(["planted"]) == 2
    out, err = capsys.readouterr()
    assert re.search(said, err)
    assert err.startswith("planted.yaml: ")
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.faults(13, "code as a name or a value")
@pytest.mark.parametrize("code", ["'; open('CANARY', 'w'); '", "__import__('os').system('touch CANARY')"])
def test_code_as_a_name_or_a_value_of_any_experiment_is_refused_and_never_runs(load, monkeypatch, tmp_path, code):
    monkeypatch.chdir(tmp_path)
    wrong = {json.dumps({code: {}}): "expected one of"}
    for experiment in cases.EXPERIMENTS:
        for axes in ({code: 1}, {"fresh": code}, code):
            wrong[json.dumps({experiment: axes})] = "expected one of|expected a mapping"
        for name in notebooks.parameters(experiment):
            wrong[json.dumps({experiment: {name: code}})] = rf"{experiment}.{name}: |got 'round', expected one of"
    for text, said in wrong.items():
        with pytest.raises(ValueError, match=said):
            load(text)
    assert not Path("CANARY").exists()
