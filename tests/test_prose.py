"""Prose written by hand asks, instructs, defines and cites; what it claims is found."""

import json
import random
import re
from pathlib import Path

import pytest

from lib import notebook, prose

CHAPTERS = sorted(notebook.CHAPTERS.glob("*.ipynb"))
QUOTATION = Path(__file__).parent / "adam_in_writeup_000.md"
PLANTED = """
The compiled step is faster.
Eager attention is the slowest of all.
bf16 halves the time.
Softmax dominates attention.
Backward costs 2.1 times forward.
The optimizer takes 31% of the step.
A training step needs 51 ms here.
Activations fill 3.2 GiB at the peak.
Fused Adam outperforms every other implementation.
The cost of the mask is negligible.
Time grows quadratically with the number of tokens.
Memory is linear in the context.
The backward pass takes twice as long.
Most of the time goes to matrix products.
Tiled attention uses less memory.
Compiling pays off after a few iterations.
The copy reaches nine tenths of the ceiling.
Two thirds of the peak are activations.
Checkpointing saves a lot of memory.
Throughput improves with the batch.
Accuracy deteriorates in fp16.
foreach beats the loop.
Naive attention cannot match the fused kernel and lags behind.
The gap widens, and sdpa wins at every length.
Doubling the context quadruples the scores that are timed.
The first step is an order of magnitude slower.
There is a fivefold gain from compiling.
Layer norm is memory-bound.
The speed-up is considerable.
Warm caches make no difference.
Both variants take equally long.
The two precisions are equally accurate, and their times identical.
Forward is as fast as backward.
The optimizer step is cheap.
Attention is the bottleneck.
A larger batch reduces the overhead.
The model runs at 1.7 TFLOP/s.
Utilisation exceeds what was expected.
The embedding accounts for the peak.
Nearly all kernels are elementwise.
Peak memory is $2.5\\times$ that of the forward pass.
It is **much better** in half precision.
The time rises steeply and then stays flat.
The compiled step needs ~40 iterations to pay.
One warm-up is enough.
Eager mode suffers from its many launches.
The spread drops after the second step.
Forward takes a third of the step.
Ten milliseconds go to the optimizer.
Autocast slows the small model down.
""".strip().splitlines()
ALLOWED = """
Which of them is faster, and does the faster one need more memory?
Look at whether the lines of long contexts end lower, and at which rises first.
If nothing else took time, the backward pass should take twice the forward.
Compiled attention would need fewer passes over the scores.
In the panels, a point left of the line took less time than its reference.
Next to a large number a small term is lost: half the spacing and less is nothing (Higham 2002).
Holm (1979) tightens the level, so that fewer differences are shown.
With *tf32*, factors keep 10 bits.<!-- definition -->
A pilot of ten pairs tells how they spread, with n = 10 and a 95% interval.
The write-up 003 measured small and xl at context 256 with batch 4 in bf16 and fp32, in units of 2^20 bytes.
It takes $4T^2d$ operations, and `num_heads` is no part of that.
At the least it is one kernel; at most it is as many as there are operations.
> The compiled step is 2 times faster. (write-up 004)
""".strip().splitlines()
CLAIMED = """
Why is the compiled step faster?
Look at how the compiled step outpaces the eager one.
Backward should take long, and it is slower.
One would expect 2.1 ms.
Left of the line is less time, and fused is fastest.
The step takes 51 ms.<!-- definition -->
> The compiled step is 2 times faster.
Is it steady? bf16 halves the time.
What dominates is softmax.
""".strip().splitlines()


def read(file):
    return [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "markdown"]


def with_planted(text, sentence, chance):
    """The text with a sentence at a boundary of its sentences or paragraphs that chance picks."""
    gaps = [
        (gap.end(), sentence + (" " if gap[0] == " " else "\n\n")) for gap in re.finditer(r"(?<=[.?>]) |\n\n", text)
    ]
    last = (len(text), (" " if text[-1] in ".?>" else "\n\n") + sentence)
    at, planted = chance.choice([*gaps, last])
    return text[:at] + planted + text[at:]


@pytest.mark.parametrize("file", CHAPTERS, ids=lambda file: file.stem)
def test_a_chapter_claims_nothing_by_hand(file):
    assert not [str(found) for found in prose.findings(file)]


@pytest.mark.parametrize("seed", range(4))
def test_of_fifty_planted_contradictions_at_least_49_are_found(seed):
    chance, missed = random.Random(seed), []
    cells = ["".join(cell["source"]) for file in CHAPTERS for cell in read(file)]
    assert len(set(PLANTED)) == 50
    for sentence in PLANTED:
        text = with_planted(chance.choice(cells), sentence, chance)
        if not any(found.sentence[-8:] == sentence[-8:] for found in prose.markdown(text)):
            missed.append((sentence, text))
    assert len(missed) <= 1, missed


@pytest.mark.parametrize("sentence", ALLOWED)
def test_what_asks_instructs_expects_defines_or_cites_is_let_pass(sentence):
    assert not [str(found) for found in prose.markdown(sentence)]


@pytest.mark.parametrize("sentence", CLAIMED)
def test_what_only_looks_like_it_is_not(sentence):
    assert prose.markdown(sentence)


def test_a_mark_covers_its_own_sentence_only():
    text = f"A level of 2% is used.{prose.MARK} It is faster. A level of 3% is used.{prose.MARK}"
    assert [found.word for found in prose.markdown(text)] == ["faster"]


def test_a_contradictory_paragraph_may_be_quoted_but_not_said():
    quoted = QUOTATION.read_text()
    assert not prose.markdown(quoted)
    said = "\n".join(line[1:].removeprefix(" ") for line in quoted.splitlines()[1:])
    found = [one.sentence for one in prose.markdown(said)]
    sentences = [part for line in said.splitlines() if line[:1] == "-" for part in re.split(r"(?<=[a-z]\.) ", line[2:])]
    assert len(sentences) == 9
    for sentence in sentences:
        assert any(one[-30:] == sentence.replace("`", "")[-30:] for one in found), sentence


def test_the_strings_of_code_are_captions_and_wordings():
    allowed = 'show(x, "size total_ms", "Time, left of the line it took less", f"In {x} it takes {{}} times as long")'
    assert not prose.code(allowed)
    for claim in ('"Softmax takes the largest share"', 'f"{x} is faster"', '"It took {} ms, not 12.5 ms"'):
        assert prose.code(f"show(x, {claim})")


def test_the_command_says_where_and_why(tmp_path, capsys):
    file = tmp_path / "draft.md"
    file.write_text("# A draft\n\nIt works.\n\n- The step is faster.\n")
    assert prose.main([str(file)]) == 1
    assert capsys.readouterr().out == "draft.md, line 5, The step is faster.: faster: a comparative\n"
    file.write_text("# A draft\n\nIt works.\n")
    assert prose.main([str(file)]) == 0
