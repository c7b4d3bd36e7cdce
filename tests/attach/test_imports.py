import importlib
import importlib.util
import pickle
import sys
import zipfile

import pytest

from unhang.attach.start import PatchAfterImport


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A package `wrapped` with modules a and b, and `marks.mark`, which sets `marked` on a module."""
    package = tmp_path / "wrapped"
    package.mkdir()
    (package / "__init__.py").write_text("from .a import *\nfrom .a import marked as seen\n")
    (package / "a.py").write_text("marked = False\nclass Thing: pass\n")
    (package / "b.py").write_text("raise ValueError('b')\n")
    marks = tmp_path / "marks"
    marks.mkdir()
    (marks / "__init__.py").touch()
    (marks / "mark.py").write_text("def mark(module): module.marked = True\ndef fail(module): raise RuntimeError\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("wrapped", "marks")]:
        del sys.modules[name]


def install(**patches):
    finder = PatchAfterImport({name.replace("__", "."): ("mark", how) for name, how in patches.items()}, package="marks")
    finder.install(sys.meta_path)
    return finder


def test_patched_before_the_package_takes_names_over(world):
    finder = install(wrapped__a="mark")
    import wrapped

    assert wrapped.seen is True
    assert finder not in sys.meta_path
    assert type(wrapped.a.__loader__).__name__ == "SourceFileLoader"
    assert "exec_module" not in vars(wrapped.a.__loader__)
    assert type(pickle.loads(pickle.dumps(wrapped.a.Thing()))) is wrapped.a.Thing


def test_reload_is_not_patched_again(world):
    install(wrapped__a="mark")
    import wrapped.a

    assert importlib.reload(wrapped.a).marked is False


def test_already_imported(world):
    import wrapped.a

    finder = install(wrapped__a="mark")
    assert wrapped.a.marked is True
    assert finder not in sys.meta_path


def test_a_failing_patch_and_a_failing_module(world):
    finder = install(wrapped__a="fail", wrapped__b="mark")
    import wrapped

    assert wrapped.seen is False
    with pytest.raises(ValueError, match="b"):
        importlib.import_module("wrapped.b")
    (world / "wrapped" / "b.py").write_text("marked = False\n")
    importlib.invalidate_caches()
    assert importlib.import_module("wrapped.b").marked is True
    assert finder not in sys.meta_path


def test_finders_that_ask_everybody(world):
    class Asks:
        busy = False

        def find_spec(self, name, path=None, target=None):
            if self.busy or not name.startswith("wrapped"):
                return None
            self.busy = True
            try:
                return importlib.util.find_spec(name)
            finally:
                self.busy = False

    sys.meta_path.insert(0, Asks())
    install(wrapped__a="mark")
    sys.meta_path.insert(0, Asks())
    import wrapped

    assert wrapped.seen is True


def test_two_finders_of_this_kind(world):
    install(wrapped__a="fail")
    install(wrapped__a="mark")
    import wrapped

    assert wrapped.seen is True


def test_one_loader_for_a_whole_archive(world, monkeypatch):
    archive = world / "z.zip"
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr("zipped/__init__.py", "")
        z.writestr("zipped/a.py", "from . import c\nmarked = False\n")
        z.writestr("zipped/c.py", "marked = False\n")
    monkeypatch.syspath_prepend(str(archive))
    finder = PatchAfterImport({"zipped.a": ("mark", "mark")}, package="marks")
    finder.install(sys.meta_path)
    a, c = importlib.import_module("zipped.a"), importlib.import_module("zipped.c")
    assert (a.marked, c.marked) == (True, False)
    for name in ("zipped", "zipped.a", "zipped.c"):
        del sys.modules[name]
