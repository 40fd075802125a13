"""What `import grn` and the commands offer: a file each, or a folder, of which api.py has the
public
function and the other files what it computes."""

from grn.runtime.threads import wait_passively

wait_passively()  # before anything here imports torch
