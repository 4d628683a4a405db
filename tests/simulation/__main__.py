"""The entry of `python -m simulation`. A process of a pool cannot import a `__main__`, so see `campaign`."""

import sys

from simulation.campaign import main

sys.exit(main())
