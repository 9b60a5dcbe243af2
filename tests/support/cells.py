"""Writes notebooks for tests."""

from pathlib import Path

from nbformat import v4


def write(file: Path, *sources: str, title: str = "") -> Path:
    """Write a notebook of these code cells, below a title; the first holds parameters if there is more than one."""
    cells = [v4.new_code_cell(source, id=f"cell-{i}") for i, source in enumerate(sources)]
    cells[0].metadata["tags"] = ["parameters"] * (len(cells) > 1)
    cells[:0] = [v4.new_markdown_cell(title, id="title")] * bool(title)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    file.write_text(v4.writes_json(v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})))
    return file
