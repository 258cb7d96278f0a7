"""Check from one machine whether torchrun can meet the others at HOST:PORT, and which options it needs."""

from __future__ import annotations

import errno
import ipaddress
import os
import queue
import re
import socket
import struct
import threading
from dataclasses import dataclass

NAME_SECONDS = 4.0
CONNECT_SECONDS = 3.0
SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Meeting:
    """How this machine meets the others: `address` and `interface` are its own."""

    endpoint: str
    hosts: bool
    state: str
    address: str
    interface: str
    own_name: str
    # what this machine's own name resolves to, empty if nothing
    own_address: str

    @property
    def gloo_needs_interface(self) -> bool:
        """Return whether gloo, which takes the address of the own name, would take another one."""
        return self.own_address != self.address

    def report(self) -> dict[str, str]:
        """Return what was found, for people."""
        own = self.own_address or "nothing"
        note = "; GLOO_SOCKET_IFNAME names the interface instead" if self.gloo_needs_interface else ""
        return {
            "rendezvous": f"{self.endpoint}, {self.state}",
            "this machine": f"{self.address} on {self.interface or 'an interface that has no name'}",
            "its own name": f"{self.own_name} is {own}{note}",
            "torchrun": self.command(),
        }

    def command(self) -> str:
        """Return the line to type on this machine."""
        before = f"GLOO_SOCKET_IFNAME={self.interface} " if self.gloo_needs_interface else ""
        return (
            f"{before}torchrun --nnodes NODES --nproc-per-node PROCESSES --rdzv-backend c10d "
            f"--rdzv-endpoint {self.endpoint} --rdzv-conf is_host={int(self.hosts)} "
            f"--local-addr {self.address} -m diffwindow train …"
        )


def check_rendezvous(endpoint: str) -> Meeting:
    """Resolve HOST:PORT, try to reach it, and find this machine's address, in ten seconds at most.

    Raise a ValueError of one sentence if processes could not meet there.
    """
    host, _, port_text = endpoint.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port_text) or not 0 < int(port_text) < 2**16:
        raise ValueError(f"--rendezvous {endpoint}: give HOST:PORT, such as node1:29500")
    port, address = int(port_text), _resolve(host)
    if not address:
        raise ValueError(f"{host} is not known to this machine; give its address, or add it to /etc/hosts")
    own_name = socket.gethostname()
    own_address = _resolve(own_name)
    kind = ipaddress.IPv4Address(address)
    if kind.is_unspecified or kind.is_multicast or kind.is_reserved:
        raise ValueError(f"{host} is no machine's address; give that of the first machine")
    loopback = kind.is_loopback
    # the own name may mean loopback here and something else elsewhere
    if loopback and host != own_name:
        raise ValueError(f"{host} is {address} here, which no other machine reaches; give its address")
    # the way to an own address begins there
    hosts = loopback or _outgoing(address) == address
    state = _own_port(port) if hosts else _reach(host, address, port)
    own = _outgoing() if loopback else address if hosts else _outgoing(address)
    if not own:
        raise ValueError(f"this machine has no address but loopback, so no other machine reaches {endpoint}")
    return Meeting(endpoint, hosts, state, own, _interface(own), own_name, own_address)


def _resolve(name: str) -> str:
    """Return the IPv4 address of a name, or nothing; a name server that does not answer is not waited for."""
    answers: queue.Queue[str] = queue.Queue()

    def ask() -> None:
        try:
            answers.put(socket.gethostbyname(name))
        # a label of a name that is empty or too long is a UnicodeError
        except (OSError, UnicodeError):
            answers.put("")

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answers.get(timeout=NAME_SECONDS)
    except queue.Empty:
        return ""


def _own_port(port: int) -> str:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except PermissionError:
            raise ValueError(f"port {port} needs root; choose one above 1023") from None
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return "this machine, where a process listens already: a torchrun, or choose another port"
    return "this machine, where the port is free"


def _reach(host: str, address: str, port: int) -> str:
    """Say whether a process listens at an address of another machine; raise if that does not answer."""
    try:
        socket.create_connection((address, port), CONNECT_SECONDS).close()
    except ConnectionRefusedError:
        return "which answers; no torchrun listens yet"
    except OSError as error:
        reason = (
            "does not answer" if isinstance(error, TimeoutError) else os.strerror(error.errno or 0).lower()
        )
        raise ValueError(
            f"{host} ({address}) port {port}: {reason}; check the address, the cable and the firewall"
        ) from None
    return "where a process listens"


def _outgoing(target: str = "192.0.2.1") -> str:
    """Return this machine's address on the way to a target, by default one in no network; send nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
        except OSError:
            return next(iter(_addresses()), "")
        return str(probe.getsockname()[0])


def _addresses() -> dict[str, str]:
    """Return the interfaces of this machine by address, without loopback; none without Unix's call."""
    try:
        import fcntl
    except ImportError:
        return {}
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue
            address = socket.inet_ntoa(answer[20:24])
            if not ipaddress.ip_address(address).is_loopback:
                found[address] = name
    return found


def _interface(address: str) -> str:
    return _addresses().get(address, "")
