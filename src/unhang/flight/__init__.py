"""Flight-recorder dumps: which rank wrote what, loaded without trust.

`load` gives one rank's dump in objects, with every frame; `columns` gives what is compared across a thousand ranks, and nothing else. A dump is a
pickle of plain builtins, or JSON; any class in it is refused.
"""

from unhang.flight.coalesced import COALESCED
from unhang.flight.dump_file import is_dump
from unhang.flight.entries import Call, Flight, Group, Sizes, load, parse, together

__all__ = ["COALESCED", "Call", "Flight", "Group", "Sizes", "is_dump", "load", "parse", "together"]
from unhang.flight.mismatch import Mismatch, MismatchSide, key_of
from unhang.flight.stall import CollectiveWait, Stall, Waits, counting_messages, standstill

__all__ = ["CollectiveWait", "Mismatch", "MismatchSide", "Stall", "Waits", "counting_messages", "key_of", "standstill"]
