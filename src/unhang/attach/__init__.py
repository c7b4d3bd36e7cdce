"""The hook inside every Python process of a supervised training: it reports progress and, when asked, evidence.

It is loaded at interpreter start by `hook/sitecustomize.py`, by path and under the name `_unhang_attach`, into environments in which unhang need
not be installed: everything here uses the standard library only, imports its neighbours relatively (and `unhang.user_files`, which is shared with
the rest), and does nothing when imported.

    start              which kind of process is this? Patches modules after they are imported
    session            the attachment of this process, the thread that beats and answers, its GPU
    supervisor_socket  the socket
    protocol           the messages, shared with the supervisor
    torch_distributed  torch.distributed: joined, left; backend and timeout as the user asked
    optimizer          torch.optim: steps
    recorder           torch's flight recorder
    frames             stacks and places
    exit_hooks         exceptions (of workers of torch.multiprocessing and Ray Train, too), the end of the interpreter, stacks when a signal ends it,
                       torchrun's agent that stops its workers
    overrides          what the user asks for over the script's head, and the account of it; DDP's buckets; data loaders
    gloo_stand_in      what Gloo lacks on GPUs
    functional         ... by the functional collectives
    frameworks         tells them that it is Gloo
    step_times         when each step ended and where its time went, for unhang bench

A training must never notice: nothing here raises, prints or waits without a bound, and a supervisor that is gone is forgotten quietly.
"""
