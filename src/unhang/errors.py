"""What can go wrong, and the exit code of each.

    UnhangError                 exit 2: the user's input or surroundings; shown without a traceback
      CommandNotFound           the training command does not exist
      RunDirError               a run directory is missing, damaged or cannot be written
      RecordError               a dump or a log cannot be read
      MissingExtra              a feature needs an optional dependency
    (anything else)             exit 3: our own failure; a ready-to-paste report is written

    CollectiveError             inside a training script: a guarded collective did not happen; a RuntimeError, as torch's own are
      CollectiveTimeout         nothing moved for as long as the deadline says; `missing` are the ranks that were not heard from
        LatePeer                this rank came when the others had given the call up
      PeerFailed                another rank has ended the call by an error of its own; `ranks` are such, `missing` those that were not heard from
      CollectiveMismatch        the ranks' calls do not fit together; `odd` are those that differ from most
      OutOfSync                 ranks that train different models; `ranks` are those that differ from most
      EvaluationFailed          an evaluation ended without a result, on all ranks alike
      StoreLost                 the store of torch.distributed does not answer: nothing can be agreed on any more

A finding, or a training that failed, is not an error: exit 1. Nor is a comparison that cannot tell yet: exit 4. Interrupted: 128 and the signal's
number, as shells say it (`interrupted_by`). `unhang run --pod` also ends with 93 and 94, for the rules of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

EXIT_OK = 0
EXIT_FOUND = 1
EXIT_USER = 2
EXIT_OURS = 3
# The budget is spent, or the rounds are used up, and not all that was compared has a verdict.
EXIT_UNDECIDED = 4
# Exit codes of `unhang run --pod`: a restart cannot help; the host is at fault.
EXIT_USELESS = 93
EXIT_BAD_HOST = 94
EXIT_INTERRUPTED = 130
# By SIGHUP, SIGINT, SIGTERM.
EXITS_INTERRUPTED = (129, EXIT_INTERRUPTED, 143)


def interrupted_by(number: int) -> int:
    """The exit code of a command that a signal has ended: 130 for Ctrl-C (SIGINT), 143 for SIGTERM, 129 for SIGHUP."""
    return 128 + number


class UnhangError(Exception):
    """What failed, with the value; `cause`, the usual reason; `hint`, the next command to try. Each may be a `Text`."""

    def __init__(self, message: str, *, cause: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.hint = hint


def unknown_name(says: str, wanted: str, valid: Collection[str], what: str) -> UnhangError:
    """For a name that does not exist: what was probably meant, and all that there are."""
    import difflib

    near = difflib.get_close_matches(wanted, valid, 1)
    return UnhangError(says, cause=f"did you mean {near[0]}?" if near else None, hint=f"{what}: {', '.join(valid)}")


class CommandNotFound(UnhangError):
    """The training command does not exist or cannot be executed."""


class RunDirError(UnhangError):
    """A run directory is missing, damaged or cannot be written."""


class RecordError(UnhangError):
    """A record of a failed run (dump, log, incident) cannot be read."""


class MissingExtra(UnhangError):
    """A feature needs an optional dependency that is not installed."""


class CollectiveError(RuntimeError):
    """A guarded collective did not happen. The training's own groups are as they were."""

    def __reduce__(self) -> Any:
        # Launchers and pools of processes hand exceptions on pickled; what a call would go on with stays in its process.
        return _made_again, (type(self), self.args, {name: value for name, value in self.__dict__.items() if name != "_resume"})


def _made_again(kind: type[CollectiveError], args: tuple[Any, ...], state: dict[str, Any]) -> CollectiveError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class CollectiveTimeout(CollectiveError):
    """Nothing moved for as long as the deadline says.

    `missing`: global ranks that were not heard from; empty where all came and the connection, or one of them, stopped in the middle.
    `closed` is what all ranks were told (`unhang.runtime.collectives.calls.Closed`), the same on each.
    """

    _resume: Callable[..., Any] | None = None

    def __init__(self, message: str, *, missing: Sequence[int] = (), closed: Any = None, resume: Callable[..., Any] | None = None) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.closed = closed
        self._resume = resume

    @property
    def resumable(self) -> bool:
        """Whether the input is untouched, so that the call can go on: with `atomic=True` or `out=`."""
        return self._resume is not None

    def resume(self, *, deadline: float | None = None) -> Any:
        """Goes on at the first chunk that is not complete on all ranks; all ranks have to call it. Returns and raises as the call itself."""
        if self._resume is None:
            raise CollectiveError("this call cannot go on: its input was reduced in place (atomic=True or out= keeps it)") from self
        return self._resume(deadline=deadline)


class LatePeer(CollectiveTimeout):
    """This rank came when the others had given the call up: it takes part again in the next one."""


class PeerFailed(CollectiveError):
    """Another rank has ended this call by an error of its own: wrong arguments, an interrupt. `ranks` are such; there it is raised as what it is.

    `missing` and `closed` as CollectiveTimeout has them.
    """

    def __init__(self, message: str, *, ranks: Sequence[int] = (), missing: Sequence[int] = (), closed: Any = None) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        self.missing = tuple(missing)
        self.closed = closed


class CollectiveMismatch(CollectiveError):
    """The ranks' calls do not fit together. `calls` is what each rank wanted, `odd` the global ranks that differ from most.

    Where it was found before anything was sent, all had come: nobody is `missing`, and `closed` is None. Where ranks that waited found it, both are
    as in CollectiveTimeout.
    """

    def __init__(self, message: str, *, calls: Mapping[int, str], odd: Sequence[int] = (), missing: Sequence[int] = (), closed: Any = None) -> None:
        super().__init__(message)
        self.calls = dict(calls)
        self.odd = tuple(odd)
        self.missing = tuple(missing)
        self.closed = closed


class OutOfSync(CollectiveError):
    """The ranks no longer train the same model. `ranks`: those that differ from most, or all of them where there is no most."""

    def __init__(self, message: str, *, ranks: Sequence[int]) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class EvaluationFailed(CollectiveError):
    """An evaluation ended without a result, on all ranks alike."""


class StoreLost(CollectiveError):
    """The store of torch.distributed does not answer, or there is none: nothing can be agreed on any more."""
