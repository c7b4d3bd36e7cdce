"""Flight-recorder dumps: which rank wrote what, loaded without trust.

`load` gives one rank's dump in objects, with every frame; `columns` gives what is compared across a thousand ranks, and nothing else. A dump is a
pickle of plain builtins, or JSON; any class in it is refused.
"""

from unhang.records.flight.batches import COALESCED
from unhang.records.flight.entries import Call, Flight, Group, Sizes, load, parse, together
from unhang.records.flight.opening import is_dump

__all__ = ["COALESCED", "Call", "Flight", "Group", "Sizes", "is_dump", "load", "parse", "together"]
