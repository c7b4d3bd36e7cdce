"""Serves one small file over TLS, once, with the certificate given."""

from __future__ import annotations

import http.server
import ssl
import sys


class Files(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"weights")

    def log_message(self, *arguments: object) -> None:
        pass


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2])
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Files)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.timeout = 20
server.handle_request()
