import re

import pytest
import torch

from operant.ops.shapes import require_shape


def test_tensors_of_the_shape_pass():
    require_shape(torch.Size((2, 3)), "values", targets=torch.zeros(2, 3), old_values=torch.ones(2, 3))


@pytest.mark.parametrize("shape", [(2,), (2, 1), (1, 2, 3), ()])
def test_shapes_that_torch_would_broadcast_are_rejected(shape):
    said = f"targets has shape {shape}, expected (2, 3) as values: reshape it"
    with pytest.raises(ValueError, match=re.escape(said)):
        require_shape(torch.Size((2, 3)), "values", old_values=torch.zeros(2, 3), targets=torch.zeros(shape))
