"""The autoencoder of images: mirrored sizes, independent seeds, its loss against torch's modules, and learning."""

import pytest
import torch
from torch.distributions import Bernoulli, Normal, kl_divergence
from torch.testing import assert_close

from operant.nets import StackedAdam
from operant.worlds.autoencoder import StackedVAE


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def images(seeds, count, shape, seed=0):
    drawn = torch.randint(256, (seeds, count, *shape), generator=torch.Generator().manual_seed(seed))
    return drawn.to(torch.uint8)


@pytest.mark.parametrize(
    ("shape", "encoder"),
    [((1, 10, 10), "small"), ((3, 64, 64), "nature"), ((2, 41, 37), "nature"), ((4, 84, 84), "auto")],
)
def test_a_decoder_makes_images_of_the_size_that_was_encoded(shape, encoder):
    vae = StackedVAE(shape, 3, (8,), encoder)
    parameters = vae.initial(generators(0, 1))
    assert parameters.shape == (2, vae.size)
    bound = vae.bind(parameters)
    mean, log_std = bound.encode(images(2, 4, shape))
    assert mean.shape == log_std.shape == (2, 4, 3)
    assert bound.decode(mean).shape == (2, 4, *shape)


def test_seeds_stay_apart():
    vae = StackedVAE((1, 10, 10), 3, (8,), "small")
    both, noise = vae.initial(generators(0, 1)), torch.randn(2, 4, 3, generator=generators(2)[0])
    frames = images(2, 4, (1, 10, 10))
    together = vae.bind(both).loss(frames, noise)
    for seed in range(2):
        alone = vae.bind(both[seed : seed + 1]).loss(frames[seed : seed + 1], noise[seed : seed + 1])
        for part, own in zip(together, alone, strict=True):
            assert_close(part[seed : seed + 1], own)


def test_the_loss_against_modules_of_torch():
    vae = StackedVAE((1, 10, 10), 3, (8,), "small")
    parameters = vae.initial(generators(5))
    parameters += 0.05 * torch.randn(parameters.shape, generator=generators(6)[0])
    bound, frames = vae.bind(parameters), images(1, 4, (1, 10, 10))
    noise = torch.randn(1, 4, 3, generator=generators(7)[0])
    mean, log_std = (part[0] for part in bound.encode(frames))
    (first, one), (second, two) = ((weight[0], bias[0, 0]) for weight, bias in bound.decoder)
    hidden = ((mean + log_std.exp() * noise[0]) @ first + one).relu() @ second + two
    mirror = torch.nn.ConvTranspose2d(16, 1, 3)
    with torch.no_grad():
        mirror.weight.copy_(bound.filters[0][0][0])
        mirror.bias.copy_(bound.filters[0][1][0])
        logits = mirror(hidden.relu().view(4, 16, 8, 8))
    pixels, divergence = bound.loss(frames, noise)
    expected = Bernoulli(logits=logits, validate_args=False).log_prob(frames[0] / 255).sum((1, 2, 3))
    assert_close(pixels[0], -expected)
    assert_close(divergence[0], kl_divergence(Normal(mean, log_std.exp()), Normal(0.0, 1.0)).sum(1))


def test_it_learns_to_say_which_of_two_images_it_is():
    """Two images have one bit of information: the pixels come to cost little, and the latent vector about one bit."""
    vae = StackedVAE((1, 10, 10), 2, (16,), "small")
    parameters = vae.initial(generators(0, 1))
    optimizer, noise = StackedAdam(parameters), generators(3)[0]
    frames = torch.zeros(2, 8, 1, 10, 10, dtype=torch.uint8)
    frames[:, :4, :, 2, 2:5], frames[:, 4:, :, 7, 6:9] = 255, 255
    for _ in range(120):
        leaf = parameters.detach().requires_grad_()
        losses = vae.bind(leaf).loss(frames, torch.randn(2, 8, 2, generator=noise))
        (gradient,) = torch.autograd.grad((losses[0] + losses[1]).mean(1).sum(), leaf)
        optimizer.step(gradient, learning_rate=5e-3)
    pixels, divergence = vae.bind(parameters).loss(frames, torch.randn(2, 8, 2, generator=noise))
    assert (pixels.mean(1) < 0.5).all()
    assert ((divergence.mean(1) > 0.5) & (divergence.mean(1) < 3)).all()


def test_pools_have_no_mirror():
    with pytest.raises(ValueError, match="encoder must be 'nature' or 'small': a decoder cannot mirror the pools"):
        StackedVAE((3, 64, 64), 3, (8,), "impala")
