"""Evaluation that cannot kill a training.

state_guard        what a training must find again as it left it: random numbers, train or eval mode, grad mode
results            what an evaluation found, and what of it is missing; which metrics a data set has, of evaluations before
collective_counts  how many collectives each group sees meanwhile, and which are out of step behind it
attempt            one try at one data set: everything local, then one decision for all ranks
evaluation         evaluate() and evaluation()
"""
