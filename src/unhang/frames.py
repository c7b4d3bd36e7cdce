"""Python frames, and whose they are: the user's, a library's, torch's, our own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unhang.model import frozen
from unhang.patterns import lazily
from unhang.user_files import checked_out, is_installed, is_stdlib, is_unhang, is_user_file

_C10D = "torch/distributed/distributed_c10d"
OURS = "unhang."
LOADER = "torch/utils/data"
# unhang's own collectives, and the evaluations that end with them.
_GUARDED = ("unhang/runtime/collectives", "unhang/runtime/evaluation", "unhang/runtime/sync_check")


@frozen
class Frame:
    """One Python frame. `code` is the source line where it could be read; `guards` are the `if` tests around it; `endless` if its innermost loop is a
    `while True` that no statement in it leaves; `arguments` are the root and the reduction of a call of torch.distributed ("group_src=1 op=SUM").
    """

    file: str
    line: int
    name: str
    code: str = ""
    guards: tuple[str, ...] = ()
    endless: bool = False
    arguments: str = ""


_PACKAGES = ("/site-packages/", "/dist-packages/")
_TORCH = lazily(r".*/(?:site|dist)-packages/torch/")


def without_hook(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames above which unhang's own hook (or a fault of unhang.testing) stands and waits, with whatever of the standard library it called."""
    end = len(frames)
    for i in range(len(frames) - 1, -1, -1):
        file = frames[i].file
        if "/unhang/recipes/" not in file and is_unhang(file):
            end = i
        elif not is_stdlib(file):
            break
    return tuple(frames[:end]) or tuple(frames)


def user_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's code; failing that, the innermost one of a library that is neither Python, torch nor unhang."""
    for frame in reversed(frames):
        if is_user_file(frame.file):
            return frame
    for frame in reversed(frames):
        if is_installed(frame.file):
            if not (_TORCH.match(frame.file) or is_unhang(frame.file)):
                return frame
        elif checked_out(frame.file) not in (None, "torch"):
            return frame
    return None


def inside(frame: Frame, package: str) -> bool:
    """Whether the frame's file lies in a package, given as a path: `torch/utils/data`."""
    return f"/{package}/" in frame.file or f"/{package}.py" in frame.file


def shown_path(file: str, cwd: str) -> str:
    """The path relative to the working directory of the training when it lies inside, else as it is."""
    root = cwd.rstrip("/") + "/"
    return file[len(root) :] if len(root) > 1 and file.startswith(root) else file


def short_path(file: str, cwd: str) -> str:
    """The same; of what is installed, from the name of its package on."""
    file = shown_path(file, cwd)
    return file[max(file.rfind(root) + len(root) if root in file else 0 for root in _PACKAGES) :]


def place(frame: Frame, cwd: str) -> str:
    """ "train.py:88 in evaluate"."""
    return f"{shown_path(frame.file, cwd)}:{frame.line} in {frame.name}"


def other_line(one: Frame | None, other: Frame | None) -> bool:
    """Whether two places are known and not the same."""
    return one is not None and other is not None and (one.file, one.line) != (other.file, other.line)


def op_of_stack(frames: Iterable[Frame]) -> str:
    """The collective whose function the innermost frames are in, "" where they are in none."""
    op = ""
    for frame in reversed(tuple(frames)):
        guarded = any(inside(frame, part) for part in _GUARDED)
        if not (guarded or inside(frame, "torch") or inside(frame, "contextlib") or frame.file.startswith("<")):
            break
        if guarded or inside(frame, _C10D):
            # A call of the same name is another one.
            op = f"{OURS}{frame.name}" if guarded else frame.name
    return op
