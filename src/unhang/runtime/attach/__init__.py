"""The hook inside every Python process of a supervised training: it reports progress and, when asked, evidence.

It is loaded at interpreter start by `hook/sitecustomize.py`, by path and under the name `_unhang_attach`, into environments in which unhang need
not be installed: everything here uses the standard library only, imports its neighbours relatively (and `unhang.user_files`, which is shared with
the rest), and does nothing when imported.

    start       which kind of process is this?            imports       patches modules after they are imported
    session     the attachment of this process            distributed   torch.distributed: joined, left
    link        the socket                                optimizer     torch.optim: steps
    heartbeat   the thread that beats and answers         launcher      torchrun's agent: stopping
    recorder    torch's flight recorder                   last_words    exceptions and the end of the interpreter
    frames      stacks and places                         fatal         stacks when a signal ends the process
    ray_train   Ray Train: its thread and exceptions      spawn         torch.multiprocessing: exceptions of its workers
    protocol    the messages, shared with the supervisor
    overrides   what the user asks for over the script's head, and the account of it
    groups      torch.distributed: backend, timeout       host_memory what Gloo lacks on GPUs
    functional  ... by the functional collectives         sends       buffers that nobody waits for
    frameworks  tells them that it is Gloo
    loader      torch.utils.data: workers, pinning, prefetch
    step_times  when each step ended, for unhang bench

A training must never notice: nothing here raises, prints or waits without a bound, and a supervisor that is gone is forgotten quietly.
"""
