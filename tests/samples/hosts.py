"""Two hosts on one machine: network namespaces, joined by a wire that can be slow, lossy or cut.

The wire is a process that carries Ethernet frames between two TAP devices, because kernels of virtual
machines may lack `tc netem`. Its devices disappear with it.
"""

import fcntl
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
NETNS = Path("/etc/netns")


def missing_for_hosts() -> str | None:
    """Return what this machine lacks to have two hosts, or None."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    for tool, package in (("ip", "iproute2"), ("unshare", "util-linux")):
        if shutil.which(tool) is None:
            return f"there is no {tool}; install {package}"
    return None if Path("/dev/net/tun").exists() else "there is no /dev/net/tun"


@dataclass
class Host:
    """A network namespace with its own host name, /etc/hosts and one interface, eth0."""

    name: str
    address: str
    namespace: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command on the host, with its output in a file, in a process group of its own."""
        rename = 'hostname "$0" 2>/dev/null || echo "$0" > /proc/sys/kernel/hostname; exec "$@"'
        inside = ["unshare", "--uts", "sh", "-c", rename, self.name, *command]
        with log.open("ab") as output:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *inside],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def signal(self, number: int, *, but: str = "") -> None:
        """Send a signal to every process of the host except those whose command contains `but`."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False
        )
        for pid in map(int, listed.stdout.split()):
            with suppress(ProcessLookupError, FileNotFoundError):
                if not but or but not in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, number)

    def kill(self) -> None:
        """End every process of the host at once, as a power cut does."""
        self.signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()
        self.processes.clear()


@dataclass
class Wire:
    """The cable between the hosts."""

    process: subprocess.Popen[bytes]

    def set(self, *, delay: float = 0.0, loss: float = 0.0) -> None:
        """Delay frames by some seconds, and lose a share of them: 1.0 cuts the wire."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{delay} {loss}\n".encode())
        self.process.stdin.flush()


@contextmanager
def two_hosts(
    names: tuple[str, str] = ("alpha", "beta"), *, own_name: str = ""
) -> Iterator[tuple[Host, Host, Wire]]:
    """Yield two hosts and their wire; a host's own name has the address `own_name`, or else that of eth0."""
    ends = [f"dw{os.getpid() % 100000}{side}" for side in "ab"]
    with ExitStack() as stack:
        command = [sys.executable, __file__, *ends]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        stack.enter_context(process)
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        hosts = [Host(name, f"10.77.0.{i}", f"dw-{name}-{os.getpid()}") for i, name in enumerate(names, 1)]
        for host, end in zip(hosts, ends, strict=True):
            _ip("netns", "add", host.namespace)
            stack.callback(_ip, "netns", "del", host.namespace)
            stack.callback(host.kill)
            addresses = {other.name: other.address for other in hosts} | (
                {host.name: own_name} if own_name else {}
            )
            folder = NETNS / host.namespace
            folder.mkdir(parents=True)
            stack.callback(shutil.rmtree, folder)
            lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
            (folder / "hosts").write_text("\n".join(lines) + "\n")
            _ip("link", "set", end, "netns", host.namespace, "name", "eth0")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", host.namespace, "link", "set", device, "up")
        yield hosts[0], hosts[1], Wire(process)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=20)


def _open_tap(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return tap


def carry(ends: Sequence[str]) -> None:
    """Carry frames between two TAP devices until stdin closes; a line of it sets the delay and the loss."""
    taps = [_open_tap(name) for name in ends]
    other = dict(zip(taps, reversed(taps), strict=True))
    print("ready", flush=True)
    delay = loss = 0.0
    chance = random.Random(0)
    # one delay for all frames keeps them in order
    flying: deque[tuple[float, int, bytes]] = deque()
    while True:
        left = max(0.0, flying[0][0] - time.monotonic()) if flying else None
        for source in select.select([0, *taps], [], [], left)[0]:
            if source == 0:
                line = os.read(0, 100).split(b"\n")[-2:]
                if len(line) < 2:
                    return
                delay, loss = map(float, line[0].split())
                continue
            try:
                frame = os.read(source, 65536)
            except OSError:
                continue
            if chance.random() >= loss:
                flying.append((time.monotonic() + delay, other[source], frame))
        while flying and flying[0][0] <= time.monotonic():
            _, target, frame = flying.popleft()
            try:
                os.write(target, frame)
            except OSError:
                continue


if __name__ == "__main__":
    carry(sys.argv[1:])
