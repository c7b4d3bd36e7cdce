"""The catalogue finds causes by file, and near names for wrong ones."""

from __future__ import annotations

import pytest

from unhang.errors import UnhangError
from unhang.knowledge import catalogue


def test_roots_come_first_and_the_order_is_stable():
    roles = [c.role for c in catalogue.load().values()]
    assert roles == sorted(roles) and roles[0] == "root"


@pytest.mark.parametrize("name", ["process-stuck", "Process_Stuck", " process-stuck "])
def test_names_are_forgiving(name):
    assert catalogue.get(name).id == "process-stuck"


@pytest.mark.parametrize(
    ("name", "near"), [("proces-stuk", "process-stuck"), ("deadlock", "dataloader-deadlock"), ("mismatch", "collective-mismatch")]
)
def test_wrong_names_list_near_ones(name, near):
    with pytest.raises(UnhangError, match=near) as e:
        catalogue.get(name)
    assert e.value.hint == "unhang explain --list"
