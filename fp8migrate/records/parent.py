"""A worker must not outlive its engine: the next engine starts the same run again, and two writers would mix."""

import ctypes
import os
import signal
import sys
import threading
import time

PARENT_VARIABLE = "FP8MIGRATE_PARENT_PID"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_SECONDS = 1.0


def exit_with_parent() -> None:
    """From now on this process dies (SIGKILL) when the process that started it does. Call it first in a worker's main.

    The parent is named by FP8MIGRATE_PARENT_PID; a worker that a person started by hand has none and is left alone. Run
    directories survive SIGKILL, so nothing gentler is needed, and it reaches a worker that hangs.
    """
    parent = os.environ.get(PARENT_VARIABLE, "")
    if not parent.isdigit():
        return
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0:
        _die_unless_parent_is(int(parent))  # it may have died before the kernel was told
        return
    threading.Thread(target=_watch, args=(int(parent),), daemon=True, name="watch parent").start()


def _watch(parent: int) -> None:
    while True:
        _die_unless_parent_is(parent)
        time.sleep(_POLL_SECONDS)


def _die_unless_parent_is(parent: int) -> None:
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
