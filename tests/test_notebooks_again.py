"""Notebooks of the new kind give an answer at odd parameters, and their cells can run again in any order."""

import ast
import dis
import itertools
import re

import nbclient
import nbformat
import pytest
from nbformat import v4

import odd
from lib import catalog, execution, notebooks, records
from lib.experiments import cases
from lib.report import answers

MUTATING = {"add", "append", "clear", "extend", "insert", "pop", "remove", "set", "setdefault", "update"}
MIMES = ("text/html", "text/markdown", "text/plain")
# what differs from one run to the next, and is nothing that a reader sees
IDS = re.compile(r'\b(id|xlink:href|href|clip-path)="[^"]*"|url\(#[^)]*\)|0x[0-9a-f]+')
# what a value that is none looks like in a sentence; a dash in a table's cell stands between two bars
MISSING = re.compile(r"\bnan\b|(?<!\S)(?<!\| )–(?!\w)")


NAMES = [file.stem for file in sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))]
MEASURING = [name for name in NAMES if name in catalog.CATALOG]
ONLY_TELLING = [name for name in NAMES if name not in (*catalog.CATALOG, "accounting", "explore", "published")]


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def assigned_names(source):
    """Return the names that a cell assigns, those of loops, imports and `with` included."""
    instructions = dis.get_instructions(compile(source, "cell", "exec"))
    return {instruction.argval for instruction in instructions if instruction.opname == "STORE_NAME"}


def changed_names(source):
    """Return the names of what a cell changes in place and has not made itself; a function's body does nothing yet."""
    changed = set()
    own = assigned_names(source)
    statements = [node for node in ast.parse(source).body if not isinstance(node, ast.FunctionDef)]
    for node in itertools.chain(*map(ast.walk, statements)):
        if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            changed.add(root(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_inplace = any(keyword.arg == "inplace" for keyword in node.keywords)
            if is_inplace or node.func.attr in MUTATING or node.func.attr.startswith("set_"):
                changed.add(root(node.func))
    return changed - own - {""}


def root(node):
    """Return the name that an expression of attributes and items begins with, or an empty text."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_assigned_in_one_cell_and_changed_in_no_other(name):
    homes = {}
    for cell in code_cells(nbformat.read(notebooks.NOTEBOOKS / f"{name}.ipynb", as_version=4)):
        assert not changed_names(cell.source), cell.source
        for assigned in assigned_names(cell.source):
            assert assigned not in homes, f"{assigned} is assigned in {homes[assigned]}\nand in {cell.source}"
            homes[assigned] = cell.source


@pytest.mark.parametrize("name", NAMES)
def test_no_cell_below_hides_a_parameter_of_what_is_measured(name):
    cells = code_cells(nbformat.read(notebooks.NOTEBOOKS / f"{name}.ipynb", as_version=4))
    for number, cell in enumerate(cells):
        for experiment in re.findall(r'measure\.run\("(\w+)"', cell.source):
            later = set().union(*[assigned_names(below.source) for below in cells[number + 1 :]])
            assert not later.intersection(catalog.CATALOG[experiment].fields)


@pytest.fixture(scope="module")
def run_again(tmp_path_factory):
    """Execute a notebook, then its cells again in reverse, in a kernel that all share; return its answers.

    All cells but `measure` must show the same again, and none an error. There are records of a machine, small-1c, on
    which everything ran out of memory."""
    folder = tmp_path_factory.mktemp("again")
    with pytest.MonkeyPatch.context() as patch, execution.shared_kernel() as kernel:
        patch.setenv("RESULTS", str(folder / "results"))
        for name in MEASURING:
            for case in [*cases.grid(name), *cases.grid(name, **odd.sets([name])[0][1])]:
                environment = {"machine": "small-1c", "hardware": "a test"}
                records.save(records.create(name, vars(case), 1, "oom", {"reason": "a test"}, environment))

        def run_again(name, **parameters):
            output = folder / f"{name}.ipynb"
            execution.execute(kernel, notebooks.NOTEBOOKS / f"{name}.ipynb", output, parameters)
            executed = nbformat.read(output, as_version=4)
            errors = [output for cell in code_cells(executed) for output in cell.outputs if "ename" in output]
            assert not errors, errors[0].traceback
            # figures are SVG: a PNG is of axes on which nothing is drawn
            blank = [cell.source for cell in code_cells(executed) if "image/png" in str(cell.outputs)]
            assert not blank, blank[0]
            # after all cells the measuring one takes none of their names for a mistyped parameter
            measure = "None"
            if name in MEASURING:
                measure = f'measure.run("{name}", {{**vars(), "machine": "small-1c"}});'
            rerun = run_reversed(kernel, executed, measure)
            for cell in code_cells(rerun)[1:]:
                (former,) = [former for former in executed.cells if former.id == cell.id]
                assert seen(cell) == seen(former), cell.source
            return answers.collect(executed)

        yield run_again


def run_reversed(kernel, notebook, first):
    """Run a `first` cell, and then those of a notebook but `measure` in reverse, in the kernel as it is."""
    cells = [v4.new_code_cell(first)]
    for cell in reversed(code_cells(notebook)):
        if "measure.run(" not in cell.source:
            cells.append(v4.new_code_cell(cell.source, id=cell.id))
    client = nbclient.NotebookClient(v4.new_notebook(cells=cells), km=kernel)
    # as in lib.execution
    client.widget_registry = {}
    try:
        return client.execute()
    finally:
        client.kc.stop_channels()


def seen(cell):
    """Return what a cell shows, without ids."""
    texts = []
    for output in cell.outputs:
        for mime in MIMES:
            texts.append(IDS.sub("", output.get("data", {}).get(mime, "")))
    return texts


def check(name, answers):
    """A chapter has an answer, and none tells a value that is missing."""
    assert any(key.startswith(name) for key in answers)
    for text in answers.values():
        assert not MISSING.search(text), text


@pytest.mark.parametrize(("name", "parameters"), odd.sets(MEASURING))
def test_at_odd_parameters_it_answers_and_its_cells_run_again_also_where_a_case_had_no_memory(
    name, parameters, run_again
):
    check(name, run_again(name, seconds=0.01, **parameters))
    save_with_one_case_lost(name)
    check(name, run_again(name, machine="partly-1c"))


def save_with_one_case_lost(name):
    """Save what was measured by hand as records of a machine, partly-1c, on which one case ran out of memory."""
    (machine,) = records.machines(by_hand=True)
    around = {"machine": "partly-1c", "hardware": "a test"}
    measured = list(records.of_machine(name, machine, by_hand=True))
    for record in measured:
        metrics = record["metrics"]
        records.save(records.create(name, record["case"], 1, "ok", metrics, record["environment"] | around))
    (lost,) = cases.grid(name)
    assert any(record["case"] != vars(lost) for record in measured)
    # also in place of its record, where it was measured
    records.save(records.create(name, vars(lost), 1, "oom", {"reason": "a test"}, around))


def test_flash_tells_of_the_longest_sequence_alone(run_again):
    around = {"machine": "flash-1c", "hardware": "a test"}
    for case in cases.grid("attention", variant=["naive", "tiled"], seq_len=[32, 48], batch_size=1):
        ms = case.seq_len / 16 * (1 if case.variant == "tiled" else 2)
        metrics = {f"{part}_ms": [ms] * 10 for part in ("forward", "backward", "total")}
        records.save(records.create("attention", vars(case), 1, "ok", metrics, around))
    answers = run_again("flash", machine="flash-1c")
    assert "1 sequence of 48 tokens and 1 head of 64: in fp32 tiled takes 3.00 ms." in answers["flash"]


@pytest.mark.parametrize("tokens", [2**20, 1000])
def test_accounting_measures_nothing_and_answers_from_its_formulas(tokens, run_again):
    # as YAML reads it
    answers = run_again("accounting", tokens=tokens, flops="4.6e14", machine="small-1c")
    check("accounting", answers)
    # the most devices that share the step where messages follow products
    a = tokens * 1.8e11 / 4.6e14
    b = 1.5 * 53_248 * 1.8e11 / 4.6e14
    assert f"{int((a + b + a * b) ** 2 / (4 * a * b)):,} devices" in answers["accounting.in_turn"]


@pytest.mark.parametrize("name", ONLY_TELLING)
@pytest.mark.parametrize("machine", ["small-1c", "xeon-2c-0e51"])
def test_a_chapter_that_measures_nothing_tells_what_there_is(name, machine, run_again):
    answers = run_again(name, machine=machine)
    assert not any(MISSING.search(text) for text in answers.values()), answers


@pytest.mark.parametrize("machine", ["small-1c", "unheard-of", "xeon-2c-0e51", "nvidia-h100-80gb-hbm3-6a71"])
def test_write_ups_are_told_with_and_without_records_of_a_machine(machine, run_again):
    answers = run_again("published", machine=machine)
    check("published", answers)
    assert ("published.here" in answers) == (machine[-4:] in ("0e51", "6a71"))


@pytest.mark.parametrize("name", MEASURING)
def test_where_every_case_ran_out_of_memory_it_ends_without_an_error(name, run_again):
    answers = run_again(name, machine="small-1c")
    assert not any(MISSING.search(text) for text in answers.values()), answers


def test_ranks_are_compared_with_one_process_on_the_same_batch(run_again):
    around = {"machine": "two-1c", "hardware": "a test"}
    kept = [f"{when}_{name}_mib" for when in ("after", "predicted") for name in ("parameters", "gradients", "states")]
    # by batch, milliseconds of one process and of two ranks
    for batch_size, times_ms in {2: (1.0, 3.0), 4: (4.0, 5.0)}.items():
        for (variant, world), ms in zip({"plain": 1, "fsdp": 2}.items(), times_ms, strict=True):
            case = vars(cases.grid("parallel", variant=variant, world=world, batch_size=batch_size)[0])
            metrics = {"total_ms": [ms] * 10, "parameters": 10, **{name: [1.0] for name in kept}}
            for round in (1, 2, 3):
                records.save(records.create("parallel", case, round, "ok", metrics, around))
    answers = run_again("parallel", machine="two-1c")
    assert re.search(r"gloo, against one process .*: in tiny 3\.0+ .* ms against 1\.0+ ", answers["parallel"])


def test_messages_whose_times_do_not_grow_with_their_size_have_no_bandwidth(run_again):
    around = {"machine": "level-1c", "hardware": "a test"}
    for case in cases.grid("collectives", operation="broadcast", megabytes=[0.02, 0.5]):
        ms = 10.0 if case.megabytes < 0.1 else 5.0
        metrics = {"total_ms": [ms * (1 + 0.01 * number) for number in range(8)], "message_bytes": 1e6 * case.megabytes}
        records.save(records.create("collectives", vars(case), 1, "ok", metrics, around))
    answers = run_again("collectives", machine="level-1c")
    assert "a bandwidth of" not in answers["collectives"]


def test_compiling_is_told_of_a_step_alone_where_it_is_measured_by_hand(run_again):
    answers = run_again("compile", context_length=16, seconds=0.01)
    check("compile", answers)
    assert "compile.sizes" in answers
    assert "compile.attention" not in answers


def test_compiling_ends_without_an_error_where_a_sweep_ended_before_it(run_again):
    around = {"machine": "early-1c", "hardware": "a test"}
    for case in cases.grid("step", size="tiny", context_length=16):
        phases = {f"{phase}_ms": [1.0, 2.0] for phase in ("forward", "backward", "optimizer", "total")}
        records.save(records.create("step", vars(case), 1, "ok", phases | {"parameters": 1.0}, around))
    assert not [key for key in run_again("compile", machine="early-1c") if key.startswith("compile.why")]


def test_compiling_pays_after_what_it_costs_over_what_it_saves(run_again):
    shown = []
    time = r"([\d.]+)(?: \([^)]*\))? (m?s)"
    for folder in sorted(records.REFERENCE.glob("xeon-*")):
        for text in run_again("compile", machine=folder.name).values():
            shown += re.findall(f"costs {time} once.* about ([\\d,]+) runs, each of which saves {time}", text)
    assert shown
    to_ms = {"ms": 1.0, "s": 1000.0}
    for cost, cost_unit, steps, gain, gain_unit in shown:
        quotient = float(cost) * to_ms[cost_unit] / (float(gain) * to_ms[gain_unit])
        # two digits, and whole steps
        assert float(steps.replace(",", "")) == pytest.approx(quotient, rel=0.05, abs=1)
