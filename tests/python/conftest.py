import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("pasa", database=None, derandomize=True)  # the same examples in every run, no files
settings.load_profile("pasa")


@pytest.fixture
def rng(request):
    """Seeded by the test's own name: the same numbers in every run and in every order."""
    return np.random.default_rng(np.frombuffer(request.node.nodeid.encode(), np.uint8))
