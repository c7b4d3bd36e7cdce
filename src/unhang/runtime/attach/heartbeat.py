"""The thread that beats, also while the main thread is blocked inside a collective, and that answers the supervisor."""

from __future__ import annotations

import signal
import time

from .protocol import BEAT_INTERVAL_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .session import Session

# What a fault of this thread itself would raise must stay unblocked.
_OWN_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}


def run(session: Session) -> None:
    """Beat and answer until the supervisor is gone."""
    try:
        # A script that blocks a signal in all its threads, to wait for it, knows nothing of this one.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OWN_FAULTS)
        _serve(session)
    except Exception:  # whatever it is, the training goes on
        pass
    finally:
        session.link.close()
        session.go.set()


def _serve(session: Session) -> None:
    due = time.monotonic()
    while session.link.open:
        if time.monotonic() >= due:
            with session.working:
                # A supervisor that does not read is not buried in beats.
                if session.link.flush() and not session.link.pending:
                    session.beat()
            due = time.monotonic() + BEAT_INTERVAL_S
        for message in session.link.receive(timeout_s=due - time.monotonic()):
            kind = message["m"]
            if kind == "evidence":
                with session.working:
                    session.give_evidence(request=message.get("id"), flight=message.get("flight"))
            elif kind == "go":
                session.go.set()
            elif kind == "refused":
                return
