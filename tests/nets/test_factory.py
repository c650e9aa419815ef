import pytest

from operant.nets import Recurrence, StackedCNN, StackedGRU, StackedMLP, network_for


def test_the_network_is_that_of_the_observation():
    perceptron = network_for((9,), (4, 2), activation="tanh")
    assert isinstance(perceptron, StackedMLP)
    assert perceptron.shapes == [(9, 4), (4, 2)]
    convolutions = network_for((1, 9, 9), (4, 2), activation="relu", encoder="impala")
    assert isinstance(convolutions, StackedCNN)
    assert convolutions.filters[0] == (16, 1, 3, 3)
    both = network_for((81 + 5,), (4, 2), activation="relu", image=(1, 9, 9))
    assert isinstance(both, StackedCNN)
    assert both.dense.shapes == [(16 * 7 * 7 + 5, 4), (4, 2)]
    recurrent = network_for((9,), (4, 2), activation="tanh", recurrence=Recurrence(units=5, steps=3))
    assert isinstance(recurrent, StackedGRU)
    assert (recurrent.encoder.shapes, recurrent.head.shapes) == ([(9, 4), (4, 15)], [(5, 2)])


def test_other_shapes_are_rejected():
    with pytest.raises(ValueError, match=r"networks take vectors \(D,\) or images \(C, H, W\), got \(9, 9\)"):
        network_for((9, 9), (2,), activation="tanh")
    with pytest.raises(ValueError, match=r"recurrent networks take vectors \(D,\), got observations \(1, 9, 9\)"):
        network_for((1, 9, 9), (2,), activation="tanh", recurrence=Recurrence(units=5, steps=3))
    with pytest.raises(ValueError, match=r"recurrent networks take vectors \(D,\), got observations \(1, 9, 9\)"):
        network_for((85,), (2,), activation="tanh", recurrence=Recurrence(units=5, steps=3), image=(1, 9, 9))


@pytest.mark.parametrize("encoder", ["nature", "impala", "small"])
def test_convolutions_without_an_image_are_rejected(encoder):
    for recurrence in (None, Recurrence(units=5, steps=3)):
        with pytest.raises(ValueError, match=rf"encoder='{encoder}' is for images, .* these observations are vectors"):
            network_for((9,), (4, 2), activation="relu", encoder=encoder, recurrence=recurrence)
