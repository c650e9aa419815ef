import json
import math

from operant.runtime.json_values import finite


def test_numbers_that_json_lacks_become_null():
    value = {"a": [math.nan, 1.0, (math.inf,)], 2: {"b": -math.inf}}
    assert finite(value) == {"a": [None, 1.0, [None]], "2": {"b": None}}
    json.dumps(finite(value), allow_nan=False)
