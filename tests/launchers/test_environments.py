"""A launcher that cannot be installed takes nothing but its own tests with it."""

from __future__ import annotations

import pytest
from tests.launchers import environments
from tests.launchers.environments import NotMade, environment

pytestmark = pytest.mark.integration


def test_what_pip_said_is_said_again(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "HERE", tmp_path)
    monkeypatch.setattr(environments, "ROOT", tmp_path / "made")
    named = tmp_path / "requirements" / "new.txt"
    named.parent.mkdir()
    named.write_text("./nothing-is-here\n")
    with pytest.raises(NotMade, match=r"new\.txt: pip ended with 1:\n(?s:.*)nothing-is-here"):
        environment("new")
    named.write_text("")
    # Each test of the launcher would wait for pip again.
    with pytest.raises(NotMade, match="nothing-is-here"):
        environment("new")
    assert (environment("new", again=True) / "bin" / "torchrun").exists()
    assert environment("new") == tmp_path / "made" / "new"
