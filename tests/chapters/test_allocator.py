"""What the default allocator costs is said program by program."""

from lib.chapters import allocator


def test_the_worst_program_comes_first(save_timed):
    for program, ratio in {"fused_adam": 1.5, "naive_attention": 2.0, "tiny_step": 1.0}.items():
        for name, factor in (("keeps", 1.0), ("default", ratio)):
            case = {"program": program, "allocator": name, "device": "cpu"}
            faults = [int(100 * factor) * (program != "tiny_step")] * 8
            records = save_timed("allocator", case, 10 * factor, minor_faults=faults)
    said = allocator.answer(records)
    assert said.verdict == "slower, same"
    assert said.text.index("naive attention") < said.text.index("fused adam") < said.text.index("tiny step")
    assert said.text.startswith("With the default allocator, naive attention takes 2.0")
    assert said.text.endswith("; no difference beyond 3%: tiny step.")
    table = allocator.compared(records).set_index("program")
    assert table["minor_faults"]["naive_attention"].value == 200
    assert table["minor_faults_kept"]["naive_attention"].value == 100
    assert table["minor_faults"]["tiny_step"].value == 0
