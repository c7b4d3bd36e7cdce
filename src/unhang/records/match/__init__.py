"""Collectives across ranks. `outcome` judges recorders, of a thousand ranks; `front` joins to it what is known beside them of a supervised job."""

from unhang.records.match.front import Front, Standstill, Wait, counting_messages, standstill
from unhang.records.match.partings import Parting, Side, key_of

__all__ = ["Front", "Parting", "Side", "Standstill", "Wait", "counting_messages", "key_of", "standstill"]
