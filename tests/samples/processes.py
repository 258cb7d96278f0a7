"""Child processes for tests, forked so that torch need not be imported again, and limits of this one."""

import os
import resource
import signal
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# a forked child has torch loaded already, and no thread of these tests holds a lock while they fork
FORK_WARNING = "ignore:.*multi-threaded, use of fork:DeprecationWarning"


def in_child(action: Callable[[], object]) -> int:
    """Start a child process that does something, and exits with 0 if that went well; return its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        action()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def group_environment(rank: int, size: int, port: int) -> dict[str, str]:
    """Return what torchrun tells a process of a group on one machine."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    return place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}


def free_port() -> int:
    """Return a port that no process uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def small_files(size: int = 1000) -> Iterator[None]:
    """Let no file of this process grow above a size: that fails as a full disk does, without its name."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
