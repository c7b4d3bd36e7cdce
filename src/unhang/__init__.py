"""unhang: distributed PyTorch training that starts, stays up, and explains itself.

The command is `unhang`; the map of the code:

    model, errors   types that cross rooms; exit codes
    facts           what is so on this host
    records         what a run left behind: run directory, incidents, stacks, flight-recorder dumps, logs
    knowledge       all that is known of each cause of failure, one file for one cause
    diagnosis       from records and knowledge to a verdict
    runtime         what runs inside a training's own processes
    launch          starting a training and supervising it from outside
    report          verdicts on a terminal, as Markdown, as JSON
    cli             one module for each verb
    testing         fault injection

Imports go from below to above in this list and never back. Importing unhang imports nothing else, least of all torch.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
