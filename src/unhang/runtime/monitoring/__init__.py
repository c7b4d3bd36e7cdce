"""What a training's collectives take, who is waited for and what fails, told to files and servers that can never disturb it.

histogram          how often which value was met, of all ranks together
counters           what one rank counts; the sums of all
torch_collectives  what torch's flight recorder tells of its own collectives
monitor            the object of a rank: it observes, gathers through the store, hands snapshots to sinks
sink_worker        a thread for each sink: one that raises or hangs is switched off
sinks              one module for each, and what they share: `measures`; `alert_sender` for messages on their way
"""
