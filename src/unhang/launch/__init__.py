"""Starting a training, watching it from outside, and starting it again.

command      what is run: a script under torchrun's elastic agent, or any launcher's command line as it is
environment  the variables that attach the processes and make torch and NCCL leave evidence
listener     the Unix socket to which the attached processes report
output       the training's own output: passed through unchanged, kept in a log for each rank
rhythm       how long is too long, learned from the training itself
watch        what every rank is doing; finds out that nothing moves
evidence     stacks, dumps and kernel states, taken while the ranks still live
attempt      one start of the command, to its end
supervise    the attempts, the verdicts between them, and when to give up
"""
