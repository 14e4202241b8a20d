"""`scalefield web`."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import secrets
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import tyro

from scalefield.errors import InputError, MissingExtra
from scalefield.runtime.signals import until_interrupted


@dataclass(frozen=True)
class WebCommand:
    """Open a page to click anchors on a photograph and read metres everywhere else.

    The page and its JSON API (see docs/web.md) need no network. This process keeps photographs in
    memory until others take their place; the browser keeps the work.
    """

    host: str = "127.0.0.1"
    """Address to listen on. Any address but this machine's own requires a token."""
    token: str | None = None
    """Token that requests must carry, as the printed address does; generated if it is required and
    not given."""
    port: int = 8008
    """Port to listen on; 0 takes a free one."""
    allow_host: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME")
    ] = ()
    """A further name or address by which the page may be opened; may be repeated."""
    open: bool = True
    """Open the page in a browser."""
    max_megapixels: float = 50.0
    """Larger photographs are refused before they are decoded."""
    max_sessions: int = 12
    """Photographs held at once; the least recently used one is dropped."""
    max_memory_gb: float = 4.0
    """Memory for all photographs with their maps, and for the work on one of them."""

    def run(self) -> None:
        """Serve until interrupted."""
        self.check()
        try:
            import segno  # noqa: F401
            import uvicorn

            from scalefield.web.app import create_app
        except ModuleNotFoundError as e:
            if e.name not in ("uvicorn", "starlette", "segno"):
                raise
            raise MissingExtra(str(e.name), "web", "the web page") from None
        from scalefield.web.guard import LOCAL_HOSTS
        from scalefield.web.protocol import GuardedProtocol
        from scalefield.web.server import address_code
        from scalefield.web.uploads import Limits

        limits = Limits(
            pixels=round(self.max_megapixels * 1e6),
            sessions=self.max_sessions,
            session_bytes=round(self.max_memory_gb * 2**30),
        )
        listening = listen(self.host, self.port)
        port = listening.getsockname()[1]
        names = reachable_names(self.host)
        token = self.token
        if token is None:
            token = "" if is_loopback(self.host) else secrets.token_urlsafe(16)
        hosts = (*LOCAL_HOSTS, *names, *map(bracketed, self.allow_host))
        addresses = page_addresses((*names, *self.allow_host), port, token)
        shared = "" if is_loopback(self.host) else addresses[0]
        config = uvicorn.Config(
            create_app(limits, hosts, token, shared),
            http=GuardedProtocol,
            log_level="warning",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=2,
            server_header=False,
        )
        print(f"scalefield web: {addresses[0]}  (Ctrl+C ends it)", flush=True)
        for address in addresses[1:]:
            print(f"                {address}", flush=True)
        if shared and sys.stdout.isatty():
            address_code(shared).terminal(compact=True)
        if self.open:
            import webbrowser

            webbrowser.open(addresses[0])
        with until_interrupted():
            uvicorn.Server(config).run(sockets=[listening])

    def check(self) -> None:
        """Refuse flags out of range."""
        if not 0 <= self.port <= 65535:
            raise InputError(f"--port must be 0 … 65535, found {self.port}")
        if self.token is not None and not re.fullmatch(r"[\w.~-]*", self.token):
            raise InputError("--token takes letters, digits and . _ ~ -")
        for name in self.allow_host:
            if not re.fullmatch(r"[\w.-]+|\[?[0-9a-fA-F:]*::?[0-9a-fA-F:.]*\]?", name) or (
                name.count(":") == 1
            ):
                raise InputError(
                    f"--allow-host takes a name or an address without port or http://, found "
                    f"{name!r}"
                )
        for flag in ("max_megapixels", "max_sessions", "max_memory_gb"):
            if not 0 < getattr(self, flag) < float("inf"):
                name = flag.replace("_", "-")
                raise InputError(f"--{name} must be above zero, found {getattr(self, flag):g}")


def page_addresses(names: Iterable[str], port: int, token: str) -> list[str]:
    """The addresses of the page by these names, with the token if there is one."""
    query = f"?token={token}" if token else ""
    return [f"http://{bracketed(name)}:{port}/{query}" for name in names]


def bracketed(host: str) -> str:
    """The host in the form of a URL: an IPv6 address is in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def reachable_names(host: str) -> tuple[str, ...]:
    """The names by which a server that listens on `host` is reached, the best one first."""
    if host not in ("0.0.0.0", "::"):
        return (bracketed(host),)
    family = socket.AF_INET if host == "0.0.0.0" else socket.AF_INET6
    addresses: list[str] = []
    # No packet is sent: connecting a datagram socket only chooses the way out.
    for target in ("192.0.2.1", "2001:db8::1")[: 1 if family == socket.AF_INET else 2]:
        kind = socket.AF_INET6 if ":" in target else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            addresses.append(probe.getsockname()[0])
    with contextlib.suppress(OSError):
        for *_, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            addresses.append(str(address[0]).partition("%")[0])
    outside = [a for a in dict.fromkeys(addresses) if not is_loopback(a)]
    if family == socket.AF_INET:
        outside = [a for a in outside if ":" not in a]
    return (*map(bracketed, outside), "127.0.0.1")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or a sentence about why there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)  # from here on a browser that comes early waits, and is not refused
    except OSError as e:
        listening.close()
        raise InputError(
            f"cannot listen on {host}:{port} ({e.strerror or e}); another --port, or 0, may do"
        ) from None
    return listening
