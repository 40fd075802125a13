"""`grn train` as a file, for launchers that start files: torchrun train.py --config pbmc.yaml, or
srun python.
"""

import sys

from grn.cli.main import run

if __name__ == "__main__":
    run(["train", *sys.argv[1:]])
