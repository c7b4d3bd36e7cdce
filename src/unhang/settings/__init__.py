"""Settings of communication and of a run, by names of our own, each spelt as the installed releases read it.

`setting` has the types and puts a choice of settings into variables and arguments; the settings themselves are in `communication`, `timeouts` and
`runtime`, and `catalogue` has them all; `installed` finds what a training's Python would load.
"""
