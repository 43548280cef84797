"""What every test starts from."""

import signal

# A job in a shell's background starts with SIGINT ignored, and hands that on: tests of Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
