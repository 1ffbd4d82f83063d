"""Settings shared by all tests."""

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

# A slow or busy machine must not turn a property test red: what counts is the answer, not the time.
# Under CI the examples are the same on every run.
settings.register_profile(
    "minikv", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("minikv")

# The models in the tests are so small that threads wait for each other longer than they work. On a busy
# machine that is fifty times slower. Set before anything imports torch; programs that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The GPU kernel is tested by Triton's interpreter where there is no NVIDIA GPU. Triton must know before it is
# first imported, which transformers may do.
if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
