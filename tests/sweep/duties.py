"""What worker processes are given to do in tests: functions of a module, so that they can be found there."""

import os
import signal
import time
from pathlib import Path


def shout(payload):
    return payload.upper()


def die_once(payload):
    """Die by SIGKILL the first time this payload, a path, is given; leave a mark there each time."""
    path = Path(payload.decode())
    with path.open("a") as stream:
        stream.write(f"{os.getpid()}\n")
    if len(path.read_text().split()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return b"done"


def die_when_told(payload):
    if payload == b"die":
        os.kill(os.getpid(), signal.SIGKILL)
    return payload


def leave(payload):
    os._exit(3)


def wait_for_mark(payload):
    """Write the process's number beside the path, then wait until the path is there."""
    path = Path(payload.decode())
    path.with_suffix(f".{os.getpid()}").touch()
    while not path.exists():
        time.sleep(0.01)
    return str(os.getpid()).encode()
