"""What a rank says of where it stands, whatever its files are called."""

import os

from unhang import encoding
from unhang.runtime.collectives import call_sites


def test_a_file_whose_name_is_no_text_can_be_told(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/tr\xe9.py")
    found = {"here": call_sites.here}
    exec(compile("def stands():\n    return here()\n", path, "exec"), found)
    assert encoding.encode(found["stands"]()) == b'"tr\\\\udce9.py:2 in stands"'
