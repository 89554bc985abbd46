"""Whom the server answers: hosts, origins, and the token that orders need.

- The `Host` of a request must be an address, `localhost`, this machine's name, or one that the user has allowed. A page
  of the web whose name was made to point to this machine (DNS rebinding) carries the name of that page, and is refused.
- A request with an `Origin` must come from the server's own page. Programs send none.
- Orders need the token. It is compared in constant time, and never logged.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Collection

from penstock.dashboard.views import ErrorView

_LOCAL = frozenset({"localhost", "localhost.localdomain"})


class Guard:
    """Decides about requests. `token` None: no orders at all."""

    def __init__(self, token: str | None, allowed_hosts: Collection[str] = ()) -> None:
        self._token = token
        names = {socket.gethostname(), socket.getfqdn()} if allowed_hosts else {socket.gethostname()}
        self._names = frozenset(name.lower() for name in (*_LOCAL, *names, *allowed_hosts))

    def refusal(self, host: str | None, origin: str | None) -> ErrorView | None:
        """The reason to refuse a request, whatever it asks for; None for a request that is answered."""
        name = host_name(host or "")
        if name is None or not (_is_address(name) or name in self._names):
            return ErrorView(
                error=f"the name {host or ''!r} is not allowed here",
                cure="open the page by its address, or start the pipeline with ui_allowed_hosts=[that name]",
            )
        if origin is not None and origin.partition("://")[2].lower() != (host or "").lower():
            return ErrorView(
                error="requests from pages of another origin are refused",
                cure="use the pipeline's own page, or a program that sends no Origin",
            )
        return None

    def allows_orders(self, authorization: str | None) -> bool:
        kind, _, given = (authorization or "").partition(" ")
        if self._token is None or kind.lower() != "bearer":
            return False
        return hmac.compare_digest(given.strip().encode(), self._token.encode())

    @property
    def no_token(self) -> ErrorView:
        return ErrorView(
            error="this order needs the token of the pipeline",
            cure="start prints the token; it is in the file ui.token of a local checkpoint directory too. The command "
            "line needs none: penstock savepoint DIR, penstock stop DIR [--drain]",
        )


def host_name(host: str) -> str | None:
    """The name in a `Host` header, without its port; None if it is none."""
    if host.startswith("["):
        name, bracket, _ = host[1:].partition("]")
        return name.lower() if bracket else None
    return host.partition(":")[0].lower() or None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
