import torch

from operant.nets.agreement import ENOUGH, Agreement


def test_some_equal_numbers_are_no_proof():
    agreement, numbers = Agreement(), [torch.ones(30), torch.zeros(9 * ENOUGH)]
    for _ in range(ENOUGH // 30):
        agreement.compare(numbers, numbers)
        assert not agreement.certain, "the comparison of zeros is not informative"
    agreement.compare(numbers, numbers)
    assert agreement.certain
    other = Agreement(equal=ENOUGH)
    assert other.certain
    other.compare([torch.ones(1)], [torch.ones(1).nextafter(torch.tensor(2.0))])
    assert other.differs
    assert not other.certain
