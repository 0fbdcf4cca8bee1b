"""Importing the command of the replay server starts nothing."""

import subprocess
import sys

PROGRAM = """
import sys, threading
events = []
sys.addaudithook(lambda event, arguments: events.append(event))
import weft.replay.server.serve
assert "socket.__new__" not in events and "subprocess.Popen" not in events
assert threading.active_count() == 1
"""


def test_importing_the_command_opens_no_socket_and_starts_no_thread_or_process():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
