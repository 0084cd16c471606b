"""Prepares its own process, then replaces itself by a server. It is a script with few imports, so that it starts fast.

::

    python -I -S launch.py PARENT_PID END_SIGNAL keep|hide COMMAND...

On Linux the server gets END_SIGNAL when the thread that started it ends, even by kill -9. Other systems do not send it.
``hide`` enters a user namespace without any mapping: a server that refuses to run as root then starts as root.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000


def main() -> None:
    """Prepare the process, then run the command in it."""
    parent, end_signal, privileges, *command = sys.argv[1:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if privileges == "hide" and libc.unshare(CLONE_NEWUSER) != 0:
            why = os.strerror(ctypes.get_errno())
            sys.exit(f"it refuses to run as root, and user namespaces are not allowed here ({why}): use another user")
        # This follows the namespace, because a change of privileges may clear the end signal.
        if libc.prctl(PR_SET_PDEATHSIG, int(end_signal), 0, 0, 0) != 0:
            sys.exit(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
        if os.getppid() != int(parent):
            sys.exit("the process that wanted the server has ended")
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the parent may block signals, and the server must get them
    os.execv(command[0], command)  # noqa: S606  (becoming the server is the purpose)


if __name__ == "__main__":
    main()
