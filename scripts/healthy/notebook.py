"""Writes a notebook with a cell that fails and its correction, for nbconvert to execute."""

from __future__ import annotations

import nbformat

cells = [
    nbformat.v4.new_code_cell("import logging\nimport torch\nlogging.basicConfig(level=logging.INFO)\nprint('cuda', torch.cuda.is_available())"),
    nbformat.v4.new_code_cell("torch.ones(2, 3) @ torch.ones(2, 3)  # corrected in the next cell", metadata={"tags": ["raises-exception"]}),
    nbformat.v4.new_code_cell("for step in range(3):\n    print('step', step, (torch.ones(2, 3) @ torch.ones(3, 2)).sum().item())"),
]
nbformat.write(nbformat.v4.new_notebook(cells=cells), "notebook.ipynb")
