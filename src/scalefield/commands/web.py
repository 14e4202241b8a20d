"""`scalefield web`."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Annotated

import tyro

from scalefield.errors import InputError, MissingExtra
from scalefield.runtime.signals import until_interrupted


@dataclass(frozen=True)
class WebCommand:
    """Open a page where one clicks anchors on a photograph and reads metres everywhere else.

    The page and its JSON API (described at /openapi.json) need no network. Nothing is stored:
    photographs stay in this process's memory until others take their place.
    """

    host: str = "127.0.0.1"
    """Address to listen on. Anything but this machine's own lets others in: there is no login."""
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
    """Photographs held at once; the one used longest ago makes room."""
    max_memory_gb: float = 2.0
    """Memory for photographs and their maps, all together."""

    def run(self) -> None:
        """Serve until interrupted."""
        self.check()
        try:
            import uvicorn

            from scalefield.web.app import create_app
        except ModuleNotFoundError as e:
            if e.name not in ("uvicorn", "starlette"):
                raise
            raise MissingExtra(str(e.name), "web", "the web page") from None
        from scalefield.web.guard import LOCAL_HOSTS
        from scalefield.web.uploads import Limits

        limits = Limits(
            pixels=round(self.max_megapixels * 1e6),
            sessions=self.max_sessions,
            session_bytes=round(self.max_memory_gb * 2**30),
        )
        listening = listen(self.host, self.port)
        address = f"http://{bracketed(self.host)}:{listening.getsockname()[1]}/"
        hosts = (*LOCAL_HOSTS, bracketed(self.host), *self.allow_host)
        config = uvicorn.Config(
            create_app(limits, hosts),
            log_level="warning",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=2,
            server_header=False,
        )
        print(f"scalefield web: {address}  (Ctrl+C ends it)", flush=True)
        if self.open:
            import webbrowser

            webbrowser.open(address)
        with until_interrupted():
            uvicorn.Server(config).run(sockets=[listening])

    def check(self) -> None:
        """Refuse flags that cannot be meant."""
        if not 0 <= self.port <= 65535:
            raise InputError(f"--port must be 0 … 65535, found {self.port}")
        for flag in ("max_megapixels", "max_sessions", "max_memory_gb"):
            if not 0 < getattr(self, flag) < float("inf"):
                name = flag.replace("_", "-")
                raise InputError(f"--{name} must be above zero, found {getattr(self, flag):g}")


def bracketed(host: str) -> str:
    """An IPv6 address as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


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
