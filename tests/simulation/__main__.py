"""`python -m simulation`: see `campaign`. A process of a pool cannot import a `__main__`."""

import sys

from simulation.campaign import main

sys.exit(main())
