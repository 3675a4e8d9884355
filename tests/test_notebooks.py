"""Every notebook runs from top to bottom (`make notebooks`); `python tests/test_notebooks.py` stores the outputs."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def execute(path: Path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": FOLDER}}).execute()
    return notebook


@pytest.mark.notebook
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path):
    notebook = execute(path)
    errors = [
        o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs if o.output_type == "error"
    ]
    assert not errors


if __name__ == "__main__":
    import nbformat

    for path in NOTEBOOKS:
        notebook = execute(path)
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times of day, which change with every run
        nbformat.write(notebook, path)
        print(path)
