"""Encoders and decoders of images: sizes in both directions, independent seeds, and learning."""

import pytest
import torch
from torch.testing import assert_close

from operant.nets import StackedImageDecoder, StackedImageEncoder
from operant.nets.image_coder import Stages

SEEDS = (3, 5)


def parameters(network, seeds=SEEDS):
    return torch.stack([network.initial(torch.Generator().manual_seed(seed)) for seed in seeds])


@pytest.mark.parametrize(
    ("image", "shapes"),
    [
        ((3, 64, 64), ((3, 64, 64), (8, 32, 32), (12, 16, 16), (16, 8, 8), (16, 4, 4))),
        ((1, 10, 10), ((1, 10, 10), (8, 5, 5))),
        ((2, 17, 9), ((2, 17, 9), (8, 8, 4))),
    ],
)
def test_sides_are_halved_and_come_back(image, shapes):
    assert Stages.of(image, 4).shapes == shapes
    encoder, decoder = StackedImageEncoder(image, 4), StackedImageDecoder(6, image, 4)
    drawn = torch.Generator().manual_seed(0)
    images = torch.randint(256, (2, 5, *image), dtype=torch.uint8, generator=drawn)
    embedded = encoder(encoder.views(parameters(encoder)), images)
    channels, height, width = shapes[-1]
    assert embedded.shape == (2, 5, encoder.outputs) == (2, 5, channels * height * width)
    decoded = decoder(decoder.views(parameters(decoder)), torch.randn(2, 5, 6, generator=drawn))
    assert decoded.shape == images.shape
    assert ((decoded >= 0) & (decoded <= 1)).all()


def test_each_seed_has_its_own_networks():
    encoder = StackedImageEncoder((1, 10, 10), 4)
    images = torch.randint(256, (2, 5, 1, 10, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    both, alone = (encoder(encoder.views(parameters(encoder, seeds)), images[-len(seeds) :]) for seeds in (SEEDS, (5,)))
    assert_close(both[1:], alone)
    assert not torch.allclose(both[0], encoder(encoder.views(parameters(encoder, (5,))), images[:1])[0])


def test_an_image_that_is_too_small():
    with pytest.raises(ValueError, match="images need sides of at least 8 pixels, got 7 x 64"):
        StackedImageEncoder((3, 7, 64), 4)


def test_four_images_are_learned_by_heart():
    image, drawn = (1, 10, 10), torch.Generator().manual_seed(0)
    encoder, decoder = StackedImageEncoder(image, 4), StackedImageDecoder(8 * 25, image, 4)
    images = torch.randint(2, (1, 4, *image), generator=drawn).to(torch.uint8) * 255
    both = torch.cat((parameters(encoder, (3,)), parameters(decoder, (3,))), 1).requires_grad_()
    adam = torch.optim.Adam([both], lr=1e-2)
    for _ in range(100):
        first, second = both.split([encoder.size, decoder.size], 1)
        found = decoder(decoder.views(second), encoder(encoder.views(first), images))
        loss = (found - images / 255).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert loss.item() < 0.01
