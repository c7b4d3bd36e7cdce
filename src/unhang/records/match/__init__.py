"""Collectives across ranks. `front` answers for a supervised incident, with stacks and counters; `outcome.judge` for dumps alone, of a thousand
ranks."""

from unhang.records.match.front import Front, Parting, Side, Wait, counting_messages, front_of, key_of, op_of_stack, waits_of

__all__ = ["Front", "Parting", "Side", "Wait", "counting_messages", "front_of", "key_of", "op_of_stack", "waits_of"]
