import torch

from operant.nets import Graph


def test_every_call_does_the_work_once_on_its_own_arguments(graph_device):
    total, weight = torch.zeros(3, device=graph_device), torch.ones(3, device=graph_device)
    calls = []

    def accumulate(x, scale):
        calls.append(0)
        total.add_(x * weight * scale)
        return {"total": total.clone(), "none": None, "both": (x + 1.0, x)}

    graph = Graph(accumulate, graph_device)
    expected = torch.zeros(3, device=graph_device)
    for step in range(5):
        weight.fill_(float(step))
        x = torch.arange(3.0, device=graph_device) + step
        results = graph(x, torch.tensor(2.0))
        expected = expected + 2.0 * step * x
        assert torch.equal(results["total"], expected)
        assert results["none"] is None
        assert torch.equal(results["both"][0], x + 1.0)
        assert torch.equal(results["both"][1], x)
    assert len(calls) == 2
    assert torch.equal(total, expected)


def test_results_are_not_overwritten_by_later_calls(graph_device):
    graph = Graph(lambda x: (x, 2.0 * x), graph_device)
    results = [graph(torch.full((2,), float(i), device=graph_device)) for i in range(4)]
    assert [(one[0].item(), two[0].item()) for one, two in results] == [(i, 2 * i) for i in range(4)]


def test_other_shapes_are_recorded_for_themselves(graph_device):
    graph = Graph(lambda x: x.T.contiguous().sum(0), graph_device)
    for _ in range(3):
        for shape in ((2, 3), (3, 2), (4, 4)):
            x = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(graph_device).T
            torch.testing.assert_close(graph(x), x.sum(1))


def test_a_recording_can_be_forgotten(graph_device):
    held = {"scale": torch.tensor(2.0, device=graph_device)}
    graph = Graph(lambda x: x * held["scale"], graph_device)
    one = torch.ones(2, device=graph_device)
    assert [graph(one)[0].item() for _ in range(3)] == [2.0] * 3
    held["scale"] = torch.tensor(3.0, device=graph_device)
    assert graph(one)[0].item() == 2.0
    graph.forget()
    assert [graph(one)[0].item() for _ in range(3)] == [3.0] * 3
