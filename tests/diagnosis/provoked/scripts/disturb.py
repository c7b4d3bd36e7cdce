"""Speaks HTTP to a port as soon as something listens there, as a scanner or a metrics scraper does."""

from __future__ import annotations

import socket
import sys
import time

port = int(sys.argv[1])
deadline = time.monotonic() + 30
while time.monotonic() < deadline:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as s:
            s.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            s.recv(100)
            break
    except ConnectionRefusedError:
        time.sleep(0.01)
    except OSError:
        break
