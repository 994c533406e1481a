"""SuperNodes on the server's machine ask for messages often."""

import contextlib
import inspect
import re
import sys
import time

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fl_lightning[flower]'")

from flwr.supernode import cli, start_client_internal

from fl_lightning.flower import supernode


def test_flower_waits_three_seconds_for_messages_and_uses_the_clock_for_nothing_else():
    source = inspect.getsource(start_client_internal)
    assert set(re.findall(r"\btime\.\w+\(.*\)", source)) == {"time.sleep(3)", "time.sleep(0.5)"}


def test_a_supernode_on_the_servers_machine_waits_a_fraction_of_a_second(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(sys, "argv", ["supernode.py", "--insecure"])
    monkeypatch.setattr(start_client_internal, "time", time)
    monkeypatch.setattr(supernode, "Launcher", contextlib.nullcontext)
    monkeypatch.setattr(cli, "flower_supernode", lambda: start_client_internal.time.sleep(3))
    supernode.main()
    assert slept == [0.2]
    assert sys.argv == ["flower-supernode", "--insecure"]
