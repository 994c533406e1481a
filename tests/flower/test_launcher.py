"""Flower's process per message without its imports."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest

from fl_lightning.flower import hand_over
from fl_lightning.flower.launcher import Launcher

OPTIONS = ["--token", "a secret", "--insecure"]


def pass_on(address, path) -> None:
    command = [sys.executable, "-IS", hand_over.__file__, str(address), str(path), *OPTIONS]
    subprocess.run(command, check=True, timeout=30)


def test_options_are_passed_on_to_the_launcher(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        pass_on(tmp_path / "socket", "/nowhere")
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            assert json.load(stream) == OPTIONS


def test_flowers_own_command_runs_if_there_is_no_launcher(tmp_path):
    command = tmp_path / "flwr-clientapp"
    command.write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {tmp_path}/options\n')
    command.chmod(0o700)
    pass_on(tmp_path / "socket", tmp_path)
    assert (tmp_path / "options").read_text() == "|".join([*OPTIONS, ""])


@pytest.mark.slow
def test_the_launcher_runs_flowers_own_command_and_leaves_nothing_behind(capfd):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fl_lightning[flower]'")
    before = os.environ["PATH"]
    with Launcher() as launcher:
        folder = os.path.dirname(shutil.which("flwr-clientapp"))
        subprocess.run(["flwr-clientapp", "--help"], check=True)
        printed, end = "", time.monotonic() + 60
        while "--runtime-api-address" not in printed and time.monotonic() < end:
            time.sleep(0.1)
            printed += capfd.readouterr().out
    assert "usage: flwr-clientapp" in printed
    assert launcher._process.poll() is not None
    assert not os.path.exists(folder)
    assert os.environ["PATH"] == before
