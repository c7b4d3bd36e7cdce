"""Comparisons of trainings that differ in a setting: what is measured, whether the arms really differed, and when the answer is certain."""
