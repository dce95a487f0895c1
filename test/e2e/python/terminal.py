"""Runs a command with a terminal as its stdin, stdout and stderr, and types an answer when a text appears.

python3 terminal.py TEXT ANSWER COMMAND ARGS...; what the terminal shows goes to stdout; ends with the command's exit code.
"""

import os
import pty
import sys

text, answer, *command = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(command[0], command)
seen = b""
typed = False
while True:
    try:
        part = os.read(terminal, 65536)
    except OSError:  # the terminal's other side is closed
        break
    if not part:
        break
    seen += part
    if not typed and text.encode() in seen:
        typed = True
        os.write(terminal, answer.encode() + b"\n")
_, status = os.waitpid(pid, 0)
sys.stdout.buffer.write(seen)
sys.stdout.flush()
sys.exit(os.waitstatus_to_exitcode(status))
