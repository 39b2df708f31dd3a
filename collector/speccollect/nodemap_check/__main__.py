"""``python -m speccollect.nodemap_check``."""

import sys

from speccollect.nodemap_check.main import main

if __name__ == "__main__":
    sys.exit(main())
