"""A POST of JSON to a URL that is a secret: whoever has it can write to the channel. No part of it is in what is said or raised here.

Not its host either: that of a Lambda function's URL, of Pipedream or of ngrok is all of the secret.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from unhang.runtime.monitoring.sinks.delivery import NotDelivered

_SOCKET_S = 4.0


class Webhook:
    """Raises ValueError for what is no http or https URL."""

    name = "webhook"
    bound_s = 2 * _SOCKET_S

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and parts.username is None
        except (ValueError, AttributeError, TypeError):
            good = False
        # Raised here, and not from what was raised, which may quote it.
        if not good or any(ord(c) <= 32 or ord(c) >= 127 for c in url):
            raise ValueError("webhook is an http or https URL without a user's name (what was given is not shown: it may be a secret)")
        self._url = url

    def __repr__(self) -> str:
        return "Webhook(…)"

    def deliver(self, message: Mapping[str, Any]) -> None:
        """Through the proxy of the environment where it names one. Raises NotDelivered."""
        request = urllib.request.Request(
            self._url, json.dumps(message).encode(), {"Content-Type": "application/json", "User-Agent": "unhang"}, method="POST"
        )
        try:
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=_SOCKET_S):
                return
        except urllib.error.HTTPError as e:
            e.close()
            raise _answered(e.code) from None
        except urllib.error.URLError as e:
            raise NotDelivered(_reason(e.reason)) from None
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise NotDelivered(_reason(e)) from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Elsewhere nobody has promised to keep what is sent."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _answered(code: int) -> NotDelivered:
    phrase = HTTPStatus(code).phrase if code in list(HTTPStatus) else ""
    more = ": redirects are not followed" if 300 <= code < 400 else ""
    return NotDelivered(f"it answered {code} {phrase}".strip() + more, again=code >= 500 or code in (408, 429))


def _reason(error: Any) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not trusted"
    if isinstance(error, TimeoutError):
        return f"no answer within {_SOCKET_S:g} s"
    # An OSError's own text names no URL; what others say may.
    said = getattr(error, "strerror", None)
    return f"{type(error).__name__}: {said}" if isinstance(error, OSError) and said else type(error).__name__
