"""A sink whose library is not there says so when it is made, and names what installs it."""

import subprocess
import sys

import pytest

import unhang
from unhang.errors import MissingExtra
from unhang.runtime.monitoring.sinks.measures import needed

OF_SINKS = {"TensorBoard": "tensorboard", "WandB": "wandb", "MLflow": "mlflow", "OpenTelemetry": "opentelemetry"}


@pytest.mark.parametrize(("sink", "module"), OF_SINKS.items())
def test_what_is_missing_is_said_at_once(sink, module, monkeypatch, tmp_path):
    made = getattr(unhang, sink)
    # As where it is not installed: nothing of the name is found, but a directory that it has left here.
    (tmp_path / module).mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra) as caught:
        made()
    assert str(caught.value) == f'unhang.{sink} needs {module}, which is not installed: pip install "unhang[{module}]"'


def test_nothing_is_imported_to_find_out():
    needed("X", "x", "sqlite3.dump")
    code = "import sys, unhang; unhang.WandB, unhang.MLflow, unhang.TensorBoard, unhang.OpenTelemetry; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {name.partition(".")[0] for name in done.stdout.split()} & set(OF_SINKS.values())
