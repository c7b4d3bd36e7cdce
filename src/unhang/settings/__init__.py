"""Settings of communication and of a run, by names of our own, each spelt as the installed releases read it.

`setting` has the types and puts a choice of settings into variables and arguments; `catalogue` has all settings and presets, `spellings` how those
are put that are no single variable; `installed` finds what a training's Python would load.
"""
