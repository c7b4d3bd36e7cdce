"""Attaches this Python process to the `unhang run` that started it, then makes way for the sitecustomize that stands behind this one.

The directory of this file is the first entry of PYTHONPATH in a supervised training. Any Python may come by, also 2.7 or one without torch: this
file is written so that all of them can read it. UNHANG_ATTACH=0 switches it off.
"""

import os
import sys

_HOOK = os.path.dirname(os.path.abspath(__file__))


def _attach():  # type: ignore[no-untyped-def]
    environ = os.environ
    if environ.get("UNHANG_ATTACH") == "0" or not environ.get("UNHANG_SOCKET") or sys.version_info < (3, 10) or "_unhang_attach" in sys.modules:
        return
    # A package without running its __init__: all that a submodule's import needs is the path. importlib.util would cost a millisecond.
    package = type(sys)("_unhang_attach")
    # unhang's own directory is behind it, for what is shared with the rest.
    room = os.path.dirname(_HOOK)
    package.__path__ = [room, os.path.dirname(room)]
    sys.modules["_unhang_attach"] = package
    from _unhang_attach.start import start  # type: ignore[import-not-found]

    start()


try:  # noqa: SIM105
    _attach()  # type: ignore[no-untyped-call]
except Exception:  # whatever is wrong with us is not the training's trouble
    pass

# Only this process's search path: PYTHONPATH stays, so that its children are attached too.
sys.path[:] = [entry for entry in sys.path if not (entry and os.path.abspath(entry) == _HOOK)]

# The import system hands out whatever sys.modules holds at the end. Errors of the next one go where Python sends them: to site.
_this = sys.modules.pop(__name__, None)
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
except ImportError as error:
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
    if _this is not None:
        sys.modules[__name__] = _this
