"""Servers on loopback that answer as they are told, well or badly."""

import socket
import threading
from contextlib import ExitStack, contextmanager


@contextmanager
def answering(answer, *, path=None, context=None):
    """Serve ``answer(connection, request)`` on loopback, or on a Unix socket; yield the URL."""
    if path is None:
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    else:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        listener.listen()
        url = f"unix:{path}"
    listener.settimeout(0.05)
    done = threading.Event()

    def serve():
        while not done.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            threading.Thread(target=handle, args=(connection,), daemon=True).start()

    def handle(plain):
        with ExitStack() as stack:
            connection = stack.enter_context(plain)
            try:
                if context is not None:
                    connection = stack.enter_context(context.wrap_socket(plain, server_side=True))
                request = connection.recv(65536)
                answer(connection, request)
            except OSError:
                return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield url
    finally:
        done.set()
        thread.join()
        listener.close()


def reply(body, *, status="200 OK", headers=""):
    """Return an answer function that sends one body."""
    content = body if isinstance(body, bytes) else body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n{headers}\r\n".encode()
    return lambda connection, request: connection.sendall(head + content)
