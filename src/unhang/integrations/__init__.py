"""Evaluations that cannot kill a training, for frameworks that have one of their own: a module for each, which imports its framework.

unhang.integrations.huggingface   GuardedEvaluation, before Trainer in a class's bases
unhang.integrations.accelerate    evaluate(accelerator, ...)
unhang.integrations.deepspeed     evaluate(engine, ...)
unhang.integrations.lightning     GuardedEvaluation, a callback
"""
