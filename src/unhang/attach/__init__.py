"""The hook inside every Python process of a supervised training: it reports progress and, when asked, evidence.

It is loaded at interpreter start by `hook/sitecustomize.py`, by path and under the name `_unhang_attach`, into environments in which unhang need
not be installed: everything here uses the standard library only, imports its neighbours relatively (and `unhang.user_files`, which is shared with
the rest), and does nothing when imported.

    start       which kind of process is this? Patches modules after they are imported
    session     the attachment of this process, the thread that beats and answers
    link        the socket                                distributed   torch.distributed: joined, left
    recorder    torch's flight recorder                   optimizer     torch.optim: steps
    frames      stacks and places                         launcher      torchrun's agent: stopping
    protocol    the messages, shared with the supervisor
    last_words  exceptions (of workers of torch.multiprocessing and Ray Train, too), the end of the interpreter, stacks when a signal ends it
    overrides   what the user asks for over the script's head, and the account of it; DDP's buckets
    groups      torch.distributed: backend, timeout       host_memory what Gloo lacks on GPUs
    functional  ... by the functional collectives         sends       buffers that nobody waits for
    frameworks  tells them that it is Gloo
    loader      torch.utils.data: workers, pinning, prefetch
    step_times  when each step ended, for unhang bench

A training must never notice: nothing here raises, prints or waits without a bound, and a supervisor that is gone is forgotten quietly.
"""
