"""Errors that a training catches, logs with their traceback, and survives: what a healthy log may hold that looks like a failure."""

from __future__ import annotations

import importlib
import logging
import socket
import sys
import time
import traceback
import urllib.error
import urllib.request
import warnings

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
log = logging.getLogger("train")


def retried_download() -> None:
    """The first address refuses; the second attempt takes the copy on disk."""
    for attempt in (1, 2, 3):
        try:
            urllib.request.urlopen("http://127.0.0.1:9/weights.bin", timeout=2)  # nothing listens on port 9
        except urllib.error.URLError:
            log.exception("download failed (attempt %d of 3), retrying in 0.1 s", attempt)
            time.sleep(0.1)
    log.warning("falling back to the local copy")


def optional_imports() -> None:
    for name in ("flash_attn", "apex", "xformers", "bitsandbytes", "nvidia_ml_py_missing"):
        try:
            importlib.import_module(name)
        except ImportError as e:
            log.warning("%s is not available (%s), the slow path is used", name, e)
            if name == "apex":
                traceback.print_exc()


def no_gpu() -> None:
    for act in (lambda: torch.ones(1).cuda(), lambda: torch.cuda.get_device_name(0), lambda: torch.zeros(1, device="cuda:7")):
        try:
            act()
        except Exception as e:
            log.warning("no GPU here, the CPU is used: %s: %s", type(e).__name__, e)
    warnings.warn("CUDA is not available, mixed precision is off", RuntimeWarning, stacklevel=1)
    with torch.autocast("cuda", enabled=True):
        torch.ones(2) @ torch.ones(2)
    torch.cuda.amp.GradScaler()


def busy_port() -> None:
    """The usual search for a free port: the first is taken."""
    with socket.create_server(("127.0.0.1", 29555)):
        for port in (29555, 29556):
            try:
                store = dist.TCPStore("127.0.0.1", port, 1, True)
            except Exception as e:
                log.warning("port %d is taken, trying the next one: %s", port, e)
            else:
                store.set("k", "v")
                log.info("the store listens on port %d", port)


def shrinking_batch() -> None:
    """The usual search for a batch that fits: the first one cannot be allocated."""
    for size in (1 << 50, 1 << 10):
        try:
            torch.empty(size)
        except RuntimeError as e:
            log.warning("batch of %d does not fit, trying a smaller one: %s", size, e)
        else:
            log.info("batch of %d fits", size)


def shapes() -> None:
    """A probe that is expected to fail, as libraries make them when they find out what is supported."""
    try:
        torch.ones(2, 3) @ torch.ones(2, 3)
    except RuntimeError:
        log.info("layout is not supported, transposing", exc_info=True)


CHOICES = {f.__name__: f for f in (retried_download, optional_imports, no_gpu, busy_port, shrinking_batch, shapes)}
for name in sys.argv[1:] or CHOICES:
    CHOICES[name]()
model = torch.nn.Linear(8, 1)
for step in range(1, 6):
    loss = model(torch.randn(4, 8)).mean()
    loss.backward()
    log.info("step %d loss %.4f", step, loss.item())
log.info("training finished, exit code 0")
