"""Starting a training, watching it from outside, and starting it again.

command        what is run: a script under torchrun's elastic agent, or any launcher's command line as it is
environment    the variables that attach the processes and make torch and NCCL leave evidence
listener       the Unix socket to which the attached processes report
output         the training's own output: passed through unchanged, kept in a log for each rank
step_rate      how long is too long, learned from the training itself
patience       how long a stall may last before the training is ended for it
rank_table     the ranks, from what their processes say
watch          what every rank is doing, in time; finds out that nothing moves; how fast all go
outside_view   what the kernel says the ranks are doing; the Python processes below them
hang_detector  tells a hang from a slow rank, and acts on it
evidence       stacks and dumps, taken while the ranks still live
incidents      evidence gathered, written down and judged
interruption   a signal to the training: what stands still is looked at first
still_running  where ranks were by their last heartbeats, and which had to be killed
status_file    what the ranks do, written down for onlookers
terminate      ends our own processes, and nothing else
attempt        one start of the command, to its end
supervise      the attempts, the verdicts between them, and when to give up
"""
