"""Makes `configs` and the helpers of `parity/` importable from every test, however pytest is called."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
