"""Wait for what Playwright's own expectations cannot express."""

import time

SECONDS = 100


def until(page, condition):
    """Wait until a condition holds, while the page runs."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "the condition does not hold after 100 seconds"
        page.wait_for_timeout(100)


def route(page, pattern, handler):
    """Give the requests of an open page to a handler, and wait until the page does so.

    Chromium does not wait until an open page has heard of its first route: the request of a key that is pressed right
    away may still go past it.
    """
    page.route("**/?routed", lambda request: request.fulfill(status=203))
    page.route(pattern, handler)
    page.wait_for_function("fetch('/?routed').then((answer) => answer.status === 203)")
