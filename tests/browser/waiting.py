"""Wait for what Playwright's own expectations cannot express."""

import time

SECONDS = 100


def until(page, condition):
    """Wait until a condition holds, while the page runs."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "the condition does not hold after 100 seconds"
        page.wait_for_timeout(100)
