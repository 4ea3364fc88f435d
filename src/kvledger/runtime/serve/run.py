"""Running the server until it is interrupted."""

from __future__ import annotations

from collections.abc import Callable

from kvledger.errors import MissingExtra, SourceError
from kvledger.runtime.driver import Driver
from kvledger.runtime.engine import Engine
from kvledger.runtime.serve.app import make_app

__all__ = ["serve"]


def serve(
    engine: Engine, *, model_name: str, host: str, port: int, ready: Callable[[str], None] = lambda _: None
) -> None:
    """Serve an engine until SIGINT or SIGTERM; ``ready`` is told the address. Port 0 takes any that is free.

    Raises:
        MissingExtra: uvicorn or starlette is not installed.
        SourceError: The address cannot be listened on.
    """
    try:
        import uvicorn
    except ImportError:
        raise MissingExtra.for_package("uvicorn", extra="serve") from None
    import socket

    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise SourceError(f"port {port} cannot be listened on: {error.strerror}", hint="give another --port") from None
    with listening, Driver(engine) as driver:
        app = make_app(engine, driver, model_name=model_name)
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{listening.getsockname()[1]}")
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])
