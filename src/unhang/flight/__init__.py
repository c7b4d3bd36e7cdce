"""Flight-recorder dumps: which rank wrote what, loaded without trust.

`load` gives one rank's dump in objects, with every frame; `recording` gives what is compared across a thousand ranks, and nothing else. A dump is a
pickle of plain builtins, or JSON; any class in it is refused.
"""

from unhang.flight.coalesced import COALESCED
from unhang.flight.dump import load
from unhang.flight.dump_file import is_dump
from unhang.flight.entries import Call, Flight, Group
from unhang.flight.mismatch import Mismatch, MismatchSide, key_of
from unhang.flight.stall import CollectiveWait, Stall, Waits, counting_messages, standstill

__all__ = [
    "COALESCED",
    "Call",
    "CollectiveWait",
    "Flight",
    "Group",
    "Mismatch",
    "MismatchSide",
    "Stall",
    "Waits",
    "counting_messages",
    "is_dump",
    "key_of",
    "load",
    "standstill",
]
