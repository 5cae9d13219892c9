"""
``python -m duly`` is ``duly``.
"""

import sys

from duly.cli.main import main

sys.exit(main())
