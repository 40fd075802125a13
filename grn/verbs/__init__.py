"""The functions that `import grn` offers:
AnnData or a path in, a Run, an AnnData or a table out.
"""

from grn.threads import wait_passively

wait_passively()  # before anything here imports torch
