from operant.catalog import bonuses


def test_each_bonus_has_a_description_and_a_source():
    for name, bonus in bonuses.BONUSES.items():
        assert name == name.lower()
        assert bonus.place.startswith("operant.explore:")
        assert bonus.idea
        assert bonus.paper
    assert [name for name, bonus in bonuses.BONUSES.items() if bonus.is_episodic] == ["episodic"]
    assert [name for name, bonus in bonuses.BONUSES.items() if bonus.weight < bonuses.WEIGHT] == ["episodic"]
