"""The check of a rendezvous; tests/training/test_hosts.py has it on two hosts."""

import socket

import pytest

from diffwindow.training import rendezvous
from diffwindow.training.rendezvous import Meeting, check_rendezvous


@pytest.mark.parametrize("endpoint", ["node1", "node1:", ":29500", "node1:http", "node1:70000"])
def test_an_endpoint_is_a_host_and_a_port(endpoint):
    with pytest.raises(ValueError, match=r"give HOST:PORT, such as node1:29500"):
        check_rendezvous(endpoint)


def test_a_name_that_is_not_known(monkeypatch):
    monkeypatch.setattr(rendezvous, "_resolve", lambda name: "")
    with pytest.raises(ValueError, match="node1 is not known to this machine; give its address"):
        check_rendezvous("node1:29500")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_other_machines_do_not_reach_loopback(host):
    with pytest.raises(ValueError, match=f"{host} is 127.0.0.1 here, which no other machine reaches"):
        check_rendezvous(f"{host}:29500")


def test_a_machine_whose_own_name_is_loopback(monkeypatch):
    monkeypatch.setattr(rendezvous, "_resolve", lambda name: "127.0.1.1")
    monkeypatch.setattr(rendezvous, "_outgoing", lambda target="": "10.0.0.5")
    monkeypatch.setattr(rendezvous, "_interface", lambda address: "eth7")
    with socket.create_server(("", 0)) as listening:
        meeting = check_rendezvous(f"{socket.gethostname()}:{listening.getsockname()[1]}")
    assert meeting.hosts
    assert "a process listens already" in meeting.state
    assert meeting.command().startswith("GLOO_SOCKET_IFNAME=eth7 torchrun ")
    assert " --rdzv-conf is_host=1 --local-addr 10.0.0.5 " in meeting.command()


def test_gloo_finds_the_interface_if_the_own_name_has_its_address():
    meeting = Meeting("node1:29500", False, "where a process listens", "10.0.0.5", "eth7", "n5", "10.0.0.5")
    assert meeting.command().startswith("torchrun ")
    assert " is_host=0 " in meeting.command()
    assert meeting.report()["its own name"] == "n5 is 10.0.0.5"
